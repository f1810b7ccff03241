"""Sessions: what goes on is what would have gone on, and what does not fit changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make_models import SPECS, write_model

from aleator import (
    ContextFull,
    FileFormatError,
    Incompatible,
    LanguageModel,
    ParameterError,
    SamplingParams,
    Session,
    load,
)
from aleator.cache.formats.state_file import read_state_file, write_state_file
from aleator.cache.prefix_index import PrefixConfig
from aleator.generate import request_state
from aleator.generate.completion import Request
from aleator.generate.context import Context
from aleator.generate.generation import reader_of
from aleator.generate.session import Rows, load_session
from aleator.models import open_weights, weights
from aleator.models.hub.bundled import bundled_model

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


def _small(tmp_path: Path, name: str) -> LanguageModel:
    """The bundled model, or one with random weights and its vocabulary, with 32 positions."""
    path = tmp_path / f"{name}.gguf"
    if name == "bundled":
        return load(n_threads=1, n_ctx=32)
    if not path.exists():
        spec = replace(SPECS[name], n_vocab=len(load(n_threads=1).vocab))
        write_model(path, spec, tokenizer_from=bundled_model())
    return load(path, n_threads=1, n_ctx=32)


@pytest.mark.parametrize("drawn", [33, 60])
@pytest.mark.parametrize("n_keep", [0, -1])
@pytest.mark.parametrize("name", ["bundled", "gemma3", "mamba", "jamba"])
def test_goes_on_after_a_context_shift(tmp_path: Path, name: str, n_keep: int, drawn: int) -> None:
    options = {**OPTIONS, "context_shift": True, "n_keep": n_keep, "logprobs": 1}
    prompt = list(range(5, 13))

    def model() -> LanguageModel:
        return _small(tmp_path, name)

    whole = model().generate(prompt, max_tokens=drawn + 40, seed=5, **options)
    first = model()
    half = first.generate(prompt, max_tokens=drawn, seed=5, **options)
    held = first.save_session(tmp_path / "s", half)
    assert held == 8 + drawn - 1 - sum(n for _, n in reader_of(half).completion.forgotten)
    second = model()
    session = second.load_session(tmp_path / "s")
    assert session.restored == held, session.why_not
    assert session.tokens == (*half.request.tokens, *half.tokens)
    rest = second.generate(session, max_tokens=20, **options)
    assert rest.tokens == whole.tokens[drawn : drawn + 20]
    assert rest.stats.prompt_tokens + rest.stats.decode_tokens == 20  # nothing else was computed
    second.save_session(tmp_path / "s", rest)
    third = model()
    again = third.load_session(tmp_path / "s")
    end = third.generate(again, max_tokens=20, **options)
    assert end.tokens == whole.tokens[drawn + 20 :]
    # Bit for bit: the keys are those of the first run, not rotated and rounded.
    logprobs = [made.logprobs or [] for made in (rest, end, whole)]
    assert [*logprobs[0], *logprobs[1]] == logprobs[2][drawn:]


@pytest.mark.parametrize("name", ["bundled", "gemma3", "mamba", "jamba"])
def test_a_text_that_parts_near_the_end(tmp_path: Path, name: str) -> None:
    first = _small(tmp_path, name)
    made = first.generate(list(range(5, 25)), max_tokens=7, seed=5, **OPTIONS)
    first.save_session(tmp_path / "s", made)
    second, third = _small(tmp_path, name), _small(tmp_path, name)
    session = second.load_session(tmp_path / "s")
    assert session.restored == 26
    other = [*session.tokens[:20], 7, 8, 9]  # parts after the prompt, whose end was kept
    parted = second.generate(other, max_tokens=4, seed=1, logprobs=1)
    assert parted.tokens == third.generate(other, max_tokens=4, seed=1).tokens
    assert parted.stats.reused_tokens == 20
    # The rows are those of the run that made them.
    again = first.generate(other, max_tokens=4, seed=1, logprobs=1)
    assert parted.logprobs == again.logprobs
    if name in ("mamba", "jamba"):
        state = read_state_file(tmp_path / "s")
        good = bytes(state.sections["states"])
        for states in (
            good[:-4],
            good + good,
            b"\xff" * len(good),
            b"\0\0\xc0\x7f" * (len(good) // 4),
        ):
            sections = {key: bytes(data) for key, data in state.sections.items()}
            write_state_file(tmp_path / "t", state.header, sections | {"states": states})
            session = _small(tmp_path, name).load_session(tmp_path / "t")
            assert session.restored == 0
            assert "states" in session.why_not


def test_after_a_context_shift_without_rows(tmp_path: Path) -> None:
    options = {**OPTIONS, "context_shift": True}
    first = load(n_threads=1, n_ctx=32)
    made = first.generate("ROMEO:", max_tokens=60, seed=5, **options)
    first.save_session(tmp_path / "s", made)
    other = load(n_threads=1, n_ctx=32, type_k="f32")
    session = other.load_session(tmp_path / "s")
    assert session.restored == 0
    assert session.why_not
    rest = other.generate(session, max_tokens=5, **options)
    assert len(rest.tokens) == 5
    assert rest.stats.prompt_tokens >= len(session.remaining) - 1
    with pytest.raises(ContextFull, match=f"the prompt has {len(session.remaining)} tokens"):
        load(n_threads=1, n_ctx=8).generate(session, **options)
    # The positions that keys are rotated to are checked too.
    state = read_state_file(tmp_path / "s")
    for turned in (b"\0" * 8, b"\xff" * len(state.sections["turned"])):
        sections = {key: bytes(data) for key, data in state.sections.items()} | {"turned": turned}
        write_state_file(tmp_path / "t", state.header, sections)
        session = load(n_threads=1, n_ctx=32).load_session(tmp_path / "t")
        assert session.restored == 0
        assert "rotated" in session.why_not
    raw = Context(other, n_ctx=32, k_storage="raw", prefix=PrefixConfig())
    session = load_session(tmp_path / "s", raw, other.identity)
    assert session.restored == 0
    assert "raw" in session.why_not
    assert raw.cache.used == 0


def test_rows_after_a_context_shift_serve_no_other_text(tmp_path: Path) -> None:
    options = {**OPTIONS, "context_shift": True}
    model = load(n_threads=1, n_ctx=32)
    made = model.generate("ROMEO:", max_tokens=60, seed=5, **options)
    model.save_session(tmp_path / "s", made)
    session = model.load_session(tmp_path / "s")
    same = model.generate(session.remaining[:20], max_tokens=2, seed=1)
    assert same.tokens
    assert same.stats.reused_tokens <= 1  # no more than the kept beginning


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


def test_older_arithmetic_computes_it_anew(model: LanguageModel, path: Path) -> None:
    context, identity = model.context(prompt_cache=True), model.identity
    session = load_session(path, context, replace(identity, arithmetic=10**6))
    assert (session.restored, context.cache.used) == (0, 0)
    assert "are of version 2 of the decoder's arithmetic" in session.why_not
    state = read_state_file(path)
    sections = {key: bytes(data) for key, data in state.sections.items()}
    about = {key: text for key, text in state.header["model"].items() if key != "arithmetic"}
    write_state_file(path, {**state.header, "model": about}, sections)
    assert load_session(path, context, identity).restored == len(session.tokens) - 1


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
    other = open_weights(write_model(tmp_path / "other.gguf", SPECS["llama"])).identity()
    context = model.context(prompt_cache=True)
    with pytest.raises(
        Incompatible, match=r"made with the model Aleator .*, and .*other\.gguf"
    ) as error:
        load_session(path, context, other)
    assert len(str(error.value).splitlines()) == 1
    assert context.cache.used == 0


def test_a_model_with_rows_changed_in_the_middle_is_another(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    data = bytearray(bundled_model().read_bytes())
    file.write_bytes(data)
    first = load(file, n_threads=1)
    first.save_session(tmp_path / "s", first.generate("ROMEO:", max_tokens=3, seed=1))
    tensor = first.weights.stored("token_embd.weight").data
    begin = bytes(data).index(tensor[:4096].tobytes()) + len(tensor) // 2
    data[begin : begin + 64] = bytes(byte ^ 1 for byte in data[begin : begin + 64])
    file.unlink()  # the model that is loaded has its own
    file.write_bytes(data)
    with pytest.raises(Incompatible, match="the file has changed since"):
        load(file, n_threads=1).load_session(tmp_path / "s")


def test_a_model_is_read_for_its_fingerprint_only_where_a_session_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(parts: Any) -> str:
        raise AssertionError("the whole model was read")

    monkeypatch.setattr(weights, "fingerprint", never)
    monkeypatch.setattr(weights, "remembered", lambda files, compute, layout: compute())
    model = load(n_threads=1)
    made = model.generate("ROMEO:", max_tokens=3, seed=1)
    assert made.text
    for use in (lambda: model.load_session(path), lambda: model.save_session(path, made, new=True)):
        with pytest.raises(AssertionError, match="was read"):
            use()


def test_files_of_an_older_format_are_refused_in_a_line(model: LanguageModel, path: Path) -> None:
    state = read_state_file(path)
    sections = {key: bytes(data) for key, data in state.sections.items()}
    old = {key: value for key, value in state.header.items() if key != "format"}
    write_state_file(path, old, sections)
    with pytest.raises(
        FileFormatError, match=r"format 1, and this version reads 2 only.*--session-new"
    ) as error:
        model.load_session(path)
    assert len(str(error.value).splitlines()) == 1


ADAPTING: dict[str, dict[str, Any]] = {
    "mirostat": {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "mirostat_v2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "adaptive_p": {"adaptive_target": 0.4, "samplers": "adaptive_p"},
    "windows": {
        "repetition_penalty": 1.2,
        "penalty_last_n": 20,
        "dry_multiplier": 0.8,
        "dry_penalty_last_n": -1,
    },
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05, "temperature": 1.2},
    "grammar": {"grammar": "root ::= ([a-z] | [A-Z] | [ ,.!?;:'] | [\\n])+", "complete_grammar": False},
    "regex": {"regex": "([A-Za-z]{1,9}[ ,.])+", "complete_grammar": False},
}  # fmt: skip


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@pytest.mark.parametrize("name", ADAPTING)
def test_thirty_and_thirty_are_sixty(tmp_path: Path, name: str, numerics: str) -> None:
    options = {"numerics": numerics, "ignore_eos": True, **ADAPTING[name]}
    if numerics == "llama.cpp" and name.startswith("mirostat"):
        options["preset"] = "neutral"
    whole = load(n_threads=1).generate("ROMEO:", max_tokens=60, seed=5, **options)
    first, second = load(n_threads=1), load(n_threads=1)
    half = first.generate("ROMEO:", max_tokens=30, seed=5, **options)
    first.save_session(tmp_path / "s", half)
    session = second.load_session(tmp_path / "s")
    rest = second.generate(session, max_tokens=30, **options)
    assert [*half.tokens, *rest.tokens] == whole.tokens
    assert rest.chain.state_write() == whole.chain.state_write()
    # With other parameters the text goes on, from the tokens alone.
    other = second.generate(session, max_tokens=3, preset="greedy")
    assert other.chain.history[: len(session.tokens)] == list(session.tokens)


def test_what_a_device_drew_with_an_adaptive_sampler_is_not_saved(tmp_path: Path) -> None:
    model, options = load(n_threads=1), {**ADAPTING["mirostat_v2"], "seed": 3}
    made = model.generate("ROMEO:", max_tokens=9, sampling_device="device", **options)
    with pytest.raises(ParameterError, match="what mirostat_v2 learned") as caught:
        model.save_session(tmp_path / "s", made)
    assert caught.value.parameter == "sampling_device"
    assert not (tmp_path / "s").exists()
    plain = model.generate("ROMEO:", max_tokens=9, sampling_device="device", seed=3)
    model.save_session(tmp_path / "s", plain)
    session = model.load_session(tmp_path / "s")
    assert session.chain
    # What the host drew goes on wherever it is wanted.
    whole = model.generate("ROMEO:", max_tokens=18, **options).tokens
    model.save_session(tmp_path / "t", model.generate("ROMEO:", max_tokens=9, **options))
    session = model.load_session(tmp_path / "t")
    rest = model.generate(session, max_tokens=9, sampling_device="device", **options)
    assert rest.tokens == whole[9:]


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
        ("forgotten", 3),
        ("forgotten", [[0, 1, 2]]),
        ("forgotten", [[-1, 2]]),
        ("forgotten", [[0, 0]]),
        ("forgotten", [[0, 1.5]]),
        ("forgotten", [[1, 10**6]]),
        ("forgotten", [[0, 9]]),  # more than held leaves
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
    context = model.context(prompt_cache=True)
    with pytest.raises(FileFormatError):
        load_session(path, context, model.identity)
    assert context.cache.used == 0


def test_rows_that_do_not_fit_the_tokens_are_not_used(model: LanguageModel, path: Path) -> None:
    state = read_state_file(path)
    rows = bytes(state.sections["rows"])
    context = model.context(prompt_cache=True)
    for damaged in (b"", rows[: len(rows) // 2], rows[:40] + b"\xff" * 40 + rows[80:]):
        sections = {"tokens": bytes(state.sections["tokens"]), "rows": damaged}
        write_state_file(path, state.header, sections)
        session = load_session(path, context, model.identity)
        assert session.restored == 0
        assert session.why_not
        assert context.cache.used == 0
    header = {**state.header, "held": state.header["held"] - 3}
    write_state_file(path, header, {**sections, "rows": rows})
    session = load_session(path, context, model.identity)
    assert session.restored == 0
    assert "positions" in session.why_not


def test_the_file_tells_what_it_is(path: Path) -> None:
    header = read_state_file(path).header
    assert header["kind"] == "session"
    assert json.dumps(header)
    assert isinstance(Session((1, 2), 1).extra, dict)


def test_a_session_is_shown_without_its_bytes() -> None:
    shown = repr(Session((1, 2), 1, seed=7, chain=bytes(9)))
    assert "seed=7" in shown
    assert "chain" not in shown
    request = Request((1, 2), SamplingParams(seed=7), chain_state=b"123456789", drawn=1)
    assert "drawn=1" in repr(request)
    assert "123456789" not in repr(request)
    assert repr(Rows(3, b"rows", b"turned", b"states")) == "Rows(n_tokens=3, rotation='')"


@pytest.mark.parametrize("drawn", [0, 2, 5])
def test_a_chain_without_a_state_takes_in_what_was_drawn_as_drawn(drawn: int) -> None:
    taken: list[tuple[list[int], bool]] = []

    class Chain:
        def accept_many(self, tokens: Any, generated: bool = False) -> None:
            taken.append((list(tokens), generated))

    request: Any = SimpleNamespace(tokens=[1, 2, 3, 4, 5], drawn=drawn, chain_state=b"")
    chain: Any = Chain()
    request_state.go_on(chain, request)
    assert taken == [([1, 2, 3, 4, 5][: 5 - drawn], False), ([1, 2, 3, 4, 5][5 - drawn :], True)]
