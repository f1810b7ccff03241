"""Matrices in Triton's kernels: alone, or many of one shape, of experts or of heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aleator.models.kernels.floats import Work
from aleator.models.kernels.fused import product_of_few
from aleator.models.kernels.planes import Planes, joined, stack
from aleator.models.kernels.product import FEW, Rounded, product, read_rows, round_rows


class TritonLinear:
    """One or more stored matrices with the same input, their outputs side by side.

    ``order``: the element of x that each of their columns meets, int64 [n_in]; None: its own.
    """

    def __init__(self, parts: Sequence[Planes], order: torch.Tensor | None = None) -> None:
        self.parts, self.order = joined(parts), order

    def ordered(self, x: torch.Tensor) -> torch.Tensor:
        """The elements of x as the columns meet them."""
        return x if self.order is None else x.index_select(1, self.order)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_in] -> [T, sum of n_outs]."""
        if len(x) <= FEW:
            return product_of_few(self.parts, self.ordered(x))
        out = torch.empty(
            (len(x), sum(part.n_out for part in self.parts)), dtype=torch.float32, device=x.device
        )
        self.into(out, x)
        return out

    def into(
        self, out: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None = None, scale: float = 1.0
    ) -> None:  # fmt: skip
        """Write the product of many rows, or ``residual + scale * y``, to ``out``."""
        x = self.ordered(x)
        rounded: dict[int, torch.Tensor | Rounded] = {1: x.contiguous()}
        columns = torch.split(out, [part.n_out for part in self.parts], -1)
        for part, to in zip(self.parts, columns, strict=True):
            if part.block not in rounded:
                rounded[part.block] = round_rows(x, part.block)
            product(part, rounded[part.block], to, residual, scale)


class TritonEmbedding:
    """Rows of a stored matrix [n_vocab, n_embd]."""

    def __init__(self, rows: Planes) -> None:
        self.rows = rows

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> float32 [T, n_embd]; the ids have been checked."""
        return read_rows(self.rows, ids)


class Stacked:
    """Matrices of one shape and type; every token goes through those chosen for it.

    ``listed``: the parts of each matrix, which are taken out.
    """

    def __init__(self, listed: Sequence[list[Planes]]) -> None:
        self.parts = [stack(column) for column in zip(*listed, strict=True)]
        for each in listed:  # they are in the stack now
            each.clear()

    def __call__(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """See :data:`~aleator.models.layers.ops.Chosen`."""
        rows, flat = x.reshape(-1, x.shape[-1]), numbers.reshape(-1).to(torch.int32)
        made = [product(part, rows, expert=flat) for part in self.parts]
        given = made[0] if len(made) == 1 else torch.cat(made, -1)
        return given.view(*numbers.shape, -1)


class HeadMatrices:
    """A matrix for each of some heads.

    Attributes:
        single: they are of one type each, so that few rows take one launch.
    """

    def __init__(self, listed: Sequence[list[Planes]]) -> None:
        n, self.stacked = len(listed), Stacked(listed)
        parts = self.stacked.parts
        self.single, self.n_out = len(parts) == 1, sum(part.n_out for part in parts)
        numbers = torch.arange(n, dtype=torch.int32, device=parts[0].low.device)
        self.numbers = numbers.repeat(FEW, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See :data:`~aleator.models.layers.ops.EachHead`."""
        t, n = x.shape[:2]
        if t > FEW:
            return self.stacked(x, self.numbers[:1].expand(t, -1))
        if not self.single:
            return self.stacked(x, self.numbers[:t])
        out = torch.empty((t, n, self.n_out), dtype=torch.float32, device=x.device)
        self.into(out, x)
        return out

    def into(self, out: torch.Tensor, x: torch.Tensor, beside: Work | None = None) -> None:
        """Write the product of few rows to the first channels of ``out`` [T, H, at least n_out], contiguous.

        ``beside``: what the same launch finishes.
        """
        chosen, to = self.numbers[: len(x)].view(-1, 1), out.flatten(0, 1)
        rows = x.flatten(0, 1)
        product_of_few(self.stacked.parts, rows, chosen=chosen, out=to, beside=beside)


def alone_stacks(matrices: Sequence[object]) -> list[Planes]:
    """The stacks of heads' matrices that have one type each and no bias; []: not all are so."""
    made = [
        each.stacked.parts for each in matrices if isinstance(each, HeadMatrices) and each.single
    ]
    plain = [parts[0] for parts in made if parts[0].bias is None]
    return plain if len(plain) == len(matrices) else []
