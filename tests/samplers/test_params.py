from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.core.parameter import Parameter
from aleator.generate.options import GenerateOptions
from tests.samplers.steps import Texts

NUMBERS = [p for p in S.PARAMETERS.values() if p.type in (int, float)]


def invalid_values(p: Parameter) -> list[Any]:
    """Values outside the declared range or type, made from the declaration."""
    values: list[Any] = ["text", None, True, math.nan, math.inf, -math.inf, [1], 1j, 10**5000]
    if p.low is not None:
        values += [p.low if p.open_low else p.low - (1 if p.type is int else abs(p.low) + 1e-3)]
    if p.high is not None:
        values += [p.high + (1 if p.type is int else abs(p.high) + 1)]
    if p.type is int:
        values += [0.5]
    return [*values, 10**400, -(10**400)]


@pytest.mark.parametrize("p", NUMBERS, ids=lambda p: p.name)
def test_invalid_values_are_refused_by_name(p: Parameter) -> None:
    for value in invalid_values(p):
        with pytest.raises(ParameterError, match=p.name) as caught:
            S.SamplingParams(**{p.name: value})
        assert caught.value.parameter == p.name
        assert p.interval in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"regex": "a\ud800"},
        {"dry_sequence_breakers": ["a", "\udfff"]},
        {"banned_strings": "\ud800"},
        {"stop": ["x", "\ud800"]},
    ],
)
def test_half_of_a_surrogate_pair_is_refused(given: dict[str, Any]) -> None:
    (name,) = given
    of_text = name in ("banned_strings", "stop")
    with pytest.raises(ParameterError, match=f"{name}=.*half of a surrogate pair") as caught:
        GenerateOptions.of(given) if of_text else S.SamplingParams(**given)
    assert caught.value.parameter == name


@pytest.mark.parametrize("p", NUMBERS, ids=lambda p: p.name)
def test_bounds_are_accepted_and_typed(p: Parameter) -> None:
    for bound in (p.low, p.high, p.neutral, p.beyond):
        if bound is not None:
            given: dict[str, Any] = {p.name: np.float64(bound)}
            value = getattr(S.SamplingParams(**given), p.name)
            assert type(value) is p.type
            assert value == bound


def test_neutral_parameters_make_neutral_samplers() -> None:
    for sampler in S.SamplingParams().list():
        assert sampler.neutral or sampler.selects


def test_every_sampler_declares_help_and_flags_once() -> None:
    flags = [flag for p in S.PARAMETERS.values() for flag in p.flags]
    assert len(flags) == len(set(flags))
    assert all(p.help and p.flags for p in S.PARAMETERS.values())


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [("typ_p", "typical_p", 0.5), ("temp", "temperature", 0.5), ("repeat_penalty", "repetition_penalty", 1.1),
     ("repeat_last_n", "penalty_last_n", 5), ("nucleus", "top_p", 0.5)],
)  # fmt: skip
def test_aliases(alias: str, name: str, value: Any) -> None:
    assert getattr(S.SamplingParams(**{alias: value}), name) == value
    with pytest.raises(ParameterError, match="twice"):
        S.SamplingParams(**{alias: value, name: value})


