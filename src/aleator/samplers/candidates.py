"""The candidates of one step, as users and their samplers see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from aleator.core import host
from aleator.core.arrays import Floats, Int32s
from aleator.core.errors import LogitsError, ParameterError, Uncopyable
from aleator.core.forwarded import forwarded
from aleator.core.integers import integer
from aleator.core.parameter import NUMERICS, check_numerics
from aleator.samplers.token_arguments import check_ids


class Candidates(Uncopyable):
    """The candidates of one step: token ids and logits.

    A portable chain leaves masked tokens out and keeps ids ascending.  A chain with ``numerics="llama.cpp"``
    leaves llama.cpp's array in llama.cpp's order, with masked tokens at -inf.

    The attributes, under both numerics, beside llama.cpp's ``llama_token_data_array`` ("array") and its GPU
    proposal. ``apply_device(data)`` has the same for B rows (``aleator.device.candidates.DeviceCandidates``
    tells types and shapes): ``sorted`` is false, ``selected`` -1 for none.

    - ``ids``: int32 [n], ascending; llama.cpp's numerics: in the array's order. Array: ``id`` of each
      entry. Proposal: ``ids``, I32 [V].
    - ``logits``: float32 [n]; llama.cpp's numerics: -inf where masked. Array: ``logit``. Proposal:
      ``logits``, F32 [V].
    - ``size``: ``len(candidates)``, without masked tokens; llama.cpp's numerics and its array count them.
      Proposal: valid tokens, at the beginning of the tensors.
    - ``selected``: the token's id, or ``None``. Array and proposal: the index, or -1.
    - ``sorted``: false for two or more, which stand by id; llama.cpp's numerics: its flag. Array: by
      descending logit. Proposal: by logits or probabilities.
    - ``p``: as the last ``Softmax`` left it; 0 without one, or if logits or the temperature changed since.
      llama.cpp's numerics and array: the field ``p``, 0 at first. Proposal: ``probs``, F32 [V].
    - ``probs``: of the candidates as they are, summing to 1; llama.cpp's numerics: ``p`` where it still
      belongs to these candidates and logits, else a softmax.

    ``p`` is not made anew when candidates go: after ``Softmax(), TopK(top_k=2)`` over 0.4, 0.3, 0.2 and 0.1
    it is 0.4 and 0.3, ``probs`` 0.571 and 0.429.

    Args:
        logits: one row, shape ``[V]``, float32, float16 or bfloat16, on the CPU; it is copied.
        numerics: "portable" or "llama.cpp"; None takes those of the first chain that is applied, or portable
            if a sampler is applied first.

    Raises:
        LogitsError: ``logits`` is something else.
        ParameterError: ``numerics`` is something else.
    """

    _instead = "make new ones of the same logits, Candidates(logits)"

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
        """The candidates of the current step, for a user's sampler."""
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

    numerics: str | None = forwarded(
        "_numerics",
        'The numerics of the array: "portable", "llama.cpp", or None if not yet decided.',
    )
    n_vocab: int = forwarded("_native.n_vocab", "Length of the row of logits.")
    ids: Int32s = forwarded("_native.ids", "Token ids of the candidates.")

    def __len__(self) -> int:
        return len(self._native)

    @property
    def size(self) -> int:
        """The number of candidates, as ``len``."""
        return len(self._native)

    @property
    def logits(self) -> Floats:
        """Logits of the candidates; a pending temperature is applied first.

        Can be set to a float32 array of the same length; NaN and -inf mask.
        """
        return self._native.logits

    @logits.setter
    def logits(self, logits: Floats) -> None:
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
        """Keep these tokens and remove the others.

        Raises:
            ParameterError: they are not token ids.
            LogitsError: none of them is a candidate.
        """
        self._native.keep(list(check_ids("ids", ids)))

    @property
    def probs(self) -> Floats:
        """Current probabilities of the candidates: weight over total weight, rounded to float32."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.probs
        weights = self._native.weights
        return (weights / np.float64(weights.sum(dtype=np.uint64))).astype(np.float32)

    @property
    def p(self) -> Floats:
        """Probabilities as the samplers so far left them: llama.cpp's field ``p``.

        In portable numerics :class:`~aleator.samplers.softmax.Softmax` writes them, and later samplers leave
        them unchanged, so that those of the remaining candidates sum to less than 1.  They are 0 before a
        softmax, and after logits or the temperature changed.  In llama.cpp's numerics, its samplers write them.
        """
        return self._native.p

    @property
    def entropy(self) -> float:
        """Entropy of the candidates' distribution, in bits, from 0 to log2 of their number.

        In portable numerics it is within 1e-6 of the exact value, and has the same bits everywhere
        (docs/numerics.md).
        """
        if isinstance(self._native, host.Candidates):
            return self._native.entropy
        p = self._native.probs.astype(np.float64)
        return max(0.0, -float(np.sum(p[p > 0] * np.log2(p[p > 0]))))

    @property
    def selected(self) -> int | None:
        """The chosen token, or ``None``; can be set to one of the candidates."""
        return self._native.selected

    @selected.setter
    def selected(self, token: int | None) -> None:
        self._native.selected = None if token is None else integer("selected", token)

    @property
    def sorted(self) -> bool:
        """Whether the candidates are known to be sorted by descending logit."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.sorted
        return len(self) <= 1  # their order is by id


def wrong_logits(logits: Any) -> LogitsError:
    """The error for a value that is not a row of logits."""
    shape = getattr(logits, "shape", None)
    dtype = getattr(logits, "dtype", type(logits).__name__)
    described = f"shape {tuple(shape)}, {dtype}" if shape is not None else str(dtype)
    return LogitsError(
        f"logits ({described}) must be one contiguous row [V] of float32, float16 or bfloat16 on the CPU"
    )
