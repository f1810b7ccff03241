"""What programs of attention do if each has a head of a token: its queries before, its values afterwards."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from aleator.models.kernels.floats import Constants, sized
from aleator.models.kernels.planes import Planes
from aleator.models.kernels.product import forms_of, has_dp4a, planes_of, row_words
from aleator.models.kernels.ready import rows_ready, tile_sums

WARPS = 8
"""Of a program: a head's matrices are read by it alone."""
_TILE = 1024  # runs of a tile of a matrix in blocks, four per thread
_ROWS = 64  # of a tile of a matrix of floats


class OwnHeads(NamedTuple):
    """What makes queries of compressed keys, and values of what attention gives."""

    x: torch.Tensor  # float32 [T, H, n]; the channels of a head lie together
    up: Planes  # a matrix for each head, without a bias: x times it is the first channels of the queries
    down: Planes  # a matrix for each head, without a bias, for attention's result

    def given(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """The result [T, H, n_out], and what :func:`attend` takes to make it."""
        x, matrices = self.x, (self.up, self.down)
        t, heads, _ = x.shape
        made = torch.empty((t, heads, self.down.n_out), dtype=torch.float32, device=x.device)
        tiles = tuple(map(_tile, matrices))
        words = [row_words(m, tile[0]) for m, tile in zip(matrices, tiles, strict=True)]
        size = max(map(sum, words))
        room = torch.empty((t * heads, size), dtype=torch.int32, device=x.device)
        each = tuple(
            (planes_of(m), m.n_in, ints) for m, (ints, _) in zip(matrices, words, strict=True)
        )
        arguments = (
            x, x.stride(0), x.stride(1), *each, made, room, room.view(torch.float32), size,
        )  # fmt: skip
        return made, {
            "own": arguments, "MATRICES": forms_of(matrices), "TILES": Constants(tiles), "NATIVE": has_dp4a(x),
        }  # fmt: skip


def _tile(m: Planes) -> tuple[int, int]:
    """Rows of a matrix that are taken at once, and runs of them."""
    length = max(min(triton.next_power_of_2(m.n_in // 32), _TILE // _ROWS), 8)
    width = _ROWS if m.block == 1 else _TILE // length
    return min(triton.next_power_of_2(m.n_out), sized(512, width)), length


@triton.jit
def own_queries(
    own, q, head, number, MATRICES: tl.constexpr, TILES: tl.constexpr, NATIVE: tl.constexpr
):
    """The first channels of the queries of a head of a token, its ``number`` among all, at ``q``."""
    x, t_stride, head_stride, up = own[0], own[1], own[2], own[3]
    x += tl.program_id(0).to(tl.int64) * t_stride + head * head_stride
    _head_product(up, x, q, own, head, number, MATRICES, TILES, 0, NATIVE)
    tl.debug_barrier()


@triton.jit
def own_values(
    own, out, head, number, MATRICES: tl.constexpr, TILES: tl.constexpr, NATIVE: tl.constexpr
):
    """A head's result, of what attention has given at ``out``."""
    down, made = own[4], own[5]
    tl.debug_barrier()
    to = made + number.to(tl.int64) * down[0][7]
    _head_product(down, out, to, own, head, number, MATRICES, TILES, 1, NATIVE)


@triton.jit
def _head_product(
    matrix, x, out, own, head, number,
    MATRICES: tl.constexpr, TILES: tl.constexpr, P: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """A row ``x`` times the matrix of a head."""
    part, n_in, ints = matrix
    R: tl.constexpr = TILES[2 * P]
    G: tl.constexpr = TILES[2 * P + 1]
    mine = number.to(tl.int64) * own[8]
    one = tl.arange(0, 1).to(tl.int64)
    made = rows_ready(
        part[0], x, None, None, 0.0, 1.0, None, own[6] + mine, own[7] + mine, ints, 0, one, 0, 0, n_in, part[8],
        "", MATRICES[9 * P + 7], 1,
    )  # fmt: skip
    n_out = part[7]
    for begin in range(0, n_out, R):
        row = begin + tl.arange(0, R)
        at = tl.minimum(row, n_out - 1)
        y = tile_sums(part, made, at, head, n_in, True, MATRICES, 9 * P, NATIVE, 1, R, G)
        tl.store(out + row[None, :], y, mask=(row < n_out)[None, :])
