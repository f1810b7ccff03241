"""The portable numerics contract in NumPy: the reference for every kernel.

docs/numerics.md says the same in words.  Kernels do not use this module; samplers' ``reference`` methods do,
and tests compare both bit for bit.  It uses only elementwise float32 operations and Python or NumPy integers,
so that any machine can reproduce it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aleator.core.arrays import Bools, Floats, Int32s, Int64s, UInt64s
from aleator.core.errors import LogitsError
from aleator.core.philox import uniform64
from aleator.core.records import dataclass

if TYPE_CHECKING:
    from fractions import Fraction

NUMERICS_VERSION = 2

LOG2_E = 1.4426950408889634
# Minimax polynomial of 2^f on [-1/2, 1/2], degree 5, f^0 to f^5.
EXP2_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341,
              0.009671512991189957, 0.001326472731307149)
)  # fmt: skip
ROUND_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, ties to even
MAX_VOCAB = 1 << 20

Ids = Int32s


def scaled(z: Floats, top: np.float32, temperature: float) -> Floats:
    """The contract's t: log2 of each weight relative to that of ``top``, at least -100."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        t = (z - top) * np.float32(LOG2_E / temperature)
    return np.where(t >= np.float32(-100), t, np.float32(-100)).astype(np.float32)


def power(t: Floats) -> tuple[Floats, Int32s]:
    """2^t as (p, n), p * 2^n with p near 1."""
    r = t + ROUND_MAGIC
    f = t - (r - ROUND_MAGIC)
    p = np.full_like(f, EXP2_COEFFICIENTS[5])
    for coefficient in EXP2_COEFFICIENTS[4::-1]:
        p = p * f + coefficient
    return p, r.view(np.int32) - np.int32(0x4B400000)


def weights(z: Floats, top: np.float32, temperature: float) -> UInt64s:
    """Q40 weights ``2^((z - top) * log2(e) / T)``; the largest logit weighs 2^40."""
    p, n = power(scaled(z, top, temperature))
    bits = p.view(np.uint32)
    below = 127 - (bits >> np.uint32(23)).astype(np.int32) - n
    mantissa = ((bits & np.uint32(0x7FFFFF)) | np.uint32(0x800000)).astype(np.uint64)
    shifted: UInt64s = (mantissa << np.uint64(17)) >> np.minimum(below, 63).astype(np.uint64)
    return shifted


class Entropy(NamedTuple):
    """Entropy of a row's distribution, in bits; see :meth:`Row.entropy`."""

    bits: float
    depth: float  # mean number of bits, weighted by probability, of weights below the largest
    mass: int  # of all candidates, in Q40


@dataclass
class Row:
    """The candidates of one step: ids ascending, finite logits, and the pending temperature."""

    ids: Ids
    logits: Floats
    temperature: float = 1.0
    selected: int | None = None
    full_mass: int = 0  # the mass that Softmax recorded; 0 if none, or if logits changed since

    @classmethod
    def load(cls, logits: NDArray[np.floating]) -> Row:
        """Make a row from logits: widen to float32 and bring it into canonical form."""
        row = cls(np.arange(len(logits), dtype=np.int32), np.asarray(logits).astype(np.float32))
        row.settle()
        return row

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def top(self) -> np.float32:
        """The largest logit."""
        return np.float32(self.logits.max())

    def settle(self) -> None:
        """Bring the row into canonical form: no NaN, -0 or masked token; if any are +inf, only those, at 0."""
        z = np.where(np.isnan(self.logits), np.float32(-np.inf), self.logits) + np.float32(0)
        kept = z == np.inf if np.any(z == np.inf) else z > -np.inf
        if not kept.any():
            raise LogitsError("no token has a finite logit")
        self.ids, self.logits = self.ids[kept], z[kept].astype(np.float32)
        if self.logits[0] == np.inf:
            self.logits = np.zeros_like(self.logits)

    def materialise(self) -> None:
        """Set ``z = fl32(z / fl32(T))`` and ``T = 1``, before logits are written or shown."""
        if self.temperature != 1:
            with np.errstate(over="ignore", under="ignore"):
                self.logits = self.logits / np.float32(self.temperature)
            self.temperature = 1.0
            self.settle()

    def edit(self, change: Callable[[int, np.float32], np.float32]) -> None:
        """Rewrite every logit by ``change(token, logit)``."""
        self.materialise()
        self.full_mass = 0
        with np.errstate(all="ignore"):
            pairs = zip(self.ids, self.logits, strict=True)
            self.logits = np.array([change(int(i), z) for i, z in pairs], np.float32)
        self.settle()

    def mask(self, tokens: Collection[int]) -> None:
        """Mask tokens, ignoring those that are not candidates; without any, write nothing."""
        if tokens:
            self.edit(lambda token, z: np.float32(-np.inf) if token in tokens else z)

    def keep_allowed(self, words: Sequence[int] | NDArray[np.unsignedinteger]) -> None:
        """Mask the tokens whose bit is not set: bit ``id % 32`` of word ``id // 32``, past the end none."""
        bits = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little")
        allowed = np.isin(self.ids, np.flatnonzero(bits))
        self.logits = np.where(allowed, self.logits, np.float32(-np.inf))
        self.settle()

    def weights(self) -> UInt64s:
        """Q40 weights of the candidates."""
        return weights(self.logits, self.top, self.temperature)

    def order(self) -> Int64s:
        """Indices by logit descending, then token id ascending."""
        order: Int64s = np.lexsort((self.ids, -self.logits.astype(np.float64)))
        return order

    def keep(self, kept: Bools | Int64s) -> None:
        """Keep the tokens of a mask, or at the given indices; ids stay ascending."""
        chosen = kept if kept.dtype == np.bool_ else np.sort(kept)
        self.ids, self.logits = self.ids[chosen], self.logits[chosen]

    def keep_first(self, length: int) -> None:
        """Keep the first ``length`` candidates of the order, at least one."""
        self.keep(self.order()[: max(1, length)])

    def depths(self) -> Int64s:
        """How many bits each weight lies below 2^40, in Q16."""
        t = scaled(self.logits, self.top, self.temperature)
        depths: Int64s = np.rint(-t * np.float32(65536)).astype(np.int64)
        return depths

    def entropy(self) -> Entropy:
        """Entropy by integer sums of weights relative to the largest logit below the top."""
        top = self.top
        below = self.logits[self.logits < top]
        n = float(len(self) - len(below))
        weight = bits = gap = 0.0
        if len(below):
            second = below.max()
            t = scaled(below, second, self.temperature)
            p, exponent = power(t)
            weighted = np.floor(np.ldexp(p, exponent + 40) * -t).astype(np.uint64)
            weight = int(weights(below, second, self.temperature).sum()) / 2**40
            bits = int(weighted.sum()) / 2**40
            gap = (float(top) - float(second)) * (LOG2_E / self.temperature)
        share = exp2_double(-gap)
        mass = share * weight
        total = n + mass
        depth = share * (gap * weight + bits) / total
        if n == 1 and mass < 2**-10:
            log = mass * (LOG2_E - mass * (LOG2_E / 2 - mass * (LOG2_E / 3)))
        else:
            log = log2_double(total)
        return Entropy(log + depth, depth, int(total * 2**40))


