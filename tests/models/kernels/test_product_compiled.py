"""Kernels of products compiled ahead of time: integer dot products, tensor cores, and no spills."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")
from triton.compiler import ASTSource

from aleator.models.files.tensor_types import TENSOR_TYPES
from aleator.models.kernels import product_kernels
from aleator.models.kernels.floats import EXACT
from aleator.models.kernels.planes import FORMS
from tests.device.compiled import built, check_exact

POINTERS = {
    "d": "*fp16", "m": "*fp16", "scale": "*i8", "least": "*i8", "bias": "*fp32", "xd": "*fp32",
    "xs": "*i32", "expert": "*i32", "residual": "*fp32", "out": "*fp32", "room": "*fp32", "x": "*fp32",
    "q": "*i8", "sums": "*i32", "ids": "*i64",
}  # fmt: skip


def check(
    function: Any,
    capability: int,
    types: dict[str, str],
    wanted: str,
    warps: int = 4,
    **constants: Any,
) -> str:
    """Compile for sizes that are a multiple of 16; arguments that no table names are integers; return PTX."""
    signature, attributes = {}, {}
    for i, name in enumerate(function.arg_names):
        given = (POINTERS | types).get(name, "fp32" if name == "factor" else "i32")
        signature[name] = "constexpr" if name in constants else given
        if name not in constants and given != "fp32" and not name.startswith("n_t"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    fixed = {(function.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(function, signature, fixed, attributes)
    binary = built(source, capability, EXACT | {"num_warps": warps})
    ptx = binary.asm["ptx"]
    assert wanted in ptx
    check_exact(binary)
    return str(ptx)


def of_type(kind: str, **more: Any) -> dict[str, Any]:
    """The constants of a type's kernels."""
    form, block = FORMS[kind], TENSOR_TYPES[kind].block
    constants = {
        "LOW": form.low, "HIGH": form.high, "OFFSET": form.offset, "TABLE": form.table,
        "GROUP": form.group, "LEAST": form.least, "D_FACTOR": form.d_factor, "BLOCK": block,
    } | more  # fmt: skip
    absent = {
        "high": not form.high, "m": not (form.has_m or form.least), "scale": form.group == 256,
        "least": form.least != 8,
    }  # fmt: skip
    return constants | {name: None for name, is_absent in absent.items() if is_absent}


@pytest.mark.parametrize(
    ("kind", "capability", "rows", "tile"),
    [
        ("Q4_K", 80, 1, 8), ("Q4_K", 90, 4, 16), ("Q8_0", 120, 4, 16), ("MXFP4", 90, 1, 8), ("Q6_K", 90, 4, 16),
    ],
)  # fmt: skip
def test_few_rows(kind: str, capability: int, rows: int, tile: int) -> None:
    types = {"low": "*i32", "high": "*i32", "xq": "*i32"}
    if kind == "MXFP4":
        types["d"] = "*u8"
    absent = {"bias": None, "residual": None} | ({} if rows == 1 else {"expert": None})
    constants = of_type(kind, NATIVE=True, T=rows, R=tile, G=512 // tile) | absent
    check(product_kernels.few_rows, capability, types, "dp4a.s32.s32", **constants)


@pytest.mark.parametrize(
    ("kind", "capability", "wanted"),
    [("Q4_K", 90, "wgmma"), ("Q6_K", 80, "mma.sync"), ("Q8_0", 120, "mma.sync")],
)
def test_many_rows(kind: str, capability: int, wanted: str) -> None:
    types = {"low": "*u8", "high": "*u8", "xq": "*i8"}
    constants = of_type(kind, WIDE=False, T=64, R=64) | {"bias": None}
    check(product_kernels.many_rows, capability, types, wanted, warps=8, **constants)


def floats(w: str) -> dict[str, str]:
    """The types of a matrix of floats and of its activations."""
    return {"w": w, "x": "*i32" if w == "*bf16" else "*fp32"}


@pytest.mark.parametrize(
    ("w", "capability", "rows", "ahead"),
    [("*bf16", 90, 1, 8), ("*fp16", 80, 4, 2), ("*fp32", 120, 1, 0)],
)
def test_floats(w: str, capability: int, rows: int, ahead: int) -> None:
    check(
        product_kernels.float_rows, capability, floats(w), "fma.rn.f32",
        AHEAD=ahead, T=rows, R=8, expert=None, residual=None,
    )  # fmt: skip


@pytest.mark.parametrize(("w", "capability"), [("*bf16", 90), ("*fp16", 80), ("*fp32", 120)])
def test_tiles_of_floats(w: str, capability: int) -> None:
    """No thread waits for another between the sums: only before and after they go through memory."""
    ptx = check(
        product_kernels.float_tiles, capability, floats(w), "fma.rn.f32",
        AHEAD=1, ROWS=8, T=8, R=8, bias=None,
    )  # fmt: skip
    assert ptx.count("bar.sync") == 2


@pytest.mark.parametrize(("capability", "tokens"), [(80, 1), (90, 4)])
def test_pairs_of_bfloat16_are_read_as_words(capability: int, tokens: int) -> None:
    """Two elements of a row take one load, of the matrix and of activations."""
    ptx = check(
        product_kernels.float_rows, capability, floats("*bf16"), "fma.rn.f32",
        AHEAD=1, T=tokens, R=8, bias=None, residual=None, expert=None,
    )  # fmt: skip
    assert ptx.count("fma.rn.f32") == 8 * tokens
    assert ptx.count("ld.global") == 4 * (1 + tokens)


def test_rounding_and_reading() -> None:
    check(product_kernels.rounded_rows, 90, {}, "div.rn.f32", BLOCK=256, AT_ONCE=4, WORDS=True)
    check(product_kernels.paired_rows, 90, {"out": "*i32"}, "st.global", W=512)
    types = {"low": "*u8", "high": "*u8"}
    check(product_kernels.widened_rows, 90, types, "mul.rn.f32", **of_type("Q6_K", G=32))


def test_sizes_of_one() -> None:
    """Arguments that are 1 become constants."""
    types = {"low": "*i32", "high": "*i32", "xq": "*i32"}
    constants = of_type("Q4_0", NATIVE=True, T=1, R=1, G=8, n_out=1, n_tokens=1, runs=1)
    absent: dict[str, Any] = {"bias": None, "residual": None, "expert": None}
    check(product_kernels.few_rows, 90, types, "dp4a.s32.s32", **constants, **absent)
    constants = of_type("Q8_0", WIDE=True, T=64, R=64, n_out=1, runs=1) | {"bias": None}
    check(product_kernels.many_rows, 90, {"low": "*u8", "xq": "*i8"}, "wgmma", warps=8, **constants)
    check(
        product_kernels.float_rows, 90, floats("*bf16"), "fma.rn.f32",
        AHEAD=1, T=1, R=1, n_out=1, n_tokens=1, chunks=1, **absent,
    )  # fmt: skip
    check(
        product_kernels.rounded_rows,
        90,
        {},
        "div.rn.f32",
        BLOCK=32,
        AT_ONCE=1,
        WORDS=True,
        n_blocks=1,
        blocks=1,
    )
    check(
        product_kernels.widened_rows, 90, {"low": "*u8"}, "mul.rn.f32",
        **of_type("Q8_0", G=1, n_out=1, runs=1),
    )  # fmt: skip
