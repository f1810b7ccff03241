"""The npm package in Node against this one: draws, tokens, logits and texts to the bit."""

from __future__ import annotations

import base64
import lzma
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_pretokenizers import named

import aleator
from aleator.models.hub.bundled import bundled_model
from aleator.samplers import SamplingParams
from aleator.samplers.params import PARAMETERS
from aleator.text import Tokenizer, Vocabulary
from tests.javascript.conftest import ROOT, Run, Values
from tests.javascript.random_cases import parameters, random_chains, told_of
from tests.models import builders
from tests.text.vocabularies import CONTROL, USER_DEFINED, sentencepiece

VOCABULARIES = ROOT / "tests" / "data" / "vocab"


def test_random_chains_draw_the_same_tokens(run: Run) -> None:
    cases, expected = zip(*islice(random_chains(38), 300), strict=True)
    assert run("chains", list(cases)) == list(expected)


def test_the_order_of_samplers_is_the_same(run: Run) -> None:
    r = random.Random(39)
    cases: list[dict[str, Any]] = []
    expected: list[Any] = []
    presets = [None, *aleator.samplers.PRESETS]
    while len(cases) < 200:
        given, preset = parameters(r), r.choice(presets)
        try:
            params = SamplingParams.resolve(given, preset) if preset else SamplingParams(**given)
            listed = params.list()
        except aleator.ParameterError:
            continue
        case = {"parameters": given}
        cases.append({**case, "preset": preset} if preset else case)
        expected.append([[each.name, each.neutral] for each in listed])
    assert run("resolved", cases) == expected


def test_values_out_of_range_are_refused(run: Run) -> None:
    cases: list[dict[str, Any]] = []
    for name, p in PARAMETERS.items():
        if p.type in (int, float) and p.low is not None and not np.isinf(p.low):
            cases.append({"parameters": {name: p.low - max(2, abs(p.low))}})
        cases.append({"parameters": {name: {"no": "such value"}}})
    cases.append({"parameters": {"no_such_parameter": 1}})
    cases.append({"parameters": {"numerics": "llama.cpp"}})
    for case, result in zip(cases, run("resolved", cases), strict=True):
        if case["parameters"] == {"logit_bias": {"no": "such value"}} or isinstance(result, dict):
            assert result["error"] == "ParameterError", case
            assert next(iter(case["parameters"])) in result["message"]
        else:
            pytest.fail(f"{case} is taken: {result}")


def _texts() -> list[str]:
    strings = (VOCABULARIES / "strings.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    more = [
        "<|eot_id|> a</s>",
        "naïve\u0085x\ufeffy",
        "1234567 ９９",
        "😀 ok\r\n\n  x",
        "don't WE'LL",
        "\u088f's \u1c89's",  # new in Unicode 17 and in 16, which Python has here
        "",
        " ",
    ]
    return [*strings, *more]


