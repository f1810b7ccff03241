"""Token mask: keep only allowed tokens.

Keeps      the tokens whose bit is set; tokens past the end of the mask are masked.
Masked     stay masked.  If nothing allowed is left, the step raises ``LogitsError``.
Elsewhere  xgrammar leaves tokens past the end of a mask unmasked; llguidance and outlines-core mask them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.integers import MAX_TOKEN
from aleator.samplers.base import Parameter, Place, Row, Sampler, Step, dataclass, declare, host

ALLOWED = Parameter("allowed", object, None, "tokens that may be chosen; all if not given")


class Words(tuple[int, ...]):
    """A mask in words of 32 bits: bit ``id % 32`` of word ``id // 32`` for each allowed token."""

    __slots__ = ()


def pack_mask(allowed: Any) -> Words:
    """Pack a boolean array over the vocabulary, or token ids in a set, a sequence or an integer array."""
    array = np.asarray(list(allowed) if isinstance(allowed, (set, frozenset)) else allowed)
    if array.ndim != 1:
        raise ParameterError(f"allowed has shape {array.shape}: give one dimension")
    if array.dtype == np.bool_:
        bits = np.zeros(-(-len(array) // 32) * 32, np.bool_)
        bits[: len(array)] = array
        return Words(np.packbits(bits, bitorder="little").view("<u4").tolist())
    if len(array) == 0 or array.dtype.kind not in "iu":
        raise _not_allowed("must hold token ids or booleans")
    if array.min() < 0 or array.max() > MAX_TOKEN:
        raise _not_allowed("names a token outside 0 to 16,777,215")
    bits = np.zeros((int(array.max()) // 32 + 1) * 32, np.bool_)
    bits[array] = True
    return pack_mask(bits)


def _not_allowed(what: str) -> ParameterError:
    return ParameterError(f"allowed {what}; TokenMask.of_words takes words of 32 bits")


@dataclass(frozen=True)
class TokenMask(Sampler):
    """Keep only allowed tokens."""

    name = "token_mask"
    switch = ALLOWED
    asked_by = "allowed_token_ids"
    kernel = host.TokenMask
    # Token ids, as a set, a sequence or an array of integers; or a boolean array over the vocabulary.  None
    # allows all.  Stored as words of 32 bits.
    allowed: Any = declare(ALLOWED)

    def __post_init__(self) -> None:
        if self.allowed is not None and not isinstance(self.allowed, Words):
            object.__setattr__(self, "allowed", pack_mask(self.allowed))

    @classmethod
    def of_words(cls, words: Any) -> TokenMask:
        """Make a mask from words of 32 bits, lowest token first: the format of llguidance and xgrammar.

        Args:
            words: Integers of 32 bits, signed or not, in one dimension.

        Raises:
            ParameterError: ``words`` is something else.
        """
        array = np.asarray(words)
        if array.ndim != 1 or array.dtype not in (np.int32, np.uint32):
            raise ParameterError(
                f"words of shape {array.shape}, {array.dtype}: give one dimension of int32 or uint32; "
                "token ids go to TokenMask(allowed)"
            )
        return cls(Words(array.view(np.uint32).tolist()))

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.keep_allowed(self.allowed)
