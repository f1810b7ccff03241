"""Chains of samplers: logits in, a token out."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import LogitsError, ParameterError
from aleator.core.numerics import Row, Step
from aleator.core.parameter import check_seed
from aleator.core.philox import MAX_COMPLETION, MAX_ORDINAL
from aleator.kernels import host
from aleator.samplers.base import (
    MAX_LLAMA_SEED,
    Place,
    Sampler,
    check_llama_seed,
    check_selects,
)

NUMERICS = ("portable", "llama.cpp")


class Candidates:
    """The candidates of one step: token ids and logits.

    A portable chain leaves masked tokens out and keeps ids ascending; one with ``numerics="llama.cpp"`` leaves
    llama.cpp's array in llama.cpp's order, masked tokens with a logit of -inf in it.  The first chain
    that is applied decides.

    Parameters
    ----------
    logits
        One row, shape ``[V]``, float32, float16 or bfloat16, on the CPU; it is copied.

    """

    def __init__(self, logits: Any) -> None:
        self._native: host.Candidates | host.LlamaCandidates
        self._numerics: str | None = None
        try:
            self._native = host.Candidates(logits)
        except TypeError:
            raise _wrong_logits(logits) from None

    def _native_for(self, numerics: str) -> Any:
        if self._numerics is None:
            self._numerics = numerics
            if isinstance(self._native, host.Candidates) and numerics == "llama.cpp":
                self._native = host.LlamaCandidates(self._native)
        elif self._numerics != numerics:
            raise ParameterError(
                "candidates",
                f"a chain with numerics={self._numerics!r} was applied to these candidates, so one with "
                f"numerics={numerics!r} cannot be: make new Candidates",
            )
        return self._native

    def __len__(self) -> int:
        return len(self._native)

    @property
    def n_vocab(self) -> int:
        """Length of the row of logits."""
        return self._native.n_vocab

    @property
    def ids(self) -> NDArray[np.int32]:
        """Token ids of the candidates."""
        return self._native.ids

    @property
    def logits(self) -> NDArray[np.float32]:
        """Their logits; a pending temperature is applied first."""
        return self._native.logits

    @property
    def probs(self) -> NDArray[np.float32]:
        """Their probabilities: weight over total weight, rounded to float32."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.probs
        weights = self._native.weights
        return (weights / np.float64(weights.sum(dtype=np.uint64))).astype(np.float32)

    @property
    def selected(self) -> int | None:
        """The token that was chosen, or ``None``."""
        return self._native.selected

    @property
    def sorted(self) -> bool:
        """Whether the candidates are known to stand by descending logit."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.sorted
        return len(self) <= 1  # their order is by id


class SamplerChain(Sequence[Sampler]):
    """Samplers in the order in which they are applied; the last one chooses the token.

    The list is the order: nothing is moved.  For equal logits a portable chain gives the same token on any
    machine (docs/numerics.md); with ``numerics="llama.cpp"`` it gives llama.cpp's (docs/llama-cpp.md).  One
    chain serves one sequence, and one thread at a time.

    Parameters
    ----------
    samplers
        Built-in samplers.  To be sampled from, the chain must end with ``Dist`` or ``Greedy``.
    numerics
        ``"portable"`` or ``"llama.cpp"``.
    seed
        For samplers that have none of their own, 64 bits, or 32 with llama.cpp's numbers; ``None`` or -1 draws
        one from the system.
    completion
        Index among completions of one prompt, 0 to 1,048,575: equal chains with different indices draw
        independently.  llama.cpp adds it to the seed.

    """

    def __init__(
        self,
        samplers: Sequence[Sampler],
        numerics: str = "portable",
        seed: int | None = None,
        completion: int = 0,
    ) -> None:
        if numerics not in NUMERICS:
            raise ParameterError(
                "numerics", f"numerics={numerics!r} is not known: choose 'portable' or 'llama.cpp'"
            )
        if not 0 <= completion <= MAX_COMPLETION:
            raise ParameterError(
                "completion", f"completion={completion} is out of range: give 0 to {MAX_COMPLETION}"
            )
        for sampler in samplers:
            if not isinstance(sampler, Sampler):
                raise ParameterError("samplers", f"{sampler!r} is not a sampler")
        self._samplers = tuple(samplers)
        check_selects(list(samplers))
        self.numerics = numerics
        self.completion = completion
        self._chain_seed = _effective_seed(seed, numerics)
        self._native = self._compile()

    def _compile(self) -> host.Chain | host.LlamaChain:
        placed = list(zip(self._samplers, self._places(), strict=True))
        if self.numerics == "portable":
            return host.Chain([s.native(p) for s, p in placed], self.completion)
        return host.LlamaChain([s.native_llama(p) for s, p in placed if not s.neutral])

    def _places(self) -> list[Place]:
        seen: Counter[str] = Counter()
        places = []
        for sampler in self._samplers:
            if seen[sampler.name] > MAX_ORDINAL:
                raise ParameterError(
                    "samplers", f"a chain holds at most {MAX_ORDINAL + 1} samplers of one kind"
                )
            places.append(Place(self._chain_seed, seen[sampler.name], self.completion))
            seen[sampler.name] += 1
        return places

    def __len__(self) -> int:
        return len(self._samplers)

    def __getitem__(self, index: Any) -> Any:
        return self._samplers[index]

    def __iter__(self) -> Iterator[Sampler]:
        return iter(self._samplers)

    def __repr__(self) -> str:
        return f"SamplerChain({list(self._samplers)!r}, seed={self.seed})"

    @property
    def seed(self) -> int:
        """The seed in use: the last sampler's own, else the chain's."""
        own = [s.seed for s in self._samplers if getattr(s, "seed", None) is not None]  # type: ignore[attr-defined]
        return own[-1] if own else self._chain_seed

    @property
    def position(self) -> int:
        """Tokens generated and accepted since the last reset: what draws are keyed by.  Can be set."""
        return self._native.position

    @position.setter
    def position(self, position: int) -> None:
        if isinstance(self._native, host.LlamaChain):
            raise ParameterError(
                "position",
                "with numerics='llama.cpp' a draw depends on how many came before it, so the position cannot "
                "be set: use reset, rollback, or numerics='portable'",
            )
        self._native.position = position

    @property
    def history(self) -> list[int]:
        """Tokens accepted since the last reset, prompt tokens among them."""
        return self._native.history

    @property
    def seconds(self) -> float:
        """Time spent in :meth:`sample`."""
        return self._native.seconds

    @property
    def n_sampled(self) -> int:
        """Calls of :meth:`sample`."""
        return self._native.n_sampled

    def describe(self) -> str:
        """The chain on one line; ``?`` marks samplers whose parameters make them do nothing."""
        names = [("?" if s.neutral else "") + s.name for s in self._samplers]
        return " -> ".join(["logits", *names])

    def sample(self, logits: Any) -> int:
        """Apply the chain to a row of logits, choose a token and accept it.

        Parameters
        ----------
        logits
            Shape ``[V]``, float32, float16 or bfloat16, contiguous, on the CPU (NumPy, torch, or anything
            with DLPack).  Not copied, not changed.

        Raises
        ------
        LogitsError
            For another shape or type, for an empty row, and if nothing is finite; the chain is as before.

        """
        try:
            return self._native.sample(logits)
        except TypeError:
            raise _wrong_logits(logits) from None

    def apply(self, candidates: Candidates) -> None:
        """Apply the samplers to candidates; accepts nothing.

        A portable chain gives the same again when this is repeated; with llama.cpp's numbers every
        application draws anew and moves mirostat's mu.
        """
        self._native.apply(candidates._native_for(self.numerics))

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history.

        ``generated`` says whether it advances the position: prompt tokens do not.
        """
        self._native.accept(token, generated)

    def rollback(self, n: int) -> None:
        """Take back the last ``n`` accepted tokens, exactly."""
        self._native.rollback(n)

    def reset(self) -> None:
        """Forget all accepted tokens; the seed stays."""
        self._native.reset()

    def clone(self) -> SamplerChain:
        """Copy the chain with its state and seed."""
        copy = object.__new__(SamplerChain)
        copy.__dict__.update(self.__dict__)
        copy._native = self._native.clone()
        return copy


