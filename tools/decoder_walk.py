"""A random walk of two decoders over the same tokens, whose rows of logits and saved bytes are compared.

It is for the decoder in Triton against the native one: prompts of random lengths, sequences beside each other
and interleaved, cells that are removed, positions that are shifted, and sequences that are saved on one side
and read on the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aleator.core.errors import CacheError
from aleator.generate import Batch, Context

LENGTH = 128
"""The most tokens of a sequence."""
SEQUENCES = 4


@dataclass
class Found:
    """What a walk has compared.

    Attributes:
        rows: rows of logits.
        wrong: how many of them differ.
        where: the first that does.
        done: the steps of the walk that were taken.
        refused: the edits of the cache that both decoders refuse.
    """

    rows: int = 0
    wrong: int = 0
    where: str = ""
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Walk:
    """Two decoders, each with its own context.

    Args:
        decoders: the one that is right, and the one that is compared with it.
        seed: the numbers that lengths and tokens are drawn with.
        options: further options of both contexts, such as ``type_k``.
    """

    def __init__(self, decoders: Sequence[Any], seed: int, **options: Any) -> None:
        self._r = random.Random(seed)
        self._n_vocab = decoders[0].config.n_vocab
        self._contexts = [
            Context(
                each, n_ctx=LENGTH * SEQUENCES, n_seq_max=SEQUENCES, n_threads=1, device="cpu", **options
            )
            for each in decoders
        ]  # fmt: skip
        self.found = Found()
        self._ends = [0] * SEQUENCES  # the position of each sequence's next token

    def run(self) -> Found:
        """Take every kind of step once."""
        draw = self._r.randint
        self._prompt("prompt", 0, draw(17, 26))
        self._beside("one token", [0], [1])
        self._beside("few tokens", [0], [draw(2, 3)])
        self._edit("copy", lambda cache: cache.seq_cp(0, 1))
        self._ends[1] = self._ends[0]
        self._beside("interleaved", [0, 2, 1], [draw(1, 2), draw(3, 5), draw(1, 2)])
        self._beside("sequences", [0, 1, 2], [1, 1, 1])
        first = draw(1, 6)
        last = first + draw(1, 6)
        if self._edit("removal", lambda cache: cache.seq_rm(0, first, last)):
            self._beside("after the removal", [0, 1], [draw(1, 2), 1])
            by = last - first
            if self._edit("shift", lambda cache: cache.seq_add(0, last, -1, -by)):
                self._ends[0] -= by
                self._beside("after the shift", [0, 1], [1, 1])
                self._prompt("prompt after the shift", 0, draw(17, 20))
        self._exchange()
        self._edit("rewind", lambda cache: cache.seq_rm(2, self._ends[2] - 1, -1), sequence=2)
        self._beside("the end", [0, 1, 2, 3], [1, 1, 1, draw(1, 2)])
        return self.found

    def _prompt(self, what: str, sequence: int, n: int) -> None:
        """Many tokens, of which the last wants its logits."""
        batch = self._batch([sequence], [n], lambda i: i == n - 1)
        self._compare(what, batch)

    def _beside(self, what: str, sequences: Sequence[int], counts: Sequence[int]) -> None:
        """Tokens of several sequences in turn, all of which want logits."""
        self._compare(what, self._batch(sequences, counts, lambda _: True))

    def _batch(
        self, sequences: Sequence[int], counts: Sequence[int], wanted: Callable[[int], bool]
    ) -> Batch:
        batch, ends = Batch(), self._ends
        for i in range(max(counts)):
            for sequence, n in zip(sequences, counts, strict=True):
                if i < n:
                    token = self._r.randrange(self._n_vocab)
                    batch.add(token, ends[sequence], [sequence], logits=wanted(i))
                    ends[sequence] += 1
        return batch

    def _compare(self, what: str, batch: Batch) -> None:
        right, other = (np.asarray(context.decode(batch)) for context in self._contexts)
        found = self.found
        found.done.append(what)
        found.rows += len(right)
        for i, (a, b) in enumerate(zip(right, other, strict=True)):
            if not np.isfinite(a).all():
                raise ValueError(f"{what}, row {i}: the model's logits are not finite")
            if a.tobytes() != b.tobytes():
                found.wrong += 1
                far = float(np.abs(a - b).max())
                found.where = found.where or f"{what}, row {i}, off by {far:.3g}"

    def _edit(self, what: str, edit: Callable[[Any], Any], sequence: int = 0) -> bool:
        """Edit both caches; False: both refuse."""
        taken = []
        for context in self._contexts:
            try:
                taken.append(edit(context.cache) is not False)
            except CacheError:
                taken.append(False)
        if taken[0] is not taken[1]:
            raise AssertionError(f"{what}: one refuses, the other does not")
        (self.found.done if taken[0] else self.found.refused).append(what)
        if taken[0] and what == "rewind":
            self._ends[sequence] -= 1
        return taken[0]

    def _exchange(self) -> None:
        """Each side reads what the other one has saved; the bytes are compared too."""
        saved = [context.cache.state_write(0) for context in self._contexts]
        found = self.found
        found.rows += 1
        if saved[0] != saved[1]:
            found.wrong += 1
            found.where = found.where or "the bytes of a saved sequence"
        for context, blob in zip(self._contexts, reversed(saved), strict=True):
            context.cache.state_read(blob, 3)
        self._ends[3] = self._ends[0]
        found.done.append("exchange")
