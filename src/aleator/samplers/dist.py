"""Drawing from the distribution.

Keeps      nothing: it selects.
inverse    u is one 64-bit Philox output; the token is the first in id order whose cumulative Q40 mass exceeds
           floor(u * Z / 2^64).  Exact to 2^-64.
gumbel     a race: each token has its own uniform u(id); the smallest E / w wins, E = 64 - log2(u) in
           Q32 (the Gumbel-max trick without logarithms of weights), ties to the lower id.  Removing
           other tokens does not change the winner.
gumbel-pcg Akunu's kernel, for comparison only: u from a 32-bit PCG hash of (position + seed) *
           2654435761 + id, clamped to [1e-7, 1 - 1e-7]; the largest half(z + T * -ln(-ln u)) wins.  Its
           streams overlap between positions, and its rounding makes ties.
watermark  the race of ``gumbel`` with uniforms of a secret key and the last tokens: see samplers/watermark.py.
synthid    ``inverse`` after SynthID-text's tournament, keyed by a secret and the last tokens: see
           samplers/synthid.py.
mt19937    Akunu's draw on the CPU: r = fl32(word) / 2^32, at most 1 - 2^-24, where word is number ``position``
           of an MT19937 with seed (seed + completion) mod 2^32; the token is the first of the order (logit
           descending, then id) whose cumulative mass is at least ceil(r * Z).  Positions below 2^28.
Key        seed, position, the sampler's ordinal among the chain's Dists, and the completion index.
Masked     never selected; nor is a token whose weight rounds to zero (below 2^-41 of the largest).
Elsewhere  llama.cpp draws from mt19937, in the current order of the candidates, with float32 weights; a draw
           there depends on how many came before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aleator.core import host
from aleator.core.contract import Purpose
from aleator.core.numerics import Row, Step, by_mass, ints, log2_double, log2_q32, prefix_of_mass
from aleator.core.parameter import SEED, Parameter, declare
from aleator.core.philox import MASK32, stream, uniform64
from aleator.core.records import dataclass
from aleator.samplers.base import Place, SeededSampler, llama_seed, only_portable
from aleator.samplers.synthid import coins, tournament
from aleator.samplers.watermark import (
    DRAWN,
    KEYED,
    WATERMARK_KEY_FILE,
    WATERMARK_NGRAM,
    WatermarkKey,
    context_hash,
    hash_of,
    new_context,
)

LN2 = 0.6931471805599453
DRAW = Parameter(
    "draw", str, "inverse",
    "how the token is drawn: by inverse cumulative mass, by a race, as Akunu does on the GPU or the CPU, by a "
    "race keyed for a watermark, or by SynthID's tournament",
    choices=("inverse", "gumbel", "gumbel-pcg", "mt19937", "watermark", "synthid"), flags=("--draw",),
)  # fmt: skip


@dataclass(frozen=True)
class Dist(SeededSampler):
    """Draw a token in proportion to its weight."""

    name = "dist"
    reads = "mass"
    selects = True
    seed: int | None = declare(SEED)
    draw: str = declare(DRAW)
    # A path or ``WatermarkKey``; None takes the key from the environment variable ALEATOR_WATERMARK_KEY
    watermark_key_file: Any = declare(WATERMARK_KEY_FILE)
    watermark_ngram: int = declare(WATERMARK_NGRAM)

    def __post_init__(self) -> None:
        """Check the parameters, and find a watermark's key."""
        super().__post_init__()
        if self.draw in KEYED and self.watermark_key_file is None:
            object.__setattr__(self, "watermark_key_file", WatermarkKey.from_environment())

    def configured(self, place: Place, numerics: str) -> tuple[Any, ...]:
        """As the base class; the parameters of watermarks count only with a watermark."""
        kind, name, values, *rest = super().configured(place, numerics)
        if self.draw not in KEYED:
            values = {k: v for k, v in values.items() if not k.startswith("watermark_")}
        return (kind, name, values, *rest)

    def native(self, place: Place) -> host.Sampler:
        if self.draw == "mt19937":
            return host.TwisterDist(self.seed_in(place))
        if self.draw == "synthid":
            numbers = self.watermark_key_file.numbers
            return host.SynthIDDist(
                self.seed_in(place), place.ordinal, numbers, self.watermark_ngram
            )
        key = self.watermark_key_file.seed if self.draw == "watermark" else 0
        kind = DRAW.choices.index(self.draw)
        return host.Dist(self.seed_in(place), place.ordinal, kind, key, self.watermark_ngram)

    def native_llama(self, place: Place) -> host.LlamaSampler:
        if self.draw != "inverse":
            raise only_portable("draw", self.draw, "inverse")
        return host.LlamaDist(llama_seed(self.seed, place))

    def reference(self, row: Row, step: Step, place: Place) -> None:
        seed = self.seed_in(place)
        if self.draw in ("inverse", "synthid"):
            u = uniform64(
                seed, 0, step.position, stream(Purpose.DIST, place.ordinal, step.completion)
            )
            row.selected = int(row.ids[by_mass(u, self._weights(row, step))])
        elif self.draw in ("gumbel", "watermark"):
            self._race(row, step, place)
        elif self.draw == "mt19937":
            self._twister(row, step.position, seed + step.completion & MASK32)
        else:
            self._perturb(row, step.position + seed)

    def _weights(self, row: Row, step: Step) -> list[int]:
        """Weights of the candidates, after the tournament if there is one."""
        found = ints(row.weights())
        context = new_context(step.history, step.position, self.watermark_ngram)
        if self.draw != "synthid" or context is None:
            return found
        return tournament(found, row.ids, context, self.watermark_key_file.numbers)

    def watermark_score(self, token: int, context: Sequence[int]) -> float:
        """What a watermark's draw gives a token: its u, or the mean of its coins."""
        key = self.watermark_key_file
        if self.draw == "synthid":
            return float(coins([token], context, key.numbers).mean())
        return uniform64(key.seed, token, hash_of(context, key), DRAWN) / 2**64

    def _race(self, row: Row, step: Step, place: Place) -> None:
        seed = self.seed_in(place)
        word = stream(Purpose.GUMBEL, place.ordinal, step.completion)
        if self.draw == "watermark":
            key, n = self.watermark_key_file, self.watermark_ngram
            h = context_hash(step.history, step.position, key, n)
            if h is not None:
                seed, word, step = key.seed, DRAWN, replace(step, position=h)
        best: tuple[int, int] | None = None
        for token, w in zip(row.ids.tolist(), ints(row.weights()), strict=True):
            u = uniform64(seed, token, step.position, word)
            e = (64 << 32) - log2_q32(max(u, 1))
            if w and (best is None or e * best[1] < best[0] * w):
                best, row.selected = (e, w), token

    @staticmethod
    def _twister(row: Row, position: int, seed: int) -> None:
        words = np.random.RandomState(seed).randint(2**32, size=position + 1, dtype=np.uint32)
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
