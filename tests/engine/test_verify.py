from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

from aleator import Engine, LanguageModel, load
from aleator.core.errors import ParameterError
from aleator.engine.replay import Made, Record
from aleator.engine.verify import MOST_WRONG, WrongToken, verify
from aleator.generate.generation import reader_of

PROMPT = "First Citizen:\nHear me speak.\n"


def record_of(model: LanguageModel, **options: Any) -> Record:
    generation = model.generate(PROMPT, **{"max_tokens": 40, "seed": 4, **options})
    generation.wait()
    return Record.of(generation, model, "1")


def altered(record: Record, **changes: Any) -> Record:
    assert record.made is not None
    return dataclasses.replace(record, made=dataclasses.replace(record.made, **changes))


def made_of(record: Record) -> Made:
    assert record.made is not None
    return record.made


@pytest.mark.parametrize(
    "options",
    [
        {"logprobs": 2},
        {"regex": "[a-z ]{5,40}"},
        {"json_schema": {"type": "object", "properties": {"name": {"type": "string"}}}},
        {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {5: -5.0, 7: 1.5}},
        {"draw": "gumbel", "temperature": 1.5},
        {"spec_type": "ngram", "mirostat": 2},
        {"numerics": "llama.cpp"},
        {"stop": ["\n\n"]},
        {"banned_strings": ["the", "an"]},
        {"guidance_scale": 1.5, "negative_prompt": "JULIET:"},
        {"negative_prompt": PROMPT * 3, "guidance_scale": 1.2, "max_tokens": None, "stop": ["\n\n"]},
        {"temperature": 0},
    ],
)  # fmt: skip
def test_texts_are_verified_and_an_altered_token_is_named(
    model: LanguageModel, options: dict[str, Any]
) -> None:
    record = record_of(model, **options)
    found = verify(record, model)
    assert found.ok
    tokens = list(made_of(record).tokens)
    assert found.checked == len(tokens)
    at = min(9, len(tokens) - 2)
    wrong, tokens[at] = tokens[at], (tokens[at] + 1) % len(model.vocab)
    found = verify(altered(record, tokens=tuple(tokens)), model)
    assert not found.ok
    (only,) = found.wrong
    assert (only.position, only.token, only.drawn) == (at, tokens[at], wrong)
    assert f"its key draws {wrong} there" in only.reason


@pytest.mark.parametrize("name", ["mamba", "jamba", "gemma3", "mixtral"])
def test_states_windows_and_experts(tmp_path: Path, name: str) -> None:
    model = load(write_model(tmp_path / "model.gguf", SPECS[name]), n_ctx=128)
    generation = model.generate([1, 2, 3], max_tokens=50, seed=1, logprobs=0, ignore_eos=True)
    generation.wait()
    record = Record.of(generation, model, "1")
    assert verify(record, model).ok
    tokens = list(made_of(record).tokens)
    tokens[30] = (tokens[30] + 1) % len(model.vocab)
    assert [w.position for w in verify(altered(record, tokens=tuple(tokens)), model).wrong] == [30]


def test_completions_of_one_prompt(model: LanguageModel) -> None:
    for each in model.generate_batch([PROMPT], n=3, max_tokens=20, seed=4):
        each.wait()
        assert verify(Record.of(each, model, "1"), model).ok


def test_the_model_reads_many_tokens_at_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(model, max_tokens=200, ignore_eos=True)
    steps: list[int] = []
    decode = type(model.context()).decode

    def counted(self: Any, batch: Any) -> Any:
        steps.append(len(batch))
        return decode(self, batch)

    monkeypatch.setattr(type(model.context()), "decode", counted)
    assert verify(record, model).checked == 200
    assert len(steps) <= 4


def test_reasons(model: LanguageModel) -> None:
    record = record_of(model, min_p=0.05, temperature=0.8)
    tokens = list(made_of(record).tokens)
    tokens[3], tokens[20] = 0, 10**6
    found = verify(altered(record, tokens=tuple(tokens)), model).wrong
    assert [each.position for each in found] == [3, 20]
    assert found[0].reason.startswith("0 is not among the ")
    assert found[1].reason.startswith("1000000 is no token of the vocabulary")
    other = record_of(model, min_p=0.05, temperature=0.8, seed=5)
    first = verify(dataclasses.replace(other, seed=4), model).wrong[0]
    assert first.drawn == made_of(record).tokens[first.position]


def test_altered_parameters_and_ends(model: LanguageModel) -> None:
    record = record_of(model)
    for change in ({"seed": 5}, {"params": {**(record.params or {}), "temperature": 3.0}}):
        found = verify(dataclasses.replace(record, **change), model)
        assert not found.ok
        assert len(found.wrong) == MOST_WRONG
        assert not found.others
    tokens = made_of(record).tokens
    (cut,) = verify(altered(record, tokens=tokens[:-1]), model).wrong
    assert (cut.position, cut.token, cut.drawn) == (39, None, tokens[-1])
    (longer,) = verify(altered(record, tokens=(*tokens, 7)), model).wrong
    assert longer == WrongToken(40, 7, None, "the text has ended by 'length'; the record goes on")
    assert verify(altered(record, stop_reason="eog"), model).others == (
        "it ended by 'length', not by 'eog'",
    )
    assert verify(altered(record, text_hash="0" * 32), model).others == (
        "the tokens are right, and their text is another one: it was altered",
    )


def test_altered_logprobs(model: LanguageModel) -> None:
    record = record_of(model, logprobs=0)
    logprobs = list(made_of(record).logprobs or ())
    logprobs[6] -= 0.25
    found = verify(altered(record, logprobs=tuple(logprobs)), model)
    assert not found.ok
    assert not found.wrong
    assert found.others[0].startswith("log-probability of token 6: ")
    cut = (made_of(record).logprobs or ())[:-1]
    (missing,) = verify(altered(record, logprobs=cut), model).others
    assert missing == "39 log-probabilities for 40 tokens"


def test_a_text_that_was_cut_off(model: LanguageModel) -> None:
    with Engine(model, n_seq_max=1) as engine:
        generation = engine.submit("ROMEO:", seed=4)
        for _ in generation:
            if len(reader_of(generation).completion.tokens) >= 5:
                generation.cancel()
        record = Record.of(generation, model, "1")
    found = verify(record, model)
    assert found.ok
    assert found.checked == len(made_of(record).tokens)


def test_what_is_refused(model: LanguageModel) -> None:
    record = record_of(model)
    with pytest.raises(ParameterError, match="no text to verify"):
        verify(dataclasses.replace(record, made=None), model)
    with pytest.raises(ParameterError, match="the prompt is another one"):
        verify(record, model, [1, 2])
    with pytest.raises(ParameterError, match="load it with n_ctx"):
        verify(dataclasses.replace(record, n_ctx=10**6), model)


def test_a_text_whose_context_was_shifted(model: LanguageModel) -> None:
    with Engine(model, n_seq_max=1, n_ctx=48) as engine:
        generation = engine.submit(
            PROMPT, context_shift=True, max_tokens=80, seed=2, ignore_eos=True
        )
        generation.wait()
        record = Record.of(generation, model, "1")
    assert generation.stats.context_shifts > 0
    assert verify(record, model).ok
    tokens = list(made_of(record).tokens)
    tokens[70] = (tokens[70] + 1) % len(model.vocab)
    assert [w.position for w in verify(altered(record, tokens=tuple(tokens)), model).wrong] == [70]


def test_layers_in_pytorch() -> None:
    model = load(device_map="cpu:0=0:2,cpu:1=2:6")
    record = record_of(model, logprobs=0, draw="gumbel")
    assert verify(record, model).ok
