"""What samplers keep of a row of logits, and how probable a token is among it.

The chain is applied once more, which changes none; llama.cpp's numerics, where applying draws, are refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain


@dataclass(frozen=True, slots=True)
class Kept:
    """The tokens that a chain drew one from: those left by all filters, under all temperatures.

    Attributes:
        logprob: Natural-log probability of the token among them, weight over mass; -inf if it is none of them.
        mask: Which tokens they are: bit id % 8 of byte id // 8.
    """

    logprob: float
    mask: bytes

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """Their ids, ascending."""
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.int32)

    def __len__(self) -> int:
        return int.from_bytes(self.mask, "little").bit_count()


@dataclass(frozen=True, slots=True, eq=False)
class KeptRow:
    """What a chain keeps of a row.

    Attributes:
        n_vocab: Length of the row.
        ids: int32 [n], ascending.
        logprobs: float64 [n], natural, of these tokens among themselves.
    """

    n_vocab: int
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float64]

    @classmethod
    def of(cls, chain: SamplerChain, logits: npt.ArrayLike) -> KeptRow:
        """Apply a chain to logits [V]; it stays as it is.

        Raises:
            ParameterError: The chain has llama.cpp's numerics: applying it draws.
            LogitsError: As :meth:`SamplerChain.sample`.
        """
        candidates = Candidates(logits)
        if chain.numerics == "portable":
            chain.apply(candidates)
        native = candidates._native
        if chain.numerics != "portable" or not isinstance(native, host.Candidates):
            raise ParameterError(
                "kept",
                f"kept: numerics={chain.numerics!r} draws whenever it is applied: give 'portable'",
            )
        weights = native.weights
        with np.errstate(divide="ignore"):
            logprobs = np.log(weights.astype(np.float64)) - np.log(
                np.float64(weights.sum(dtype=np.uint64))
            )
        ids = native.ids.astype(np.int32)
        order = np.argsort(ids)
        return cls(candidates.n_vocab, ids[order], logprobs[order])

    def logprob(self, token: int) -> float:
        """Natural-log probability of a token; -inf if it is not kept."""
        at = int(np.searchsorted(self.ids, token))
        there = at < len(self.ids) and self.ids[at] == token
        return float(self.logprobs[at]) if there else float("-inf")

    def with_token(self, token: int) -> Kept:
        """What is reported of a token that was drawn from it."""
        bits = np.zeros(-(-self.n_vocab // 8) * 8, np.uint8)
        bits[self.ids] = 1
        return Kept(self.logprob(token), np.packbits(bits, bitorder="little").tobytes())
