"""Kernels of attention compiled ahead of time: they fit GPUs' registers, and nothing is approximated."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")
import triton

from aleator.models.kernels import attention, attention_kernels, cells, rotation
from aleator.models.kernels.floats import Constants
from aleator.models.kernels.norms import groups_at_once
from tests.device.compiled import compiled, in_turn, spills
from tests.models.kernels.test_fused_compiled import check, scan_types

BYTES = {"f32": 4, "f16": 2, "bf16": 2, "q8_0": 34, "q4_0": 18, "q5_1": 24}
DATA = {"f32": "*fp32", "f16": "*fp16", "bf16": "*i16"}


def pointers(kind: str) -> dict[str, str]:
    """Types of all kernels' arguments."""
    data = DATA.get(kind, "*u8")
    halves = data if kind in DATA else "*fp16"
    floats = "q", "x", "scores", "tops", "slopes", "sink_scores", "out", "angles"
    integers = "tokens", "cells", "key_cells", "index", "positions", "rows"
    sizes = ("begin", "n_tokens", "all", "longest", "shares", "n", "heads", "t_stride", "h_stride", "offset",
             "every", "q_stride")  # fmt: skip
    return (
        {"scale": "fp32", "softcap": "fp32"}
        | dict.fromkeys(("data", "keys", "values"), data)
        | dict.fromkeys(("halves", "key_halves", "value_halves"), halves)
        | dict.fromkeys(floats, "*fp32")
        | dict.fromkeys(integers, "*i32")
        | dict.fromkeys(sizes, "i32")
    )


def strides(kind: str, heads: int, dim: int) -> dict[str, int]:
    size = dim if kind in DATA else dim // 32 * BYTES[kind]
    return {"cell_stride": heads * size, "head_stride": size, "stride": int(kind in DATA)}


def fit(kernel: Any, kind: str, warps: int, **how: Any) -> list[str]:
    """``how``: constants, and the capability of a GPU, if it is not 90."""
    instructions = compiled(kernel, pointers(kind), warps, exact=False, **how)
    assert spills(instructions) == 0
    assert not any("MUFU.EX2" in i or "MUFU.TANH" in i for i in instructions)
    return instructions


@pytest.mark.parametrize(
    ("capability", "kind", "group", "dim", "dim_v"),
    in_turn(("f16", 4, 128, 128), ("q8_0", 7, 80, 96), ("bf16", 4, 128, 128)),
)
def test_attention_fits(capability: int, kind: str, group: int, dim: int, dim_v: int) -> None:
    capped: dict[str, Any] = {"VARIANTS": True, "CAPPED": True} if kind == "q8_0" else {}
    how = kind, group, dim, dim_v
    absent = {} if capped else {"slopes": None, "sink_scores": None}
    fixed = constants(*how, mixes=False) | capped | absent
    fit(attention_kernels.attend, kind, 4, capability=capability, **fixed)
    fixed = constants(*how, scores=False) | capped | absent
    mixed = fit(attention_kernels.attend, kind, 1, capability=capability, **fixed)
    # 16 cells by one multiply-add for each query and channel; each weight's exponential is in one thread.
    values, exponentials, once = 16 * fixed["QUERIES"], 10 * fixed["QUERIES"] // 2, 80
    assert sum("FFMA" in i for i in mixed) <= values + exponentials + once
    if kind == "f16":  # numbers that came through shared memory took 360 for their addresses
        assert sum("LOP3" in i for i in mixed) < 120


@pytest.mark.parametrize(
    ("capability", "kind", "group", "dim", "hadamard"),
    [
        (80, "q8_0", 4, 128, 128), (90, "q4_0", 7, 64, 64), (120, "q5_1", 8, 256, 256), (80, "q8_0", 1, 96, 32),
        (90, "q8_0", 8, 512, 512),
    ],
)  # fmt: skip
def test_values_that_are_rotated_back_fit(
    capability: int, kind: str, group: int, dim: int, hadamard: int
) -> None:
    fits(capability, kind, group, dim, hadamard, {}, {}, scores=False)


