"""Operations on a context's cache, written as words, to show what each does to the cells."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from aleator.core.errors import ParameterError
from aleator.generate.context import Batch, Context

EXAMPLE = (
    "decode 0 20; fork 0 1; fork 0 2; decode 0,1,2 8; rm 1; slide 0 4; decode 0,2 4; rm 2; defrag"
)
"""A script that uses most of them, in 80 cells."""

OPERATIONS = {
    "decode": (2, 2),
    "fork": (2, 3),
    "rm": (1, 3),
    "add": (4, 4),
    "div": (4, 4),
    "slide": (2, 3),
    "keep": (1, 1),
    "defrag": (0, 0),
    "clear": (0, 0),
}
"""Least and most numbers of each operation; ``aleator cache-view --help`` says what they are."""


def checked(words: Sequence[str]) -> None:
    """Check that words are an operation; ParameterError says what the operation takes."""
    name, given = words[0], list(words[1:])
    if name not in OPERATIONS:
        raise ParameterError(
            "script", f"{name!r:.80} is not an operation; operations: {', '.join(OPERATIONS)}"
        )
    low, high = OPERATIONS[name]
    numbers = given[0].split(",") + given[1:] if name == "decode" and given else given
    whole = all(re.fullmatch("-?[0-9]+", x) for x in numbers)
    if not low <= len(given) <= high or not whole or any(len(x) > 10 for x in numbers):
        count = str(low) if low == high else f"{low} to {high}"
        raise ParameterError(
            "script", f"{' '.join(words)!r:.80}: {name} takes {count} whole numbers"
        )
    if name == "decode" and len(set(map(int, numbers[:-1]))) < len(numbers) - 1:
        raise ParameterError(
            "script", f"{' '.join(words)!r:.80}: decode takes each sequence once, such as 0,1"
        )


class Script:
    """Runs operations on a context; sequences begin with ``prompt`` and continue with the model's tokens.

    Raises:
        ParameterError: The prompt has no tokens.
    """

    def __init__(self, context: Context, prompt: Sequence[int], seed: int) -> None:
        self._context = context
        self._prompt = list(prompt)
        if not self._prompt:
            raise ParameterError("prompt", "the prompt has no tokens: give at least one character")
        self._random = random.Random(seed)
        self._next: dict[int, int] = {}
        self.computed = 0  # Tokens that were decoded

    def do(self, words: Sequence[str]) -> None:
        """Run one operation, which :func:`checked` has accepted."""
        cache, name = self._context.cache, words[0]
        if name == "decode":
            for _ in range(int(words[2])):
                self._decode([int(x) for x in words[1].split(",")])
            return
        n = [int(x) for x in words[1:]]
        if name == "fork":
            cache.seq_cp(n[0], n[1], 0, *n[2:])
            self._next.pop(n[1], None)
        elif name == "slide":
            cache.sequence(n[0]).slide(*n[1:])
        elif name in ("defrag", "clear"):
            getattr(cache, name)()
        else:
            getattr(cache, f"seq_{name}")(*n)

    def _decode(self, seqs: list[int]) -> None:
        batch = Batch()
        for seq in seqs:
            empty = self._context.cache.seq_pos_max(seq) < 0
            # A sequence that has not been decoded yet continues with a token of the prompt.
            go_on = [self._next.get(seq, self._random.choice(self._prompt))]
            text = self._prompt if empty else go_on
            for i, token in enumerate(text):
                batch.add(token, seqs=[seq], logits=i == len(text) - 1)
            self.computed += len(text)
        for seq, row in zip(seqs, self._context.decode(batch), strict=True):
            self._next[seq] = int(self._random.choice(best(row)))


def best(row: Any) -> list[int]:
    """The four most likely tokens of a row of logits, most likely first."""
    return [int(token) for token in np.argsort(-np.asarray(row), kind="stable")[:4]]
