"""Arguments of launches on a device, on record: programs, constants, sizes and strides.

Tensors are on PyTorch's device ``meta``, without memory, and no kernel runs.  ALEATOR_RECORD=1 records a change
that is meant; which sizes are fast is measured on a GPU.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from aleator.cache.storage.layer import TYPES, LayerFormat
from aleator.cache.storage.tensors import TensorLayer
from aleator.device.peak import PeakBytes
from aleator.models.config import ExpertsConfig
from aleator.models.files.tensor_types import TENSOR_TYPES
from aleator.models.kernels import (
    attention,
    cells,
    fused,
    heads,
    mixture,
    norms,
    own_heads,
    product,
    recurrent,
    recurrent_parts,
    rotation,
    routing,
    works,
)  # fmt: skip
from aleator.models.kernels.operand import Operand
from aleator.models.kernels.own_steps import OwnSteps
from aleator.models.kernels.planes import Planes, planes, stack
from aleator.models.kernels.recurrent_parts import PartNorm
from aleator.models.kernels.runs import Runs
from aleator.models.kernels.seen import SeenTensors, listed
from tests.drawn import differences

META = torch.device("meta")


def of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def integers(*shape: int) -> torch.Tensor:
    return of(*shape, dtype=torch.int32)


def matrix(kind: str, n_out: int, n_in: int, biased: bool = False) -> Planes:
    """Of more than 1,000 rows only the number is told: laying them out takes long."""
    size, rows = TENSOR_TYPES[kind], min(n_out, 1000)
    data = of(rows * n_in // size.block * size.size, dtype=torch.uint8)
    return replace(planes(data, kind, rows, n_in, of(rows) if biased else None), n_out=n_out)


def side(
    kind: str, n_heads: int, dim: int, rotation: int = 0, by_channel: bool = False
) -> cells.Side:
    made = LayerFormat(TYPES[kind], n_heads, dim, 50, by_channel, rotation)
    return cells.side(TensorLayer.on(META, made))


def shown(value: object) -> str:
    """A tensor's type, sizes and strides; other values as they are."""
    if isinstance(value, torch.Tensor):
        strides = "" if value.is_contiguous() else f" by {value.stride()}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


RUNS = Runs(*(of(n, dtype=torch.int64) for n in (5, 5, 4, 70, 70, 70)))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, small_programs: None) -> list[str]:
    """What is launched from now on; nothing runs."""
    found: list[str] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        found.append(
            f"{self.fn.__name__}{list(grid)} "
            + " ".join(f"{n}={shown(v)}" for n, v in given.items())
        )

    monkeypatch.setattr(InterpretedFunction, "run", run)
    return found


def test_launches_of_products(launched: list[str]) -> None:
    for kind in ("Q4_K", "Q2_K", "Q8_0", "MXFP4", "F16", "BF16"):
        own, block = matrix(kind, 41, 512, kind == "Q8_0"), TENSOR_TYPES[kind].block
        for n in (1, 3, 16, 17, 65):
            if block > 1 and n != 3:
                product.round_rows(of(n, 512), block)
            product.product(own, of(n, 512), None, of(n, 50)[:, :41], 0.5)
        expert = integers(5)
        product.product(stack([own, own]), of(5, 512), expert=expert)
        product.read_rows(own, of(3, dtype=torch.int64))
    for n_out in (8192, 8193):
        product.product(matrix("Q4_K", n_out, 4096), of(2, 4096))
    for n_out in (1 << 19, (1 << 19) - 1):  # 2^31 elements, and fewer
        product.product(matrix("Q4_K", n_out, 4096), of(17, 4096))
    many = 2_000_000  # rows, whose sums have no room at once
    stacked = stack([matrix("Q4_K", 9, 256)] * 2)
    product.product(stacked, of(many, 256), None, of(many, 9), expert=integers(many))
    product.product(matrix("Q8_0", 1, 32), of(2, 32))
    assert differences("launches_of_products", launched) == []


