"""Attention's operations in Triton: heads, their cells, and what programs of heads make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aleator.models.kernels.attention import ALONE, QUERIES, attend, moved, shares
from aleator.models.kernels.cells import side, store
from aleator.models.kernels.floats import Work
from aleator.models.kernels.fused import product_of_few
from aleator.models.kernels.heads import Heads, finishing, heads_of
from aleator.models.kernels.own_heads import OwnHeads
from aleator.models.kernels.product import FEW
from aleator.models.kernels.rotation import RotationAngles, hadamard, rotate
from aleator.models.kernels.works import launch
from aleator.models.layers.linear import Linear
from aleator.models.layers.operands import Attending, EachHead, Factors
from aleator.models.layers.ops import TorchOps
from aleator.models.layers.passes import Pass
from aleator.models.layers.rotary import Rotary
from aleator.models.triton.inputs import TritonPass
from aleator.models.triton.stacks import HeadMatrices, TritonLinear, alone_stacks
from aleator.models.triton.sums import alone, operand, row_norm


class TritonAttention(TorchOps):
    """The operations of attention by Triton's kernels, on float32 tensors."""

    def keep_and_each(
        self,
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
        listed: Sequence[Factors],
    ) -> list[Tensor]:
        """See :class:`TorchOps`; few rows take one launch, if each matrix has one type."""
        given = triton_pass(batch)
        if _by_pytorch(given, how):
            return super().keep_and_each(k, v, how, batch, listed)
        angles = None if how.rotary is None else given.rotation_angles[how.rotary]
        cells = given.cell_ids[how.windowed]
        work = finishing(_stored(k, v, how, given), angles, cells, how.norm_last)
        made = joined_products(listed, work)
        if not made:
            launch(work)
        return made or self.each(listed)

    def finish(
        self,
        q: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
        up: EachHead | None = None,
        beside: Work | None = None,
    ) -> Tensor:
        """See :class:`TorchOps`; takes one launch, except for raw keys and type iq4_nl.

        ``beside``: what is done too, in the same launch if there is no ``up``.
        """
        given = triton_pass(batch)
        turn = _turn(how, given)
        if how.stores and k and _by_pytorch(given, how):
            launch(beside)
            return hadamard(super().finish(q, k, v, how, batch, up).contiguous(), turn)
        rotates = how.rotary is not None
        angles = None if how.rotary is None else given.rotation_angles[how.rotary]
        scales = batch.query_scales if how.grows else None
        # The same launch makes the first channels of queries that are only rotated, in others.
        few = isinstance(up, HeadMatrices) and up.single and len(q[0]) <= FEW
        plain = scales is None and turn < 2
        joined = up if isinstance(up, HeadMatrices) and few and plain else None
        if joined is not None:
            groups = [_with_room(q[1], joined.n_out, rotates)]
        else:
            q = q if up is None else (up(q[0]), *q[1:])
            norm = row_norm(how.norms[0])
            queries = heads_of(q, norm, rotates, None, together=how.norm_together)
            groups = [queries._replace(turn=turn)]
        if how.stores and k:
            groups += _stored(k, v, how, given)
        cells = given.cell_ids[how.windowed]
        if joined is not None:
            joined.into(groups[0].x, q[0], finishing(groups, angles, cells))
            launch(beside)
        else:
            launch(finishing(groups, angles, cells, how.norm_last, scales), beside)
        return groups[0].x

    def rotate(self, heads: Tensor, rotary: Rotary, batch: Pass) -> Tensor:
        return rotate(heads.clone(), triton_pass(batch).rotation_angles[rotary])

    def store(self, k: Tensor, v: Tensor, how: Attending, batch: Pass) -> None:
        given = triton_pass(batch)
        rows, index = given.stored(how.windowed).rows, given.cell_ids[how.windowed]
        store(rows.keys.parts[how.layer], index, k)
        store(rows.values.parts[how.layer], index, v)

    def attend(self, q: Tensor, how: Attending, batch: Pass) -> Tensor:
        return attend(q, *visible(how, triton_pass(batch)))

    def finish_and_attend(
        self,
        q: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
    ) -> Tensor:
        """See :class:`TorchOps`; takes no launch to finish heads, if no token sees another new one's."""
        given, new = triton_pass(batch), how.stores and bool(k)
        t, heads, _ = q[0].shape
        of_keys = given.stored(how.windowed).rows.keys.parts[how.layer].heads
        refused = new and (not given.apart or _by_pytorch(given, how))
        copies = _shares(t, of_keys, heads // of_keys, how, given)
        # A program has all queries of a head of keys.
        if refused or heads // of_keys > QUERIES or not copies:
            return super().finish_and_attend(q, k, v, how, batch)
        norm, rotates = row_norm(how.norms[0]), how.rotary is not None
        queries = heads_of(q, norm, rotates, None, together=how.norm_together, copies=copies)
        stored = _stored(k, v, how, given) if new else []
        finish = _last([queries, *stored], how, batch)
        return attend(queries.x[:t], *visible(how, given), finish=finish)

    def attend_compressed(
        self,
        q: Sequence[Tensor],
        matrices: tuple[EachHead, EachHead],
        how: Attending,
        batch: Pass,
        like: Tensor,
    ) -> Tensor:
        """See :class:`TorchOps`; takes one launch where each head of few tokens has a program of its own."""
        given, stacks = triton_pass(batch), alone_stacks(matrices)
        t, heads = q[0].shape[:2]
        if not stacks or t * heads > ALONE or _shares(t, 1, heads, how, given) != 1:
            return super().attend_compressed(q, matrices, how, batch, like)
        whole = _with_room(q[1], stacks[0].n_out, how.rotary is not None)
        finish, own = _last([whole], how, batch), OwnHeads(q[0], *stacks)
        return attend(whole.x, *visible(how, given), finish=finish, own=own)

    def each_head(self, matrices: Sequence[Linear]) -> EachHead:
        listed = [each.parts for each in matrices if isinstance(each, TritonLinear)]
        return HeadMatrices(listed) if listed else super().each_head(matrices)


def triton_pass(batch: Pass) -> TritonPass:
    """``batch``, whose type it must be."""
    if not isinstance(batch, TritonPass):
        raise TypeError("kernels read what a TritonPass has")
    return batch


def joined_products(listed: Sequence[Factors], beside: Work | None = None) -> list[Tensor]:
    """One or two products of few rows in one launch; []: they take more."""
    matrices = alone(*(of.matrix for of in listed))
    if not 0 < len(matrices) <= 2 or len(listed[0].x) > FEW:
        return []
    (x, norm, parts, *_), *more = (operand(of) for of in listed)
    second = more[0] if more else None
    y = product_of_few(matrices, x, norm, parts=parts, second=second, beside=beside)
    return list(torch.split(y, [each.n_out for each in matrices], -1))


def _by_pytorch(given: TritonPass, how: Attending) -> bool:
    """Whether no kernel finishes and stores keys and values in one."""
    rows = given.stored(how.windowed).rows
    types = rows.keys.parts[how.layer].type.name, rows.values.parts[how.layer].type.name
    return rows.k_storage == "raw" or "iq4_nl" in types


def _stored(
    k: Sequence[Tensor], v: Sequence[Tensor], how: Attending, given: TritonPass
) -> list[Heads]:
    """Keys and values, which are to be finished and stored."""
    rows = given.stored(how.windowed).rows
    keys, values = rows.keys.parts[how.layer], rows.values.parts[how.layer]
    norms, rotates = [row_norm(norm) for norm in how.norms], how.rotary is not None
    both = values.dim > 0 and v[0].data_ptr() == k[0].data_ptr()  # values are keys
    of_keys = k, norms[1], rotates, side(keys), how.normed_keys, both, how.norm_together
    groups = [heads_of(*of_keys)]
    if values.dim:
        groups.append(heads_of(v, norms[2], False, side(values), keep=both))
    return groups


def _with_room(x: Tensor, n: int, rotates: bool) -> Heads:
    """Heads ``x`` [T, H, D] after ``n`` more channels, which something else writes."""
    t, heads, dim = x.shape
    whole = torch.empty((t, heads, n + dim), dtype=torch.float32, device=x.device)
    return Heads(whole, None, rotates, None, (x,), skipped=n)


def _shares(t: int, heads: int, group: int, how: Attending, given: TritonPass) -> int:
    """See :func:`~aleator.models.kernels.attention.shares`; 0 also where queries are rotated back."""
    seen = given.seen[how.windowed]
    return 0 if moved(seen, _back(how, given)) else shares(t, heads, group, seen)


def _turn(how: Attending, given: TritonPass) -> int:
    """Block of the Hadamard matrix that rotates queries; 0: none does, or they are rotated back before."""
    keys = given.stored(how.windowed).rows.keys.parts[how.layer]
    return 0 if moved(given.seen[how.windowed], _back(how, given)) else keys.rotation


def _back(how: Attending, given: TritonPass) -> RotationAngles | None:
    """The angles that rotate queries back."""
    return None if how.rotary is None else given.angles_back[how.windowed]


def _last(groups: list[Heads], how: Attending, batch: Pass) -> Work:
    """Queries, and heads that are stored, which programs of attention finish first."""
    given = triton_pass(batch)
    angles = None if how.rotary is None else given.rotation_angles[how.rotary]
    scales, cells = batch.query_scales if how.grows else None, given.cell_ids[how.windowed]
    groups[0] = groups[0]._replace(turn=_turn(how, given))
    return finishing(groups, angles, cells, how.norm_last, scales)


def visible(how: Attending, given: TritonPass) -> tuple[Any, ...]:
    """What attention takes besides queries, which may be changed."""
    windowed, rows, angles = how.windowed, given.stored(how.windowed).rows, _back(how, given)
    keys = values = rows.keys.parts[how.layer]
    if not how.values_in_keys:
        values = rows.values.parts[how.layer]
    k, v, seen = side(keys), side(values, how.values_in_keys), given.seen[windowed]
    return k, v, seen, how.scale, how.softcap, how.slopes, how.sinks, angles, None, True
