from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from attacks.fields import ODD

from aleator import Engine, LanguageModel, SamplingParams, load
from aleator.core.errors import AleatorError, FileFormatError, ParameterError
from aleator.engine.replay import Made, Record, differences, hash_of_tokens, make_again
from aleator.generate.generation import Generation, reader_of
from aleator.samplers import Grammar
from aleator.samplers.as_json import params_as_json, params_from_json

PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "logit_bias": {5: -math.inf, 7: 1.5}, "stop_token_ids": [3]},
    {"dry_multiplier": 1.0, "dry_sequence_breakers": ["\n"], "bad_words": ["x"]},
    {"mirostat": 2},
    {"adaptive_target": 0.5},
    {"allowed_token_ids": [1, 2], "numerics": "llama.cpp"},
    {"grammar": 'root ::= "a" | "b"'},
    {"json_schema": {"type": "object"}},
    {"regex": "[0-9]+"},
)


@pytest.fixture
def made(model: LanguageModel) -> Generation:
    generation = model.generate("ROMEO:", max_tokens=12, seed=2**63 + 5, logprobs=1)
    generation.wait()
    return generation


def through_json(record: Record) -> Record:
    return Record.from_json(json.loads(json.dumps(record.as_json(), allow_nan=False)))


@pytest.mark.parametrize("values", PARAMS)
def test_parameters_come_back_from_json(values: dict[str, Any]) -> None:
    params = SamplingParams(**values, seed=9)
    written = json.dumps(params_as_json(params), allow_nan=False)
    assert params_from_json(json.loads(written), 9) == params


def test_a_grammar_of_users_code_is_refused() -> None:
    class Mine(Grammar):
        pass

    params = SamplingParams(grammar=Mine('root ::= "a"'), seed=1)
    with pytest.raises(ParameterError, match="cannot be written into a record"):
        params_as_json(params)


def test_a_record_comes_back_from_json(model: LanguageModel, made: Generation) -> None:
    record = Record.of(made, model, "1.2", given={"prompt": "ROMEO:"})
    assert through_json(record) == record
    assert record.seed == 2**63 + 5
    assert record.prompt_hash == hash_of_tokens(made.request.tokens)
    impossible = dataclasses.replace(Made.of(made), logprobs=(-math.inf, -0.5))
    assert through_json(dataclasses.replace(record, made=impossible)).made == impossible


def test_a_text_is_made_again_to_the_bit(model: LanguageModel, made: Generation) -> None:
    record = through_json(Record.of(made, model, "1.2"))
    assert record.made is not None
    assert make_again(record, model) == record.made
    assert differences(record.made, make_again(record, model)) == []


def test_a_text_with_a_negative_prompt_is_made_again(model: LanguageModel) -> None:
    options: dict[str, Any] = {"guidance_scale": 1.5, "negative_prompt": "JULIET: I know."}
    made = model.generate("ROMEO:", max_tokens=12, seed=3, **options)
    made.wait()
    record = through_json(Record.of(made, model, "1.2"))
    assert make_again(record, model) == record.made


@pytest.mark.parametrize(
    "options",
    [
        {"completion_of": 3},
        {"regex": "[a-z ]{5,40}"},
        {"stop": ["\n\n"], "temperature": 1.5},
        {"context_shift": True, "max_tokens": 60},
        {"echo": True, "max_tokens": None},
        {"spec_type": "ngram", "mirostat": 2},
        {"ignore_eos": True, "min_tokens": 3, "bad_words": ["the"]},
    ],
)
def test_texts_of_a_busy_engine_are_made_again(
    model: LanguageModel, options: dict[str, Any]
) -> None:
    prompt = "First Citizen:\nHear me speak.\n"
    if "completion_of" in options:
        batch = model.generate_batch([prompt], n=options["completion_of"], max_tokens=12, seed=4)
        records = [Record.of(each, model, "1.2") for each in batch if each.wait()]
        assert len({record.made for record in records}) == 3
    else:
        with Engine(model, n_seq_max=4, n_ctx=160) as engine:
            engine.submit(prompt, max_tokens=10, seed=1)
            generation = engine.submit(prompt, **{"max_tokens": 24, "seed": 4, **options})
            engine.submit("JULIET:", max_tokens=10, seed=1)
            generation.wait()
            records = [Record.of(generation, model, "1.2")]
    for record in map(through_json, records):
        assert record.made is not None
        assert make_again(record, model) == record.made


def test_a_text_that_was_cut_off_is_compared_as_far_as_it_came(model: LanguageModel) -> None:
    with Engine(model, n_seq_max=1) as engine:
        generation = engine.submit("ROMEO:", seed=4)
        for _ in generation:
            if len(reader_of(generation).completion.tokens) >= 5:
                generation.cancel()
        record = Record.of(generation, model, "1.2")
    assert record.made is not None
    assert record.made.stop_reason == "interrupted"
    assert differences(record.made, make_again(record, model)) == []


def test_a_header_is_enough_with_the_prompt(model: LanguageModel, made: Generation) -> None:
    record = Record.of(made, model, "1.2", given={"prompt": "ROMEO:"})
    header = record.header()
    assert header.isascii()
    assert "\n" not in header
    short = Record.from_json(json.loads(header))
    assert short.prompt is None
    assert short.made is None
    with pytest.raises(ParameterError, match="--prompt-file"):
        short.request()
    with pytest.raises(ParameterError, match="the prompt is another one"):
        short.request([1, 2])
    assert make_again(short, model, made.request.tokens) == record.made