def test_launches_of_few(launched: list[str]) -> None:
    norm = norms.RowNorm("layer", of(512), of(512), 1e-5)
    kinds = ["Q4_K", "Q6_K", "F16"]
    for n in (1, 3, 16):
        for given in (None, norm):
            for count in (1, 2, 3):
                some = [matrix(kind, 40 + i, 512, i == 1) for i, kind in enumerate(kinds[:count])]
                fused.product_of_few(some, of(n, 600)[:, :512], given)
            fused.product_of_few([matrix("BF16", 42, 512)], of(n, 512), given, "gelu_rounded", True)
        gates = of(n, 8, 64)[:, ::2]
        sums: Any = {"residual": of(n, 520)[:, :512], "scale": 0.5, "kept": of(n, 512)}
        for parts in (
            PartNorm(128, of(128), 1e-5, of(n, 4, 128), "silu"),
            PartNorm(128, of(512), 1e-5),
            PartNorm(64, gate=gates),
            PartNorm(512, of(512), 1e-5, **sums),
        ):
            fused.product_of_few([matrix("Q4_K", 40, 512)], of(n, 512), parts=[parts])
        x, first = of(n, 512), PartNorm(512, of(512), 1e-5)
        taking = PartNorm(512, takes=of(n, 520)[:, :512])
        steps = first, taking, PartNorm(512, of(512), 1e-5, **sums)
        second = Operand(x, None, steps)
        pair = [matrix("Q4_K", 40, 512), matrix("F32", 8, 512)]
        made = fused.product_of_few(pair, x, None, "silu", True, parts=steps, second=second)
        *route, work = routing.routing(made[:, 20:], ExpertsConfig(8, 2, 512, (True,)))
        experts = stack([matrix("Q4_0", 40, 32)] * 8)
        fused.product_of_few([experts], of(n, 32), chosen=route[0], times=route[1], beside=work)
    for n_out in (8192, 8194):
        fused.product_of_few([matrix("Q8_0", n_out, 4096)], of(16, 4096), None, "silu", True)
    fused.product_of_few(
        [matrix("Q4_0", 40, 96)], of(2, 96), None, "", False, of(2, 50)[:, :40], 0.25
    )
    _, work = recurrent_parts.convolving(of(3, 90), of(90, 4), None, of(6, 90, 3), RUNS, True)
    for second in (
        Operand(of(3, 96)),
        Operand(of(3, 96), norms.RowNorm("rms", of(96), None, 1e-5)),
    ):
        two = [matrix("Q8_0", 40, 64), matrix("BF16", 30, 96)]
        fused.product_of_few(two, of(3, 70)[:, :64], second=second, beside=work)
    for shared in (False, True):
        stacks = [stack([matrix(kind, 42, 512)] * 4) for kind in ("Q4_K", "F16")]
        for own, down in zip(
            stacks, (matrix("Q6_K", 44, 512), matrix("F32", 40, 512)), strict=True
        ):
            both = [own, down][: 1 + shared]
            how: Any = {"chosen": integers(3, 2), "times": of(3, 2)}
            fused.product_of_few(both, of(3, 512), norm, "silu", True, **how)
            last = [own, matrix(down.type, 42, 256)][: 1 + shared]
            wide = 1024 + 256 * shared
            rest = of(3, 2), of(3) if shared else None, of(3, 42), 0.5
            mixture.mixed_products(last, of(3, wide), integers(3, 2), *rest)
    for kind, n_out in (("Q4_K", 9000), ("BF16", 90)):
        mixture.mixed_products(
            [stack([matrix(kind, n_out, 256)] * 2)], of(2, 512), integers(2, 2), None
        )
    assert differences("launches_of_few", launched) == []


