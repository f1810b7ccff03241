"""Infill: for text in the middle of a document; use it after top-k and top-p.

Keeps      only the end-of-generation tokens if 3 * (their mass) * (candidates) > (mass of the others).
           Otherwise tokens are merged if the text of one is a prefix of the other's.  Each candidate in the
           order is compared with all others in the order: the heavier takes the mass of the lighter, which
           is removed; of equals, the one with the longer text is removed.  Then text tokens with less than a
           fifth of the mass are removed; if none is left, the end-of-turn token is the only candidate, with
           logit 1.  Then, with N text tokens left, those with less than 1 / (N + 1) of the remaining mass go.
Masses     decide which tokens stay; the draw uses the logits, which do not change.
Equality   masses exactly at a bound stay.  Integers throughout.
Masked     not candidates.  More than 4,096 candidates are refused.
Elsewhere  llama.cpp agrees except for its float32 sums.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from aleator.core.errors import LogitsError, ParameterError
from aleator.core.numerics import Row, Step, ints
from aleator.samplers.base import Compiled, Place, dataclass, host

MOST_CANDIDATES = 4096


@dataclass(frozen=True)
class Infill(Compiled):
    """Keep clear continuations, or end the text.

    Args:
        vocabulary: An object with ``len``, ``token_bytes(id)``, ``eog``, and ``eot`` or ``eos``; or a tokenizer
            with ``vocab``.  If it has ``is_special(id)``, tokens for which that is true have no text.
    """

    name = "infill"
    letter = "i"
    reads = "mass"
    kernel = host.Infill
    llama_kernel = host.LlamaInfill
    vocabulary: Any = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        vocab = getattr(self.vocabulary, "vocab", self.vocabulary)
        if vocab is None:
            raise ParameterError("vocabulary", "infill needs a vocabulary: chain(vocab=...)")
        end = vocab.eot if vocab.eot is not None else vocab.eos
        if end is None:
            raise ParameterError("vocabulary", "infill needs a vocabulary with an EOT or EOS token")
        special = getattr(vocab, "is_special", lambda token: False)
        pieces = [b"" if special(i) else vocab.token_bytes(i) for i in range(len(vocab))]
        native = host.InfillVocabulary(pieces, sorted(vocab.eog), end)
        vars(self).update(native_vocabulary=native, pieces=pieces, end=end, eog=vocab.eog)

    @classmethod
    def from_values(cls, values: Any) -> Infill:
        return cls(values.get("tokenizer"))

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return (self.native_vocabulary,)  # type: ignore[attr-defined]

    def reference(self, row: Row, step: Step, place: Place) -> None:
        if len(row) > MOST_CANDIDATES:
            raise LogitsError(
                "infill compares every pair of candidates: put top_k or top_p before it"
            )
        ids, mass = row.ids.tolist(), ints(row.weights())
        ends = np.array([i in self.eog for i in ids])  # type: ignore[attr-defined]
        total, ending = sum(mass), sum(m for m, e in zip(mass, ends, strict=True) if e)
        if 3 * ending * len(row) > total - ending:
            row.keep(ends)
            return
        self._merge(ids, mass, row.order().tolist())
        kept = [bool(e) or (5 * m >= total and m > 0) for e, m in zip(ends, mass, strict=True)]
        texts = sum(k and not e for k, e in zip(kept, ends, strict=True))
        if not texts:
            row.ids = np.array([self.end], np.int32)  # type: ignore[attr-defined]
            row.logits = np.ones(1, np.float32)
            return
        left = sum(m for m, k in zip(mass, kept, strict=True) if k)
        clear = [m * (texts + 1) >= left for m in mass]
        row.keep(
            np.array([bool(e) or (k and c) for e, k, c in zip(ends, kept, clear, strict=True)])
        )

    def _merge(self, ids: list[int], mass: list[int], order: list[int]) -> None:
        texts = [self.pieces[i] if i < len(self.pieces) else b"" for i in ids]  # type: ignore[attr-defined]
        for i in order:
            if not texts[i]:
                continue
            for j in order:
                if not mass[i]:
                    break
                if i == j or not mass[j] or not texts[j].startswith(texts[i]):
                    continue
                into, gone = (j, i) if mass[j] > mass[i] else (i, j)
                mass[into] += mass[gone]
                mass[gone] = 0