def ints(values: UInt64s) -> list[int]:
    """NumPy integers as Python's, which do not overflow."""
    return [int(v) for v in values]


def exact(x: float) -> Fraction:
    """The exact fraction that the float32 of ``x`` stands for."""
    from fractions import Fraction  # only references need it

    return Fraction(float(np.float32(x)))


def prefix_of_mass(ranked: list[int], wanted: int) -> int:
    """Length of the shortest prefix of ranked weights with a sum of at least ``wanted``."""
    total = 0
    for length, weight in enumerate(ranked, start=1):
        total += weight
        if total >= wanted:
            return length
    return len(ranked)


def run_length(row: Row, bound: int) -> int:
    """Length of the leading run of the order whose weights reach ``bound``."""
    length = 0
    for weight in row.weights()[row.order()]:
        if int(weight) < bound:
            break
        length += 1
    return length


def log2_q32(x: int) -> int:
    """log2 of a positive 64-bit integer in Q32, rounded down bit by bit."""
    n = x.bit_length() - 1
    m, fraction = x << (63 - n), 0
    for _ in range(32):
        square = m * m >> 64
        two = square >> 63
        fraction = fraction << 1 | two
        m = square if two else square << 1
    return n << 32 | fraction


_roots = [math.isqrt(1 << 125)]
while len(_roots) < 32:
    _roots.append(math.isqrt(_roots[-1] << 62))
ROOTS_OF_TWO = tuple(_roots)
"""2^(1 / 2^i) in Q62, rounded down, from i = 1."""


def exp2_q62(fraction: int) -> int:
    """2^(fraction / 2^32) in Q62 for a fraction in [0, 2^32)."""
    m = 1 << 62
    for i, root in enumerate(ROOTS_OF_TWO):
        if fraction >> (31 - i) & 1:
            m = m * root >> 62
    return m


def log2_double(x: float) -> float:
    """log2 of a positive finite float64 through its 53-bit mantissa, to 2^-32."""
    fraction, exponent = math.frexp(x)
    return (log2_q32(int(math.ldexp(fraction, 53))) + (exponent - 53 << 32)) / 2**32


def exp2_double(y: float) -> float:
    """2^y for y clamped to [-1000, 1000] and rounded down to Q32."""
    q = math.floor(min(max(y, -1000.0), 1000.0) * 2**32)
    return math.ldexp(float(exp2_q62(q & 0xFFFFFFFF)), (q >> 32) - 62)


def draw(row: Row, seed: int, position: int, stream: int) -> int:
    """Draw a token by inverse cumulative mass in id order, from one 64-bit uniform."""
    u = uniform64(seed, 0, position, stream)
    return int(row.ids[by_mass(u, ints(row.weights()))])


def by_mass(u: int, weights: Sequence[int]) -> int:
    """Index of the weight that a 64-bit uniform falls on."""
    ends = list(accumulate(weights))
    target = u * ends[-1] >> 64
    return bisect_right(ends, target)


@dataclass
class Step:
    """The inputs of a reference sampler besides the row: the history and the key of a draw."""

    history: list[int] = field(default_factory=list)
    generated: list[bool] = field(default_factory=list)
    position: int = 0  # tokens generated and accepted since the last reset
    completion: int = 0
    n_vocab: int = 0
    state: dict[tuple[str, int], Any] = field(default_factory=dict)  # by sampler and ordinal
    # By sampler and ordinal: a drawn token, and the state after it is accepted.
    pending: dict[tuple[str, int], tuple[int, Any]] = field(default_factory=dict)

    def accept(self, token: int, generated: bool) -> None:
        """Append a token; samplers that drew it update their state."""
        self.history.append(token)
        self.generated.append(generated)
        self.position += generated
        for key, (drawn, state) in self.pending.items():
            if generated and drawn == token:
                self.state[key] = state
        self.pending.clear()
