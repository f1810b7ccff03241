"""Sampling whole batches on the device where their logits are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from aleator.core import host
from aleator.core.errors import ConstraintError, LogitsError, ParameterError
from aleator.device.backends.torch.logit_bias import check_tokens
from aleator.device.backends.torch.token_mask import allow
from aleator.device.backends.torch.user import DeviceUser
from aleator.device.candidates import NOTHING, DeviceCandidates
from aleator.device.forms import device_form
from aleator.device.peak import PeakBytes
from aleator.device.places import DeviceSampler, DeviceStep
from aleator.device.report import Report
from aleator.samplers.base import Place, Sampler
from aleator.samplers.batch import sample_batch
from aleator.samplers.chain import SamplerChain
from aleator.samplers.logit_bias import LogitBias
from aleator.samplers.plan import Plan, bound, make_plan
from aleator.samplers.user import UserSampler

if TYPE_CHECKING:
    from aleator.device.backends.triton.chain import TritonChain

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class ChainBytes(NamedTuple):
    """Memory that a device chain takes.

    Attributes:
        tensors: bytes that are allocated when it is made, and then no more: :attr:`DeviceChain.nbytes`.
        workspace: bytes that the tensors of one step take at once besides, and give back at its end.  What
            sorts and prefix sums take within themselves, and what the allocator rounds up, is not in it; nor is
            what the native kernels take on the host.

    """

    tensors: int
    workspace: int


@dataclass
class _Row:
    """What the host knows of a row without asking the device."""

    chain: SamplerChain
    head: host.Chain | None = None  # its grammar, which the host follows
    tail: host.Chain | None = None  # the samplers that run on the host
    top_k: int = 0  # candidates that cross to the tail at most; 0: all
    slots: tuple[Sampler | None, ...] = ()  # what it does at each place
    used: int = 0  # tokens in its history, or more: a row that could not draw has accepted nothing

    @property
    def on_host(self) -> list[host.Chain]:
        """What follows the row's tokens on the host."""
        return [each for each in (self.head, self.tail) if each is not None]


