"""Sample from a vocabulary whose logits are split over the ranks of torch.distributed.

Every rank holds the same rows and its own range of tokens.  Ranks exchange maxima, sums of integers and, if the
order of candidates matters, at most K candidates each.  All are exact, so every rank finds the token that one
device with all logits would find.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.arguments import ChainOptions, chain_of, check_in
from aleator.device.backends.backend import Backend
from aleator.device.backends.torch.backend import TorchBackend
from aleator.device.backends.torch.program import split
from aleator.device.candidates import DeviceCandidates
from aleator.device.chain import DeviceChain
from aleator.device.device_sampler import DeviceSampler
from aleator.device.report import Report
from aleator.device.token_bits import allow
from aleator.samplers.chain import SamplerChain
from aleator.samplers.top_k import TopK

# Samplers that need the order of all candidates.
_ORDERED = (
    "typical_p", "xtc", "mirostat", "mirostat_v2", "epsilon_cutoff", "eta_cutoff", "p_less", "top_h", "min_k",
)  # fmt: skip


class ShardedCandidates(DeviceCandidates):
    """The candidates of one rank's tokens, ``[first, first + V)``, in rows that all ranks have.

    Every row keeps at most ``bound`` candidates at its first top-k.  Each rank then sends its first ``bound``
    ones, every rank has all that are left, and nothing more is exchanged.  0: there is no such bound.
    """

    def __init__(
        self, logits: Tensor, first: int, bound: int, group: dist.ProcessGroup | None = None
    ) -> None:
        self.group, self.bound = group, bound
        self.whole = False
        self.exchanged = 0  # bytes that this rank has sent so far, per row
        last = first + logits.shape[1]
        ids = torch.arange(first, last, device=logits.device, dtype=torch.int32).unsqueeze(0)
        super().__init__(logits, ids)

    def most(self, x: Tensor) -> Tensor:
        """Over all ranks."""
        return self._reduced(super().most(x), dist.ReduceOp.MAX)

    def total(self, x: Tensor) -> Tensor:
        """Over all ranks."""
        return self._reduced(super().total(x), dist.ReduceOp.SUM)

    def _reduced(self, x: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if not self.whole:
            self.exchanged += x.element_size()
            dist.all_reduce(x, op, group=self.group)
        return x

    def per_part(self, x: Tensor) -> Tensor:
        """The values of all ranks, in the order of their tokens."""
        if self.whole:
            return super().per_part(x)
        self.exchanged += x.element_size()
        return torch.stack(_gathered(x, self.group), 1)

    def at_ids(self, dense: Tensor) -> Tensor:
        """The columns of this rank's tokens."""
        return dense.gather(1, self.ids.to(torch.int64).expand(len(dense), -1))

    def order(self) -> Tensor:
        """The order, which is known only if every rank has all remaining candidates."""
        if not self.whole:
            raise RuntimeError("the order of a vocabulary in parts is known after a top_k only")
        return super().order()

    def keep_first(self, k: Tensor) -> None:
        """Keep the first ``k``: with ``bound`` by exchanging candidates, else by bisection."""
        if not self.whole:
            if not self.bound:
                self.keep_mass(torch.zeros_like(k), k)
                return
            self._exchange()
        super().keep_first(k)

    def _exchange(self) -> None:
        """Send the first ``bound`` candidates of each rank to all ranks."""
        local = min(self.bound, self._z.shape[1])
        columns = self.keys().topk(local, 1).indices
        z = self._z.gather(1, columns)
        ids = self.ids.expand_as(self._z).gather(1, columns)
        if local < self.bound:
            missing = (len(z), self.bound - local)
            z = torch.cat([z, z.new_full(missing, float("-inf"))], 1)
            ids = torch.cat([ids, ids.new_full(missing, torch.iinfo(torch.int32).max)], 1)
        self.exchanged += self.bound * 8
        z, ids = (torch.cat(_gathered(x, self.group), 1) for x in (z, ids))
        self.ids, by_id = ids.sort(dim=1, stable=True)
        self._z = z.gather(1, by_id)
        self.whole = True
        self._order = self._weights = None

    def keep_mass(self, wanted: Tensor, least: Tensor) -> None:
        """Keep a prefix, by bisection of the key at which it ends: 64 sums of two integers."""
        if self.whole:
            super().keep_mass(wanted, least)
            return
        keys, alive = self.keys(), self.alive
        wanted, least = wanted.minimum(self.mass), least.minimum(self.size)
        low = torch.full_like(wanted, -(2**63))
        high = torch.full_like(wanted, 2**63 - 1)
        for _ in range(64):
            # Rounded up: low always reaches what is wanted.
            middle = (low | high) - ((low ^ high) >> 1)
            inside = alive & (keys >= middle.unsqueeze(1))
            mass = self.total(torch.where(inside, self.weights, 0))
            enough = (mass >= wanted) & (self.total(inside.to(torch.int64)) >= least)
            low = torch.where(enough, middle, low)
            high = torch.where(enough, high, middle - 1)
        self.keep_through(low)


