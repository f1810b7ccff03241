"""Device chains by Triton kernels; rows whose chains they cannot run take the PyTorch form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from aleator.cache.storage.tensors import current
from aleator.core.records import dataclass
from aleator.device.backends.backend import Launches
from aleator.device.backends.torch.backend import TorchBackend, stale
from aleator.device.backends.torch.program import kind_of, split
from aleator.device.backends.triton.chain import TritonChain
from aleator.device.backends.triton.path import Plan, path_of
from aleator.device.candidates import NOTHING
from aleator.samplers.chain import SamplerChain
from aleator.samplers.plan import Plan as ChainPlan


@dataclass(frozen=True)
class TritonLaunches:
    """What a step makes: kernels, and what PyTorch does where it is needed."""

    plan: Plan  # which kernels
    torch: Launches  # what the PyTorch form launches; None: it is not needed
    program: int  # its number


class TritonBackend(TorchBackend):
    """Rows by Triton's kernels where they can run them."""

    _fused: TritonChain  # made with the program

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._fused.nbytes

    def planned(self, chain: SamplerChain) -> ChainPlan:
        found = super().planned(chain)
        here = [s for s, _ in split(chain)[0] if not s.neutral]
        kinds = [kind.form for s in here if (kind := kind_of(s)) is not None]
        path = path_of(kinds, here, self.options.max_tokens, bool(found.host), self.report.wanted)
        how = f"PyTorch operations, because {path.why}" if path.why else "Triton"
        return replace(found, kernels=how)

    def grown(self) -> None:
        """The kernels are given all places: they are made anew."""
        super().grown()
        before = getattr(self, "_fused", None)
        self._fused = TritonChain(self.program.places, self.options, self.report.wanted)
        try:
            for row in range(self.options.max_batch):
                self.changed(row)
        except BaseException:
            if before is not None:
                self._fused = before
            raise

    def changed(self, row: int) -> None:
        state = self.rows[row]
        samplers = [state.samplers.get(place) for place in self.program.places]
        self._fused.set(row, samplers, state.tail is not None)

    def permute(self, rows: Sequence[int]) -> None:
        super().permute(rows)
        self._fused.permute(rows, torch.tensor(list(rows), device=self.options.device))

    def sample(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        """On the chain's device, since Triton launches on the current one."""
        with current(self.options.device):
            return super().sample(logits, allowed, live)

    def step(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        batch, fused = len(logits), self._fused
        launched = self.launches(batch, allowed is not None)
        self._launched[batch], plan = launched, launched.plan
        data = self.apply(logits, allowed, self.active(batch)) if plan.torch else None
        tokens = fused.sample(plan, logits, allowed, self.histories.step(batch))
        if data is not None:
            tokens = torch.where(fused.torch_rows[:batch], data.selected, tokens)
        if live is not None:
            tokens = torch.where(live, tokens, NOTHING)
        if data is not None:
            self.report.after(data, tokens)
            self.finish(data, live, tokens)
        elif self.report.wanted:
            self.report.after_list(*fused.listed(plan, batch), tokens)
        if self.report.wanted:
            fused.describe(plan, logits, tokens, self.report)
        fused.accept(tokens, self.histories.step(batch))
        return tokens

    def waits(self, row: int) -> bool:
        """The kernels do not: only where some row needs PyTorch, which then computes all."""
        return super().waits(row) and self._fused.plan(self.options.max_batch, False).torch

    def workspace(self, dtype: torch.dtype) -> int:
        """Only the tokens, unless a row needs PyTorch."""
        if self._fused.plan(1, False).torch:
            return super().workspace(dtype)
        return 8 * self.options.max_batch

    def launches(self, batch: int, allowed: bool = False) -> TritonLaunches:
        plan = self._fused.plan(batch, allowed)
        own = super().launches(batch) if plan.torch else None
        return TritonLaunches(plan, own, self._number)

    def check_replay(self, batch: int, captured: Launches) -> None:
        """Compare, with ``allowed`` where it was captured."""
        then = self._launched.get(batch) if captured is None else captured
        if not isinstance(then, TritonLaunches) or then != self.launches(batch, then.plan.allowed):
            raise stale(batch)

    def paths(self, reset: bool) -> dict[str, int]:
        """Counted on the device; waits for it."""
        return self._fused.paths(reset)
