"""Kernels of layers that keep a state compiled ahead of time: no spills, and nothing is approximated."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from aleator.models.kernels import recurrent, recurrent_parts, works
from aleator.models.kernels.floats import Constants
from aleator.models.kernels.norms import groups_at_once
from aleator.models.kernels.runs import Runs
from tests.device.compiled import compiled, in_turn, spills
from tests.models.kernels.test_fused_compiled import STRIDE, check, parts_of, scan_types

POINTERS = [
    "x", "weight", "bias", "kept", "y", "step", "gate", "q", "k", "v", "beta", "decay", "a", "written", "stays",
]  # fmt: skip

USUAL: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "delta": (
        recurrent._delta_rule, 4,
        {"DIM": 128, "DIM_V": 128, "SHARED": 2, "TILED": False, "CHANNELS": False, "ROWS": 8},
    ),
    "delta with rates": (
        recurrent._delta_rule, 4,
        {"DIM": 128, "DIM_V": 128, "SHARED": 2, "TILED": False, "CHANNELS": False, "ROWS": 16, "bias": None,
         "a": None, "unit_eps": None},
    ),
    "delta by channels": (
        recurrent._delta_rule, 4,
        {"DIM": 128, "DIM_V": 128, "SHARED": 1, "TILED": False, "CHANNELS": True, "ROWS": 8},
    ),
    "groups": (
        recurrent_parts._norm_parts, 8,
        {"queries": None, "WEIGHTS": 2, "gate": None, "GATE": "", "ROWS": 1, "BLOCK": 8192},
    ),
    "units": (
        recurrent_parts._norm_parts, 1,
        {"weight": None, "WEIGHTS": 0, "gate": None, "GATE": "", "ROWS": 1, "BLOCK": 128},
    ),
    "gated": (
        recurrent_parts._norm_parts, 1,
        {"queries": None, "WEIGHTS": 1, "GATE": "silu", "ROWS": 1, "BLOCK": 128},
    ),
    "gated by sigmoids": (
        recurrent_parts._norm_parts, 1,
        {"queries": None, "WEIGHTS": 1, "GATE": "sigmoid", "ROWS": 1, "BLOCK": 128},
    ),
    "steps": (recurrent_parts._time_step, 4, {"BLOCK": 512}),
    "rates": (recurrent_parts._delta_rates, 4, {"EACH": 1, "BLOCK": 512}),
}  # fmt: skip


def instructions(name: str, capability: int) -> list[str]:
    kernel, warps, constants = USUAL[name]
    constants = {**constants}
    types: dict[str, Any] = {n: "*fp32" if n in POINTERS else "i32" for n in kernel.arg_names}
    numbers: Any = ["*i64"] * 6
    types.update(
        {
            "runs": Runs(*numbers),
            "eps": "fp32",
            "unit_eps": "fp32",
            "least": "fp32",
        }
    )
    return compiled(kernel, types, warps, exact=False, capability=capability, **constants)


@pytest.mark.parametrize(("capability", "name"), in_turn(*((name,) for name in USUAL)))
def test_nothing_spills_or_is_approximated(capability: int, name: str) -> None:
    made = instructions(name, capability)
    assert spills(made) == 0
    assert not any("MUFU.EX2" in i for i in made)


MAMBA, HEADS, WIDE = (16, 1, 8192, False, 32), (128, 64, 8, True, 16), (256, 64, 8, True, 16)


@pytest.mark.parametrize(
    ("capability", "shape", "biased", "normed"),
    [
        (80, MAMBA, False, False), (90, MAMBA, False, False), (120, MAMBA, False, False),
        (90, MAMBA, False, True), (90, HEADS, True, False), (90, HEADS, False, False),
        (90, WIDE, True, False),
    ],
)  # fmt: skip
def test_scans(capability: int, shape: tuple[Any, ...], biased: bool, normed: bool) -> None:
    """Of channels, and of heads whose programs make their time steps, or are given them."""
    none = Constants(())
    fixed = {
        "KINDS": Constants((("scan",),)), "FORMS": none, "SHAPE": Constants((shape,)), "BESIDE": none,
        "BESIDE_SHAPE": none,
    }  # fmt: skip
    types = {"arguments": scan_types(biased, normed), "beside": None}
    check(works._worked, capability, types, fixed, num_warps=4)


@pytest.mark.parametrize(
    ("capability", "biased", "gated", "shape"),
    [
        (80, False, False, (4, True, 4, 64, 4)), (90, False, False, (4, True, 4, 64, 4)),
        (120, False, False, (4, True, 4, 64, 4)), (90, False, True, (3, False, 4, 64, 2)),
        (90, True, False, (4, True, 16, 32, 4)),
    ],
)  # fmt: skip
def test_convolutions(capability: int, biased: bool, gated: bool, shape: tuple[Any, ...]) -> None:
    """Of a few tokens, between gates, of many tokens."""
    pair = "*fp32", "*fp32"
    arguments = (
        *pair,
        "*fp32" if biased else None,
        *pair,
        ("*i64",) * 6,
        pair if gated else None,
        STRIDE,
        "i32",
    )
    none = Constants(())
    fixed = {
        "KINDS": Constants((("convolution",),)), "FORMS": none, "SHAPE": Constants((shape,)), "BESIDE": none,
        "BESIDE_SHAPE": none,
    }  # fmt: skip
    types = {"arguments": arguments, "beside": None}
    check(works._worked, capability, types, fixed, num_warps=4)


@pytest.mark.parametrize(
    ("capability", "kind", "normed"),
    [
        (80, "Q4_K", True), (90, "Q8_0", False), (120, "F32", True), (90, "BF16", True), (90, "Q6_K", True),
        (120, "Q8_0", True), (80, "F32", False),
    ],
)  # fmt: skip
def test_scans_that_make_their_steps(capability: int, kind: str, normed: bool) -> None:
    """Jamba's, of 256 numbers for time steps; and without norms mamba's."""
    parts, forms = parts_of([kind], 2, 4)
    weights = "*fp32" if normed else None, None
    operand = "*fp32", None, *weights, "fp32", STRIDE, "i32"
    own = tuple(parts[0]), operand, "*i32", "*fp32", "i32", "i32", "*fp32", STRIDE, "*fp32", "i32"
    how = ("rms", 256, groups_at_once(256)) if normed else ("", 0, groups_at_once(256))
    none = Constants(())
    fixed = {
        "KINDS": Constants((("scan",),)), "FORMS": Constants(((*forms[0], *how, True, 4),)),
        "SHAPE": Constants((MAMBA,)), "BESIDE": none, "BESIDE_SHAPE": none,
    }  # fmt: skip
    types = {"arguments": scan_types(False, normed, own), "beside": None}
    check(works._worked, capability, types, fixed, num_warps=4)
