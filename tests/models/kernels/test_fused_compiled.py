"""The fused kernels compiled ahead of time: exact instructions, and no spills."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")
import torch
from triton.compiler import ASTSource

from aleator.models.kernels import attention, attention_kernels, fused, mixture, own_heads, works
from aleator.models.kernels.floats import EXACT, Constants
from aleator.models.kernels.norms import REGISTERS, groups_at_once
from aleator.models.kernels.planes import FORMS, Planes
from aleator.models.kernels.product import forms_of
from aleator.models.kernels.recurrent_parts import PartNorm
from tests.device.compiled import built, check_exact
from tests.models.kernels.test_product_compiled import of_type

STRIDE = "i32, a multiple of 16"
CONVOLUTION = *["*fp32"] * 2, None, *["*fp32"] * 2, ("*i64",) * 6, None, STRIDE, "i32"


def scan_types(biased: bool = True, normed: bool = False, own: Any = None) -> tuple[Any, ...]:
    """The types of a scan's arguments; ``own``: of what makes its time steps."""
    bias, norms = "*fp32" if biased else None, ("*fp32", "fp32") if normed else None
    return *["*fp32"] * 7, bias, norms, "*fp32", "*fp32", ("*i64",) * 6, *["i32"] * 7, "fp32", own


def check(
    function: Any,
    capability: int,
    types: dict[str, Any],
    fixed: dict[str, Any],
    stack: int = 0,
    **options: Any,
) -> None:
    """Compile with arguments of these types, pointers and strides a multiple of 16.

    ``fixed`` are constants; a tuple of types may have None.  ``stack``: bytes of a thread that spill.
    """
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}

    def given(kind: Any, place: tuple[int, ...]) -> Any:
        if isinstance(kind, tuple):
            inner = (given(each, (*place, i)) for i, each in enumerate(kind))
            return type(kind)(*inner) if hasattr(kind, "_fields") else tuple(inner)
        if kind is None:
            constants[place] = None
            return "constexpr"
        if kind.startswith("*") or kind == STRIDE:
            attributes[place] = [["tt.divisibility", 16]]
        return "i32" if kind == STRIDE else kind

    for i, name in enumerate(function.arg_names):
        if name in fixed:
            signature[name], constants[(i,)] = "constexpr", fixed[name]
        else:
            signature[name] = given(types.get(name, "i32"), (i,))
            if name.endswith("stride"):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constants, attributes)
    check_exact(built(source, capability, EXACT | options), stack)


