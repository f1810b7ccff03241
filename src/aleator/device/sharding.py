"""Sampling from a vocabulary whose logits lie in parts on the ranks of torch.distributed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.backends.torch.token_mask import allow
from aleator.device.candidates import DeviceCandidates
from aleator.device.chain import DeviceChain
from aleator.device.places import DeviceStep
from aleator.device.sharded_candidates import ShardedCandidates
from aleator.samplers.base import Place, Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.plan import make_plan
from aleator.samplers.top_k import TopK

# They look at the order of all candidates.
_ORDERED = ("typical_p", "xtc", "mirostat_v2")


class ShardedChain(DeviceChain):
    """A :class:`~aleator.DeviceChain` over logits that are split by tokens: tensor-parallel output layers.

    Every rank makes the same chain, with the same rows, and calls :meth:`sample` with its own part of
    the same rows' logits; every rank gets the tokens that one device would have drawn from all of them.
    Where all rows keep at most ``max_top_k`` at their top-k, so many candidates of each rank are exchanged
    (8 bytes each) and nothing after that; else maxima and sums.  ``exchanged`` says how many bytes per row
    a rank sent in the last step.

    Args:
        template: as for DeviceChain; all of its samplers must have a device form.
        max_batch: rows.
        n_vocab: tokens of the whole vocabulary.
        first: this rank's first token; ranks hold consecutive runs, in the order of their numbers.
        max_top_k: candidates of a rank that are exchanged.
        group: the ranks; None: all.
        device, max_tokens: as for DeviceChain.

    """

    def __init__(
        self,
        template: SamplerChain | Iterable[Any],
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
        self.exchanged = 0
        self._width = 0  # of this rank's part, once the ranks have agreed on their parts
        if not isinstance(template, SamplerChain):
            template = SamplerChain(template, seed=0)
        if host := make_plan(template._samplers, str(device)).host:
            raise ParameterError("template", f"{host[0]} has no device form: leave it out")
        super().__init__(
            template,
            max_batch,
            n_vocab,
            device=device,
            max_tokens=max_tokens,
            kernels="torch",
        )

    def sample(
        self, logits: Tensor, allowed: Tensor | None = None, live: Tensor | None = None
    ) -> Tensor:
        """Choose and accept a token for each of the first B rows.

        Args:
            logits: ``[B, this rank's tokens]``.
            allowed: as for DeviceChain, over the whole vocabulary.
            live: as for DeviceChain, the same on every rank.

        Raises:
            LogitsError: wrong shape, type or device, or parts that do not make up the vocabulary (found out
                at the first step); no row has changed.
            ParameterError: a sampler that needs the order of all candidates, without a top-k before it.

        """
        self._check_order(self._check_logits(logits, allowed, live))
        if not self._width:
            self._check_parts(logits.shape[1])
        tokens = super().sample(logits, allowed, live)
        if isinstance(self.candidates, ShardedCandidates):
            self.exchanged = self.candidates.exchanged
        return tokens

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

    def _check_order(self, batch: int) -> None:
        for row, state in enumerate(self._rows[:batch]):
            names = [s.name for s in state.slots if s is not None]
            before = names[: names.index("top_k")] if "top_k" in names else names
            bad = [
                name
                for name in _ORDERED
                if name in before or (name in names and not self._bound_of(batch))
            ]
            if bad:
                raise ParameterError(
                    "samplers",
                    f"{bad[0]} of row {row} needs the order of all candidates, which lie on several ranks: "
                    f"put a top_k of 1 to max_top_k={self.max_top_k} before it in every row",
                )

    def _bound_of(self, batch: int) -> int:
        """How many candidates each rank must send so that all rows' top-k are exact; 0: more than allowed."""
        ks = []
        for state in self._rows[:batch]:
            found = [s.most for s in state.slots if isinstance(s, TopK)]
            ks.append(found[0] if found else self.n_vocab)
        return max(ks) if max(ks) <= self.max_top_k else 0

    def _candidates(self, logits: Tensor, batch: int) -> DeviceCandidates:
        return ShardedCandidates(logits, self.first, self._bound_of(batch), self.group)

    def _launch(self, logits: Tensor, allowed: Tensor | None, batch: int) -> DeviceCandidates:
        ids = torch.arange(self.first, self.first + logits.shape[1], device=self.device)
        data = self.candidates = self._candidates(allow(logits, allowed, ids), batch)
        step: DeviceStep = self._step(batch)
        for number, place in enumerate(self._places):
            if any(state.slots[number] is not None for state in self._rows[:batch]):
                place.apply(data, step)
        return data

    def _fit(
        self, chain: SamplerChain
    ) -> tuple[list[tuple[Sampler, Place] | None], list[tuple[Sampler, Place]]]:
        slots, tail = super()._fit(chain)
        if tail:
            raise ParameterError("chain", f"{tail[0][0].name} has no device form: leave it out")
        return slots, tail

    def _check_width(self, width: int) -> None:
        if self._width not in (0, width):
            raise LogitsError(f"logits have {width} tokens, and had {self._width} before")
        if not 1 <= width <= self.n_vocab - self.first:
            raise LogitsError(
                f"logits have {width} tokens from {self.first} on, the vocabulary {self.n_vocab}: every rank "
                "has at least one"
            )
