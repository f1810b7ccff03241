"""Would the conformance test notice a mistake?  The reference gets one at a time, and the comparison must fail.

The comparison is of both sides alike, so native code would be noticed with the same mistake.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest

from tests.samplers import test_conformance as conformance
from tests.samplers import test_conformance_bounds as bounds

NUMERICS, SAMPLERS = "aleator.core.numerics", "aleator.samplers"
DRAW_AT_A_BOUNDARY = partial(
    bounds.test_a_draw_exactly_at_a_boundary_takes_the_next_token, bounds.PADS[0]
)
MASS_AT_A_BOUND = partial(
    bounds.test_a_mass_just_below_the_bound_does_not_end_the_prefix, 0.7, bounds.PADS[0]
)


@dataclass(frozen=True)
class Mistake:
    """Texts of one function and what takes their place; the chain or the test that notices."""

    name: str
    module: str
    function: str
    changes: dict[str, str]
    noticed_by: str | Callable[[], None]


MISTAKES = [
    Mistake("ties", NUMERICS, "Row.order", {"self.ids": "-self.ids"}, "top_k"),
    Mistake("coefficient", NUMERICS, "power",
            {"EXP2_COEFFICIENTS[4::-1]": "(*EXP2_COEFFICIENTS[4:2:-1], np.nextafter(EXP2_COEFFICIENTS[2],"
             " np.float32(1)), *EXP2_COEFFICIENTS[1::-1])"}, "top_p"),
    Mistake("shift", NUMERICS, "weights", {"np.uint64(17)": "np.uint64(16)"}, "top_a"),
    Mistake("clamp", NUMERICS, "scaled", {"float32(-100)": "float32(-30)"}, "dist"),
    Mistake("scale", NUMERICS, "scaled", {"LOG2_E / temperature": "LOG2_E / np.float32(temperature)"},
            "twice"),
    Mistake("ceil", f"{SAMPLERS}.top_p", "TopP.reference", {"math.ceil": "math.floor"}, MASS_AT_A_BOUND),
    Mistake("prefix", NUMERICS, "prefix_of_mass", {">= wanted": "> wanted"}, "top_p_half"),
    Mistake("min-p's product", f"{SAMPLERS}.min_p", "MinP.reference",
            {"row.temperature * math.log(float(bound))":
             "np.float32(row.temperature) * np.float32(math.log(float(bound)))"},
            partial(bounds.test_min_p_keeps_what_is_exactly_at_its_bound, [])),
    Mistake("min-p's bound", f"{SAMPLERS}.min_p", "MinP.reference", {">= threshold": "> threshold"},
            partial(bounds.test_min_p_keeps_what_is_exactly_at_its_bound, [])),
    Mistake("temperature", f"{SAMPLERS}.temperature", "Temperature.reference",
            {"row.temperature * chosen": "float(np.float32(row.temperature * chosen))"}, "twice"),
    Mistake("draw", NUMERICS, "by_mass", {"ends, target": "ends, target - 1"}, DRAW_AT_A_BOUNDARY),
    Mistake("race", f"{SAMPLERS}.dist", "Dist._race",
            {"token, step.position": "0, step.position"}, "gumbel"),
    Mistake("key word", "aleator.core.philox", "philox4x32", {"0x9E3779B9": "0x9E3779BA"}, "dist"),
    Mistake("ordinal", "aleator.core.philox", "stream", {"ordinal << 20": "ordinal << 21"}, "xtc_twice"),
    Mistake("completion", "aleator.core.philox", "stream", {"| completion": ""}, "dist"),
    Mistake("position", NUMERICS, "Step.accept", {"+= generated": "+= 0"}, "dist"),
    Mistake("log2's last bit", NUMERICS, "log2_q32",
            {"range(32)": "range(31)", "| fraction\n": "| fraction << 1\n"},
            partial(conformance.test_long_runs_with_state_equal_reference, "mirostat_v2")),
    Mistake("exp2", NUMERICS, "exp2_q62", {"31 - i": "32 - i"}, "dynatemp_power"),
    Mistake("penalties", f"{SAMPLERS}.penalties", "Penalties.reference",
            {"z - (np.float32(counted[token]) * frequency + presence)":
             "z - np.float32(counted[token]) * frequency - presence"}, "penalties"),
    Mistake("XTC's run", NUMERICS, "run_length", {"int(weight) < bound": "int(weight) <= bound"},
            "xtc_largest"),
    Mistake("typical's mean", NUMERICS, "Row.entropy",
            {"(gap * weight + bits) / total": "(gap * weight + bits) / total + 2**-16"}, "typical"),
    Mistake("entropy's weights", NUMERICS, "Row.entropy", {"np.floor(": "np.rint("},
            conformance.test_entropy_equals_reference),
    Mistake("top-n-sigma", f"{SAMPLERS}.top_n_sigma", "TopNSigma.reference", {"np.rint": "np.trunc"},
            bounds.test_top_n_sigma_near_its_bound),
    Mistake("tail-free", f"{SAMPLERS}.tail_free", "TailFree.reference",
            {"keep_first(i)": "keep_first(i + 1)"}, "tail_free"),
    Mistake("p-less", f"{SAMPLERS}.p_less", "PLess.reference",
            {"n * bound - sum(w)": "n * bound"}, "p_less_hot"),
    Mistake("top-H", f"{SAMPLERS}.top_h", "TopH.reference",
            {"keep_first(kept)": "keep_first(kept + 1)"}, "top_h"),
    Mistake("min-k", f"{SAMPLERS}.min_k", "MinK.reference",
            {"np.arange(1, len(z))": "np.sqrt(np.arange(1, len(z)))"}, "min_k_wide"),
    Mistake("DRY", f"{SAMPLERS}.dry", "DRY._repeats", {"length >= allowed": "length > allowed"}, "dry"),
    Mistake("adaptive-p", f"{SAMPLERS}.adaptive_p", "AdaptiveP.reference",
            {"np.float32(10) * (d * d)": "(np.float32(10) * d) * d"}, "adaptive_p"),
    Mistake("mirostat", f"{SAMPLERS}.mirostat", "MirostatSampler.select",
            {"mu - self.mirostat_eta": "mu + self.mirostat_eta"},
            partial(conformance.test_long_runs_with_state_equal_reference, "mirostat")),
    Mistake("negative zero", NUMERICS, "Row.settle", {"+ np.float32(0)": ""}, "greedy"),
]  # fmt: skip


def make(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the changed function wherever the sound one stands."""
    module = import_module(mistake.module)
    *outer, name = mistake.function.split(".")
    owner = getattr(module, outer[0]) if outer else module
    sound = inspect.getattr_static(owner, name)
    code = sound.fget if isinstance(sound, property) else sound
    assert inspect.isfunction(code)
    source = textwrap.dedent(inspect.getsource(code))
    for old, new in mistake.changes.items():
        assert old in source, f"{mistake.function} has no {old!r} any more"
        source = source.replace(old, new)
    scope = dict(vars(module))
    exec(source, scope)
    if outer:
        monkeypatch.setattr(owner, name, scope[name])
        return
    for loaded in list(sys.modules.values()):  # those that imported it by name as well
        if (
            getattr(loaded, "__name__", "").startswith("aleator")
            and vars(loaded).get(name) is sound
        ):
            monkeypatch.setattr(loaded, name, scope[name])


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_reference_is_noticed(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(mistake, monkeypatch)
    compare = mistake.noticed_by
    if isinstance(compare, str):
        compare = partial(conformance.test_native_equals_reference, compare)
    with pytest.raises(AssertionError):
        compare()
