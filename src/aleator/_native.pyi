"""
Native code of aleator: samplers, cache bookkeeping, layers. Import it through the package.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Sampler:
    """A built-in sampler, to be put into a Chain."""

class Candidates:
    def __init__(self, logits: Annotated[NDArray, dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def __len__(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def selected(self) -> int | None: ...

    @property
    def ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

    @property
    def weights(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

class Chain:
    def __init__(self, samplers: Sequence[Sampler], completion: int) -> None: ...

    def sample(self, logits: Annotated[NDArray, dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def apply(self, candidates: Candidates) -> None: ...

    def accept(self, token: int, generated: bool) -> None: ...

    def rollback(self, n: int) -> None: ...

    def reset(self) -> None: ...

    def clone(self) -> Chain: ...

    @property
    def position(self) -> int: ...

    @position.setter
    def position(self, arg: int, /) -> None: ...

    @property
    def history(self) -> list[int]: ...

    @property
    def n_sampled(self) -> int: ...

    @property
    def seconds(self) -> float: ...

def philox4x32(counter: Sequence[int], key: int) -> list[int]:
    """
    Philox4x32-10: four 32-bit words from a counter of four and a 64-bit key.
    """

class Mt19937:
    """
    MT19937 with a 32-bit seed and the uniforms that llama.cpp draws from it.
    """

    def __init__(self, seed: int) -> None: ...

    def reseed(self, seed: int) -> None: ...

    def word(self) -> int:
        """The next 32-bit word."""

    def uniform_double(self) -> float:
        """Two words, the low half first; in [0, 1)."""

    def uniform_float(self) -> float:
        """One word; in [0, 1)."""

class Dist(Sampler):
    def __init__(self, seed: int, ordinal: int) -> None: ...

class Greedy(Sampler):
    def __init__(self) -> None: ...

class LogitBias(Sampler):
    def __init__(self, biases: Sequence[tuple[int, float]]) -> None: ...

class MinP(Sampler):
    def __init__(self, min_p: float, min_keep: int) -> None: ...

class Penalties(Sampler):
    def __init__(self, penalty_last_n: int, repetition_penalty: float, frequency_penalty: float, presence_penalty: float) -> None: ...

class Temperature(Sampler):
    def __init__(self, temperature: float) -> None: ...

class TopK(Sampler):
    def __init__(self, top_k: int) -> None: ...

class TopP(Sampler):
    def __init__(self, top_p: float, min_keep: int) -> None: ...

def isa() -> str:
    """
    Instruction set in use: 'base', 'v3' (AVX2) or 'v4' (AVX-512). The environment variable ALEATOR_ISA forces a lower one.
    """
