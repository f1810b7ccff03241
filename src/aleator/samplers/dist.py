"""Drawing from the distribution.

Keeps      nothing: it selects.
inverse    u is one 64-bit Philox output; the token is the first in id order whose cumulative Q40 mass exceeds
           floor(u * Z / 2^64).  Exact to 2^-64.
gumbel     a race: each token has its own uniform u(id); the smallest E / w wins, E = 64 - log2(u) in
           Q32 (the Gumbel-max trick without logarithms of weights), ties to the lower id.  Removing
           other tokens does not change the winner.
gumbel-pcg Akunu's kernel, to compare with and for nothing else: u from a 32-bit PCG hash of (position + seed) *
           2654435761 + id, clamped to [1e-7, 1 - 1e-7]; the largest half(z + T * -ln(-ln u)) wins.  Its
           streams overlap between positions, and its rounding makes ties.
mt19937    Akunu's draw on the CPU: r = fl32(word) / 2^32, at most 1 - 2^-24, where word is number ``position``
           of an MT19937 with seed (seed + completion) mod 2^32; the token is the first of the order (logit
           descending, then id) whose cumulative mass is at least ceil(r * Z).  Positions below 2^28.
Key        seed, position, the sampler's ordinal among the chain's Dists, and the completion index.
Masked     never selected; nor is a token whose weight rounds to zero (below 2^-41 of the largest).
Elsewhere  llama.cpp draws from mt19937, in the order that the candidates happen to have, with float32
           weights; a draw there depends on how many came before it.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core import host
from aleator.core.contract import Purpose
from aleator.core.numerics import Row, Step, draw, ints, log2_double, log2_q32, prefix_of_mass
from aleator.core.parameter import SEED, Parameter, declare
from aleator.core.philox import MASK32, stream, uniform64
from aleator.core.records import dataclass
from aleator.samplers.base import Place, SeededSampler, llama_seed, only_portable

LN2 = 0.6931471805599453
DRAW = Parameter(
    "draw", str, "inverse",
    "how the token is drawn: by inverse cumulative mass, by a race, or as Akunu does on the GPU or the CPU",
    choices=("inverse", "gumbel", "gumbel-pcg", "mt19937"), flags=("--draw",),
)  # fmt: skip


@dataclass(frozen=True)
class Dist(SeededSampler):
    """Draw a token in proportion to its weight.

    Args:
        seed: 64 bits.  ``None`` and -1 take the chain's.
        draw: ``"inverse"``, ``"gumbel"``, ``"gumbel-pcg"`` or ``"mt19937"``.
    """

    name = "dist"
    reads = "mass"
    selects = True
    seed: int | None = declare(SEED)
    draw: str = declare(DRAW)

    def native(self, place: Place) -> host.Sampler:
        if self.draw == "mt19937":
            return host.TwisterDist(self.seed_in(place))
        return host.Dist(self.seed_in(place), place.ordinal, DRAW.choices.index(self.draw))

    def native_llama(self, place: Place) -> host.LlamaSampler:
        if self.draw != "inverse":
            raise only_portable("draw", self.draw, "inverse")
        return host.LlamaDist(llama_seed(self.seed, place))

    def reference(self, row: Row, step: Step, place: Place) -> None:
        seed = self.seed_in(place)
        if self.draw == "inverse":
            word = stream(Purpose.DIST, place.ordinal, step.completion)
            row.selected = draw(row, seed, step.position, word)
        elif self.draw == "gumbel":
            self._race(row, step, place)
        elif self.draw == "mt19937":
            self._twister(row, step.position, seed + step.completion & MASK32)
        else:
            self._perturb(row, step.position + seed)

    def _race(self, row: Row, step: Step, place: Place) -> None:
        seed = self.seed_in(place)
        word = stream(Purpose.GUMBEL, place.ordinal, step.completion)
        best: tuple[int, int] | None = None
        for token, w in zip(row.ids.tolist(), ints(row.weights()), strict=True):
            u = uniform64(seed, token, step.position, word)
            e = (64 << 32) - log2_q32(max(u, 1))
            if w and (best is None or e * best[1] < best[0] * w):
                best, row.selected = (e, w), token

    @staticmethod
    def _twister(row: Row, position: int, seed: int) -> None:
        words = np.random.RandomState(seed).randint(0, 2**32, position + 1, np.uint32)
        drawn = min(int(np.float32(words[position])), 2**32 - 2**8)  # of 2**32, below 1 in float32
        order = row.order()
        ranked = ints(row.weights()[order])
        last = prefix_of_mass(ranked, -(-drawn * sum(ranked) // 2**32))
        row.selected = int(row.ids[order[last - 1]])

    @staticmethod
    def _perturb(row: Row, offset: int) -> None:
        start, best = (offset & MASK32) * 2654435761, -math.inf
        with np.errstate(over="ignore"):
            temperature = np.float32(row.temperature)
        for token, z in zip(row.ids.tolist(), row.logits, strict=True):
            state = ((start + token & MASK32) * 747796405 + 2891336453) & MASK32
            word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737 & MASK32
            word ^= word >> 22
            u = np.clip(
                np.float32(word) / np.float32(2**32), np.float32(1e-7), np.float32(1 - 1e-7)
            )
            noise = np.float32(-LN2 * log2_double(-LN2 * log2_double(float(u))))
            with np.errstate(over="ignore"):
                perturbed = float(np.float16(z + temperature * noise))
            if row.selected is None or perturbed > best:
                best, row.selected = perturbed, token