class DeviceChain:
    """Samples ``[B, V]`` logits on their device, every row with its own chain, parameters and seed.

    Tokens are those of the rows' chains on the host, bit for bit.  All tensors are allocated here, once,
    and their shapes never change; :meth:`sample` does not wait for the device as long as every row runs
    there to its end, so it can be captured in a CUDA graph.

    A row's chain must be made of the template's samplers, in its order; any may be left out, and all may have
    other parameters.  Samplers from the first without a device form on run on the host (:meth:`plan`); so
    does the grammar of a row's chain, whose mask goes to the device before every step.

    Args:
        template: which samplers there are, in which order: a chain, or samplers.  Every row begins with it.
        max_batch: rows.
        n_vocab: tokens of a row of logits, at most 2^20.
        device: where the logits will be.
        max_tokens: tokens, prompt and generated, that a row's history holds; the host's kernels have no limit.
        kernels: "triton": fused kernels that read the logits once, on CUDA devices (or under Triton's
            interpreter); "torch": PyTorch operations, on any device; "host": the native kernels, on the CPU
            only, many times as fast there; "auto": host on the CPU, Triton on CUDA where it is installed, else
            PyTorch.
        logprobs: have :attr:`report` filled with log-probabilities of the tokens that are chosen, and of so
            many most probable ones, before and after the samplers; None: not.
        kept: have it filled with the tokens that the samplers kept.

    Attributes:
        report: what the last step had to say besides its tokens, on the device.

    """

    def __init__(
        self,
        template: SamplerChain | Iterable[Any],
        max_batch: int,
        n_vocab: int,
        *,
        device: torch.device | str = "cpu",
        max_tokens: int = 4096,
        kernels: str = "auto",
        logprobs: int | None = None,
        kept: bool = False,
    ) -> None:
        at = _device(device)
        if at.type == "cuda" and kernels != "host":
            if not torch.cuda.is_available():
                raise ParameterError("device", f"device={device!r}: torch finds no CUDA device")
            if ":" not in str(at):
                at = torch.device("cuda", torch.cuda.current_device())
        self._allocate(template, max_batch, n_vocab, at, max_tokens, kernels, logprobs, kept)
        for row in range(max_batch):
            self._rows.append(_Row(self._template))
            self.set_row(row, self._template)

    def _allocate(
        self,
        template: SamplerChain | Iterable[Any],
        max_batch: int,
        n_vocab: int,
        device: torch.device,
        max_tokens: int,
        kernels: str,
        logprobs: int | None,
        kept: bool,
    ) -> None:
        """Check what is asked for, and make all tensors."""
        for name, value, low, high in (
            ("max_batch", max_batch, 1, 2**16),
            ("n_vocab", n_vocab, 1, 2**20),
            ("max_tokens", max_tokens, 1, 2**24),
            ("logprobs", 0 if logprobs is None else logprobs, 0, 2**20),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ParameterError(
                    name, f"{name}={value!r} is out of range: give {low} to {high}"
                )
        if not isinstance(kept, bool):
            raise ParameterError("kept", f"kept={kept!r}: give True or False")
        if kernels not in ("auto", "triton", "torch", "host"):
            raise ParameterError(
                "kernels", f"kernels={kernels!r}: choose auto, triton, torch or host"
            )
        on_cpu = device.type == "cpu"
        if kernels == "host" and not on_cpu:
            raise ParameterError("kernels", f"kernels='host' is for the CPU, not {device}")
        if not isinstance(template, SamplerChain):
            try:
                template = SamplerChain(template, seed=0)
            except TypeError:
                raise ParameterError(
                    "template", f"template={template!r}: give a SamplerChain, or samplers"
                ) from None
        self.max_batch, self.n_vocab, self.max_tokens = max_batch, n_vocab, max_tokens
        self.device = device
        self._reports = logprobs is not None or kept
        self.kernels = _kernels_for(device) if kernels == "auto" else kernels
        self._template = _portable(template)
        self._places: list[DeviceSampler] = []
        self._kinds: list[type[DeviceSampler]] = []
        for sampler in template._samplers[: self._split(template)]:
            kind = device_form(sampler)
            if kind is None:  # neutral
                continue
            self._kinds.append(kind)
            if self.kernels == "host":
                continue
            place = kind(max_batch, n_vocab, device, max_tokens)
            if isinstance(place, DeviceUser) and isinstance(sampler, UserSampler):
                place.bind(sampler.user)
            self._places.append(place)
        self._fused = self._fuse() if self.kernels == "triton" else None
        rows, length = (max_batch, max_tokens) if self.kernels != "host" else (0, 0)
        self._history = torch.zeros(rows, length, dtype=torch.int32, device=device)
        self._generated = torch.zeros(rows, length, dtype=torch.bool, device=device)
        self._length = torch.zeros(rows, dtype=torch.int64, device=device)
        self._position = torch.zeros(rows, dtype=torch.int64, device=device)
        self.report = Report(max_batch, n_vocab, device, logprobs, kept)
        self.candidates: DeviceCandidates | None = None
        self._rows: list[_Row] = []

    def _fuse(self) -> TritonChain:
        """The Triton kernels for the places."""
        try:
            from aleator.device.backends.triton.chain import TritonChain
        except ImportError:
            raise ParameterError(
                "kernels", "kernels='triton' needs Triton: pip install triton, or choose 'torch'"
            ) from None
        return TritonChain(
            self._places, self.max_batch, self.n_vocab, self.device, self.max_tokens, self._reports
        )

    @staticmethod
    def bytes_for(
        template: SamplerChain | Iterable[Any],
        max_batch: int,
        n_vocab: int,
        *,
        device: torch.device | str = "cpu",
        max_tokens: int = 4096,
        kernels: str = "auto",
        logprobs: int | None = None,
        kept: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> ChainBytes:
        """What a chain made with these arguments will take, and a step of all its rows; allocates nothing.

        Args:
            template: as for the chain.
            max_batch: the same.
            n_vocab: the same.
            device: the same.
            max_tokens: the same.
            kernels: the same.
            logprobs: the same.
            kept: the same.
            dtype: of the logits.

        """
        made = DeviceChain.__new__(DeviceChain)
        if dtype not in FLOATS:
            raise ParameterError("dtype", f"dtype={dtype}: logits are float32, float16 or bfloat16")
        at = _device(device)
        if kernels == "auto":
            kernels = _kernels_for(at)
        if kernels == "host":
            made._allocate(template, 1, n_vocab, at, 1, kernels, None, False)  # checks
            report = Report(max_batch, n_vocab, torch.device("meta"), logprobs, kept)
            return ChainBytes(report.nbytes, 0)
        meta = torch.device("meta")  # tensors with a size and no memory
        made._allocate(template, max_batch, n_vocab, meta, max_tokens, kernels, logprobs, kept)
        tensors = made.nbytes
        if made._fused is not None:
            made._rows = [_Row(made._template)]
            made.set_row(0)
            if not made._fused.plan(1, False).torch:
                return ChainBytes(tensors, 8 * max_batch)
            made._fused, made._rows = (
                None,
                [],
            )  # PyTorch does it, and what a host does takes nothing here
        with PeakBytes() as peak:
            logits = torch.empty(max_batch, n_vocab, dtype=dtype, device=meta)
            given = peak.now
            made._sample_on_device(logits, None, None, max_batch)
        return ChainBytes(tensors, peak.most - given)

    def __repr__(self) -> str:
        return f"DeviceChain({self._template!r}, max_batch={self.max_batch}, device={self.device})"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are allocated."""
        own = (self._history, self._generated, self._length, self._position)
        return (
            sum(t.nbytes for t in own)
            + sum(place.nbytes for place in self._places)
            + self.report.nbytes
            + (0 if self._fused is None else self._fused.nbytes)
        )

    def paths(self, *, reset: bool = False) -> dict[str, int]:
        """How many rows took which path through the Triton kernels (docs/device.md); waits for the device."""
        return {} if self._fused is None else self._fused.paths(reset)

    def plan(self) -> Plan | str:
        """Which samplers run where, what crosses to the host, and why; print it."""
        if self.kernels == "host":
            return f"host kernels on {self.device}: {self._template.describe()}"
        return make_plan(self._template._samplers, str(self.device))

    def set_row(self, row: int, chain: SamplerChain | None = None) -> None:
        """Give a row a chain (None: the template) and forget its tokens.

        The chain itself stays as it is; prompt tokens that it has accepted are the row's first.

        Raises:
            ParameterError: the chain does not fit the template, or has drawn tokens; names the row and the
                parameter, and nothing has changed.

        """
        self._check(row)
        if chain is not None and not isinstance(chain, SamplerChain):
            raise ParameterError("chain", f"chain={chain!r}: give a SamplerChain, or None")
        try:
            self._set_row(row, self._template if chain is None else chain)
        except ParameterError as error:
            raise ParameterError(error.parameter, f"row {row}: {error}") from None

    def _set_row(self, row: int, chain: SamplerChain) -> None:
        _portable(chain)
        if chain.position:
            raise ParameterError(
                "chain",
                f"the chain has generated {chain.position} tokens: give it before it draws any",
            )
        slots, tail = self._fit(chain)
        made = _Row(chain.clone())
        for token in chain.history:
            self._check_token(token)
        if self.kernels == "host":
            for sampler in chain._samplers:
                if isinstance(sampler, LogitBias):
                    check_tokens(sampler.logit_bias, self.n_vocab)
            self._rows[row] = made
            return
        for place, found in zip(self._places, slots, strict=True):
            if found is not None and not found[0].neutral:
                place.values(*found)  # raises now, before anything changes
        if chain.grammar is not None:
            first = Place(chain.seed, 0, chain.completion)
            made.head = host.Chain([chain.grammar.native(first)], chain.completion)
        if tail:
            # The clone has users' samplers of its own, which have seen nothing yet.
            made.tail = host.Chain([s.native(p) for s, p in tail], chain.completion).clone()
            made.tail.reset()
            made.top_k = bound([s for s, _ in filter(None, slots)])
        made.slots = tuple(
            None if found is None or found[0].neutral else found[0] for found in slots
        )
        history = chain.history
        if len(history) > self.max_tokens:
            raise ParameterError(
                "max_tokens",
                f"the chain has accepted {len(history)} tokens: max_tokens is too small",
            )
        for place, found in zip(self._places, slots, strict=True):
            if found is None:
                place.clear(row)
            else:
                place.set(row, *found)
        self._rows[row] = made
        if self._fused is not None:
            self._fused.set(row, made.slots, made.tail is not None)
        self._length[row] = self._position[row] = 0
        self.extend(row, history)

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
        self._check(row)
        tokens = list(tokens)
        state, n = self._rows[row], len(tokens)
        if not n:
            return
        for token in tokens:
            self._check_token(token)
        chains: list[Any] = [state.chain] if self.kernels == "host" else state.on_host
        start = int(self._length[row]) if self.kernels != "host" else 0
        if self.kernels != "host" and start + n > self.max_tokens:
            raise ParameterError(
                "max_tokens",
                f"row {row} holds {start} tokens already, {n} more make more than max_tokens="
                f"{self.max_tokens}: make the chain with a larger one",
            )
        done: list[tuple[Any, int]] = []
        try:
            for each in chains:
                done.append((each, 0))
                for i, token in enumerate(tokens, start=1):
                    each.accept(token, generated)
                    done[-1] = each, i
        except ConstraintError:
            for each, accepted in done:
                each.rollback(accepted)
            raise
        if self.kernels == "host":
            return
        self._history[row, start : start + n] = torch.tensor(list(tokens), dtype=torch.int32)
        self._generated[row, start : start + n] = generated
        self._length[row] = state.used = start + n
        if generated:
            first = int(self._position[row]) + 1
            self._position[row] += n
            for place in self._places:
                for position in range(first, first + n):
                    place.carried(row, position)

    def rollback(self, row: int, n: int) -> None:
        """Take back a row's last ``n`` tokens, exactly.

        Raises:
            ParameterError: more than there are, or a user's sampler on the host cannot; nothing has changed.

        """
        self._check(row)
        state = self._rows[row]
        if self.kernels == "host":
            state.chain.rollback(n)
            return
        length = int(self._length[row])
        if not 0 <= n <= length:
            raise ParameterError("n", f"n={n} is out of range: row {row} holds {length} tokens")
        if state.tail is not None and n:
            for sampler in state.chain._samplers[-len(state.tail.samplers) :]:
                if isinstance(sampler, UserSampler) and not sampler.can_roll_back:
                    raise ParameterError(
                        "n", f"{sampler.name} of row {row} has no rollback(n): it cannot roll back"
                    )
        for each in state.on_host:
            each.rollback(n)
        state.used = length - n
        self._position[row] -= self._generated[row, length - n : length].sum()
        self._length[row] = length - n

    def reset(self, row: int) -> None:
        """Forget a row's tokens; chain and seed stay."""
        self._check(row)
        state = self._rows[row]
        if self.kernels == "host":
            state.chain.reset()
            return
        for each in state.on_host:
            each.reset()
        state.used = 0
        self._position[row] = self._length[row] = 0

    def clear_row(self, row: int) -> None:
        """Give a row back the template's chain, without tokens."""
        self.set_row(row)

    def permute(self, rows: Sequence[int]) -> None:
        """Let row i be what row ``rows[i]`` was, with all its state; :attr:`report` stays as it is.

        Args:
            rows: every row exactly once.

        """
        whole = all(isinstance(row, (int, np.integer)) for row in rows)
        if not whole or sorted(rows) != list(range(self.max_batch)):
            raise ParameterError(
                "rows", f"rows must name each of 0 to {self.max_batch - 1} once, not {list(rows)}"
            )
        if self.kernels != "host":
            index = torch.tensor(list(rows), device=self.device)
            tensors = [self._history, self._generated, self._length, self._position]
            for place in self._places:
                tensors += place.rows.values()
            for tensor in tensors:
                tensor.copy_(tensor[index])
            if self._fused is not None:
                self._fused.permute(rows, index)
        self._rows = [self._rows[row] for row in rows]

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
        batch = self._check_logits(logits, allowed, live)
        logits = logits.detach()
        if self.kernels == "host":
            return self._sample_on_host(logits, allowed, live, batch)
        self._require_room([1] * batch, live)
        heads = {row: head for row in range(batch) if (head := self._rows[row].head) is not None}
        if heads:
            allowed = self._masked(heads, allowed, batch)
        tokens = self._sample_on_device(logits, allowed, live, batch)
        if heads:
            for row, token in zip(heads, tokens[list(heads)].tolist(), strict=True):
                if token != NOTHING:
                    heads[row].accept(token, True)
        self._count([1] * batch)
        return tokens

    def _sample_on_device(
        self, logits: Tensor, allowed: Tensor | None, live: Tensor | None, batch: int
    ) -> Tensor:
        fused = self._fused
        plan = None if fused is None else fused.plan(batch, allowed is not None)
        if fused is None or (plan is not None and plan.torch):
            data = self._launch(logits, allowed, batch)
            tokens = data.selected
        if fused is not None and plan is not None:
            found = fused.sample(plan, logits, allowed, self._step(batch))
            tokens = torch.where(fused.torch_rows[:batch], tokens, found) if plan.torch else found
        if live is not None:
            tokens = torch.where(live, tokens, NOTHING)
        if self._reports and fused is not None and plan is not None and not plan.torch:
            self.report.after_list(*fused.listed(plan, batch), tokens)
        elif self._reports:
            self.report.after(data, tokens)
        rows = enumerate(self._rows[:batch])
        tails = {row: state.tail for row, state in rows if state.tail is not None}
        if tails:
            living = [True] * batch if live is None else live.tolist()
            self._finish_on_host(data, {r: t for r, t in tails.items() if living[r]}, tokens)
        if self._reports and fused is not None and plan is not None:
            fused.describe(plan, logits, tokens, self.report)
        elif self._reports:
            self.report.before(logits, tokens)
        if fused is not None:
            fused.accept(tokens, self._step(batch))
        else:
            self._accept_all(tokens, batch)
        return tokens

    def _masked(
        self, heads: dict[int, host.Chain], allowed: Tensor | None, batch: int
    ) -> Tensor | None:
        """What grammars allow next, and what was allowed before, int32 [B, words]."""
        words = np.full((batch, -(-self.n_vocab // 32)), -1, np.int32)
        for row, head in heads.items():
            kernel: Any = head.samplers[0]
            constraint = kernel.constrained.constraint
            if not constraint.waiting:
                given = constraint.mask().view(np.int32)[: words.shape[1]]
                words[row] = 0
                words[row, : len(given)] = given
        made = torch.from_numpy(words).to(self.device)
        return made if allowed is None else made & allowed

    def runs_on_host(self, row: int) -> bool:
        """Whether a row's grammar or samplers need the host at every step."""
        self._check(row)
        return self.kernels == "host" or bool(self._rows[row].on_host)

    def mark(self) -> tuple[Tensor, Tensor]:
        """Where every row is, for :meth:`back`; for rows without a part on the host."""
        return self._length.clone(), self._position.clone()

    def back(self, mark: tuple[Tensor, Tensor]) -> None:
        """Take back what every row has accepted since :meth:`mark`, exactly."""
        self._length.copy_(mark[0])
        self._position.copy_(mark[1])

    def before_replay(self, batch: int) -> None:
        """Call this before every replay of a captured :meth:`sample` of B rows: the host counts too.

        Raises:
            ParameterError: a row has no room for another token, its chain has a part on the host, or rows
                were given chains since the capture that need other kernels than those captured.

        """
        if not 0 <= batch <= self.max_batch:
            raise ParameterError("batch", f"batch={batch}: this chain has {self.max_batch} rows")
        self.before_replays([1] * batch)

    def launches(self, batch: int) -> object:
        """Which kernels a step of B rows launches now: a graph holds as long as this is equal."""
        return None if self._fused is None else self._fused.plan(batch, False)

    def before_replays(self, counts: Sequence[int], *, launches: object = None) -> None:
        """The same for several steps, in which row i accepts at most ``counts[i]`` tokens.

        Args:
            counts: of each of the B rows; a row with 0 stays as it is (``live``).
            launches: what :meth:`launches` said when the steps were captured; None: what the last
                :meth:`sample` of B rows launched is taken to be captured.

        """
        for row, count in enumerate(counts):
            if count and self.runs_on_host(row):
                raise ParameterError(
                    "chain",
                    f"row {row} has a grammar or samplers that run on the host: its steps cannot be replayed",
                )
        if self._fused is not None:
            self._fused.check_replay(len(counts), launches)
        self._require_room(counts)
        self._count(counts)

    def _require_room(self, counts: Sequence[int], live: Tensor | None = None) -> None:
        """See to it that each row can accept so many tokens; asks the device only where it seems not."""
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                if torch.cuda.is_current_stream_capturing():
                    return  # nothing is accepted now, and every replay is asked about
        for row, n in enumerate(counts):
            state = self._rows[row]
            if not n or state.used + n <= self.max_tokens:
                continue
            state.used = int(self._length[row])
            if state.used + n > self.max_tokens and (live is None or bool(live[row])):
                raise ParameterError(
                    "max_tokens",
                    f"row {row} holds {state.used} tokens, and max_tokens={self.max_tokens}: no room for {n} "
                    "more",
                )

    def _count(self, counts: Sequence[int]) -> None:
        for row, n in enumerate(counts):
            self._rows[row].used += n

    def _sample_on_host(
        self, logits: Tensor, allowed: Tensor | None, live: Tensor | None, batch: int
    ) -> Tensor:
        """The same by the native kernels, several rows at once."""
        z = logits if allowed is None else allow(logits, allowed, torch.arange(self.n_vocab))
        if z.stride(1) != 1:
            z = z.contiguous()
        if live is None and not self._reports:
            return torch.tensor(_drawn([state.chain for state in self._rows[:batch]], z))
        rows = range(batch) if live is None else torch.nonzero(live).flatten().tolist()
        tokens = torch.full((batch,), NOTHING)
        if self._reports:
            tokens[:] = torch.tensor([self._told(row, z[row], row in rows) for row in range(batch)])
            self.report.before(logits, tokens)
        elif rows:
            drawn = _drawn([self._rows[row].chain for row in rows], z[list(rows)])
            tokens[list(rows)] = torch.tensor(drawn)
        return tokens

    def _told(self, row: int, z: Tensor, live: bool) -> int:
        """A row's token by the native kernels; its candidates go into the report."""
        chain = self._rows[row].chain
        native = _applied(chain._native, z) if live else None
        token = NOTHING if native is None or native.selected is None else native.selected
        if token != NOTHING:
            chain.accept(token, generated=True)
        self.report.after_on_host(row, native, token)
        return token

    def _launch(self, logits: Tensor, allowed: Tensor | None, batch: int) -> DeviceCandidates:
        """What runs on the device: static shapes, no synchronisation."""
        ids = torch.arange(self.n_vocab, device=logits.device)
        data = self.candidates = self._candidates(allow(logits, allowed, ids), batch)
        step = self._step(batch)
        for place in self._places:
            place.apply(data, step)
        return data

    def _candidates(self, logits: Tensor, batch: int) -> DeviceCandidates:
        return DeviceCandidates(logits)

    def _step(self, batch: int) -> DeviceStep:
        return DeviceStep(
            batch,
            self._position[:batch],
            self._history[:batch],
            self._generated[:batch],
            self._length[:batch],
        )

    def _accept_all(self, tokens: Tensor, batch: int) -> None:
        step = self._step(batch)
        drawn = tokens >= 0
        # A row that accepts nothing may be full: it writes what is there already.
        at = step.length.clamp(max=self.max_tokens - 1).unsqueeze(1)
        new = drawn.unsqueeze(1)
        value = torch.where(new, tokens.to(torch.int32).unsqueeze(1), step.history.gather(1, at))
        step.history.scatter_(1, at, value)
        step.generated.scatter_(1, at, new | step.generated.gather(1, at))
        step.length.add_(drawn)
        step.position.add_(drawn)
        for place in self._places:
            place.accepted(drawn, step)

    def _finish_on_host(
        self, data: DeviceCandidates, tails: dict[int, host.Chain], tokens: Tensor
    ) -> None:
        """Let the host's samplers choose from what is left of some rows."""
        rows = list(tails)
        if not rows:
            return
        temperatures = data.temperature[rows].tolist()
        bounds = [self._rows[row].top_k or self.n_vocab for row in rows]
        # Not data.order(): candidates that were masked since keep their places there.
        most = min(max(bounds), data.current.shape[1])
        first = data.keys()[rows].topk(most, 1, sorted=False).indices
        ids = data.ids.expand_as(data.current)[rows].gather(1, first)
        columns, left = ids.cpu().numpy(), data.current[rows].gather(1, first).cpu().numpy()
        for i, row in enumerate(rows):
            z = np.full(self.n_vocab, -np.inf, np.float32)
            z[columns[i]] = left[i]
            native = _applied(tails[row], z, temperatures[i])
            token = NOTHING
            if native is not None and native.selected is not None:
                token = native.selected
                tails[row].accept(token, True)
            tokens[row] = token
            if self._reports:
                self.report.after_on_host(row, native, token)

    def _fit(
        self, chain: SamplerChain
    ) -> tuple[list[tuple[Sampler, Place] | None], list[tuple[Sampler, Place]]]:
        """Which of the chain's samplers goes to which place, and those that run on the host."""
        slots: list[tuple[Sampler, Place] | None] = [None] * len(self._kinds)
        placed = list(zip(chain._samplers, chain._places(), strict=True))
        at, split = 0, self._split(chain)
        for sampler, place in placed[:split]:
            kind = device_form(sampler)
            if kind is None or sampler.neutral:
                continue
            try:
                at = self._kinds.index(kind, at)
            except ValueError:
                raise ParameterError(
                    "chain",
                    f"{sampler.name} has no place here: the device chain is {self._template.describe()}; make "
                    "it with a template in which all samplers stand in the order of the rows' chains",
                ) from None
            slots[at] = (sampler, place)
            at += 1
        return slots, placed[split:]

    @staticmethod
    def _split(chain: SamplerChain) -> int:
        """How many of a chain's samplers run on the device."""
        return make_plan(chain._samplers, "").split

    def _check(self, row: int) -> None:
        if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < self.max_batch:
            raise ParameterError(
                "row", f"row={row!r} is out of range: the chain has rows 0 to {self.max_batch - 1}"
            )

    def _check_token(self, token: int) -> None:
        if not isinstance(token, (int, np.integer)) or not 0 <= token < self.n_vocab:
            raise ParameterError(
                "token", f"token={token!r} is out of range: give 0 to {self.n_vocab - 1}"
            )

    def _check_width(self, width: int) -> None:
        if width != self.n_vocab:
            raise LogitsError(
                f"logits are of {width} tokens: this chain takes rows of {self.n_vocab}"
            )

    def _check_logits(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> int:
        if not isinstance(logits, Tensor) or logits.dtype not in FLOATS or logits.dim() != 2:
            raise LogitsError(
                f"logits ({_described(logits)}) must be [B, V] of float32, float16 or bfloat16"
            )
        batch, width = logits.shape
        if not 1 <= batch <= self.max_batch:
            raise LogitsError(f"logits have {batch} rows: this chain takes 1 to {self.max_batch}")
        self._check_width(width)
        shapes = {"allowed": (batch, -(-self.n_vocab // 32)), "live": (batch,)}
        types = {"allowed": torch.int32, "live": torch.bool}
        for name, given in (("logits", logits), ("allowed", allowed), ("live", live)):
            if given is None:
                continue
            if name != "logits" and (
                not isinstance(given, Tensor)
                or given.dtype != types[name]
                or tuple(given.shape) != shapes[name]
            ):
                raise LogitsError(
                    f"{name} ({_described(given)}) must be {types[name]} {list(shapes[name])}"
                )
            if not _same_device(given.device, self.device):
                raise LogitsError(f"{name} are on {given.device}, the chain on {self.device}")
        return int(batch)


def _kernels_for(device: torch.device) -> str:
    """What kernels="auto" means."""
    if device.type == "cpu":
        return "host"
    return "triton" if device.type == "cuda" and find_spec("triton") is not None else "torch"


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ParameterError(
            "device", f"device={device!r}: give a device of torch, such as 'cuda:0'"
        ) from None


def _described(given: Any) -> str:
    return f"{tuple(getattr(given, 'shape', ()))}, {getattr(given, 'dtype', type(given))}"


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (a.index == b.index or None in (a.index, b.index))


def _portable(chain: SamplerChain) -> SamplerChain:
    if chain.numerics != "portable":
        raise ParameterError(
            "numerics", "a device chain has portable numerics: llama.cpp's run on the host only"
        )
    return chain


def _drawn(chains: list[SamplerChain], rows: Tensor) -> list[int]:
    """A token of each row; -1 in those without a candidate."""
    try:
        return sample_batch(chains, rows)
    except LogitsError:  # nothing has changed: the other rows draw
        return [_or_nothing(chain, row) for chain, row in zip(chains, rows, strict=True)]


def _or_nothing(chain: SamplerChain, row: Tensor) -> int:
    try:
        return chain.sample(row)
    except LogitsError:
        return NOTHING


def _applied(chain: Any, z: Any, temperature: float = 1.0) -> host.Candidates | None:
    """What a native chain leaves of a row that is still to be divided by a temperature; None: nothing."""
    try:
        candidates = host.Candidates(z)
        if temperature != 1:
            host.Chain([host.Temperature(temperature, 0.0, 1.0)], 0).apply(candidates)
        chain.apply(candidates)
    except LogitsError:
        return None
    return candidates