@pytest.mark.parametrize(
    ("capability", "kind", "group", "dim", "hadamard", "state"),
    in_turn(
        ("f16", 4, 128, 0, 0), ("q8_0", 7, 128, 32, 0), ("q8_0", 8, 256, 32, 0), ("bf16", 1, 256, 0, 0),
        ("bf16", 8, 256, 0, 0), ("f32", 8, 256, 0, 0), ("q5_1", 8, 128, 32, 0), ("f16", 4, 64, 0, 128),
        ("q8_0", 5, 128, 32, 256),
    ),
)  # fmt: skip
def test_attention_in_one_launch_fits(
    capability: int, kind: str, group: int, dim: int, hadamard: int, state: int
) -> None:
    """The last two are falcon-h1's, beside a scan."""
    more = {"SCAN": Constants(((state, 64, 8, True, 16),))}
    beside = (scan_types(), "i32") if state > 0 else None
    fits(capability, kind, group, dim, hadamard, {"beside": beside}, more)


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize(
    ("capability", "kind", "group", "dim", "hadamard", "norm"),
    [
        (90, "f16", 4, 128, 0, ""), (80, "q8_0", 4, 128, 32, "rms"), (120, "bf16", 2, 64, 0, "layer"),
        (80, "bf16", 8, 256, 0, "rms"), (120, "q5_1", 8, 128, 32, "rms"), (90, "f32", 8, 256, 0, "rms"),
        (120, "f16", 8, 512, 0, "rms"),
    ],
)  # fmt: skip
def test_attention_that_finishes_its_heads_fits(
    capability: int, kind: str, group: int, dim: int, hadamard: int, norm: str, mixes: bool
) -> None:
    """Queries that share a head of keys; the last are gemma4's.  Of many cells they make scores alone."""
    own, none, turn = pointers(kind), (None, "i32", "i32"), attention._hadamard_of(hadamard)
    of_norm = "*fp32" if norm else None, "*fp32" if norm == "layer" else None, "fp32"
    sides = (None, None), *[(own["data"], own["halves"])] * 2
    groups = tuple(("*fp32", *of_norm, *to, *["i32"] * 6, *none, *none) for to in sides)
    rest = groups_at_once(dim), dim, turn[1], dim, False, 0, 0, dim, 0, 1
    block = turn[0], turn[2], kind, BYTES[kind], *rest
    forms = (
        (8 * group, dim, norm, False, True, turn[0], turn[2], "", 0, *rest),
        (8, dim, norm, False, True, *block), (8, dim, norm, False, False, *block),
    )  # fmt: skip
    shape = Constants(((dim // 2, dim // 2, False, False),))
    finish = {"finish": (groups, "*fp32", "*i64", None, "i32")}
    more = {"FORMS": Constants(forms), "SHAPE": shape}
    fits(capability, kind, group, dim, hadamard, finish, more, mixes=mixes)


@pytest.mark.parametrize(
    ("capability", "kind", "hadamard"), in_turn(("f16", 0), ("q8_0", 32), ("q5_1", 32))
)
def test_attention_that_finishes_latent_heads_fits(
    capability: int, kind: str, hadamard: int
) -> None:
    """Deepseek's with keys of every head: 128 channels, 64 that are rotated, and 128 of values."""
    own, turn = pointers(kind), attention._hadamard_of(hadamard)
    side, block = (own["data"], own["halves"]), (*turn[:1], turn[2], kind, BYTES[kind])
    none, two = (None, "i32", "i32"), ("*fp32", "i32", "i32")
    groups = tuple(
        ("*fp32", None, None, "fp32", *to, *["i32"] * 6, *sources)
        for to, *sources in (((None, None), *none, *none), (side, *two, *two), (side, *two, *none))
    )
    sizes = [(192, True, turn[0], turn[2], "", 0), (192, True, *block), (128, False, *block)]
    forms = [
        (8, dim, "", False, *how, 8, 256, turn[1], dim, False, *wide, dim, 0, 1)
        for (dim, *how), wide in zip(sizes, [(0, 0), (128, 64), (128, 0)], strict=True)
    ]
    more = {"FORMS": Constants(tuple(forms)), "SHAPE": Constants(((32, 32, True, False),))}
    finish = {"finish": (groups, "*fp32", "*i64", None, "i32")}
    fits(capability, kind, 1, 192, hadamard, finish, more)


def constants(
    kind: str, group: int, dim: int, dim_v: int, hadamard: int = 0, scores: bool = True, mixes: bool = True,
    finishes: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Those of attention of 8 heads of keys; what may be done besides is not."""
    padded, once = triton.next_power_of_2(group), scores and mixes
    most = 64
    if once or finishes:
        most = attention._most_cells(BYTES[kind], dim)
    b = attention._blocks(8, padded, dim_v, False, once, most)
    ways = {
        f"{side}_{way}": size
        for side, channels in (("key", dim), ("value", dim_v))
        for way, size in zip(
            ("cell", "head", "channel"), strides(kind, 8, channels).values(), strict=True
        )
    }
    names = "own", "finish", "beside", "MATRICES", "TILES", "NATIVE", "FORMS", "SHAPE", "SCAN"
    return {
        **ways, **dict.fromkeys(names), "HEADS": 8, "GROUP": group, "PADDED": padded, "QUERIES": b.group,
        "PAIRS": b.pairs, "KIND": kind, "BYTES": BYTES[kind], "DIM": dim, "CELLS": b.cells, "VALUES": dim_v,
        "VALUE_KIND": kind, "VALUE_BYTES": BYTES[kind], "VARIANTS": False, "CAPPED": False,
        "CHANNELS": b.channels if once else max(b.channels, hadamard), "SCORES": scores, "MIXES": mixes,
        "HADAMARD": attention._hadamard_of(hadamard),
    }  # fmt: skip


def fits(
    capability: int, kind: str, group: int, dim: int, hadamard: int, more_types: dict[str, Any],
    more: dict[str, Any], **steps: bool,
) -> None:  # fmt: skip
    """``more_types`` and ``more``: types and constants of what else the launch does."""
    fixed = constants(kind, group, dim, dim, hadamard, finishes="finish" in more_types, **steps)
    fixed |= {"CAPPED": hadamard > 0, "slopes": None, **({} if hadamard else {"sink_scores": None})}
    fixed = {name: of for name, of in fixed.items() if name not in more_types} | more
    warps = 4
    if not fixed["SCORES"]:
        blocks = attention._Blocks(1, fixed["QUERIES"], fixed["CELLS"], fixed["CHANNELS"])
        warps, fixed["QUERIES"] = attention._of_values(blocks)
    how = {"num_warps": warps, "maxnreg": 255}
    check(attention_kernels.attend, capability, pointers(kind) | more_types, fixed, **how)


def test_rotation_and_storage_fit() -> None:
    fit(rotation._rotate, "f32", 4, PAIRS=64, WIDE=64, BLOCK=8, INTERLEAVED=False, rows=None)
    types = {"x": "*fp32", "rows": "i32", "scale": "fp32"}
    made = compiled(rotation._hadamard, types, 4, exact=False, ROWS=8, BLOCK=128, LOG=7)
    assert spills(made) == 0
    for kind in ("f16", "q8_0", "q5_1"):
        wide, block = (128, 8) if kind == "f16" else (32, 32)
        shape = {"HEADS": 8, "DIM": 128, "KIND": kind, "BYTES": BYTES[kind]}
        fit(cells._store, kind, 4, **shape, **strides(kind, 8, 128), WIDE=wide, BLOCK=block)
