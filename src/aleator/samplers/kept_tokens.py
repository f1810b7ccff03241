"""The tokens of a row of logits that a chain's filters keep, and the probability of a token among them.

The chain is applied once more, which does not change it.  llama.cpp's numerics are refused, because applying
them draws.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """The tokens that were left when a chain drew one: after all filters and temperatures."""

    # Natural logarithm of the drawn token's probability among them; -inf if it is not one of them
    logprob: float
    mask: bytes  # Which tokens they are: bit id % 8 of byte id // 8 is set for each

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """The ids of these tokens, ascending."""
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.int32)

    def __len__(self) -> int:
        return int.from_bytes(self.mask, "little").bit_count()


@dataclass(frozen=True, slots=True, eq=False)
class KeptRow:
    """The tokens that a chain keeps of ``n_vocab``: ids, ascending, and natural-log probabilities, both [n]."""

    n_vocab: int
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float64]

    @classmethod
    def of(cls, chain: SamplerChain, logits: npt.ArrayLike) -> KeptRow:
        """Apply a chain to logits [V]; the chain does not change.  llama.cpp's numerics are refused."""
        if chain.numerics != "portable":
            raise ParameterError(
                f"kept: numerics={chain.numerics!r} draws whenever it is applied: give 'portable'"
            )
        candidates = Candidates(logits)
        chain.apply(candidates)
        native = candidates._native_for("portable")
        weights = native.weights
        with np.errstate(divide="ignore"):
            logprobs = np.log(weights.astype(np.float64)) - np.log(
                np.float64(weights.sum(dtype=np.uint64))
            )
        return cls(candidates.n_vocab, native.ids, logprobs)

    def logprob(self, token: int) -> float:
        """Natural-log probability of a token; -inf if it is not kept."""
        at = int(np.searchsorted(self.ids, token))
        there = at < len(self.ids) and self.ids[at] == token
        return float(self.logprobs[at]) if there else float("-inf")

    def with_token(self, token: int) -> KeptTokens:
        """The report after ``token`` was drawn from the row."""
        bits = np.zeros(-(-self.n_vocab // 8) * 8, np.uint8)
        bits[self.ids] = 1
        return KeptTokens(self.logprob(token), np.packbits(bits, bitorder="little").tobytes())