def test_unknown_parameters_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ParameterError, match="temperature"):
        S.SamplingParams(temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="no sampling parameter 'zzz'"):
        S.SamplingParams(zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("seed", [1.5, "1", True, -2, 2**64])
def test_bad_seeds(seed: Any) -> None:
    with pytest.raises(ParameterError, match="seed"):
        S.SamplingParams(seed=seed)


def test_random_seeds_are_drawn_reported_and_differ() -> None:
    seeds = {S.SamplingParams(seed=seed).chain().seed for seed in (None, -1, None)}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert S.SamplingParams(seed=2**64 - 1).chain().seed == 2**64 - 1


def test_orders_by_name_alias_and_letter() -> None:
    full = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    assert S.parse_letters("edskypmxt") == S.parse_names(full) == S.parse_names(full.split(";"))
    assert S.parse_names("TOP-K; nucleus ;temp;") == ("top_k", "top_p", "temperature")
    params = S.SamplingParams(temperature=0.8, top_k=40, samplers=full)
    assert params.chain().describe() == (
        "logits -> ?penalties -> ?dry -> ?top_n_sigma -> top_k -> ?typical_p -> ?top_p -> ?min_p -> ?xtc "
        "-> temperature -> dist"
    )
    assert S.SamplingParams(sampler_seq="tk", top_k=3, temperature=2).chain().describe() == (
        "logits -> temperature -> top_k -> dist"
    )


def test_a_sampler_named_twice_runs_twice() -> None:
    params = S.SamplingParams(samplers="temperature;temperature", temperature=0.5)
    once = S.SamplingParams(samplers="temperature", temperature=0.25)
    row = np.random.default_rng(0).normal(size=50).astype(np.float32)
    twice, single = S.Candidates(row), S.Candidates(row)
    S.SamplerChain(params.list()[:2]).apply(twice)
    S.SamplerChain(once.list()[:1]).apply(single)
    assert twice.logits.tobytes() == single.logits.tobytes()


def test_bad_orders() -> None:
    with pytest.raises(ParameterError, match="no sampler 'top_q'"):
        S.SamplingParams(samplers="top_k;top_q")
    with pytest.raises(ParameterError, match="no sampler 'z'"):
        S.SamplingParams(sampler_seq="kz")
    with pytest.raises(ParameterError, match="not both"):
        S.SamplingParams(sampler_seq="k", samplers="top_k")


def test_precedence_explicit_preset_metadata_default() -> None:
    metadata = {"top_k": 7, "temp": 0.3, "sequence": "kt"}
    resolved = S.SamplingParams.resolve({"temperature": 0.9}, metadata=metadata)
    assert (resolved.temperature, resolved.top_k, resolved.top_p) == (
        0.9,
        7,
        1.0,
    )  # top_p is not in "kt"
    assert resolved.samplers == ("top_k", "temperature")
    named = S.SamplingParams.resolve({"top_k": 3}, preset="llama.cpp", metadata=metadata)
    assert (named.temperature, named.top_k, named.min_p) == (0.8, 3, 0.05)
    plain = S.SamplingParams.resolve({})
    assert plain == S.SamplingParams.preset("llama.cpp")
    by_alias = S.SamplingParams.resolve({"temp": 0.1})
    assert by_alias.temperature == 0.1


def test_metadata_that_cannot_be_honoured_is_refused() -> None:
    resolved = S.SamplingParams.resolve({}, metadata={"mirostat": 2, "mirostat_tau": 3.0})
    assert (resolved.mirostat, resolved.mirostat_tau) == (2, 3.0)
    with pytest.raises(ParameterError, match="preset"):
        S.SamplingParams.resolve({}, metadata={"quantum": 2})


def test_presets() -> None:
    with pytest.raises(ParameterError, match=r"llama\.cpp"):
        S.SamplingParams.preset("gpt")
    for name in (None, 3, ["greedy"]):
        with pytest.raises(ParameterError, match="there is no preset"):
            S.preset(name)  # type: ignore[arg-type]
    row = np.random.default_rng(0).normal(size=50).astype(np.float32)
    assert S.SamplingParams.preset("greedy").chain().sample(row) == int(row.argmax())
    assert S.SamplingParams.preset("neutral") == S.SamplingParams()
    order = S.SamplingParams.preset("transformers").samplers
    assert order.index("temperature") < order.index("top_k")


@pytest.mark.parametrize("name", S.PRESETS)
def test_every_preset_draws_a_token(name: str) -> None:
    row = np.random.default_rng(0).normal(size=500).astype(np.float32)
    chain = S.SamplingParams.preset(name, seed=3).chain()
    assert all(0 <= chain.sample(row) < 500 for _ in range(20))


def test_mirostat_and_adaptive_p_take_the_selecting_place() -> None:
    v2 = S.SamplingParams.resolve({"mirostat": 2, "mirostat_tau": 3})
    assert v2.chain().describe().endswith("-> temperature -> mirostat_v2")
    assert v2.top_k == 0
    kept = S.SamplingParams.resolve({"mirostat": 1, "top_k": 30, "repetition_penalty": 1.1})
    assert (
        kept.chain().describe().startswith("logits -> penalties -> ?dry -> ?top_n_sigma -> top_k")
    )
    adaptive = S.SamplingParams(samplers="adaptive_p;min_p", adaptive_target=0.3, min_p=0.1)
    assert adaptive.chain().describe() == "logits -> min_p -> adaptive_p"
    with pytest.raises(ParameterError, match="both choose"):
        adaptive.replace(mirostat=1).chain()


def test_logit_bias_forms_and_errors() -> None:
    params = S.SamplingParams(logit_bias={7: 1.5, 3: -math.inf})
    assert params.logit_bias == ((3, -math.inf), (7, 1.5))
    assert params.chain().describe().startswith("logits -> logit_bias -> ")
    assert S.parse_bias("15043+1") == (15043, 1.0)
    assert S.parse_bias("2-inf") == (2, -math.inf)
    for text in ("", "15", "x+1", "15+", "15+y", "+1"):
        with pytest.raises(ParameterError, match="logit_bias"):
            S.parse_bias(text)


def test_ignore_eos_masks_the_end_of_generation() -> None:
    params = S.SamplingParams(ignore_eos=True, logit_bias={0: -math.inf, 1: 5.0})
    with pytest.raises(ParameterError, match="vocabulary"):
        params.chain()
    chain = params.chain(Texts([b""] * 5, frozenset({1, 4})))
    assert {chain.sample(np.zeros(5, np.float32)) for _ in range(60)} == {2, 3}


def test_values_replace_and_immutability() -> None:
    params = S.SamplingParams(top_k=5)
    assert S.SamplingParams(**params.values()) == params
    assert params.replace(temp=0.5).temperature == 0.5
    assert params.replace(sampler_seq="k").samplers == ("top_k",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 6  # type: ignore[misc]


def test_the_docstring_lists_every_parameter() -> None:
    lines = (S.SamplingParams.__doc__ or "").splitlines()
    listed = lines[lines.index("Attributes:") + 1 : lines.index("Raises:")]
    starts = [line.split(":")[0][4:] for line in listed if line[4:5].strip()]
    assert starts == [each.name for each in dataclasses.fields(S.SamplingParams)]