def _gathered(x: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    """What each rank has."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


class ShardedBackend(TorchBackend):
    """The PyTorch form over one rank's part of the vocabulary."""

    def __init__(
        self,
        options: ChainOptions,
        template: SamplerChain,
        report: Report,
        first: int,
        max_top_k: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        super().__init__(options, template, [], report)
        self.first, self.max_top_k, self.group = first, max_top_k, group
        self.exchanged = 0  # bytes per row that this rank sent in the last step

    def set_row(self, row: int, chain: SamplerChain) -> None:
        """Give a row a chain; all of its samplers must have a device form."""
        _check_forms("chain", chain)
        super().set_row(row, chain)

    def apply(
        self, logits: Tensor, allowed: Tensor | None, places: Sequence[DeviceSampler]
    ) -> DeviceCandidates:
        """Apply a sampler, exchanging what it needs."""
        ids = torch.arange(self.first, self.first + logits.shape[1], device=logits.device)
        batch = len(logits)
        data = ShardedCandidates(
            allow(logits, allowed, ids), self.first, self.bound_of(batch), self.group
        )
        step = self.histories.step(batch)
        for place in places:
            place.apply(data, step)
        self.exchanged = data.exchanged
        return data

    def bound_of(self, batch: int) -> int:
        """The number of candidates that each rank must send for exact top-k in all rows; 0: too many."""
        ks = []
        for row in self.rows[:batch]:
            found = [s.most for s in self.samplers_of(row) if isinstance(s, TopK)]
            ks.append(found[0] if found else self.options.n_vocab)
        return max(ks) if max(ks) <= self.max_top_k else 0

    def check_order(self, batch: int) -> None:
        """Refuse a sampler that needs the order of all candidates, without a top-k before it."""
        bounded = self.bound_of(batch) > 0
        for number, row in enumerate(self.rows[:batch]):
            names = [s.name for s in self.samplers_of(row)]
            before = names[: names.index("top_k")] if "top_k" in names else names
            bad = [n for n in _ORDERED if n in before or (n in names and not bounded)]
            if bad:
                raise ParameterError(
                    "samplers",
                    f"{bad[0]} of row {number} needs the order of all candidates, which lie on several ranks: "
                    f"put a top_k of 1 to max_top_k={self.max_top_k} before it in every row",
                )


def _check_forms(parameter: str, chain: SamplerChain) -> None:
    for each in chain.by_phase().values() or [chain]:
        if there := split(each)[1]:
            raise ParameterError(parameter, f"{there[0][0].name} has no device form: leave it out")


class ShardedChain(DeviceChain):
    """A chain on devices over logits that are split by tokens, as by tensor-parallel output layers.

    Every rank makes the same chain with the same rows, and calls :meth:`sample` with its own part of the rows'
    logits; every rank gets the tokens that one device would draw from all logits.  If all rows keep at most
    ``max_top_k`` candidates at their top-k, each rank sends that many (8 bytes each) and nothing after that;
    else ranks exchange maxima and sums.  ``allowed`` covers the whole vocabulary; ``live`` is equal on all
    ranks.  A step also raises, without changing a row: LogitsError if the parts do not make up the vocabulary
    (checked at the first step), ParameterError if a sampler needs the order of all candidates without a top-k
    before it.

    Args:
        template: as for DeviceChain; all of its samplers must have a device form.
        max_batch: number of rows.
        n_vocab: tokens of the whole vocabulary.
        first: this rank's first token; ranks hold consecutive ranges, in the order of their numbers.
        max_top_k: the most candidates that a rank sends, 1 to ``n_vocab``.
        group: the ranks; None takes all.
        device: as for DeviceChain.
        max_tokens: as for DeviceChain.
    """

    def __init__(
        self,
        template: SamplerChain | Iterable[object],
        max_batch: int,
        n_vocab: int,
        *,
        first: int,
        max_top_k: int = 64,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
        max_tokens: int = 4096,
    ) -> None:
        check_in("first", first, 0, n_vocab, (int, np.integer))
        check_in("max_top_k", max_top_k, 1, n_vocab, (int, np.integer))
        self.first, self.max_top_k, self.group = first, max_top_k, group
        self._width = 0  # of this rank's part, once all parts have been checked
        made = chain_of(template)
        _check_forms("template", made)
        super().__init__(
            made, max_batch, n_vocab, device=device, max_tokens=max_tokens, kernels="torch"
        )

    def _made(self, chains: Sequence[SamplerChain]) -> Backend:
        self._sharded = ShardedBackend(
            self._options, self._template, self.report, self.first, self.max_top_k, self.group
        )
        return self._sharded

    @property
    def exchanged(self) -> int:
        """Bytes per row that this rank sent in the last step."""
        return self._sharded.exchanged

    def _check_width(self, logits: Tensor) -> None:
        width = logits.shape[1]
        if self._width not in (0, width):
            raise LogitsError(f"logits have {width} tokens, and had {self._width} before")
        if not 1 <= width <= self.n_vocab - self.first:
            raise LogitsError(
                f"logits have {width} tokens from {self.first} on, the vocabulary {self.n_vocab}: every rank "
                "has at least one"
            )
        self._sharded.check_order(len(logits))
        if not self._width:
            self._check_parts(width)

    def _check_parts(self, width: int) -> None:
        """Check that the ranks' parts make up the vocabulary."""
        mine = torch.tensor([self.first, width], device=self.device)
        end = 0
        for rank, (first, own) in enumerate(part.tolist() for part in _gathered(mine, self.group)):
            if first != end:
                raise LogitsError(
                    f"rank {rank} has tokens from {first} on, and those before it end at {end}: ranks hold "
                    "consecutive parts, in the order of their numbers"
                )
            end += own
        if end != self.n_vocab:
            raise LogitsError(f"the ranks have {end} tokens, the vocabulary {self.n_vocab}")
        self._width = width
