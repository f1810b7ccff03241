"""Sampling whole batches on the device where their logits are."""

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
    """Memory that a device chain takes.

    Attributes:
        tensors: bytes that are allocated when it is made: :attr:`DeviceChain.nbytes`.
        workspace: bytes that the tensors of one step take at once besides, and give back at its end.  What
            sorts and prefix sums take within themselves, and what the allocator rounds up, is not in it; nor is
            what the native kernels take on the host.
    """

    tensors: int
    workspace: int


class DeviceChain:
    """Samples ``[B, V]`` logits on their device, every row with its own chain, parameters and seed.

    Tokens are those of the rows' chains on the host, bit for bit.  Tensors are allocated here, once, and
    their shapes never change; :meth:`sample` does not wait for the device as long as every row runs there to
    its end (and PyTorch's form has no penalties per occurrence), so it can be captured in a CUDA graph.

    A row may have any chain.  The samplers of ``template`` and ``chains``, in their orders, have their tensors
    from the start.  A chain that needs another order, or other samplers, adds tensors when it is set, and
    graphs that were captured before are refused.  Samplers from the first without a device form on run on the
    host (:meth:`plan`); so does the grammar of a row's chain, whose mask goes to the device before every step.
    Of a chain with phases a row has the present one's samplers; the host looks for marks in its tokens.

    Args:
        template: a chain, or samplers.  Every row begins with it.
        max_batch: rows, 1 to 65,536.
        n_vocab: tokens of a row of logits, 1 to 2^20.
        device: where the logits will be.
        max_tokens: tokens, prompt and generated, that a row's history holds, 1 to 2^24; the host's kernels
            have no limit.
        kernels: "triton": fused kernels that read the logits once, on CUDA devices (or under Triton's
            interpreter); "torch": PyTorch operations, on any device; "host": the native kernels, on the CPU
            only, many times as fast there; "auto": host on the CPU; elsewhere PyTorch, or Triton where its
            checks have passed on this machine (:mod:`aleator.device.selection`).
        logprobs: have :attr:`report` filled with log-probabilities of the tokens that are chosen, and of so
            many most probable ones, before and after the samplers; None: not.
        kept: have it filled with the tokens that the samplers kept.
        chains: others that rows will have.

    Attributes:
        report: what the last step had to say besides its tokens, on the device.
        kernels: which of them are in use.

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
        """What runs the chain."""
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
        """What a chain made with these arguments will take, and a step of all its rows; allocates nothing.

        Args:
            template: as for the chain, like all that is not said here.
            max_batch: rows.
            n_vocab: tokens of a row of logits.
            device: where the chain would be; it need not be there.
            max_tokens: tokens that a row's history holds.
            kernels: which ones; "auto" as for the chain.
            logprobs: how many the report has.
            kept: whether it has the tokens that were kept.
            chains: others that rows will have.
            dtype: of the logits.

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
        """How many rows took which path through the Triton kernels (docs/device.md); waits for the device."""
        return self._backend.paths(reset)

    def plan(self, chain: SamplerChain | None = None) -> Plan:
        """Which samplers of a chain run where, what is transferred to the host, and why; print it.

        Args:
            chain: any; None: the template.
        """
        return self._backend.plan(self._template if chain is None else portable(chain))

    def set_row(self, row: int, chain: SamplerChain | None = None) -> None:
        """Give a row a chain with its state, and forget the row's tokens.

        The row goes on as the chain would, which itself stays as it is.

        Args:
            row: 0 to ``max_batch`` - 1.
            chain: None: the template.

        Raises:
            ParameterError: a sampler cannot run with its parameters, or cannot take over what it remembers;
                the chain's position was set; or its text is too long.  Names the row and the parameter, and
                nothing has changed.
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
            ParameterError: a token outside the vocabulary, or more than the row has room for; nothing has
                changed.
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
            ParameterError: more than there are, or a user's sampler on the host cannot; nothing has changed.
        """
        self._options.check_row(row)
        self._backend.rollback(row, n)

    def reset(self, row: int) -> None:
        """Forget a row's tokens; chain and seed stay."""
        self._options.check_row(row)
        self._backend.reset(row)

    def permute(self, rows: Sequence[int]) -> None:
        """Let row i be what row ``rows[i]`` was, with all its state; :attr:`report` stays as it is.

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
            live: bool ``[B]``: rows that are False choose nothing and stay as they are; None: all choose.

        Returns:
            int64 ``[B]`` on the device; -1 in a row that chose nothing: because it was not ``live``, or without
            a candidate (no finite logit, or none left by its mask or by a user's sampler).  Such a row accepts
            nothing, and no row changes another.

        Raises:
            LogitsError: wrong shape, type or device; no row has changed.
            ParameterError: a row has no room for another token; no row has changed.
        """
        check_logits(self._options, logits, allowed, live)
        self._check_width(logits)
        return self._backend.sample(logits.detach(), allowed, live)

    def step(self, logits: Tensor, live: Tensor) -> Tensor:
        """What :meth:`sample` gives after :meth:`before_replays`: the host counts and checks nothing here."""
        return self._backend.step(logits, None, live)

    def _check_width(self, logits: Tensor) -> None:
        if logits.shape[1] != self.n_vocab:
            raise LogitsError(
                f"logits are of {logits.shape[1]} tokens: this chain takes rows of {self.n_vocab}"
            )

    def runs_on_host(self, row: int) -> bool:
        """Whether a row needs the host at every step: its grammar, phases, samplers there, or to wait."""
        self._options.check_row(row)
        return self._backend.runs_on_host(row)

    def mark(self) -> Mark:
        """Where every row is, for :meth:`back`; for rows without a part on the host."""
        return self._backend.mark()

    def back(self, mark: Mark) -> None:
        """Take back what every row has accepted since :meth:`mark`, exactly."""
        self._backend.back(mark)

    def launches(self, batch: int) -> Launches:
        """Which operations a step of B rows makes now: a graph holds as long as this is equal."""
        return self._backend.launches(batch)

    def before_replay(self, batch: int) -> None:
        """Call this before every replay of a captured :meth:`sample` of B rows: the host counts too.

        Raises:
            ParameterError: a row has no room for another token, its chain has a part on the host, or rows
                were given chains since the capture that need other operations than those captured.
        """
        if not 0 <= batch <= self.max_batch:
            raise ParameterError(f"batch={batch}: this chain has {self.max_batch} rows")
        self.before_replays([1] * batch)

    def before_replays(self, counts: Sequence[int], *, launches: Launches = None) -> None:
        """Call this before several replays, in which row i accepts at most ``counts[i]`` tokens.

        Args:
            counts: of each of the B rows; a row with 0 stays as it is (``live``).
            launches: what :meth:`launches` said when the steps were captured; None: what the last
                :meth:`sample` of B rows made is taken to be captured.

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
    """The PyTorch form, or Triton's kernels, which load where they are asked for."""
    if kernels != "triton":
        return TorchBackend(options, template, chains, report)
    try:
        from aleator.device.backends.triton.backend import TritonBackend
    except ImportError:
        raise ParameterError(
            "kernels='triton' needs Triton: pip install triton, or choose 'torch'"
        ) from None
    return TritonBackend(options, template, chains, report)
