"""Where samplers stand that an order does not name, and that nothing given is without effect."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.samplers.index import ORDERED
from aleator.samplers.order import completed
from tests.drawn import recorded

# What asks for samplers that no switch asks for, or not by a half or 1.
GIVEN: dict[str, dict[str, Any]] = {
    "penalties": {"presence_penalty": 2.0},
    "dry": {"dry_multiplier": 0.8, "dry_sequence_breakers": ()},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "top_k": {"top_k": 1},
    "p_less": {"p_less": "on"},
    "xtc": {"xtc_probability": 1.0},
    "temperature": {"temperature": 0.5},
    "adaptive_p": {"adaptive_target": 0.3},
}
SWITCHED: dict[str, dict[str, Any]] = {
    name: {cls.switch.name: 1 if cls.switch.type is int else 0.5}
    for name, cls in ORDERED.items()
    if cls.switch is not None
}
ASKED = SWITCHED | GIVEN


def test_every_sampler_of_an_order_is_asked_for_by_a_parameter() -> None:
    without = {"infill", "softmax"}  # they have no parameter: only an order asks for them
    assert {*ASKED, *without} == {*ORDERED}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("preset", S.PRESETS)
def test_what_is_given_is_in_the_chain_of_every_preset(preset: str, name: str) -> None:
    params = S.SamplingParams.preset(preset, **ASKED[name])
    assert [s for s in params.list() if s.name == name and not s.neutral]
    assert S.SamplingParams(**params.values()) == params
    before = S.SamplingParams.preset(preset).samplers
    assert [n for n in params.samplers if n != name or n in before] == [*before]


@pytest.mark.parametrize("name", ASKED)
def test_what_a_given_order_leaves_out_is_refused(name: str) -> None:
    order = ";".join(n for n in ("top_k", "temperature") if n != name)
    first = next(iter(ASKED[name]))
    letters: dict[str, Any] = {"sampler_seq": "t" if name == "top_k" else "k"}
    for given in ({"samplers": order}, letters):
        if name == "temperature" and "samplers" not in given:
            continue
        with pytest.raises(
            ParameterError, match=f"{first}=.*no effect.*leaves {name} out"
        ) as caught:
            S.SamplingParams(**given, **ASKED[name])
        assert caught.value.parameter == first
        with pytest.raises(ParameterError, match="no effect"):
            S.SamplingParams.preset("openai", **given, **ASKED[name])


@pytest.mark.parametrize(
    ("preset", "given", "order"),
    [
        ("openai", {"top_k": 1}, "penalties temperature top_k top_p"),
        ("openai", {"min_p": 0.1}, "penalties temperature top_p min_p"),
        ("openai", {"dry_multiplier": 1}, "penalties dry temperature top_p"),
        ("vllm", {"dry_multiplier": 0.8}, "penalties dry temperature min_p top_k top_p"),
        ("vllm", {"typical_p": 0.5, "xtc_probability": 1},
         "penalties temperature min_p top_k typical_p top_p xtc"),
        ("transformers", {"tfs_z": 0.9},
         "penalties temperature top_k top_p min_p tail_free typical_p epsilon_cutoff eta_cutoff"),
        ("greedy", {"top_k": 5, "top_p": 0.5}, "penalties top_k top_p temperature"),
        ("llama.cpp", {"tfs_z": 0.9, "top_a": 0.2, "adaptive_target": 0.5},
         "penalties dry top_n_sigma top_k top_a tail_free typical_p top_p min_p xtc temperature adaptive_p"),
        ("akunu-code", {"typical_p": 0.9}, "penalties temperature softmax top_k min_p typical_p top_p"),
    ],
)  # fmt: skip
def test_the_documented_place(preset: str, given: dict[str, Any], order: str) -> None:
    assert " ".join(S.SamplingParams.preset(preset, **given).samplers) == order


def test_places_in_orders_of_nothing_and_of_one() -> None:
    assert completed((), ("temperature", "top_k", "penalties")) == (
        "penalties",
        "top_k",
        "temperature",
    )
    assert completed(("temperature",), ("dry", "penalties")) == ("penalties", "dry", "temperature")
    assert completed(("softmax", "top_p"), ("top_k",)) == ("softmax", "top_k", "top_p")


RECORDED = [
    "penalties", "dry", "top_n_sigma", "min_k", "top_k", "top_a", "tail_free", "typical_p", "top_p",
    "min_p", "epsilon_cutoff", "eta_cutoff", "p_less", "top_h", "xtc", "temperature", "smoothing",
    "infill", "softmax", "adaptive_p",
]  # fmt: skip
"""Samplers whose places are on record; a new one changes none of them."""


def test_places_in_orders_at_random_are_as_recorded() -> None:
    """Each sampler in each order that lacks it; ALEATOR_RECORD=1 records a change that is meant."""
    assert [name for name in ORDERED if name in RECORDED] == RECORDED
    dice, told = random.Random(1), {}
    orders = [dice.sample(RECORDED, dice.randrange(8)) for _ in range(60)]
    for order in [*orders, *([name] for name in RECORDED)]:
        lacking = [name for name in RECORDED if name not in order]
        places = [completed(order, [name]).index(name) for name in lacking]
        several = completed(order, dice.sample(lacking, 4))
        assert [name for name in several if name in order] == order
        told[";".join(order)] = [" ".join(map(str, places)), ";".join(several)]
    assert told == recorded("orders", "places", told)


def test_a_models_metadata_is_honoured_or_refused() -> None:
    resolve = S.SamplingParams.resolve
    made = resolve({"top_p": 0.5}, metadata={"sequence": "kt", "top_k": 9, "temp": 0.5})
    assert made.samplers == ("top_k", "top_p", "temperature")  # the user's, not the model's, order
    assert resolve({}, metadata={"xtc_probability": 0.5}).samplers.count("xtc") == 1
    with pytest.raises(ParameterError, match=r"top_p=0\.5 would have no effect"):
        resolve({}, metadata={"sequence": "kt", "top_p": 0.5})


def test_what_would_have_no_effect_is_named_by_what_asks_for_it() -> None:
    """Not by the seed, the ``min_keep`` or the threshold that are given beside it."""
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"xtc_probability": 0.5}, {"seed": 3, "xtc_threshold": 0.05, "min_keep": 2}),
        ({"typical_p": 0.5}, {"min_keep": 2}),
        ({"adaptive_target": 0.3}, {"seed": 3, "adaptive_decay": 0.5}),
        ({"repetition_penalty": 1.2}, {"penalty_last_n": 9, "penalty_scope": "generated"}),
        ({"dry_multiplier": 0.5}, {"dry_base": 1.5}),
        ({"smoothing_factor": 0.5}, {"smoothing_curve": 2.0}),
    ]
    for asking, beside in cases:
        (name,) = asking
        with pytest.raises(ParameterError, match=f"^{name}=") as caught:
            S.SamplingParams(samplers="top_k", top_k=5, **beside, **asking)
        assert caught.value.parameter == name


def test_another_order_leaves_no_value_behind() -> None:
    made = S.SamplingParams.preset("llama.cpp", samplers="top_k;temperature")
    assert (made.top_k, made.top_p, made.min_p, made.temperature) == (40, 1.0, 0.0, 0.8)
    changed = S.SamplingParams(top_k=5, top_p=0.5).replace(samplers="top_k")
    assert (changed.top_k, changed.top_p) == (5, 1.0)
    assert changed.replace(top_p=0.5).samplers == ("top_k", "top_p")


def test_a_draw_that_nothing_would_use_is_refused() -> None:
    with pytest.raises(ParameterError, match="draw='gumbel' would have no effect: mirostat=2"):
        S.SamplingParams(draw="gumbel", mirostat=2)
    with pytest.raises(ParameterError, match="adaptive_target"):
        S.SamplingParams(draw="gumbel", adaptive_target=0.5)
    assert S.SamplingParams.preset("akunu-code", mirostat=2).draw == "inverse"


OFF: list[dict[str, Any]] = [
    {"top_k": 0}, {"typ_p": 1}, {"top_p": 1}, {"top_n_sigma": 0}, {"top_n_sigma": -1},
    {"tfs_z": 1}, {"min_p": 0},
]  # fmt: skip


@pytest.mark.parametrize("given", OFF, ids=str)
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_what_means_off_everywhere(given: dict[str, Any], numerics: str) -> None:
    row = np.random.default_rng(0).normal(size=60).astype(np.float32)
    plain = S.SamplingParams(seed=1, numerics=numerics)
    off = plain.replace(**given)
    assert [s.neutral for s in off.list()] == [s.neutral for s in plain.list()]
    chains = plain.chain(), off.chain()
    tokens = [[chain.sample(row) for _ in range(50)] for chain in chains]
    assert tokens[0] == tokens[1]
    in_preset = S.SamplingParams.preset("llama.cpp", **given)
    assert all(s.neutral for s in in_preset.list() if s.name == next(iter(PLACE[n] for n in given)))


PLACE = {"top_k": "top_k", "typ_p": "typical_p", "top_p": "top_p",
         "top_n_sigma": "top_n_sigma", "tfs_z": "tail_free", "min_p": "min_p"}  # fmt: skip


@pytest.mark.parametrize("given", [{"temperature": 0}, {"min_p": 1}, {"top_k": 1}])
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_spellings_that_keep_the_most_likely(given: dict[str, Any], numerics: str) -> None:
    row = np.random.default_rng(1).normal(size=60).astype(np.float32)
    for preset in ("llama.cpp", "neutral"):
        chain = S.SamplingParams.preset(preset, numerics=numerics, **given).chain()
        assert {chain.sample(row) for _ in range(30)} == {int(row.argmax())}


def test_a_window_of_minus_one_is_the_whole_history() -> None:
    row = np.zeros(8, np.float32)
    chain = S.SamplingParams(penalty_last_n=-1, presence_penalty=1e30).chain()
    assert sorted(chain.sample(row) for _ in range(8)) == [*range(8)]


@pytest.mark.parametrize(
    "given",
    [{"top_p": -0.1}, {"typical_p": -1}, {"top_k": 1.5}, {"temp": -float("inf")}, {"min_p": 1.5}],
)
def test_what_means_nothing_anywhere_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        S.SamplingParams(**given)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dist", "draws the token, and stands last"),
        ("Greedy", "temperature=0"),
        ("logit_bias", "masks or biases, and stands first"),
    ],
)
def test_samplers_that_no_order_names(name: str, why: str) -> None:
    with pytest.raises(ParameterError, match=f"{name.lower()} is not named in an order: .*{why}"):
        S.SamplingParams(samplers=["top_k", name])
