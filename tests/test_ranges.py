"""What other engines take for "off": where it is taken, and where not."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pytest

from aleator import DialectWarning, SamplingParams
from aleator.cli import main
from aleator.cli.arguments import Parser
from aleator.cli.sampling import add_sampling_options, sampling_arguments
from aleator.core.errors import ParameterError
from aleator.core.options import declarations
from aleator.core.parameter import ENGINES, Off, Parameter, translated
from aleator.generate.options import GenerateOptions
from aleator.integrations.settings import sampling_params
from aleator.samplers.as_json import params_from_json
from aleator.samplers.params import ALL, PARAMETERS, in_range

NUMBERS = [p for p in PARAMETERS.values() if p.type in (int, float)]


def example(p: Parameter, off: Off) -> float:
    """A number that an engine takes for off: not the one that is allowed everywhere."""
    if not isinstance(off.where, str):
        return off.where
    step = 1 if p.type is int else 0.25
    bound = p.low if off.where == "below" else p.high
    assert bound is not None
    return p.type(bound - step if off.where == "below" else bound + step)  # type: ignore[no-any-return]


OFFS = [(p, off, value) for p in NUMBERS for off in p.off if p.outside(value := example(p, off))]
each = pytest.mark.parametrize(
    ("p", "off", "value"),
    OFFS,
    ids=lambda x: getattr(x, "name", None) or str(getattr(x, "where", x)),
)


def takes(p: Parameter, value: float, engine: str) -> bool:
    """Whether an engine takes a number for off, by the declaration."""
    where = p.outside(value)
    return any(engine in off.engines and off.where in (where, value) for off in p.off)


def test_what_is_declared() -> None:
    declared = {p.name for p, _, _ in OFFS}
    assert declared >= {
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "top_n_sigma",
        "xtc_threshold",
    }
    for p, off, value in OFFS:
        assert p.outside(value)
        assert p.check(off.value) == off.value
        assert off.engines
        assert set(off.engines) <= set(ENGINES)


BOUNDED = [p for p in {**ALL, **declarations(GenerateOptions)}.values() if p.most is not None]


def test_lists_have_a_bound() -> None:
    assert {p.name for p in BOUNDED} == {
        "stop",
        "banned_strings",
        "banned_regex",
        "bad_words",
        "dry_sequence_breakers",
    }
    for p in BOUNDED:
        most = p.most or 0
        assert p.as_json_schema()["maxItems"] == most
        assert len(p.check([f"w{i}" for i in range(most)])) == most
        with pytest.raises(ParameterError, match=f"give at most {most}") as refused:
            p.check([f"w{i}" for i in range(most + 1)])
        assert refused.value.parameter == p.name
    for name in ("stop", "banned_strings"):
        with pytest.raises(ParameterError, match="a text of 1001 characters") as refused:
            GenerateOptions.of({name: "x" * 1001})
        assert refused.value.parameter == name


@each
def test_in_python_it_is_refused(p: Parameter, off: Off, value: float) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{p.name: value})  # type: ignore[arg-type]
    for part in (f"{p.name}={value!r}", p.interval, f"default: {p.neutral!r}"):
        assert part in str(caught.value)


@each
@pytest.mark.parametrize("engine", ENGINES)
def test_adapters_take_what_their_engine_takes(
    p: Parameter, off: Off, value: float, engine: str
) -> None:
    if not takes(p, value, engine):
        with pytest.raises(ParameterError, match=p.name):
            sampling_params({p.name: value}, engine)
        return
    with pytest.warns(DialectWarning) as told:
        made = sampling_params({p.name: value}, engine)
    assert made == SamplingParams(**{p.name: off.value})  # type: ignore[arg-type]
    assert len(told) == 1
    for part in (f"{p.name}={value!r} is off in {engine}", p.interval, off.effect):
        assert part in str(told[0].message)


@each
def test_flags_take_what_llama_cpp_takes(p: Parameter, off: Off, value: float) -> None:
    parser = Parser("generate", "write text", "")
    add_sampling_options(parser)
    for flag in p.flags:
        arguments = parser.parse([f"{flag}={value}"])
        assert arguments is not None
        arguments.no_escape = False  # of another group of options
        if takes(p, value, "llama.cpp"):
            with pytest.warns(DialectWarning, match=p.name):
                assert sampling_arguments(arguments) == {p.name: off.value}
        else:
            with pytest.raises(ParameterError, match=p.name):
                sampling_arguments(arguments)


@each
def test_a_models_file_may_speak_of_any_engine(p: Parameter, off: Off, value: float) -> None:
    metadata = {p.metadata or p.name: value}
    with pytest.warns(DialectWarning, match="of the model's file"):
        made = SamplingParams.resolve({}, metadata=metadata)
    assert made.values()[p.name] == off.value


@each
def test_records_of_older_versions_are_read_without_a_word(
    p: Parameter, off: Off, value: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert params_from_json({p.name: value}, seed=1).values()[p.name] == off.value


@each
@pytest.mark.parametrize(
    "dialect", ["llama", "infill", "ollama", "chat", "completions", "anthropic"]
)
def test_requests_take_what_their_dialect_takes(
    p: Parameter, off: Off, value: float, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("starlette")
    from aleator.server.dialects import (
        anthropic_input,
        llama_fields,
        llama_infill,
        ollama_input,
        openai_chat,
        openai_completions,
    )
    from aleator.server.fields import Fields

    known: dict[str, tuple[Fields, dict[str, Any], tuple[str, ...]]] = {
        "llama": (llama_fields.FIELDS, {"prompt": "a"}, ("llama.cpp",)),
        "infill": (llama_infill.FIELDS, {"input_prefix": "a", "input_suffix": ""}, ("llama.cpp",)),
        "ollama": (ollama_input.OPTIONS, {}, ("llama.cpp",)),
        "chat": (openai_chat.FIELDS, {"messages": []}, ("llama.cpp", "vLLM")),
        "completions": (openai_completions.FIELDS, {"prompt": "a"}, ("llama.cpp", "vLLM")),
        "anthropic": (
            anthropic_input.FIELDS,
            {"max_tokens": 1, "messages": []},
            ("llama.cpp", "vLLM"),
        ),
    }
    fields, own, engines = known[dialect]
    strict = {
        "chat": ("temperature", "top_p"),
        "completions": ("temperature", "top_p"),
        "anthropic": ("temperature", "top_p", "top_k"),
    }.get(dialect, ())
    if p.name not in fields.options:
        return
    for word in (p.name, *p.aliases):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            body = fields.read(
                {**own, "model": "a", word: value} if dialect != "ollama" else {word: value}
            )
        taken = p.name not in strict and any(takes(p, value, engine) for engine in engines)
        assert body.options[p.name] == (off.value if taken else value)
        assert len(caplog.messages) == int(taken)
        if taken:
            assert caplog.messages[0].startswith(f"{word}={value!r} is off in ")


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@each
def test_what_it_becomes_is_off(p: Parameter, off: Off, value: float, numerics: str) -> None:
    if p.name == "temperature" or (numerics == "llama.cpp" and "llama.cpp" not in off.engines):
        return
    if numerics == "llama.cpp" and p.name == "tfs_z":
        return  # no longer one of llama.cpp's samplers
    row = np.random.default_rng(0).normal(size=60).astype(np.float32)
    beside: dict[str, Any] = {"xtc_probability": 1.0} if p.name == "xtc_threshold" else {}
    plain = SamplingParams(seed=1, numerics=numerics)
    given = in_range({p.name: value}, ENGINES, lambda _: None)
    chains = plain.chain(), plain.replace(**given, **beside).chain()
    tokens = [[chain.sample(row) for _ in range(40)] for chain in chains]
    assert tokens[0] == tokens[1]


def test_a_number_in_the_range_is_off_only_where_one_engine_is_spoken() -> None:
    """``top_p=0`` keeps all tokens in mlx-lm, and the most likely one everywhere else."""
    with pytest.warns(DialectWarning, match=r"^top_p=0\.0 is off in mlx-lm, so it becomes 1\.0, "):
        assert sampling_params({"top_p": 0.0}, "mlx-lm").top_p == 1
    assert sampling_params({"top_p": 0.0}, "llama.cpp").top_p == 0
    assert SamplingParams.resolve({}, metadata={"top_p": 0.0}).top_p == 0
    assert params_from_json({"top_p": 0.0}, seed=1).top_p == 0


def test_a_temperature_below_zero_takes_the_most_likely() -> None:
    row = np.random.default_rng(0).normal(size=60).astype(np.float32)
    with pytest.warns(DialectWarning, match="always takes the most likely token"):
        chain = sampling_params({"temp": -1}, "llama.cpp").chain()
    assert {chain.sample(row) for _ in range(20)} == {int(row.argmax())}


@pytest.mark.parametrize("p", NUMBERS, ids=lambda p: p.name)
def test_all_else_comes_back_as_it_is(p: Parameter) -> None:
    def never(message: str) -> None:
        raise AssertionError(message)

    strange: list[Any] = [
        None,
        "1",
        True,
        [1],
        float("inf"),
        -float("inf"),
        p.low,
        p.high,
        p.neutral,
        p.beyond,
    ]
    for value in strange:
        assert translated(p, value, ENGINES, never) is value
    assert np.isnan(translated(p, float("nan"), ENGINES, never))


def test_the_command_line_says_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "-p", "a", "--seed", "1", "--log-disable"]
    assert main([*words[:-1], "--top-k", "-5"]) == 0
    first = capsys.readouterr()
    lines = [line for line in first.err.splitlines() if "top_k" in line and "warning" in line]
    assert lines == [
        "aleator: warning: top_k=-5 is off in llama.cpp; here the range is [0, 2147483647], so it becomes 0, "
        "which keeps all tokens"
    ]
    assert main([*words[:-1], "--top-k", "0"]) == 0
    assert capsys.readouterr().err == first.err.replace(f"{lines[0]}\n", "")
    assert main([*words, "--min-p", "1.5"]) == 2
    assert "min_p=1.5 is out of range: give a number in [0, 1]" in capsys.readouterr().err