def test_launches_of_attention(launched: list[str]) -> None:
    def seen(n: int, tokens: int, deltas: Any = None, raw: bool = False) -> SeenTensors:
        which, counts = np.zeros(tokens, np.int32), np.full(tokens, n)
        sight = listed(
            np.arange(n, dtype=np.int32), np.array([0, n]), which, counts, deltas, raw=raw
        )
        lists = integers(5, tokens), integers(n)
        return SeenTensors(sight, *lists, integers(n), integers(n))

    delta_rows = np.arange(40, dtype=np.int32) // 20
    for kind, n_heads, group, dim, dim_v, block in (
        ("f16", 2, 1, 64, 64, 0), ("q8_0", 1, 7, 96, 160, 32), ("bf16", 1, 12, 30, 20, 0),
        ("f32", 3, 2, 16, 16, 0),
    ):  # fmt: skip
        keys, values = side(kind, n_heads, dim, block), side(kind, n_heads, dim_v, block)
        for n, tokens in ((40, 3), (40, 17), (1024, 16), (1025, 2)):
            attention.attend(of(tokens, n_heads * group, dim), keys, values, seen(n, tokens), 0.125)
        q, by = of(3, n_heads * group, dim), rotation.RotationAngles(of(2, dim // 2, 2), 0, False)
        how: Any = {
            "softcap": 2.0,
            "slopes": of(n_heads * group),
            "sinks": of(n_heads * group),
            "angles": by,
        }
        attention.attend(q, keys, values, seen(40, 3, delta_rows), 0.1, **how)
        attention.attend(q, keys, values, seen(40, 3, delta_rows, raw=True), 0.1, **how)
        attention.attend(q, keys, values, seen(40, 3), 0.1, room=of(4000))
        attention.attend(q, keys, values, seen(40, 3), 0.1, finished=True)
    attention.attend(
        of(2, 4, 64).transpose(0, 1), side("f16", 1, 64), side("f16", 1, 64), seen(9, 4), 1.0
    )
    up, down = (stack([matrix(*of)] * 4) for of in (("Q8_0", 512, 128), ("BF16", 128, 512)))
    whole, x, latent = of(3, 4, 576), of(3, 4, 192), side("f16", 1, 576)
    rest = heads.Heads(whole, None, True, None, (x[..., 128:],), skipped=512)
    by = rotation.RotationAngles(of(3, 32, 2), 512, True)
    finish = heads.finishing([rest], by, of(3, dtype=torch.int64))
    own = own_heads.OwnHeads(x[..., :128], up, down)
    attention.attend(whole, latent, side("f16", 1, 512), seen(40, 3), 0.1, finish=finish, own=own)
    shared, by = side("q8_0", 2, 64, 32), rotation.RotationAngles(of(3, 32, 2), 0, True)
    how = {"finished": True}
    for n, copies in ((40, 1), (5000, 79)):
        groups = [
            heads.heads_of([of(3, 8, 64)], None, True, None, copies=copies)._replace(turn=32),
            *(heads.heads_of([of(3, 2, 64)], None, turns, shared) for turns in (True, False)),
        ]
        finish = heads.finishing(groups, by, of(3, dtype=torch.int64))
        attention.attend(groups[0].x[:3], shared, shared, seen(n, 3), 0.1, finish=finish, **how)
    many = seen(1000, 3)
    many.longest = 1 << 22
    attention.attend(of(3, 4, 64), side("f16", 1, 64), side("f16", 1, 64), many, 1.0)
    assert differences("launches_of_attention", launched) == []


@pytest.mark.parametrize("longest", [1, 1025, 1 << 20, 1 << 22, 1 << 23])
@pytest.mark.parametrize("tokens", [1, 17, 4096])
def test_long_texts_stay_within_grids_and_memory(
    longest: int, tokens: int, launched: list[str]
) -> None:
    which, counts = np.zeros(tokens, np.int32), np.ones(tokens, np.int64)
    sight = listed(np.arange(1, dtype=np.int32), np.array([0, 1]), which, counts, None)
    seen = SeenTensors(sight, integers(5, tokens), integers(1), integers(1), integers(1), longest)
    q, cache = of(tokens, 128, 64), side("f16", 16, 64)
    with PeakBytes() as peak:
        attention.attend(q, cache, cache, seen, 1.0)
    scores = max(attention.ROOM, 128 * longest)
    assert peak.most <= 4 * (q.numel() + scores + scores // attention.HIGHEST)
    for each in launched:
        x, y, z = json.loads(each[each.index("[") : each.index("]") + 1])
        assert x < 1 << 31  # CUDA's limits
        assert max(y, z) < 1 << 16


def test_launches_of_cells(launched: list[str]) -> None:
    for kind in TYPES:
        for dim, by_channel in (
            (96, False),
            (1056, False),
            *([(13, True)] if TYPES[kind].block == 1 else []),
        ):
            cells.gathered(side(kind, 3, dim, 0, by_channel), integers(70))
            made = LayerFormat(TYPES[kind], 3, dim, 50, by_channel, 0)
            if kind != "iq4_nl":
                cells.store(TensorLayer.on(META, made), of(70, dtype=torch.int64), of(70, 3, dim))
    by = rotation.RotationAngles(of(9, 12, 2), 2, True)
    for x in (of(70, 3, 26), of(2, 8, 26)[:, :3]):
        rotation.rotate(x, by, integers(len(x)), 2)
    for block in (0, 1, 2, 64, 2048):
        rotation.hadamard(of(5, 3, 4096), block)
    shared, each = (norms.RowNorm("rms", of(*n, 64), None, 1e-5) for n in ((), (2,)))
    for norm in (None, each, norms.RowNorm("layer", of(64), of(64), 1e-5)):
        groups = [
            heads.Heads(of(5, 4, 64), shared if norm else None, True, None),
            heads.Heads(of(5, 2, 64), norm, True, side("q8_0", 2, 64, 32)),
            heads.Heads(of(5, 2, 30), None, False, side("bf16", 2, 30)),
        ]  # fmt: skip
        works.launch(
            heads.finishing(
                groups, by if norm is None else None, of(5, dtype=torch.int64), norm is None
            )
        )
    whole = norms.RowNorm("rms", of(256), None, 1e-5)
    together = heads.heads_of(
        [of(5, 300)[:, :256].view(5, 4, 64)], whole, True, None, together=True
    )
    works.launch(heads.finishing([together], by, of(5, dtype=torch.int64)))
    assert differences("launches_of_cells", launched) == []


def test_launches_of_rows(launched: list[str]) -> None:
    for n in (512, 513, 8192, 8193):
        norms.normalised(of(5, n), norms.RowNorm("rms", of(n), None, 1e-5))
    each = norms.RowNorm("layer", of(3, 64)[:, :30], of(3, 64)[:, 30:60], 1e-6)
    wide = of(5, 200)[:, 4:94].view(5, 3, 30)
    norms.normalised(wide, each, of(5, 3, 30), 0.5)
    norms.normalised(of(2, 5, 3, 30), each)
    norms.normalised(of(30), norms.RowNorm("rms", None, None, 1e-6))
    norms.activate("silu", of(7, 200)[:, :90], of(7, 100)[:, :90])
    norms.activate("gelu_rounded", of(700), None)
    norms.activate("soften", of(3, 4, 90), None, None, 30.0, 0.5)
    for n, used, facts in (
        (8, 2, {}),
        (512, 8, {"n_groups": 8, "n_groups_used": 4}),
        (1024, 20, {"normalised": True}),
    ):
        made: Any = ExpertsConfig(n, used, 32, (True,), **facts)
        works.route(of(5, n + 8)[:, :n], made, of(n), of(n), of(5, n + 8)[:, n])
    for n in (70, 512, 1100):
        routing.combine(of(5, 2, n), of(5, 2), of(5, n), of(5))
        routing.sigmoid_of_dot(of(5, n + 3)[:, :n], of(n))
    assert differences("launches_of_rows", launched) == []


def convolve(*given: Any) -> None:
    works.launch(recurrent_parts.convolving(*given)[1])


def scan(*given: Any) -> None:
    works.launch(recurrent.scanning(*given)[1])


def test_launches_of_states(launched: list[str]) -> None:
    runs = RUNS
    for t, width in ((64, 4), (65, 4), (9, 2), (9, 6), (9, 33)):
        convolve(of(t, 110)[:, :100], of(100, width), of(100), of(6, 100, width - 1), runs, True)
    for state in (16, 64, 65, 256):
        more = of(9, 8), of(9, 8), of(9, 2 * state), of(9, 2 * state), of(8)
        scan(of(9, 40), *more, of(9, 50)[:, :40], of(6, 40, state), runs, True)
        scan(
            of(9, 40),
            of(9, 8),
            of(8),
            *more[2:],
            of(9, 40),
            of(6, 40, state),
            runs,
            True,
            of(8),
            0.5,
        )
    taken = recurrent_parts.Convolution(of(96, 4), of(96), of(6, 96, 3), runs, of(9, 96))
    for kind, n_in in (("Q8_0", 32), ("BF16", 30), ("Q4_K", 256)):
        both = fused.product_of_few(
            [matrix("Q8_0", n_in + 32, 96)], of(9, 192)[:, :96], parts=[taken]
        )
        operand = Operand(both[:, :n_in], norms.RowNorm("rms", of(n_in), None, 1e-5))
        step = OwnSteps(matrix(kind, 96, n_in, True), operand, of(9, 192)[:, :96], taken)
        rest = both[:, n_in : n_in + 16], both[:, n_in + 16 :], of(96), of(9, 192)[:, 96:]
        scan(taken.y, step, of(96, 16), *rest, of(6, 96, 16), runs)
    short = of(9, 100), of(100, 3), None, of(6, 100, 2)
    convolve(*short, runs, False, (of(9, 100), of(9, 100)))
    a, b = of(9, 20), of(9, 16)
    for normed in (None, (of(2, 16), 1e-5)):
        last: Any = False, None, 0.0, normed
        scan(a, a, of(20, 16), b, b, of(20), a, of(6, 20, 16), runs, *last)
    for tiled in (False, True):
        q, v = of(9, 2, 16), of(9, 6, 5)
        recurrent.delta_rule(q, q, v, of(9, 6), of(9, 6), of(6, 30, 16), runs, tiled)
        last = of(6), of(6), 1e-6
        recurrent.delta_rule(q, q, v, of(9, 6), of(9, 6), of(6, 30, 16), runs, tiled, *last)
    for t in (1, 9, 300):
        recurrent_parts.time_step(of(t, 12)[:, :9], of(9), of(9), 0.5)
        recurrent_parts.delta_rates(of(t, 12)[:, :9], of(t, 9), of(9), of(9))
    for size in (7, 30, 512, 1000, 6000):
        x = of(9, 4 * size)[:, : 3 * size]
        recurrent_parts.unit_length(x, size, 1e-6, 2)
        PartNorm(size, of(size), 1e-5, of(9, 3 * size), "silu")(x)
        PartNorm(size, of(3 * size), 1e-5)(x)
    assert differences("launches_of_states", launched) == []
