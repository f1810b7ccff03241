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

class AdaptiveP(Sampler):
    def __init__(self, adaptive_target: float, adaptive_decay: float, seed: int, ordinal: int) -> None: ...

    @property
    def average(self) -> float: ...

class Dist(Sampler):
    def __init__(self, seed: int, ordinal: int, gumbel: bool) -> None: ...

class DRY(Sampler):
    def __init__(self, dry_multiplier: float, dry_base: float, dry_allowed_length: int, dry_penalty_last_n: int, breakers: Sequence[Sequence[int]]) -> None: ...

class Greedy(Sampler):
    def __init__(self) -> None: ...

class LogitBias(Sampler):
    def __init__(self, biases: Sequence[tuple[int, float]]) -> None: ...

class MinP(Sampler):
    def __init__(self, min_p: float, min_keep: int, full: bool) -> None: ...

class Mirostat(Sampler):
    def __init__(self, mirostat_tau: float, mirostat_eta: float, mirostat_m: int, seed: int, ordinal: int) -> None: ...

    @property
    def mu(self) -> float: ...

class MirostatV2(Sampler):
    def __init__(self, mirostat_tau: float, mirostat_eta: float, seed: int, ordinal: int) -> None: ...

    @property
    def mu(self) -> float: ...

class Penalties(Sampler):
    def __init__(self, penalty_last_n: int, repetition_penalty: float, frequency_penalty: float, presence_penalty: float, prompt_repeats: bool, prompt_counts: bool) -> None: ...

class Softmax(Sampler):
    def __init__(self) -> None: ...

class TailFree(Sampler):
    def __init__(self, tfs_z: float, min_keep: int) -> None: ...

class Temperature(Sampler):
    def __init__(self, temperature: float, dynatemp_range: float, dynatemp_exponent: float) -> None: ...

class TokenMask(Sampler):
    def __init__(self, words: Sequence[int] | None) -> None: ...

class TopA(Sampler):
    def __init__(self, top_a: float) -> None: ...

class TopK(Sampler):
    def __init__(self, top_k: int) -> None: ...

class TopNSigma(Sampler):
    def __init__(self, top_n_sigma: float) -> None: ...

class TopP(Sampler):
    def __init__(self, top_p: float, min_keep: int, full: bool) -> None: ...

class TypicalP(Sampler):
    def __init__(self, typical_p: float, min_keep: int) -> None: ...

class XTC(Sampler):
    def __init__(self, xtc_probability: float, xtc_threshold: float, min_keep: int, seed: int, ordinal: int) -> None: ...

def isa() -> str:
    """
    Instruction set in use: 'base', 'v3' (AVX2) or 'v4' (AVX-512). The environment variable ALEATOR_ISA forces a lower one.
    """
