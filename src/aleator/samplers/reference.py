"""Chains of references, with which the kernels are compared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.samplers.chain import SamplerChain


class ReferenceChain:
    """A chain computed by the samplers' NumPy references: slow, and independent of the kernels."""

    def __init__(self, chain: SamplerChain) -> None:
        if chain.numerics != "portable":
            raise ParameterError("numerics", "references exist for numerics='portable' only")
        self._pairs = [each for each in chain.all_with_places if not each[0].neutral]
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
