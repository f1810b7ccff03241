"""Sample whole batches on the device of their logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.arguments import (
    FLOATS,
    ChainOptions,
    chain_of,
    check_logits,
    device_of,
    portable,
    present,
)
from aleator.device.backends.backend import Backend, Launches
from aleator.device.backends.host import HostBackend
from aleator.device.backends.torch.backend import TorchBackend
from aleator.device.report import Report
from aleator.device.rows import Mark
from aleator.device.selection import kernels_for
from aleator.samplers.chain import SamplerChain
from aleator.samplers.plan import Plan


class ChainBytes(NamedTuple):
    """Memory of a device chain.

    Attributes:
        tensors: bytes allocated when it is made: :attr:`DeviceChain.nbytes`.
        workspace: most bytes of further tensors during a step, which are freed at its end.  It does not count
            the internal memory of sorts and prefix sums, the allocator's rounding, and what native kernels use
            on the host.
    """

    tensors: int
    workspace: int


class DeviceChain:
    """Samples ``[B, V]`` logits on their device, every row with its own chain, parameters and seed.

    Tokens are those of the rows' chains on the host, bit for bit.  Tensors are allocated once, and their shapes
    never change.  :meth:`sample` does not wait for the device if all samplers of all rows run there (and
    PyTorch's form has no penalties per occurrence), so it can be captured in a CUDA graph.

    A row can have any chain.  The samplers of ``template`` and ``chains``, in their orders, have tensors from
    the start.  A chain that needs another order, or other samplers, adds tensors when it is set, and graphs
    captured before are refused.  The first sampler without a device form and all later ones run on the host
    (:meth:`plan`); so does the grammar of a row's chain, whose mask is sent to the device before every step.
    With phases, a row has the samplers of the current one, and the host looks for marks in its tokens.

    Args:
        template: a chain, or samplers; the initial chain of every row.
        max_batch: number of rows, 1 to 65,536.
        n_vocab: tokens of a row of logits, 1 to 2^20.
        device: the device of the logits.
        max_tokens: the most tokens of a row's history, prompt included, 1 to 2^24; the host's kernels have no
            limit.
        kernels: "triton": fused kernels that read the logits once, on CUDA devices (or under Triton's
            interpreter); "torch": PyTorch operations, on any device; "host": the native kernels, only on the
            CPU, where they are many times as fast; "auto": host on the CPU; elsewhere PyTorch, or Triton if its
            checks have passed on this machine (:mod:`aleator.device.selection`).
        logprobs: write log-probabilities to :attr:`report`: of the chosen tokens and of this many most probable
            ones, before and after the samplers; None does not.
        kept: also write the tokens that the samplers kept.
        chains: further chains that rows will have.

    Attributes:
        report: results of the last step besides its tokens, on the device.
        kernels: the kernels in use.

    Raises:
        ParameterError: an argument is out of range, or a chain has llama.cpp's numerics.
    """

    def __init__(
        self,
        template: SamplerChain | Iterable[object],
        max_batch: int,
        n_vocab: int,
        *,
        device: torch.device | str = "cpu",
        max_tokens: int = 4096,
        kernels: str = "auto",
        logprobs: int | None = None,
        kept: bool = False,
        chains: Iterable[SamplerChain] = (),
    ) -> None:
        at = device_of(device)
        if kernels != "host":
            at = present(at)
        self._options = ChainOptions(max_batch, n_vocab, at, max_tokens, kernels, logprobs, kept)
        self._template, others = chain_of(template), [chain_of(chain) for chain in chains]
        self.max_batch, self.n_vocab, self.max_tokens = max_batch, n_vocab, max_tokens
        self.device = at
        self.kernels = kernels_for(at) if kernels == "auto" else kernels
        self.report = Report(max_batch, n_vocab, at, logprobs, kept)
        self._backend = self._made(others)
        for row in range(max_batch):
            self.set_row(row)

    def _made(self, chains: Sequence[SamplerChain]) -> Backend:
        """Make the backend of the chain."""
        if self.kernels == "host":
            return HostBackend(self._options, self._template, self.report)
        return _on_device(self.kernels, self._options, self._template, chains, self.report)

    @staticmethod
    def bytes_for(
        template: SamplerChain | Iterable[object],
        max_batch: int,
        n_vocab: int,
        *,
        device: torch.device | str = "cpu",
        max_tokens: int = 4096,
        kernels: str = "auto",
        logprobs: int | None = None,
        kept: bool = False,
        chains: Iterable[SamplerChain] = (),
        dtype: torch.dtype = torch.float32,
    ) -> ChainBytes:
        """Compute the memory of a chain with these arguments, and of a step of all rows; allocate nothing.

        The arguments are those of the chain, whose ``device`` need not exist; ``dtype`` is that of the logits.

        Raises:
            ParameterError: as for the chain; a dtype that logits cannot have.
        """
        if dtype not in FLOATS:
            raise ParameterError(f"dtype={dtype}: logits are float32, float16 or bfloat16")
        at = device_of(device)
        ChainOptions(max_batch, n_vocab, at, max_tokens, kernels, logprobs, kept)  # checks
        chosen, first = kernels_for(at) if kernels == "auto" else kernels, chain_of(template)
        meta = torch.device("meta")  # tensors with a size and no memory
        report = Report(max_batch, n_vocab, meta, logprobs, kept)
        if chosen == "host":
            return ChainBytes(report.nbytes, 0)
        options = ChainOptions(max_batch, n_vocab, meta, max_tokens, chosen, logprobs, kept)
        made = _on_device(chosen, options, first, [chain_of(chain) for chain in chains], report)
        tensors, workspace = made.nbytes + report.nbytes, 0
        for each in first.by_phase().values() or [first]:
            made.set_row(0, each)
            workspace = max(workspace, made.workspace(dtype))
        return ChainBytes(tensors, workspace)

    def __repr__(self) -> str:
        return f"DeviceChain({self._template!r}, max_batch={self.max_batch}, device={self.device})"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are allocated."""
        return self._backend.nbytes + self.report.nbytes

    def paths(self, *, reset: bool = False) -> dict[str, int]:
        """Count the rows on each path through the Triton kernels (docs/device.md); wait for the device."""
        return self._backend.paths(reset)

    def plan(self, chain: SamplerChain | None = None) -> Plan:
        """Plan where each sampler of a chain runs, what is transferred to the host, and why; ``print`` it.

        Args:
            chain: any chain; None takes the template.
        """
        return self._backend.plan(self._template if chain is None else portable(chain))

    def set_row(self, row: int, chain: SamplerChain | None = None) -> None:
        """Give a row a chain with its state, and forget the row's tokens.

        The row continues as the chain would; the chain itself does not change.

        Args:
            row: 0 to ``max_batch`` - 1.
            chain: the chain; None takes the template.

        Raises:
            ParameterError: a sampler cannot run with its parameters, or cannot take over its state; the chain's
                position was set; or its text is too long.  Names the row and the parameter; nothing has
                changed.
        """
        self._options.check_row(row)
        if chain is not None and not isinstance(chain, SamplerChain):
            raise ParameterError(f"chain={chain!r}: give a SamplerChain, or None")
        try:
            given = portable(self._template if chain is None else chain)
            for token in given.history:
                self._options.check_token(token)
            self._backend.set_row(row, given)
        except ParameterError as error:
            raise ParameterError(error.parameter, f"row {row}: {error}") from None

    def accept(self, row: int, token: int, generated: bool = False) -> None:
        """Append a token to a row's history, as :meth:`SamplerChain.accept`."""
        self.extend(row, [token], generated)

    def extend(self, row: int, tokens: Sequence[int], generated: bool = False) -> None:
        """Append tokens to a row's history.

        Raises:
            ParameterError: a token is outside the vocabulary, or the row has no room; nothing has changed.
            ConstraintError: the row's grammar does not allow a token; nothing has changed.
        """
        self._options.check_row(row)
        tokens = list(tokens)
        for token in tokens:
            self._options.check_token(token)
        self._backend.extend(row, tokens, generated)

    def rollback(self, row: int, n: int) -> None:
        """Take back a row's last ``n`` tokens, exactly.

        Raises:
            ParameterError: the row has fewer tokens, or a user's sampler on the host cannot roll back; nothing
                has changed.
        """
        self._options.check_row(row)
        self._backend.rollback(row, n)

    def reset(self, row: int) -> None:
        """Forget a row's tokens; chain and seed stay."""
        self._options.check_row(row)
        self._backend.reset(row)

    def permute(self, rows: Sequence[int]) -> None:
        """Let row i become what row ``rows[i]`` was, with all its state; :attr:`report` does not change.

        Args:
            rows: every row exactly once.
        """
        whole = all(isinstance(row, (int, np.integer)) for row in rows)
        if not whole or sorted(rows) != list(range(self.max_batch)):
            raise ParameterError(
                f"rows must name each of 0 to {self.max_batch - 1} once, not {list(rows)}"
            )
        self._backend.permute(rows)

    def sample(
        self, logits: Tensor, allowed: Tensor | None = None, live: Tensor | None = None
    ) -> Tensor:
        """Choose and accept a token for each of the first B rows.

        Args:
            logits: ``[B, V]``, float32, float16 or bfloat16, on the chain's device; not changed.
            allowed: int32 ``[B, ceil(V / 32)]``: bit id % 32 of word id // 32 says whether a token may be
                chosen, before all samplers.
            live: bool ``[B]``: rows that are False choose nothing and do not change; None: all choose.

        Returns:
            int64 ``[B]`` on the device; -1 for a row that is not ``live`` or has no candidate (no finite logit,
            or none left by its mask or a user's sampler).  Such a row accepts nothing, and no row affects
            another.

        Raises:
            LogitsError: shape, type or device is wrong; no row has changed.
            ParameterError: a row has no room for another token; no row has changed.
        """
        check_logits(self._options, logits, allowed, live)
        self._check_width(logits)
        return self._backend.sample(logits.detach(), allowed, live)

    def step(self, logits: Tensor, live: Tensor) -> Tensor:
        """Do :meth:`sample` after :meth:`before_replays`, without the host's counts and checks."""
        return self._backend.step(logits, None, live)

    def _check_width(self, logits: Tensor) -> None:
        if logits.shape[1] != self.n_vocab:
            raise LogitsError(
                f"logits are of {logits.shape[1]} tokens: this chain takes rows of {self.n_vocab}"
            )

    def runs_on_host(self, row: int) -> bool:
        """Whether a row needs the host at every step: for its grammar, phases, samplers there, or to wait."""
        self._options.check_row(row)
        return self._backend.runs_on_host(row)

    def mark(self) -> Mark:
        """Record the positions of all rows, for :meth:`back`; rows must have no part on the host."""
        return self._backend.mark()

    def back(self, mark: Mark) -> None:
        """Take back exactly what all rows have accepted since :meth:`mark`."""
        self._backend.back(mark)

    def launches(self, batch: int) -> Launches:
        """The operations of a step of B rows now; a graph is valid while this stays equal."""
        return self._backend.launches(batch)

    def before_replay(self, batch: int) -> None:
        """Update the host's counts; call this before every replay of a captured :meth:`sample` of B rows.

        Raises:
            ParameterError: a row has no room for another token, its chain has a part on the host, or chains set
                since the capture need other operations.
        """
        if not 0 <= batch <= self.max_batch:
            raise ParameterError(f"batch={batch}: this chain has {self.max_batch} rows")
        self.before_replays([1] * batch)

    def before_replays(self, counts: Sequence[int], *, launches: Launches = None) -> None:
        """Update the host's counts before several replays, in which row i accepts at most ``counts[i]`` tokens.

        Args:
            counts: one per row; a row with 0 does not change (``live``).
            launches: what :meth:`launches` returned when the steps were captured; None means that the last
                :meth:`sample` of B rows was captured.

        Raises:
            ParameterError: as :meth:`before_replay`.
        """
        for row, count in enumerate(counts):
            if count and self.runs_on_host(row):
                raise ParameterError(
                    "chain",
                    f"row {row} needs the host at every step (for a grammar, phases, a sampler that runs "
                    "there, or in PyTorch's form penalties per occurrence): its steps cannot be replayed",
                )
        self._backend.check_replay(len(counts), launches)
        self._backend.require_room(counts)
        self._backend.count(counts)


def _on_device(
    kernels: str,
    options: ChainOptions,
    template: SamplerChain,
    chains: Sequence[SamplerChain],
    report: Report,
) -> TorchBackend:
    """Make the PyTorch form, or Triton's kernels, which are only loaded here."""
    if kernels != "triton":
        return TorchBackend(options, template, chains, report)
    try:
        from aleator.device.backends.triton.backend import TritonBackend
    except ImportError:
        raise ParameterError(
            "kernels='triton' needs Triton: pip install triton, or choose 'torch'"
        ) from None
    return TritonBackend(options, template, chains, report)