class ReferenceChain:
    """The same chain computed by the samplers' NumPy references: slow, and independent of the kernels."""

    def __init__(self, chain: SamplerChain) -> None:
        if chain.numerics != "portable":
            raise ParameterError("numerics", "references exist for numerics='portable' only")
        self._pairs = list(zip(chain, chain._places(), strict=True))
        self.step = Step(completion=chain.completion)

    def apply(self, logits: NDArray[np.floating]) -> Row:
        """The row after all samplers."""
        row = Row.load(logits)
        self.step.n_vocab = len(logits)
        for sampler, place in self._pairs:
            sampler.reference(row, self.step, place)
        return row

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history."""
        self.step.accept(token, generated)


def _effective_seed(seed: int | None, numerics: str) -> int:
    checked = check_seed(seed)
    if numerics == "portable":
        return secrets.randbits(64) if checked is None else checked
    if checked is None or checked == MAX_LLAMA_SEED + 1:
        return secrets.randbelow(MAX_LLAMA_SEED + 1)
    return check_llama_seed(checked)


def _wrong_logits(logits: Any) -> LogitsError:
    shape = getattr(logits, "shape", None)
    dtype = getattr(logits, "dtype", type(logits).__name__)
    described = f"shape {tuple(shape)}, {dtype}" if shape is not None else str(dtype)
    return LogitsError(
        f"logits ({described}) must be one contiguous row [V] of float32, float16 or bfloat16 on the CPU"
    )
