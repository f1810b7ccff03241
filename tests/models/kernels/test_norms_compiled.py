"""Kernels of norms, activations and routing compiled ahead of time: exact instructions, and no spills."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")
import triton
from triton.compiler import ASTSource

from aleator.models.kernels import norms, routing, works
from aleator.models.kernels.floats import Constants
from tests.device.compiled import built, check_exact
from tests.models.kernels import test_fused_compiled as products

TYPES = {"eps": "fp32", "scale": "fp32", "cap": "fp32", "TABLE": "*fp16", "CHOSEN": "*i32"}


def check(function: Any, capability: int, options: dict[str, Any], **constants: Any) -> None:
    """Compile for rows that are a multiple of 16 long.

    Arguments that TYPES does not name are pointers, or integers where their names are in small letters.
    """
    names = function.arg_names
    signature, attributes = {}, {}
    for i, name in enumerate(names):
        given = TYPES.get(name, "*fp32" if name.isupper() else "i32")
        signature[name] = "constexpr" if name in constants else given
        if name not in constants and given != "fp32" and name not in ("n_rows", "inner"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        function, signature, {(names.index(n),): v for n, v in constants.items()}, attributes
    )
    check_exact(built(source, capability, options | {"enable_fp_fusion": False}))


def norm(capability: int, n: int, residual: bool, layer: bool) -> None:
    check(
        norms._norm, capability, {"num_warps": norms.warps(n), "maxnreg": norms.REGISTERS},
        N=n, ROWS=1 if n > 512 else 2, SIZE=triton.next_power_of_2(n), AT_ONCE=norms.groups_at_once(n),
        LAYER=layer, **({} if layer else {"BIAS": None}), **({} if residual else {"RESIDUAL": None}),
    )  # fmt: skip


def route(capability: int, n: int, used: int, groups: int, scores: str) -> None:
    size = triton.next_power_of_2(n)
    bias, none = "*fp32" if groups > 1 else None, Constants(())
    tensors = "*fp32", bias, None, "*fp32", "*i32", "*fp32", "*fp32"
    shape = n, used, size, 16, groups, groups, 2, 4, scores, True
    fixed = {
        "KINDS": Constants((("route",),)), "FORMS": none, "SHAPE": Constants((shape,)), "BESIDE": none,
        "BESIDE_SHAPE": none,
    }  # fmt: skip
    types = {"arguments": (*tensors, "i32", "fp32"), "beside": None}
    products.check(works._worked, capability, types, fixed, num_warps=max(1, size // 512))


@pytest.mark.parametrize(
    ("n", "residual", "layer"),
    [
        (128, False, False),
        (128, False, True),
        (2880, False, False),
        (4096, True, False),
        (4096, False, True),
    ],
)
def test_norms(n: int, residual: bool, layer: bool) -> None:
    norm(90, n, residual, layer)


@pytest.mark.parametrize("kind", ["silu", "silu_clamped", "gelu_exact", "gelu_rounded", "soften"])
def test_activations(kind: str) -> None:
    without = {"UP": None} if kind == "soften" else {}
    check(norms._activate, 90, {"num_warps": 4}, N=14336, KIND=kind, BLOCK=512, **without)


@pytest.mark.parametrize(
    ("n", "used", "groups", "scores"),
    [(128, 8, 1, "softmax"), (256, 8, 8, "sigmoid"), (512, 10, 1, "chosen softmax")],
)
def test_routes(n: int, used: int, groups: int, scores: str) -> None:
    route(90, n, used, groups, scores)


@pytest.mark.parametrize("capability", [80, 120])
def test_other_devices(capability: int) -> None:
    norm(capability, 4096, True, False)
    route(capability, 256, 8, 8, "sigmoid")
    check(routing._combine, capability, {"num_warps": 4}, N=4096, N_USED=8, ROWS=1, BLOCK=512)
    check(
        routing._sigmoid_of_dot, capability, {"num_warps": 1, "maxnreg": norms.REGISTERS}, N=4096,
        ROWS=2, AT_ONCE=32,
    )  # fmt: skip
