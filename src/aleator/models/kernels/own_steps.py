"""What programs of a selective scan of few tokens do before: time steps, and what a convolution keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from aleator.models.kernels.floats import Constants
from aleator.models.kernels.norms import moments
from aleator.models.kernels.operand import Operand
from aleator.models.kernels.planes import Planes
from aleator.models.kernels.product import FEW, forms_of, has_dp4a, planes_of, row_words
from aleator.models.kernels.ready import rows_ready, tile_sums
from aleator.models.kernels.recurrent_parts import Convolution, keep_latest

_MOST = tl.constexpr(FEW)
_RUNS = tl.constexpr(8)  # of a tile of a matrix in blocks: more would not fit into registers


class OwnSteps(NamedTuple):
    """What makes the time steps of up to FEW tokens, and what has been convolved for them."""

    matrix: Planes  # [C, n_in]
    operand: Operand  # what it is multiplied by; only a norm comes before
    x: torch.Tensor  # float32 [T, C], with rows of any stride, what ``convolution`` takes
    convolution: Convolution

    def given(self, channels: int, programs: int) -> tuple[tuple[Any, ...], Constants]:
        """What a kernel takes if so many programs have so many channels each, and constants."""
        m, x = self.matrix, self.x
        ints, sums = row_words(m, channels)
        size = max(ints + sums, m.n_in)  # a normalised row
        room = torch.empty((programs, size), dtype=torch.int32, device=x.device)
        rest = x, x.stride(0), self.convolution.kept, len(x)
        own = (
            planes_of(m),
            self.operand.arguments,
            room,
            room.view(torch.float32),
            size,
            ints,
            *rest,
        )
        form = forms_of([m], max(channels // 8, 1)).rows[0]  # tiles of 8 are usual
        how = *self.operand.constants[2:5], has_dp4a(x), self.convolution.weight.shape[1]
        return own, Constants(((*form, *how),))


@triton.jit
def own_steps(
    own, step, runs, number, chain, channel, inside, n, OWN: tl.constexpr, CHANNELS: tl.constexpr
):
    """Write the time steps of channels, of a chain's tokens, to ``step`` [T, n]; the first chain's keep values.

    ``own`` and OWN are of :class:`OwnSteps`, ``number`` is the program's.
    """
    part, operand, room, float_room, size, ints, values, stride, kept, tokens = own
    x, _, weight, shift, eps, x_stride, n_in = operand
    chains, starts, _, order, _, _ = runs
    NORM: tl.constexpr = OWN[9]
    if chain == 0:
        keep_latest(values, kept, runs, stride, n, channel, inside, tokens, OWN[13], _MOST)
    mine = number.to(tl.int64) * size
    row = tl.minimum(channel, n - 1)
    first = tl.load(starts + tl.load(chains + chain))
    last = tl.load(starts + tl.load(chains + chain + 1))
    for i in range(first, last):
        token = tl.load(order + i)
        one = token + tl.arange(0, 1)
        mean, by = 0.0, 1.0
        if NORM != "":
            rows, there = x + one[:, None] * x_stride, (one >= 0)[:, None]
            mean, by = moments(rows, there, eps, OWN[10], 1, OWN[11], NORM == "layer")
        made = rows_ready(
            part[0], x, weight, shift, mean, by, None, room + mine, float_room + mine, ints, token, one, token,
            x_stride, n_in, part[8], NORM, OWN[7], 1,
        )  # fmt: skip
        y = tile_sums(part, made, row, 0, n_in, False, OWN, 0, OWN[12], 1, CHANNELS, _RUNS)
        if part[6] is not None:
            y += tl.load(part[6] + row)[None, :]
        tl.store(step + one[:, None] * n + row[None, :], y, mask=inside[None, :])
        tl.debug_barrier()  # the memory is the next token's, and the scan reads the steps
