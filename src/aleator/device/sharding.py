"""Sampling from a vocabulary whose logits lie in parts on the ranks of torch.distributed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.arguments import ChainOptions, chain_of
from aleator.device.backends.backend import Backend
from aleator.device.backends.torch.backend import TorchBackend
from aleator.device.backends.torch.program import split
from aleator.device.candidates import DeviceCandidates
from aleator.device.chain import DeviceChain
from aleator.device.places import DeviceSampler
from aleator.device.report import Report
from aleator.device.sharded_candidates import ShardedCandidates
from aleator.device.token_bits import allow
from aleator.samplers.chain import SamplerChain
from aleator.samplers.top_k import TopK

# They look at the order of all candidates.
_ORDERED = ("typical_p", "xtc", "mirostat", "mirostat_v2", "epsilon_cutoff", "eta_cutoff")


class ShardedBackend(TorchBackend):
    """The PyTorch form over one rank's part of the vocabulary.

    Args:
        options: of the chain.
        template: of the chain.
        report: empty.
        first: this rank's first token.
        max_top_k: candidates of a rank that are exchanged at most.
        group: the ranks.

    Attributes:
        exchanged: bytes per row that this rank sent in the last step.

    """

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
        self.exchanged = 0

    def set_row(self, row: int, chain: SamplerChain) -> None:
        """All of its samplers must have a device form."""
        if there := split(chain)[1]:
            raise ParameterError("chain", f"{there[0][0].name} has no device form: leave it out")
        super().set_row(row, chain)

    def apply(
        self, logits: Tensor, allowed: Tensor | None, places: Sequence[DeviceSampler]
    ) -> DeviceCandidates:
        """Exchange what is needed."""
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
        """How many candidates each rank must send so that all rows' top-k are exact; 0: more than allowed."""
        ks = []
        for row in self.rows[:batch]:
            found = [s.most for s in self.samplers_of(row) if isinstance(s, TopK)]
            ks.append(found[0] if found else self.options.n_vocab)
        return max(ks) if max(ks) <= self.max_top_k else 0

    def check_order(self, batch: int) -> None:
        """Refuse a sampler that needs the order of all candidates, without a top-k before it."""
        for number, row in enumerate(self.rows[:batch]):
            names = [s.name for s in self.samplers_of(row)]
            before = names[: names.index("top_k")] if "top_k" in names else names
            bounded = self.bound_of(batch) > 0
            bad = [n for n in _ORDERED if n in before or (n in names and not bounded)]
            if bad:
                raise ParameterError(
                    "samplers",
                    f"{bad[0]} of row {number} needs the order of all candidates, which lie on several ranks: "
                    f"put a top_k of 1 to max_top_k={self.max_top_k} before it in every row",
                )


class ShardedChain(DeviceChain):
    """A chain on devices, over logits that are split by tokens: tensor-parallel output layers.

    Every rank makes the same chain, with the same rows, and calls :meth:`sample` with its own part of
    the same rows' logits; every rank gets the tokens that one device would have drawn from all of them.
    Where all rows keep at most ``max_top_k`` at their top-k, so many candidates of each rank are exchanged
    (8 bytes each) and nothing after that; else maxima and sums.

    Args:
        template: as for DeviceChain; all of its samplers must have a device form.
        max_batch: rows.
        n_vocab: tokens of the whole vocabulary.
        first: this rank's first token; ranks hold consecutive runs, in the order of their numbers.
        max_top_k: candidates of a rank that are exchanged, 1 to ``n_vocab``.
        group: the ranks; None: all.
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
        if not 0 <= first <= n_vocab:
            raise ParameterError("first", f"first={first} is out of range: give 0 to {n_vocab}")
        if not 1 <= max_top_k <= n_vocab:
            raise ParameterError(
                "max_top_k", f"max_top_k={max_top_k} is out of range: give 1 to {n_vocab}"
            )
        self.first, self.max_top_k, self.group = first, max_top_k, group
        self._width = 0  # of this rank's part, once the ranks have agreed on their parts
        made = chain_of(template)
        if there := split(made)[1]:
            raise ParameterError("template", f"{there[0][0].name} has no device form: leave it out")
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

    def sample(
        self, logits: Tensor, allowed: Tensor | None = None, live: Tensor | None = None
    ) -> Tensor:
        """Choose and accept a token for each of the first B rows.

        Args:
            logits: ``[B, this rank's tokens]``.
            allowed: as for DeviceChain, over the whole vocabulary.
            live: as for DeviceChain, equal on every rank.

        Returns:
            As for DeviceChain, equal on every rank.

        Raises:
            LogitsError: wrong shape, type or device, or parts that do not make up the vocabulary (found out
                at the first step); no row has changed.
            ParameterError: a sampler that needs the order of all candidates, without a top-k before it.

        """
        return super().sample(logits, allowed, live)

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
        """See to it that the ranks' parts make up the vocabulary."""
        mine = torch.tensor([self.first, width], device=self.device)
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, mine, group=self.group)
        end = 0
        for rank, (first, own) in enumerate(part.tolist() for part in parts):
            if first != end:
                raise LogitsError(
                    f"rank {rank} has tokens from {first} on, and those before it end at {end}: ranks hold "
                    "consecutive parts, in the order of their numbers"
                )
            end += own
        if end != self.n_vocab:
            raise LogitsError(f"the ranks have {end} tokens, the vocabulary {self.n_vocab}")
        self._width = width
