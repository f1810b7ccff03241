"""Sessions: what goes on is what would have gone on, and what does not fit changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

from aleator import FileFormatError, Incompatible, LanguageModel, ParameterError, Session, load
from aleator.cache.formats.state_file import read_state_file, write_state_file
from aleator.generate.session import load_session
from aleator.models import open_weights

OPTIONS: dict[str, Any] = {"temperature": 0.9, "repetition_penalty": 1.2, "ignore_eos": True}


@pytest.fixture
def path(model: LanguageModel, tmp_path: Path) -> Path:
    path = tmp_path / "scene.state"
    made = model.generate("ROMEO: But soft", max_tokens=17, seed=5, **OPTIONS)
    assert model.save_session(path, made) == len(made.request.tokens) + 16
    return path


@pytest.mark.parametrize("types", [("f16", "f16"), ("f32", "bf16"), ("q8_0", "q4_0")])
def test_goes_on_as_if_it_had_not_ended(tmp_path: Path, types: tuple[str, str]) -> None:
    k, v = types
    whole = load(n_threads=1, type_k=k, type_v=v).generate(
        "ROMEO:", max_tokens=30, seed=5, **OPTIONS
    )
    first = load(n_threads=1, type_k=k, type_v=v)
    half = first.generate("ROMEO:", max_tokens=13, seed=5, **OPTIONS)
    first.save_session(tmp_path / "s", half)
    second = load(n_threads=1, type_k=k, type_v=v)
    session = second.load_session(tmp_path / "s")
    assert session.tokens == (*half.request.tokens, *half.tokens)
    assert session.n_prompt == len(half.request.tokens)
    rest = second.generate(session, max_tokens=17, **OPTIONS)
    assert [*half.tokens, *rest.tokens] == whole.tokens
    assert half.text + rest.text == whole.text
    assert rest.stats.prompt_tokens == 1
    second.save_session(tmp_path / "s", rest)
    again = first.load_session(tmp_path / "s")
    assert again.tokens == (*whole.request.tokens, *whole.tokens)
    assert again.n_prompt == session.n_prompt


def test_a_prompt_that_begins_like_it_is_computed_from_where_it_parts(path: Path) -> None:
    model = load(n_threads=1)
    session = model.load_session(path)
    made = model.generate([*session.tokens[:9], 7, 8], max_tokens=2, seed=1)
    assert made.tokens
    assert made.stats.reused_tokens == 9


def test_another_type_of_cache_computes_it_anew(path: Path) -> None:
    model = load(n_threads=1, type_k="f32")
    session = model.load_session(path)
    assert session.restored == 0
    assert "f16" in session.why_not or "type" in session.why_not
    made = model.generate(session, max_tokens=2)
    assert made.tokens
    assert made.stats.prompt_tokens == len(session.tokens)


def test_a_context_too_small_computes_it_anew(path: Path) -> None:
    model = load(n_threads=1, n_ctx=16)
    assert model.load_session(path).restored == 0


def test_an_end_of_generation_is_drawn_again(model: LanguageModel, tmp_path: Path) -> None:
    options: dict[str, Any] = {"logit_bias": {model.vocab.eos: 100.0}, "seed": 1}
    made = model.generate("ROMEO:", **options)
    assert made.stop_reason == "eog"
    model.save_session(tmp_path / "s", made)
    session = model.load_session(tmp_path / "s")
    assert session.tokens == made.request.tokens
    assert model.generate(session, **options).tokens == made.tokens


def test_another_model_is_refused(model: LanguageModel, path: Path, tmp_path: Path) -> None:
    files = [write_model(tmp_path / f"{name}.gguf", SPECS[name]) for name in ("llama", "qwen2")]
    prints = [open_weights(file).fingerprint() for file in files]
    assert len({*prints, model.fingerprint}) == 3
    context = model.context(keep_texts=True)
    with pytest.raises(Incompatible, match=prints[0]):
        load_session(path, context, prints[0])
    assert context.cache.used == 0


def test_while_something_is_under_way(model: LanguageModel, path: Path) -> None:
    generation = model.generate("JULIET:", max_tokens=5)
    next(generation)
    with pytest.raises(ParameterError, match="under way"):
        model.load_session(path)
    assert generation.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "other"),
        ("held", -1),
        ("held", 10**6),
        ("held", "3"),
        ("n_prompt", None),
        ("n_prompt", 10**6),
        ("seed", -1),
        ("seed", 1.5),
        ("extra", []),
        ("tokens", b"\1\2"),
        ("tokens", b"\xff\xff\xff\x7f" * 40),
        ("rows", None),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    model: LanguageModel, path: Path, name: str, value: Any
) -> None:
    state = read_state_file(path)
    sections = {key: bytes(data) for key, data in state.sections.items()}
    header = dict(state.header)
    if name in sections:
        sections[name] = value
        if value is None:
            del sections[name]
    else:
        header[name] = value
    write_state_file(path, header, sections)
    context = model.context(keep_texts=True)
    with pytest.raises(FileFormatError):
        load_session(path, context, model.fingerprint)
    assert context.cache.used == 0


def test_rows_that_do_not_fit_the_tokens_are_not_used(model: LanguageModel, path: Path) -> None:
    state = read_state_file(path)
    rows = bytes(state.sections["rows"])
    context = model.context(keep_texts=True)
    for damaged in (b"", rows[: len(rows) // 2], rows[:40] + b"\xff" * 40 + rows[80:]):
        sections = {"tokens": bytes(state.sections["tokens"]), "rows": damaged}
        write_state_file(path, state.header, sections)
        session = load_session(path, context, model.fingerprint)
        assert session.restored == 0
        assert session.why_not
        assert context.cache.used == 0
    header = {**state.header, "held": state.header["held"] - 3}
    write_state_file(path, header, {**sections, "rows": rows})
    session = load_session(path, context, model.fingerprint)
    assert session.restored == 0
    assert "positions" in session.why_not


def test_the_file_tells_what_it_is(path: Path) -> None:
    header = read_state_file(path).header
    assert header["kind"] == "session"
    assert json.dumps(header)
    assert isinstance(Session((1, 2), 1).extra, dict)