def parts_of(kinds: list[str], numbers: int, rows: int = 1) -> tuple[list[Any], list[Any]]:
    """The types and forms of matrices, 4096 wide, each with so many numbers behind its bias."""
    parts, forms = [], []
    for kind in kinds:
        if kind in FORMS:
            own = of_type(kind)
            planes = [
                None if name in own else pointer
                for name, pointer in (
                    ("low", "*i32"), ("high", "*i32"), ("d", "*u8" if kind == "MXFP4" else "*fp16"),
                    ("m", "*fp16"), ("scale", "*i8"), ("least", "*i8"),
                )
            ]  # fmt: skip
            forms.append((*(value for name, value in own.items() if name.isupper()), 0))
        else:
            planes = [{"BF16": "*bf16", "F32": "*fp32"}[kind], None, None, None, None, None]
            forms.append((0, 0, 0, "", 256, 0, 1.0, 1, 8 // rows))
        parts.append((*planes, None if kind == "Q6_K" else "*fp32", *["i32"] * numbers))
    return parts, forms


def products(
    capability: int, kinds: list[str], rows: int, width: int, norm: str, activation: str = "",
    weighs: str = "", parts_of_rows: int = 0, summed: int = 0, gate: str = "silu",
    beside: tuple[str, Any, Any, Any] = ("", None, Constants(()), Constants(())),
    plain: bool = False, convolved: bool = False,
) -> None:  # fmt: skip
    """``weighs``: the first matrix is a stack; "input": its weights multiply what it takes.

    ``rows``: of which a program takes as many as the kernel's caller gives it.
    ``parts_of_rows``: the size of parts that are normalised first, and gated or, ``summed`` times, added.
    ``beside``: kind, types and constants of what is done beside the product.
    ``plain``: the second matrix has another input and no activation.
    ``convolved``: the rows are, first.
    """
    rows = fused.rows_at_once(rows, [of_type(k)["BLOCK"] if k in FORMS else 1 for k in kinds])
    parts, forms = parts_of(kinds, 6, rows)
    own, more = ("*fp32", None, "*fp32", "*fp32", "*fp32"), ("*fp32", None, None, None, None)
    steps: Any = {0: [("*fp32", "*fp32", None, None, None)], 1: [own], 3: [more, more, own]}[summed]
    takes: list[Any] = [(None, "i32"), ("*fp32", STRIDE), (None, "i32")]
    before = tuple(
        (*of, "fp32", "i32", "i32", "i32", "fp32", *taken)
        for of, taken in zip(steps, takes, strict=False)
    )
    if convolved:
        before = (("*fp32", "*fp32", "*fp32", "*i64", "*fp32"),)
    weights = "*fp32" if norm else None, "*fp32" if norm == "layer" else None
    operand = (
        "*fp32",
        before if parts_of_rows or convolved else None,
        *weights,
        "fp32",
        STRIDE,
        "i32",
    )
    of_parts = (
        PartNorm(parts_of_rows, kind=gate).constants if parts_of_rows else (0, False, "", 1, 1)
    )
    if convolved:
        of_parts = (4, False, "convolution", 1, 1)
    gated = activation, activation not in ("", "clamped")
    rest = norm, 4096 if norm else 0, groups_at_once(4096), *of_parts * 3
    given = [(*gated, *rest), (*(("", False) if plain else gated), *rest)]
    types = {
        "chosen": "*i32" if weighs else None, "times": "*fp32" if weighs == "input" else None,
        "parts": tuple((*each, operand) for each in parts),
        "table": "*fp16" if "gelu_rounded" in (activation, gate) else None,
        "residual": None if norm else "*fp32", "out": "*fp32", "room": "*i32", "float_room": "*fp32",
        "factor": "fp32", "beside": beside[1],
    }  # fmt: skip
    fixed = {
        "FORMS": Constants(tuple(forms)), "GIVEN": Constants(tuple(given[: len(kinds)])), "NATIVE": True,
        "T": rows, "R": width, "G": 512 // width, "SAME": not plain and beside[0] != "convolution",
        "WORK": beside[0], "BESIDE": beside[2], "SHAPE": beside[3],
    }  # fmt: skip
    check(fused.fused_product, capability, types, fixed, maxnreg=REGISTERS)


@pytest.mark.parametrize(
    ("capability", "kinds", "rows", "width", "norm", "activation"),
    [
        (90, ["Q4_K", "Q6_K"], 1, 8, "rms", ""), (80, ["Q4_K", "Q6_K"], 4, 8, "layer", ""),
        (90, ["Q4_K", "Q6_K"], 4, 8, "rms", ""),
        (90, ["Q4_K"], 4, 16, "rms", "silu"), (120, ["Q8_0"], 4, 16, "rms", "gelu_rounded"),
        (90, ["Q6_K"], 4, 8, "", ""), (120, ["MXFP4"], 1, 16, "", ""),
        (80, ["BF16"], 4, 8, "rms", "silu"), (90, ["F32", "BF16"], 1, 8, "", ""),
        (90, ["Q4_K", "Q6_K"], 1, 8, "layer", "clamped"),
    ],
)  # fmt: skip
def test_products(
    capability: int, kinds: list[str], rows: int, width: int, norm: str, activation: str
) -> None:
    products(capability, kinds, rows, width, norm, activation)


@pytest.mark.parametrize(
    ("capability", "kinds", "rows", "size", "activation", "summed"),
    [
        (90, ["Q4_K"], 4, 128, "", 0), (80, ["BF16"], 1, 4096, "", 0),
        (120, ["Q8_0"], 1, 64, "", 0), (90, ["BF16"], 4, 4096, "gelu", 1),
        (120, ["Q8_0"], 4, 4096, "gelu", 1), (80, ["Q4_K"], 1, 4096, "silu", 1),
        (90, ["Q4_K", "Q6_K"], 4, 4096, "", 1), (80, ["Q4_K", "Q6_K"], 4, 4096, "", 1),
        (90, ["Q4_K", "Q6_K"], 1, 4096, "", 1), (120, ["F32", "BF16"], 4, 4096, "", 1),
        (80, ["Q4_K", "Q6_K"], 4, 4096, "", 3), (90, ["Q8_0"], 4, 4096, "", 3),
        (120, ["BF16"], 4, 4096, "silu", 3),
    ],
)  # fmt: skip
def test_products_of_parts(
    capability: int, kinds: list[str], rows: int, size: int, activation: str, summed: int
) -> None:
    norm = "rms" if summed else ""
    products(capability, kinds, rows, 8, norm, activation, parts_of_rows=size, summed=summed)


@pytest.mark.parametrize(("capability", "kind"), [(80, "Q4_K"), (90, "BF16"), (120, "Q8_0")])
def test_convolutions_beside_products(capability: int, kind: str) -> None:
    """Kimi-linear's: gates and decays are made of two inputs meanwhile."""
    beside = "convolution", ("i32", CONVOLUTION), Constants(()), Constants(((4, True, 4, 64, 4),))
    products(capability, [kind, kind], 4, 8, "", beside=beside)


@pytest.mark.parametrize(
    ("capability", "kind", "rows"),
    [(80, "Q4_K", 4), (90, "BF16", 1), (120, "Q8_0", 4), (90, "F32", 4)],
)
def test_products_of_convolved_rows(capability: int, kind: str, rows: int) -> None:
    """Jamba's: time steps, B and C."""
    products(capability, [kind], rows, 8, "", convolved=True)


@pytest.mark.parametrize(("capability", "kind"), [(80, "Q4_K"), (90, "BF16"), (120, "Q8_0")])
def test_products_of_gated_rows(capability: int, kind: str) -> None:
    products(capability, [kind], 4, 8, "", parts_of_rows=256, gate="gelu_rounded")


@pytest.mark.parametrize(
    ("capability", "kinds", "weighs"),
    [
        (90, ["Q4_K", "Q6_K"], "input"),
        (120, ["MXFP4"], "output"),
        (80, ["BF16", "F32"], "output"),
    ],
)
def test_mixtures(capability: int, kinds: list[str], weighs: str) -> None:
    products(capability, kinds, 1, 8, "rms", "silu", weighs)
    parts, forms = parts_of(kinds, 5)
    types = {
        "parts": tuple(parts), "x": "*fp32", "chosen": "*i32",
        "weights": "*fp32" if weighs == "output" else None,
        "shared_weight": "*fp32" if len(kinds) > 1 else None, "residual": "*fp32", "out": "*fp32",
        "room": "*i32", "float_room": "*fp32", "factor": "fp32",
    }  # fmt: skip
    fixed = {"FORMS": Constants(tuple(forms)), "NATIVE": True, "R": 8, "G": 64}
    check(mixture._mixed_products, capability, types, fixed, maxnreg=REGISTERS)


@pytest.mark.parametrize("beside", [None, ("i32", CONVOLUTION)])
@pytest.mark.parametrize(
    ("capability", "kind", "size", "norm"),
    [
        (80, "f16", 2, ""),
        (90, "q8_0", 34, "rms"),
        (120, "q5_1", 24, "layer"),
        (90, "f16", 2, "rms"),
    ],
)
def test_finished_heads(capability: int, kind: str, size: int, norm: str, beside: Any) -> None:
    """In the last case heads are normalised together; also beside a convolution, as falcon-h1's."""
    weight, bias = "*fp32" if norm else None, "*fp32" if norm == "layer" else None
    data, together = "*fp16" if kind == "f16" else "*u8", kind == "f16" and bool(norm)
    block, log = (0, 0) if kind == "f16" else (32, 5)
    forms = tuple((
        n, 128, norm, together, True, by, 0.125, to, size, groups_at_once(n * 128) if together else 8,
        128, log, 128, not to, 128, 0, n * 128 if together else 128, 0, 1,
    ) for n, by, to in ((32, 0, ""), (8, block, kind)))  # fmt: skip
    groups = tuple(
        ("*fp32", weight, bias, "fp32", *side, *["i32"] * 6, *["*fp32", "i32", "i32"] * 2)
        for side in ((None, None), (data, "*fp16"))
    )
    types = {"arguments": (groups, "*fp32", "*i64", "*fp32", "i32"), "beside": beside}
    fixed = {
        "KINDS": Constants((("heads",), ("convolution",))), "FORMS": Constants(forms),
        "SHAPE": Constants(((64, 64, False, False),)), "BESIDE": Constants(()),
        "BESIDE_SHAPE": Constants(((4, True, 4, 64, 4),)),
    }  # fmt: skip
    check(works._worked, capability, types, fixed, num_warps=4 if beside else 1)


@pytest.mark.parametrize(
    ("capability", "kind", "cache", "size"),
    [(80, "Q4_K", "q8_0", 34), (90, "BF16", "f16", 2), (120, "Q8_0", "bf16", 2)],
)
def test_heads_beside_products(capability: int, kind: str, cache: str, size: int) -> None:
    """Deepseek's: 128 heads of 128 channels become 512, and 64 of queries and keys are rotated meanwhile."""
    block, log = (32, 5) if cache == "q8_0" else (0, 0)
    forms = (
        (128, 576, "", False, True, 0, 1.0, "", 0, 8, 1024, 0, 576, False, 64, 0, 576, 512, 1),
        (
            1, 576, "rms", False, True, block, 0.125, cache, size, 8, 1024, log, 512, False, 576, 0, 512, 0, 1,
        ),
    )  # fmt: skip
    data = {"q8_0": "*u8", "f16": "*fp16", "bf16": "*i16"}[cache]
    sides = (None, None, None, None), ("*fp32", None, data, "*fp16" if cache == "q8_0" else data)
    sources = "*fp32", "i32", "i32", None, "i32", "i32"
    groups = tuple(
        ("*fp32", *side[:2], "fp32", *side[2:], *["i32"] * 6, *sources) for side in sides
    )
    arguments = groups, "*fp32", "*i64", None, "i32"
    shape = Constants(((32, 32, True, False),))
    beside = "heads", ("i32", arguments), Constants(forms), shape
    products(capability, [kind], 1, 8, "", weighs="output", beside=beside)


@pytest.mark.parametrize(
    ("capability", "kind", "cache", "size"),
    [
        (90, "BF16", "f16", 2),
        *(
            pytest.param(*of, marks=pytest.mark.slow)
            for of in (
                (80, "Q4_0", "q8_0", 34),
                (120, "Q8_0", "bf16", 2),
                (80, "F32", "f32", 4),
                (90, "Q6_K", "q5_1", 24),
            )
        ),
    ],
)
def test_heads_with_programs_of_their_own(
    capability: int, kind: str, cache: str, size: int
) -> None:
    """Deepseek's: 128 channels become 512, 64 are rotated, attention's 512 channels become 128."""
    kept = {"f16": "*fp16", "bf16": "*i16", "f32": "*fp32"}.get(cache, "*u8")
    halves = "*fp16" if kept == "*u8" else kept
    (part,), _ = parts_of([kind], 2)
    part = (*part[:6], None, *part[7:])
    widths = (128, 512) if kind != "Q6_K" else (256, 512)
    made = [
        Planes(kind, n_out, n_in, torch.empty(n_out, n_in // 128 or 1, 128))
        for n_in, n_out in (widths, (512, 128))
    ]
    block = 0 if halves == kept else 32
    size_of, log, scale = attention._hadamard_of(block)
    turn = size_of, scale
    group = (
        "*fp32",
        None,
        None,
        "fp32",
        None,
        None,
        *["i32"] * 6,
        "*fp32",
        "i32",
        "i32",
        None,
        "i32",
        "i32",
    )
    finish = (group,), "*fp32", "*i64", None, "i32"
    types = {
        "q": "*fp32", "keys": kept, "values": kept, "key_halves": halves, "value_halves": halves,
        "out": "*fp32", "scores": "*fp32", "tops": "*fp32", "tokens": "*i32", "cells": "*i32",
        "key_cells": "*i32", "index": "*i32", "positions": "*i32", "scale": "fp32", "softcap": "fp32",
        "own": (
            "*fp32", "i32", "i32", (part, "i32", "i32"), (part, "i32", "i32"), "*fp32", "*i32", "*fp32", "i32",
        ),
        "finish": finish, "beside": None,
    }  # fmt: skip
    fixed = {
        "slopes": None, "sink_scores": None, "SCAN": None, "key_channel": int(not block),
        "value_channel": int(not block),
        "HEADS": 1, "GROUP": 16, "PADDED": 16, "QUERIES": 1, "DIM": 576, "KIND": cache, "BYTES": size,
        "VARIANTS": False, "CAPPED": False, "PAIRS": 1, "CELLS": 64, "VALUES": 512, "VALUE_KIND": cache,
        "VALUE_BYTES": size, "CHANNELS": 128, "HADAMARD": attention._hadamard_of(block),
        "SCORES": True, "MIXES": True, "MATRICES": forms_of(made),
        "TILES": Constants(tuple(map(own_heads._tile, made))), "NATIVE": True,
        "FORMS": Constants(
            ((16, 576, "", False, True, *turn, "", 0, 8, 1024, log, 576, False, 64, 0, 576, 512, 1),)
        ),
        "SHAPE": Constants(((32, 32, True, False),)),
    }  # fmt: skip
    stack = 8 if (kind, cache) == ("Q6_K", "q5_1") else 0
    how = {"num_warps": own_heads.WARPS, "maxnreg": 255}
    check(attention_kernels.attend, capability, types, fixed, stack, **how)


@pytest.mark.parametrize(
    ("capability", "kind"), [(80, "Q4_K"), (90, "BF16"), (120, "Q8_0"), (90, "Q6_K")]
)
def test_products_and_logits(capability: int, kind: str) -> None:
    """Gemma4's: a dense part and the logits of 128 experts are a launch."""
    products(
        capability, [kind, "F32"], 4, 8, "rms", "gelu_rounded", parts_of_rows=4096, summed=1, plain=True
    )  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "kinds", "weighs", "n", "groups", "scores"),
    [
        (80, ["Q4_K", "Q6_K"], "output", 256, 8, "sigmoid"),
        (90, ["Q4_K", "Q6_K"], "input", 128, 1, "softmax"),
        (90, ["Q6_K"], "output", 512, 1, "chosen softmax"),
        (120, ["MXFP4"], "output", 32, 1, "chosen softmax"),
        (80, ["BF16", "F32"], "input", 256, 8, "sigmoid"),
    ],
)
def test_products_of_the_experts_that_they_choose(
    capability: int, kinds: list[str], weighs: str, n: int, groups: int, scores: str
) -> None:
    route = routes(n, groups, scores)
    products(capability, kinds, 1, 8, "rms", "silu", weighs, beside=route)


@pytest.mark.parametrize(("capability", "kind"), [(80, "Q4_K"), (90, "Q6_K"), (120, "BF16")])
def test_experts_beside_the_end_of_a_dense_part(capability: int, kind: str) -> None:
    """Gemma4's."""
    how = "gelu_rounded", "output"
    route = routes(128, 1, "softmax")
    products(capability, [kind, kind], 1, 8, "rms", *how, beside=route, plain=True)


def routes(n: int, groups: int, scores: str) -> tuple[str, Any, Any, Any]:
    """What chooses 8 of n experts beside a product."""
    tensors = "*fp32", "*fp32" if groups > 1 else None, "*fp32", "*fp32", "*i32", "*fp32", "*fp32"
    shape = Constants(((n, 8, n, 16, groups, groups, 2, 4, scores, True),))
    return "route", ("i32", (*tensors, STRIDE, "fp32")), Constants(()), shape