def test_texts_have_the_same_tokens(run: Run, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = []
    expected: list[Any] = []
    files = {each.stem: lzma.decompress(each.read_bytes()) for each in VOCABULARIES.glob("*.xz")}
    files["kimi-k2.gguf"] = named(files["gpt-2.gguf"], "kimi-k2")
    for name, data in sorted(files.items()):
        path = tmp_path / name
        path.write_bytes(data)
        tokenizer = Tokenizer(Vocabulary.from_gguf(path))
        cases.append({"path": str(path), "texts": _texts()})
        expected.append(
            [
                [
                    ids := tokenizer.encode(text, parse_special=True),
                    tokenizer.encode(text),
                    tokenizer.decode(ids),
                    sorted(tokenizer.vocab.eog),
                ]
                for text in _texts()
            ]
        )
    assert len(cases) == 5
    assert run("tokens", cases) == expected


@pytest.mark.parametrize("name", ["my-PHI3", "other"])
def test_special_tokens_take_the_same_white_space(run: Run, tmp_path: Path, name: str) -> None:
    added = (("<|user|>", CONTROL), ("<|endoftext|>", CONTROL), ("<x>", USER_DEFINED))
    fields = sentencepiece(added=added) | {"general.name": name}
    path = builders.write_gguf(tmp_path / "phi.gguf", fields, {})
    texts = [
        "ab<|user|> \n\t\v\f\rab <x>\u00a0 <|endoftext|>\nab<x>  ",
        "<|user|>\n<|user|>\u2028\ufeffab</s> ab",
    ]
    [told] = run("tokens", [{"path": str(path), "texts": texts}])
    tokenizer = Tokenizer(Vocabulary.from_gguf(path))
    own = [[tokenizer.encode(each, parse_special=True), tokenizer.encode(each)] for each in texts]
    assert [each[:2] for each in told] == own


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_vocabularies_of_encoders_are_refused(run: Run, tmp_path: Path, model: str) -> None:
    fields = sentencepiece() | {"tokenizer.ggml.model": model}
    path = builders.write_gguf(tmp_path / "encoder.gguf", fields, {})
    [told] = run("tokens", [{"path": str(path), "texts": []}])
    assert told["error"] == "UnsupportedModel"
    assert (
        f"tokenizer.ggml.model is '{model}'; supported are llama, gpt2, gemma4" in told["message"]
    )


def test_prompts_between_two_texts_are_the_same(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "qwen2.gguf"
    path.write_bytes(lzma.decompress((VOCABULARIES / "qwen2.gguf.xz").read_bytes()))
    marks = {"fim_pre": 11, "fim_suf": 12, "fim_mid": 13}
    case = {"path": str(path), "prompt": "def f(", "suffix": "):\n<|im_end|>"}
    tokens, refused = run("infilled", [{**case, "marks": marks}, case])
    tokenizer = Tokenizer(Vocabulary.from_gguf(path))
    own = [tokenizer.encode(case[name], add_special=False) for name in ("prompt", "suffix")]
    assert tokens == [11, *own[0], 12, *own[1], 13]
    assert refused["error"] == "ParameterError"
    assert "suffix" in refused["message"]


def test_the_bundled_model_writes_the_same_texts(run: Run) -> None:
    path, model = bundled_model(), aleator.load()
    cases: list[dict[str, Any]] = []
    expected: list[Any] = []
    options: list[dict[str, Any]] = [
        {"seed": 4}, {"seed": 5, "temperature": 1.2, "top_p": 0.9}, {"seed": 6, "dry_multiplier": 0.8},
        {"seed": 7, "stop": ["\n\n"]}, {"seed": 8, "preset": "greedy"}, 
        {"seed": 9, "grammar": 'root ::= "yes" | "no" [a-z]+'},
        {"seed": 10, "grammar": 'root ::= "n\u00e9\U0001f600!"'},
        {"seed": 11, "grammar": 'root ::= "n\u00e9\U0001f600!"', "stop": ["e", "\u00e9\U0001f600"]},
    ]  # fmt: skip
    # The text ends within a character, whose bytes come as U+FFFD; a stop string may be in that.
    first, second, *_ = model.tokenizer.encode("\U0001f600", add_special=False)
    cut = {
        "seed": 12,
        "allowed_token_ids": [first, second],
        "stop_token_ids": [second],
        "min_tokens": 1,
    }
    cut["logit_bias"] = {second: 100.0}
    options += [cut, cut | {"stop": ["\ufffd"]}, {"seed": 13}]
    for given in options:
        # The last one's prompt is read in several steps.
        prompt = "ROMEO:" if given is not options[-1] else "ROMEO:\nWhat light?\n" * 20
        cases.append({"path": str(path), "prompt": prompt, "options": {**given, "maxTokens": 60}})
        expected.append(told_of(model.generate(prompt, max_tokens=60, **given)))
    assert run("text", cases) == expected


def test_a_step_is_explained_and_draws_what_it_says(values: Values) -> None:
    row = np.random.default_rng(1).standard_normal(200, np.float32)
    code = """
      const chain = new Chain({ seed: 3, top_k: 9, temperature: 0.5 })
      const { stages, token } = explain(chain, Float32Array.from(given))
      return { stages, token, drawn: chain.sample(Float32Array.from(given)) }
    """
    [told] = values(code, given=row.tolist())
    left = {stage["sampler"]: stage["left"] for stage in told["stages"]}
    assert left["logits"] == 200
    assert left["top_k"] == 9
    assert told["token"] == told["drawn"]
    assert sum(each["p"] for each in told["stages"][0]["candidates"]) < 1


def test_hostile_files_are_refused(run: Run) -> None:
    raw, entry = builders.raw_gguf, builders.entry
    sound = raw([entry("general.architecture", 8, builders.string("llama"))])
    tensors = [
        builders.tensor("a", [2**62, 2**62]),
        builders.tensor("a", [32], 0, 7),  # out of line
        builders.tensor("a", [320]),  # past the end
    ]
    damaged = [
        b"",
        b"GGUF",
        b"vers",
        sound[:20],
        sound[:-5],
        sound,
        raw(version=9),
        raw(n_entries=2**60),
        raw(n_tensors=2**40),
        raw([entry("a", 8, b"\xff" * 8)]),
        raw([entry("a", 9, builders.array(9, 1, b""))]),
        *(raw(tensors=[each]) for each in tensors),
    ]
    results = run("hostile", [{"bytes": base64.b64encode(each).decode()} for each in damaged])
    assert {result["error"] for result in results} <= {"FileFormatError", "UnsupportedModel"}
    assert all(result["message"] for result in results)
