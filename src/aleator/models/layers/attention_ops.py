"""The operations of attention in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aleator.models.layers.attention import attend
from aleator.models.layers.linear import Linear
from aleator.models.layers.operands import Attending, EachHead
from aleator.models.layers.passes import Pass
from aleator.models.layers.rotary import Rotary


class AttentionOps:
    """See :class:`~aleator.models.layers.ops.TorchOps`; T is the number of tokens."""

    def keep(
        self,
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
    ) -> None:
        """Store keys [T, G, D] and values [T, G, Dv] of all tokens, which are given as in :meth:`finish`."""
        keys, values = (
            each[0] if len(each) == 1 else torch.cat(tuple(each), -1) for each in (k, v)
        )
        if batch.raw(how.windowed) and how.rotary is not None:
            keys = self._finished(keys, 1, how._replace(rotary=None), batch)
            keys = keys * how.rotary.magnitude_over(keys.shape[-1])
        else:
            keys = self._finished(keys, 1, how, batch)
        self.store(keys, how.norms[2](values), how, batch)

    def finish(
        self,
        q: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
        up: EachHead | None = None,
    ) -> Tensor:
        """Queries [T, H, D] for :meth:`attend`; stores keys [T, G, D] and values [T, G, Dv] of all tokens.

        Each of the three is given in one or two parts, whose channels lie side by side.  They may be changed.
        Without parts of ``k`` nothing is stored.
        ``up``: the first part of the queries is the product of what is given; None: it is what is given.
        """
        if up is not None:
            q = up(q[0]), *q[1:]
        queries = q[0] if len(q) == 1 else torch.cat(tuple(q), -1)
        if how.stores and k:
            self.keep(k, v, how, batch)
        queries = self._finished(queries, 0, how, batch)
        if how.grows and batch.query_scales is not None:
            queries = queries * batch.query_scales[:, None, None]
        return queries

    def _finished(self, heads: Tensor, which: int, how: Attending, batch: Pass) -> Tensor:
        """Queries (0) or keys (1) normalised and rotated, in float32."""
        norm, first = how.norms[which], how.normed_keys if which == 1 else 0
        if first:
            heads = torch.cat((norm(heads[..., :first]), heads[..., first:]), -1)
        elif how.norm_together:
            heads = norm(heads.flatten(1)).view(heads.shape)
        elif not how.norm_last:
            heads = norm(heads)
        heads = heads.float()
        if how.rotary is not None:
            heads = self.rotate(heads, how.rotary, batch)
        return norm(heads).float() if how.norm_last else heads

    def rotate(self, heads: Tensor, rotary: Rotary, batch: Pass) -> Tensor:
        """Queries or keys, float32 [T, heads, head_dim], rotated by their positions."""
        return rotary.rotate(heads.clone(), batch.angles(rotary))

    def store(self, k: Tensor, v: Tensor, how: Attending, batch: Pass) -> None:
        """Write keys [T, G, D] and values [T, G, Dv] of all tokens."""
        batch.tensors(how.windowed).write(how.layer, k, v)

    def attend(self, q: Tensor, how: Attending, batch: Pass) -> Tensor:
        """Attention of queries float32 [T, H, D]: [T, H * Dv]; 0 for a query that sees no cell."""
        cells, added = batch.tensors(how.windowed), None
        if how.slopes is not None:
            added = how.slopes[:, None, None] * batch.distances(how.windowed)
        q, fused = q.to(cells.device(how.layer)), batch.fused
        rest = how.softcap, added, how.sinks, how.values_in_keys
        return attend(q, how.layer, cells, how.scale, fused, *rest)

    def finish_and_attend(
        self,
        q: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
    ) -> Tensor:
        """The result of :meth:`attend`, of what :meth:`finish` gives."""
        return self.attend(self.finish(q, k, v, how, batch), how, batch)

    def attend_compressed(
        self,
        q: Sequence[Tensor],
        matrices: tuple[EachHead, EachHead],
        how: Attending,
        batch: Pass,
        like: Tensor,
    ) -> Tensor:
        """Attention of queries over compressed keys that are stored, [T, H * n_out].

        ``matrices``: that of the first part of the queries, see :meth:`finish`, and what the heads' results,
        of the type of ``like``, go through.
        """
        up, down = matrices
        attended = self.attend(self.finish(q, (), (), how, batch, up), how, batch).to(like)
        return down(attended.view(*q[0].shape[:2], how.values_in_keys)).flatten(1)

    def each_head(self, matrices: Sequence[Linear]) -> EachHead:
        """A product of each head of x [T, H, n_in] with its own matrix, [T, H, n_out]."""

        def product(x: Tensor) -> Tensor:
            each = [matrix(x[:, i].contiguous()) for i, matrix in enumerate(matrices)]
            return torch.stack(each, 1)

        return product
