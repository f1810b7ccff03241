"""The candidates of one step, as users and their samplers see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core import host
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.integers import integer
from aleator.samplers.token_arguments import check_ids

NUMERICS = ("portable", "llama.cpp")


def check_numerics(numerics: str) -> str:
    """Return a name of numerics; ParameterError if it is none."""
    if numerics not in NUMERICS:
        raise ParameterError(
            f"numerics={numerics!r} is not known: choose 'portable' or 'llama.cpp'"
        )
    return numerics


class Candidates:
    """The candidates of one step: token ids and logits.

    A portable chain leaves masked tokens out and keeps ids ascending; one with ``numerics="llama.cpp"`` leaves
    llama.cpp's array in llama.cpp's order, masked tokens with a logit of -inf in it.  docs/samplers.md has what
    ``ids``, ``logits``, ``probs``, ``p``, ``selected`` and ``sorted`` are here and there.

    Args:
        logits: one row, shape ``[V]``, float32, float16 or bfloat16, on the CPU; it is copied.
        numerics: "portable" or "llama.cpp"; None: those of the first chain that is applied, or portable if
            a sampler is applied first.

    Raises:
        LogitsError: they are something else.
        ParameterError: ``numerics`` is something else.
    """

    def __init__(self, logits: Any, numerics: str | None = None) -> None:
        self._native: host.Candidates | host.LlamaCandidates
        self._numerics: str | None = None
        try:
            self._native = host.Candidates(logits)
        except TypeError:
            raise wrong_logits(logits) from None
        if numerics is not None:
            self._native_for(check_numerics(numerics))

    @classmethod
    def of(cls, native: host.Candidates | host.LlamaCandidates) -> Candidates:
        """The candidates of a step under way, for a user's sampler."""
        candidates = object.__new__(cls)
        candidates._native = native
        candidates._numerics = NUMERICS[isinstance(native, host.LlamaCandidates)]
        return candidates

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

    @property
    def numerics(self) -> str | None:
        """Whose array it is: "portable", "llama.cpp", or None while that is not decided."""
        return self._numerics

    def __len__(self) -> int:
        return len(self._native)

    @property
    def size(self) -> int:
        """How many candidates there are, as ``len``."""
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
        """Their logits; a pending temperature is applied first.

        Can be assigned, float32 of the same length; NaN and -inf mask.
        """
        return self._native.logits

    @logits.setter
    def logits(self, logits: NDArray[np.float32]) -> None:
        try:
            given = np.ascontiguousarray(logits, np.float32)
        except (TypeError, ValueError):
            raise LogitsError(f"logits={logits!r:.60} are no numbers") from None
        if given.shape != (len(self),):
            raise LogitsError(
                f"there are {len(self)} candidates, but logits of shape {given.shape} were given"
            )
        if not (given > -np.inf).any():
            raise LogitsError(
                "no candidate would be left: every logit that was given is NaN or -inf"
            )
        self._native.logits = given

    def keep(self, ids: Iterable[int]) -> None:
        """Keep these tokens; the others are no candidates any more.

        Raises:
            ParameterError: they are no token ids.
            LogitsError: none of them is a candidate.
        """
        self._native.keep(list(check_ids("ids", ids)))

    @property
    def probs(self) -> NDArray[np.float32]:
        """Their probabilities as they are now: weight over total weight, rounded to float32."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.probs
        weights = self._native.weights
        return (weights / np.float64(weights.sum(dtype=np.uint64))).astype(np.float32)

    @property
    def p(self) -> NDArray[np.float32]:
        """Their probabilities as the samplers so far left them, llama.cpp's field ``p``.

        In portable numerics :class:`~aleator.samplers.softmax.Softmax` writes them, and later samplers leave
        them as they are: those of the candidates that are left sum to less than 1.  0 before a softmax, and
        after logits or the temperature changed.  In llama.cpp's, what each of its samplers left.
        """
        return self._native.p

    @property
    def entropy(self) -> float:
        """Of their distribution, in bits, from 0 to log2 of their number.

        In portable numerics within 1e-6 of the exact value, and the same bits everywhere (docs/numerics.md).
        """
        if isinstance(self._native, host.Candidates):
            return self._native.entropy
        p = self._native.probs.astype(np.float64)
        return max(0.0, -float(np.sum(p[p > 0] * np.log2(p[p > 0]))))

    @property
    def selected(self) -> int | None:
        """The token that was chosen, or ``None``; can be assigned one of the candidates."""
        return self._native.selected

    @selected.setter
    def selected(self, token: int | None) -> None:
        self._native.selected = None if token is None else integer("selected", token)

    @property
    def sorted(self) -> bool:
        """Whether the candidates are known to stand by descending logit."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.sorted
        return len(self) <= 1  # their order is by id


def is_row(logits: Any) -> bool:
    """Whether it is a row of logits that a chain can sample from."""
    try:
        host.Candidates(logits)
    except (TypeError, LogitsError):
        return False
    return True


def wrong_logits(logits: Any) -> LogitsError:
    """The error for what is no row of logits."""
    shape = getattr(logits, "shape", None)
    dtype = getattr(logits, "dtype", type(logits).__name__)
    described = f"shape {tuple(shape)}, {dtype}" if shape is not None else str(dtype)
    return LogitsError(
        f"logits ({described}) must be one contiguous row [V] of float32, float16 or bfloat16 on the CPU"
    )
