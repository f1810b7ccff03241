"""Sampling whole batches on the device where their logits are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.core.errors import LogitsError, ParameterError
from aleator.kernels import host
from aleator.kernels.device.base import DeviceSampler, DeviceStep
from aleator.kernels.device.candidates import NOTHING, DeviceCandidates
from aleator.kernels.device.index import device_form
from aleator.kernels.device.token_mask import unpack
from aleator.kernels.device.user import DeviceUser
from aleator.samplers.base import Place, Sampler
from aleator.samplers.batch import sample_batch
from aleator.samplers.chain import SamplerChain
from aleator.samplers.top_k import TopK
from aleator.samplers.user import UserSampler

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class _Row:
    """What the host knows of a row without asking the device."""

    chain: SamplerChain
    tail: host.Chain | None = None  # the samplers that run on the host
    top_k: int = 0  # candidates that cross to the tail at most; 0: all
    slots: tuple[Sampler | None, ...] = ()  # what it does at each place
    used: int = 0  # tokens in its history, or more: a row that could not draw has accepted nothing


class DeviceChain:
    """Samples ``[B, V]`` logits on their device, every row with its own chain, parameters and seed.

    Tokens are those of the rows' chains on the host, bit for bit.  All tensors are allocated here, once,
    and their shapes never change; :meth:`sample` does not wait for the device as long as every row runs
    there to its end, so it can be captured in a CUDA graph.

    A row's chain must be made of the template's samplers, in its order; any may be left out, and all may have
    other parameters.  Samplers from the first without a device form on run on the host (:meth:`plan`).

    Args:
        template: which samplers there are, in which order: a chain, or samplers.  Every row begins with it.
        max_batch: rows.
        n_vocab: tokens of a row of logits, at most 2^20.
        device: where the logits will be.
        max_tokens: tokens, prompt and generated, that a row's history holds.
        kernels: "torch": PyTorch operations, on any device; "host": the native kernels, on the CPU only,
            many times as fast there; "auto": those on the CPU, else PyTorch.

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
    ) -> None:
        for name, value, high in (
            ("max_batch", max_batch, 2**16),
            ("n_vocab", n_vocab, 2**20),
            ("max_tokens", max_tokens, 2**24),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                raise ParameterError(name, f"{name}={value!r} is out of range: give 1 to {high}")
        if not isinstance(template, SamplerChain):
            template = SamplerChain(template, seed=0)
        self.max_batch, self.n_vocab, self.max_tokens = max_batch, n_vocab, max_tokens
        self.device = torch.device(device)
        if kernels not in ("auto", "torch", "host"):
            raise ParameterError("kernels", f"kernels={kernels!r}: choose auto, torch or host")
        on_cpu = self.device.type == "cpu"
        if kernels == "host" and not on_cpu:
            raise ParameterError("kernels", f"kernels='host' is for the CPU, not {self.device}")
        self.kernels = "torch" if kernels == "torch" or not on_cpu else "host"
        self._template = _portable(template)
        self._places: list[DeviceSampler] = []
        self._kinds: list[type[DeviceSampler]] = []
        for sampler in template._samplers:
            kind = device_form(sampler)
            if kind is None:
                break
            self._kinds.append(kind)
            if self.kernels == "host":
                continue
            place = kind(max_batch, n_vocab, self.device, max_tokens)
            if isinstance(place, DeviceUser) and isinstance(sampler, UserSampler):
                place.bind(sampler.user)
            self._places.append(place)
        rows, length = (max_batch, max_tokens) if self.kernels == "torch" else (0, 0)
        self._history = torch.zeros(rows, length, dtype=torch.int32, device=self.device)
        self._generated = torch.zeros(rows, length, dtype=torch.bool, device=self.device)
        self._length = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._position = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._rows: list[_Row] = []
        self.candidates: DeviceCandidates | None = None
        for row in range(max_batch):
            self._rows.append(_Row(template))
            self.set_row(row, template)

    def __repr__(self) -> str:
        return f"DeviceChain({self._template!r}, max_batch={self.max_batch}, device={self.device})"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are allocated."""
        own = (self._history, self._generated, self._length, self._position)
        return sum(t.nbytes for t in own) + sum(place.nbytes for place in self._places)

    def plan(self) -> str:
        """Which samplers run where, what crosses to the host, and why."""
        if self.kernels == "host":
            return f"host kernels on {self.device}: {self._template.describe()}"
        lines = [f"device ({self.device}): "]
        names = [sampler.name for sampler in self._template._samplers]
        on_device = names[: len(self._kinds)]
        lines[0] += " -> ".join(on_device) if on_device else "nothing"
        rest = names[len(self._kinds) :]
        if not rest:
            return lines[0] + "\nhost: nothing; only the tokens cross"
        bound = self._bound(self._template._samplers[: len(self._kinds)])
        crossing = (
            f"the {bound} candidates that top_k leaves"
            if bound
            else f"all {self.n_vocab} logits, since no top_k comes before: put one there"
        )
        lines.append(f"host: {' -> '.join(rest)}, because {rest[0]} has no device form")
        lines.append(f"crossing: {crossing}")
        return "\n".join(lines)

    def set_row(self, row: int, chain: SamplerChain | None = None) -> None:
        """Give a row a chain (None: the template) and forget its tokens.

        The chain itself stays as it is; prompt tokens that it has accepted are the row's first.

        Raises:
            ParameterError: the chain does not fit the template, or has drawn tokens; nothing has changed.

        """
        self._check(row)
        chain = _portable(self._template if chain is None else chain)
        if chain.position:
            raise ParameterError(
                "chain",
                f"the chain has generated {chain.position} tokens: give it before it draws any",
            )
        slots, tail = self._fit(chain)
        made = _Row(chain.clone())
        if self.kernels == "host":
            self._rows[row] = made
            return
        for place, found in zip(self._places, slots, strict=True):
            if found is not None and not found[0].neutral:
                place.values(*found)  # raises now, before anything changes
        if tail:
            made.tail = host.Chain([s.native(p) for s, p in tail], chain.completion)
            made.top_k = self._bound([s for s, _ in filter(None, slots)])
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
        self._length[row] = self._position[row] = 0
        for token in history:
            self.accept(row, token)

    def accept(self, row: int, token: int, generated: bool = False) -> None:
        """Append a token to a row's history, as :meth:`SamplerChain.accept`."""
        self._check(row)
        state = self._rows[row]
        if not 0 <= token < self.n_vocab:
            raise ParameterError(
                "token", f"token={token} is out of range: give 0 to {self.n_vocab - 1}"
            )
        if self.kernels == "host":
            state.chain.accept(token, generated)
            return
        n = int(self._length[row])
        if n >= self.max_tokens:
            raise ParameterError(
                "max_tokens",
                f"row {row} holds {n} tokens already: make the chain with more max_tokens",
            )
        self._history[row, n] = token
        self._generated[row, n] = generated
        self._length[row] = n + 1
        if generated:
            self._position[row] += 1
            for place in self._places:
                place.carried(row, int(self._position[row]))
        state.used = n + 1
        if state.tail is not None:
            state.tail.accept(token, generated)

    def rollback(self, row: int, n: int) -> None:
        """Take back a row's last ``n`` tokens, exactly."""
        self._check(row)
        state = self._rows[row]
        if self.kernels == "host":
            state.chain.rollback(n)
            return
        length = int(self._length[row])
        if not 0 <= n <= length:
            raise ParameterError("n", f"n={n} is out of range: row {row} holds {length} tokens")
        if state.tail is not None:
            state.tail.rollback(n)
        state.used = length - n
        self._position[row] -= self._generated[row, length - n : length].sum()
        self._length[row] = length - n

    def reset(self, row: int) -> None:
        """Forget a row's tokens; chain and seed stay."""
        self._check(row)
        host_rows = self.kernels == "host"
        self.rollback(
            row, len(self._rows[row].chain.history) if host_rows else int(self._length[row])
        )

    def clear_row(self, row: int) -> None:
        """Give a row back the template's chain, without tokens."""
        self.set_row(row)

    def permute(self, rows: Sequence[int]) -> None:
        """Let row i be what row ``rows[i]`` was, with all its state.

        Args:
            rows: every row exactly once.

        """
        if sorted(rows) != list(range(self.max_batch)):
            raise ParameterError(
                "rows", f"rows must name each of 0 to {self.max_batch - 1} once, not {list(rows)}"
            )
        if self.kernels == "torch":
            index = torch.tensor(list(rows), device=self.device)
            tensors = [self._history, self._generated, self._length, self._position]
            for place in self._places:
                tensors += place.rows.values()
            for tensor in tensors:
                tensor.copy_(tensor[index])
        self._rows = [self._rows[row] for row in rows]

    def sample(self, logits: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Choose and accept a token for each of the first B rows.

        Args:
            logits: ``[B, V]``, float32, float16 or bfloat16, on the chain's device; not changed.
            allowed: int32 ``[B, ceil(V / 32)]``: bit id % 32 of word id // 32 says whether a token may be
                chosen, before all samplers.

        Returns:
            int64 ``[B]`` on the device; -1 in a row without a finite logit, which accepts nothing.

        Raises:
            LogitsError: wrong shape, type or device; no row has changed.

        """
        batch = self._check_logits(logits, allowed)
        if self.kernels == "host":
            return self._sample_on_host(logits, allowed, batch)
        self._require_room(batch)
        data = self._launch(logits, allowed, batch)
        tokens = data.selected
        tails = {row: tail for row in range(batch) if (tail := self._rows[row].tail) is not None}
        if tails:
            self._finish_on_host(data, tails, tokens)
        self._accept_all(tokens, batch)
        self._count(batch)
        return tokens

    def before_replay(self, batch: int) -> None:
        """Call this before every replay of a captured :meth:`sample` of B rows: the host counts too.

        Raises:
            ParameterError: a row has no room for another token.

        """
        self._require_room(batch)
        self._count(batch)

    def _require_room(self, batch: int) -> None:
        for row, state in enumerate(self._rows[:batch]):
            if state.used >= self.max_tokens:  # or it seems so: ask the device
                state.used = int(self._length[row])
            if state.used >= self.max_tokens:
                raise ParameterError(
                    "max_tokens",
                    f"row {row} holds max_tokens={self.max_tokens} tokens: no room for more",
                )

    def _count(self, batch: int) -> None:
        for state in self._rows[:batch]:
            state.used += 1

    def _sample_on_host(self, logits: Tensor, allowed: Tensor | None, batch: int) -> Tensor:
        """The same by the native kernels, several rows at once."""
        logits = logits.detach()
        if allowed is not None:
            ids = torch.arange(self.n_vocab).unsqueeze(0)
            logits = logits.masked_fill(~unpack(allowed, ids), float("-inf"))
        chains = [state.chain for state in self._rows[:batch]]
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        try:
            return torch.tensor(sample_batch(chains, logits))
        except LogitsError:  # a row without a finite logit: the others draw
            return torch.tensor(
                [_or_nothing(c, row) for c, row in zip(chains, logits, strict=True)]
            )

    def _launch(self, logits: Tensor, allowed: Tensor | None, batch: int) -> DeviceCandidates:
        """What runs on the device: static shapes, no synchronisation."""
        data = self.candidates = self._candidates(logits, batch)
        if allowed is not None:
            data.keep(unpack(allowed, data.ids))
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
        at = step.length.unsqueeze(1)
        value = torch.where(drawn, tokens, 0).to(torch.int32).unsqueeze(1)
        step.history.scatter_(1, at, value)
        step.generated.scatter_(1, at, drawn.unsqueeze(1))
        step.length.add_(drawn)
        step.position.add_(drawn)
        for place in self._places:
            place.accepted(drawn, step)

    def _finish_on_host(
        self, data: DeviceCandidates, tails: dict[int, host.Chain], tokens: Tensor
    ) -> None:
        """Let the host's samplers choose from what is left of some rows."""
        rows = list(tails)
        temperatures = data.temperature[rows].tolist()
        bound = max(self._rows[row].top_k or self.n_vocab for row in rows)
        order = data.order()[rows][:, :bound]
        ids = data.ids.expand_as(data.current)[rows].gather(1, order)
        columns, left = ids.cpu().numpy(), data.current[rows].gather(1, order).cpu().numpy()
        for i, row in enumerate(rows):
            z = np.full(self.n_vocab, -np.inf, np.float32)
            z[columns[i]] = left[i]
            try:
                candidates = host.Candidates(z)
            except LogitsError:
                continue
            if temperatures[i] != 1:
                host.Chain([host.Temperature(temperatures[i], 0.0, 1.0)], 0).apply(candidates)
            tails[row].apply(candidates)
            if candidates.selected is not None:
                tokens[row] = candidates.selected
                tails[row].accept(candidates.selected, True)

    def _fit(
        self, chain: SamplerChain
    ) -> tuple[list[tuple[Sampler, Place] | None], list[tuple[Sampler, Place]]]:
        """Which of the chain's samplers goes to which place, and those that run on the host."""
        if chain.grammar is not None:
            raise ParameterError(
                "grammar",
                "a device chain takes a grammar's mask with every sample(logits, allowed)",
            )
        slots: list[tuple[Sampler, Place] | None] = [None] * len(self._kinds)
        placed = list(zip(chain._samplers, chain._places(), strict=True))
        at = 0
        for number, (sampler, place) in enumerate(placed):
            kind = device_form(sampler)
            if kind is None:
                return slots, placed[number:]
            if sampler.neutral:
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
        return slots, []

    def _bound(self, samplers: Sequence[Sampler]) -> int:
        ks = [s.top_k for s in samplers if isinstance(s, TopK) and not s.neutral]
        return min(ks, default=0)

    def _check(self, row: int) -> None:
        if not 0 <= row < self.max_batch:
            raise ParameterError(
                "row", f"row={row} is out of range: the chain has rows 0 to {self.max_batch - 1}"
            )

    def _check_width(self, width: int) -> None:
        if width != self.n_vocab:
            raise LogitsError(
                f"logits are of {width} tokens: this chain takes rows of {self.n_vocab}"
            )

    def _check_logits(self, logits: Tensor, allowed: Tensor | None) -> int:
        if not isinstance(logits, Tensor) or logits.dtype not in FLOATS or logits.dim() != 2:
            described = (
                f"{tuple(getattr(logits, 'shape', ()))}, {getattr(logits, 'dtype', type(logits))}"
            )
            raise LogitsError(
                f"logits ({described}) must be [B, V] of float32, float16 or bfloat16"
            )
        batch, width = logits.shape
        if not 1 <= batch <= self.max_batch:
            raise LogitsError(f"logits have {batch} rows: this chain takes 1 to {self.max_batch}")
        self._check_width(width)
        if logits.device.type != self.device.type:
            raise LogitsError(f"logits are on {logits.device}, the chain on {self.device}")
        if allowed is not None:
            shape = (batch, -(-self.n_vocab // 32))
            if allowed.dtype != torch.int32 or tuple(allowed.shape) != shape:
                raise LogitsError(
                    f"allowed ({tuple(allowed.shape)}, {allowed.dtype}) must be int32 {list(shape)}"
                )
        return int(batch)


def _portable(chain: SamplerChain) -> SamplerChain:
    if chain.numerics != "portable":
        raise ParameterError(
            "numerics", "a device chain has portable numerics: llama.cpp's run on the host only"
        )
    return chain


def _or_nothing(chain: SamplerChain, row: Tensor) -> int:
    try:
        return chain.sample(row)
    except LogitsError:
        return NOTHING
