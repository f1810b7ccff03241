"""Generation under a grammar: what is forced is decoded together, and the text is the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator import samplers as S
from aleator.generate import Batch, Context
from aleator.models.hub.bundled import bundled_model

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first name": {"type": "string", "maxLength": 12},
        "occupation": {"enum": ["nurse", "friar", "gentleman"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["first name", "occupation", "age"],
    "additionalProperties": False,
}
DIALOGUE = """
root ::= "The young lovers of Verona: " name " and " name "; what a pity."
name ::= [A-Z] [a-z]{1,8}"""


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@pytest.mark.parametrize("kind", ["json_schema", "grammar"])
def test_jumping_forward_changes_no_token(
    numerics: str, kind: str, model: aleator.LanguageModel
) -> None:
    for seed in range(4):
        options: dict[str, Any] = {kind: PERSON if kind == "json_schema" else DIALOGUE}
        options |= {"seed": seed, "temperature": 1.3, "numerics": numerics, "logprobs": 2}
        options |= {"repetition_penalty": 1.1, "max_tokens": 90}
        jumped = model.generate("ROMEO:\n", **options)
        plain = model.generate("ROMEO:\n", jump_forward=False, **options)
        assert jumped.text == plain.text
        assert jumped.tokens == plain.tokens
        assert jumped.chain.position == plain.chain.position == len(plain.tokens)
        assert jumped.complete
        assert plain.stats.forced_tokens == 0
        assert jumped.stats.decode_tokens == plain.stats.decode_tokens
        assert jumped.logprobs is not None
        assert plain.logprobs is not None
        for one, other in zip(jumped.logprobs, plain.logprobs, strict=True):
            assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=2e-3)
        if kind == "json_schema":
            assert jumped.stats.forced_tokens > len(plain.tokens) / 3
            value = json.loads(jumped.text)
            assert value["occupation"] in ("nurse", "friar", "gentleman")


@pytest.mark.parametrize("name", ["gemma3", "mamba"])
@pytest.mark.parametrize("prompt_cache", [True, False])
def test_models_with_windows_and_states_jump_too(
    name: str, prompt_cache: bool, tmp_path: Path
) -> None:
    spec = replace(SPECS[name], n_vocab=2048, context=1024)
    path = write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model())
    model = aleator.load(path, n_threads=1, n_ubatch=32, prompt_cache=prompt_cache)
    prompt = [5 + i % 60 for i in range(300)]  # more than the window pool of 256 cells
    for seed in range(3):
        options: dict[str, Any] = {"seed": seed, "temperature": 1.3, "json_schema": PERSON}
        jumped = model.generate(prompt, max_tokens=90, **options)
        plain = model.generate(prompt, max_tokens=90, jump_forward=False, **options)
        assert jumped.tokens == plain.tokens
        assert jumped.stats.forced_tokens > 10
        assert plain.stats.forced_tokens == 0
        both = model.generate_batch([prompt, "ROMEO:"], max_tokens=90, **options)
        assert both[0].text == plain.text
        assert both[0].stats.forced_tokens > 10


def test_by_hand(model: aleator.LanguageModel) -> None:
    """The tokens are those of a chain that is sampled from row by row."""
    from aleator.generate import Batch

    made = model.generate("ROMEO:", json_schema=PERSON, seed=3, temperature=1.0, preset="neutral")
    sampler = S.JSONSchema(PERSON, model.tokenizer)
    chain = S.SamplerChain([S.Temperature(temperature=1.0), S.Dist(seed=3)], grammar=sampler)
    context = model.context()
    rows = context.decode(Batch.one(model.prompt_tokens("ROMEO:")))
    tokens: list[int] = []
    while not chain.finished:
        tokens.append(chain.sample(rows[-1][: len(model.vocab)]))
        rows = context.decode(Batch.one(tokens[-1:]))
    assert made.tokens == tokens
    assert made.stop_reason == "grammar"


def test_stop_strings_and_limits_count(model: aleator.LanguageModel) -> None:
    plain = model.generate("A", grammar=DIALOGUE, seed=2)
    for jump_forward in (True, False):
        options: dict[str, Any] = {
            "seed": 2,
            "jump_forward": jump_forward,
            "complete_grammar": False,
        }
        stopped = model.generate("A", grammar=DIALOGUE, stop="Verona", **options)
        assert stopped.text == "The young lovers of "
        assert (stopped.stop_reason, stopped.complete) == ("stop", False)
        for n in (1, 2, 5, 9):
            short = model.generate("A", grammar=DIALOGUE, max_tokens=n, **options)
            assert short.tokens == plain.tokens[:n]
            assert short.stop_reason == "length"
    ended = model.generate("A", grammar=DIALOGUE, stop="pity.", seed=2)
    assert (ended.stop_reason, ended.complete) == ("stop", False)  # the text lacks its end
    again = model.generate(
        "A", grammar=DIALOGUE, seed=2
    )  # cached prefixes are those that were decoded
    assert again.tokens == plain.tokens


def test_several_at_once(model: aleator.LanguageModel) -> None:
    together = model.generate_batch(
        ["ROMEO:", "JULIET:"], n=2, json_schema=PERSON, seed=9, max_tokens=80
    )
    alone = model.generate("ROMEO:", json_schema=PERSON, seed=9, max_tokens=80)
    assert together[0].tokens == alone.tokens
    assert len({each.text for each in together}) > 1
    for each in together:
        assert set(json.loads(each.text)) == set(PERSON["properties"])


def test_only_the_end_may_follow(model: aleator.LanguageModel) -> None:
    made = model.generate("Q: is it?", grammar='root ::= "yes" | "no"', seed=1)
    assert made.text in ("yes", "no")
    assert (made.stop_reason, made.complete) == ("grammar", True)
    free = model.generate("Q: is it?", grammar='root ::= ("a" | "b")*', seed=1, max_tokens=5)
    assert free.complete
    ignored = model.generate("x", grammar='root ::= "yes"', ignore_eos=True, seed=1)
    assert ignored.text == "yes"


def test_grammars_of_other_kinds(model: aleator.LanguageModel) -> None:
    import re

    made = model.generate("x", regex="[A-Z]{2}[0-9]{3}", seed=1)
    assert re.fullmatch("[A-Z]{2}[0-9]{3}", made.text)
    lark = 'start: "<" WORD ">"\nWORD: /[a-z]{3}/'
    for given in (S.Lark(lark), "%llguidance {}\n" + lark):
        assert re.fullmatch("<[a-z]{3}>", model.generate("x", grammar=given, seed=1).text)


def test_mistakes_are_said_before_anything_is_generated(model: aleator.LanguageModel) -> None:
    with pytest.raises(aleator.GrammarError, match="line 2, column") as error:
        model.generate("x", grammar='root ::= a\na ::= "b" c')
    assert error.value.line == 2
    with pytest.raises(aleator.GrammarError, match="uniqueItems"):
        model.generate("x", json_schema={"uniqueItems": True})
    with pytest.raises(aleator.ParameterError, match="grammar and json_schema are both given"):
        model.generate("x", grammar='root ::= "a"', json_schema={})


def test_runs_of_what_is_forced_double_where_they_are_right_and_halve_where_not(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    decode = Context.decode

    def noted(self: Context, batch: Batch) -> Any:
        sizes.append(len(batch))
        return decode(self, batch)

    monkeypatch.setattr(Context, "decode", noted)
    text = "".join(chr(ord("A") + i % 26) for i in range(240))
    made = model.generate("ROMEO:\n", grammar=f'root ::= "{text}"', seed=1, temperature=0)
    assert made.text == text
    runs = [size - 1 for size in sizes[1:]]  # with each the token that was drawn
    assert runs[:4] == [16, 32, 16, 8]