def test_a_header_stays_short(model: LanguageModel) -> None:
    with Engine(model, n_seq_max=1) as engine:
        stop = [f"stop {i}" * 20 for i in range(40)]
        generation = engine.submit("ROMEO:", max_tokens=1, stop=stop)
        generation.wait()
    header = Record.of(generation, model, "1.2").header()
    assert len(header) < 1000
    short = Record.from_json({k: v for k, v in json.loads(header).items() if k != "params_hash"})
    with pytest.raises(ParameterError, match="only the hash of its parameters"):
        short.request(generation.request.tokens)


def test_differences_are_named(made: Generation) -> None:
    then = Made.of(made)
    tokens = (*then.tokens[:3], 7, *then.tokens[4:])
    other = dataclasses.replace(then, tokens=tokens)
    assert differences(then, other) == [f"token 3 of the text: {then.tokens[3]} then, 7 now"]
    assert then.logprobs is not None
    logprobs = (*then.logprobs[:2], math.nextafter(then.logprobs[2], 0), *then.logprobs[3:])
    found = differences(then, dataclasses.replace(then, logprobs=logprobs))
    assert len(found) == 1
    assert found[0].startswith("log-probability of token 2: ")
    shorter = dataclasses.replace(then, logprobs=then.logprobs[:5])
    assert differences(shorter, then) == ["5 log-probabilities then, 12 now"]
    found = differences(then, dataclasses.replace(then, tokens=then.tokens[:4], stop_reason="eog"))
    assert found[0].endswith("then, the end now")
    assert found[1] == "why it ended: 'length' then, 'eog' now"
    assert "their text is not" in differences(then, dataclasses.replace(then, text_hash="x"))[0]


def test_odd_values_anywhere_are_refused_or_made(model: LanguageModel) -> None:
    """A record may come from anybody: what is wrong with it is an error of the package's."""
    generation = model.generate(
        "ROMEO:", max_tokens=2, seed=1, logprobs=0, grammar="root ::= [a-z ]+", logit_bias={5: 1.0}
    )
    generation.wait()
    record = json.loads(json.dumps(Record.of(generation, model, "1.2", given={"a": 1}).as_json()))
    constraint = ("params", "grammar")
    places = [(name,) for name in record] + [
        *((outer, name) for outer in ("params", "options", "made") for name in record[outer]),
        *((*constraint, name) for name in record["params"]["grammar"]),
        *(("params", name) for name in ("mirostat", "regex", "seed", "dry_sequence_breakers")),
        *(("options", name) for name in ("multi_step", "guidance_scale", "banned_strings", "stop")),
    ]
    refused = 0
    for *outer, name in places:
        for odd in ODD:
            altered = json.loads(json.dumps(record))
            functools.reduce(dict.__getitem__, outer, altered)[name] = odd
            try:
                model.request_states.make([Record.from_json(altered).request()])
            except AleatorError:
                refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aleator_replay": 99}, "has form 99"),
        ({"prompt": ["x"]}, "damaged"),
        ({"made": {"tokens": [1]}}, "damaged"),
        ({"made": "a text"}, "made is 'a text'"),
        ({"params": 3}, "damaged"),
        ({"seed": "x"}, "damaged"),
        ({"numerics": "1"}, "damaged"),
        ({"numerics": 1.9}, "damaged"),
        ({"chain_state": "?"}, "damaged"),
    ],
)
def test_damaged_records_are_refused(
    model: LanguageModel, made: Generation, change: dict[str, Any], message: str
) -> None:
    value = {**Record.of(made, model, "1.2").as_json(), **change}
    with pytest.raises(FileFormatError, match=message):
        Record.from_json(value)
    with pytest.raises(FileFormatError, match="no record"):
        Record.from_json([value])


def test_a_smaller_context_is_refused(model: LanguageModel, made: Generation) -> None:
    record = dataclasses.replace(Record.of(made, model, "1.2"), n_ctx=model.n_ctx + 1)
    with pytest.raises(ParameterError, match="load it with n_ctx="):
        make_again(record, model)


def test_a_record_of_older_numerics_is_made_again_only_where_they_agree(
    model: LanguageModel,
) -> None:
    cases: list[tuple[dict[str, Any], int]] = [({"temperature": 0.8}, 1), ({"typical_p": 0.5}, 2)]
    for values, since in cases:
        generation = model.generate("ROMEO:", max_tokens=4, seed=3, **values)
        generation.wait()
        record = dataclasses.replace(Record.of(generation, model, "0.1.0"), numerics=1)
        if since == 1:
            assert make_again(record, model) == record.made
        else:
            with pytest.raises(
                ParameterError, match=r"typical_p draw otherwise: .* aleator 0\.1\.0"
            ):
                make_again(record, model)
        with pytest.raises(ParameterError, match="numerics=99"):
            make_again(dataclasses.replace(record, numerics=99), model)


def test_a_record_that_names_no_arithmetic_is_of_the_first_version(
    model: LanguageModel, made: Generation
) -> None:
    value = Record.of(made, model, "0.1.0").as_json()
    del value["arithmetic"]
    assert Record.from_json(value).arithmetic == 2


def test_a_text_after_a_shift_cannot_be_made_again(model: LanguageModel, tmp_path: Path) -> None:
    options: dict[str, Any] = {"context_shift": True, "ignore_eos": True, "seed": 1}
    small = load(n_ctx=64, n_threads=1)
    first = small.generate("ROMEO:", max_tokens=90, **options)
    small.save_session(tmp_path / "s", first)
    again = small.generate(small.load_session(tmp_path / "s"), max_tokens=4, **options)
    with pytest.raises(ParameterError, match="whose context an earlier generation has shifted"):
        Record.of(again, small, "1")
