"""Candidates of a vocabulary whose logits lie in parts on the ranks of torch.distributed.

Every rank holds the same rows and its own run of tokens.  Maxima, sums of integers, and, where the order of
candidates matters, at most K candidates per rank are exchanged; all are exact, so every rank finds the
token that one device with all logits would find.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from aleator.device.candidates import DeviceCandidates


class ShardedCandidates(DeviceCandidates):
    """The candidates of one rank's tokens, ``[first, first + V)``, in rows that all ranks have.

    ``bound`` says that every row keeps at most so many at its first top-k: then each rank's first so many
    are exchanged there, every rank has all that is left, and nothing more is exchanged.  0: that is not so.

    Attributes:
        exchanged: bytes that this rank has sent so far, per row.

    """

    def __init__(
        self, logits: Tensor, first: int, bound: int, group: dist.ProcessGroup | None = None
    ) -> None:
        self.group, self.bound = group, bound
        self.ranks = dist.get_world_size(group)
        self.whole = False
        self.exchanged = 0
        last = first + logits.shape[1]
        ids = torch.arange(first, last, device=logits.device, dtype=torch.int32).unsqueeze(0)
        super().__init__(logits, ids)

    def most(self, x: Tensor) -> Tensor:
        """Over all ranks."""
        most = super().most(x)
        if not self.whole:
            self.exchanged += most.element_size()
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        return most

    def total(self, x: Tensor) -> Tensor:
        """Over all ranks."""
        total = super().total(x)
        if not self.whole:
            self.exchanged += total.element_size()
            dist.all_reduce(total, dist.ReduceOp.SUM, group=self.group)
        return total

    def per_part(self, x: Tensor) -> Tensor:
        """Of all ranks, in the order of their tokens."""
        if self.whole:
            return super().per_part(x)
        self.exchanged += x.element_size()
        return torch.stack(self._gathered(x), 1)

    def at_ids(self, dense: Tensor) -> Tensor:
        """The columns of this rank's tokens."""
        return dense.gather(1, self.ids.to(torch.int64).expand(len(dense), -1))

    def order(self) -> Tensor:
        """Known only where all that is left is on every rank."""
        if not self.whole:
            raise RuntimeError("the order of a vocabulary in parts is known after a top_k only")
        return super().order()

    def keep_first(self, k: Tensor) -> None:
        """With ``bound``, by exchanging so many of each rank; else by bisection."""
        if not self.whole:
            if not self.bound:
                self.keep_mass(torch.zeros_like(k), k)
                return
            self._exchange()
        super().keep_first(k)

    def _exchange(self) -> None:
        """Let every rank have the first ``bound`` candidates of each."""
        local = min(self.bound, self._z.shape[1])
        columns = self.keys().topk(local, 1).indices
        z = self._z.gather(1, columns)
        ids = self.ids.expand_as(self._z).gather(1, columns)
        if local < self.bound:
            missing = (len(z), self.bound - local)
            z = torch.cat([z, z.new_full(missing, float("-inf"))], 1)
            ids = torch.cat([ids, ids.new_full(missing, torch.iinfo(torch.int32).max)], 1)
        self.exchanged += self.bound * 8
        z, ids = torch.cat(self._gathered(z), 1), torch.cat(self._gathered(ids), 1)
        self.ids, by_id = ids.sort(dim=1, stable=True)
        self._z = z.gather(1, by_id)
        self.whole = True
        self._order = self._weights = None

    def keep_mass(self, wanted: Tensor, least: Tensor) -> None:
        """By bisection of the key at which the beginning ends: 64 sums of two integers."""
        if self.whole:
            super().keep_mass(wanted, least)
            return
        keys, alive = self.keys(), self.alive
        wanted, least = wanted.minimum(self.mass), least.minimum(self.size)
        low = torch.full_like(wanted, -(2**63))
        high = torch.full_like(wanted, 2**63 - 1)
        for _ in range(64):
            middle = (low | high) - (
                (low ^ high) >> 1
            )  # rounded up: low always reaches what is wanted
            inside = alive & (keys >= middle.unsqueeze(1))
            mass = self.total(torch.where(inside, self.weights, 0))
            enough = (mass >= wanted) & (self.total(inside.to(torch.int64)) >= least)
            low = torch.where(enough, middle, low)
            high = torch.where(enough, high, middle - 1)
        self.keep_through(low)

    def _gathered(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return parts
