"""Decoding in a cache that is full of cached prefixes: plans and steps evict alike, and nothing leaks."""

from __future__ import annotations

import random

import pytest

from aleator.cache import KVCache, LayerShape, PrefixConfig
from aleator.generate import Batch


class Texts:
    """Random texts through sequence 0, as a generation decodes, keeps and leaves them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.n = self.random.choice((40, 64, 100))
        self.cache = KVCache([LayerShape(1, 2, 2)], self.n, prefix=PrefixConfig(16, 63))
        self.tokens: list[int] = []

    def decode(self, tokens: list[int]) -> None:
        plan = self.cache.plan(Batch.one(tokens, pos=len(self.tokens)))
        with self.cache.step(plan) as step:
            for _ in step:
                pass
        self.tokens += tokens

    def text(self) -> None:
        pick = self.random.randrange
        prompt = [1] * pick(20) + [pick(1, 4) for _ in range(pick(1, 20))]
        self.tokens = prompt[: self.cache.reuse(0, prompt)]
        while len(self.tokens) < len(prompt):
            self.decode(prompt[len(self.tokens) :][: self.random.choice((1, 4, 64))])
        self.cache.keep(0, self.tokens)
        for _ in range(min(pick(1, 20), self.n - len(prompt))):
            ahead = self.random.choice((1, 1, 1, 5))
            if len(self.tokens) + ahead > self.n:
                break
            self.decode([pick(1, 4) for _ in range(ahead)])
            if ahead > 1 and pick(2):
                del self.tokens[-pick(1, ahead) :]
                self.cache.seq_rm(0, len(self.tokens), -1)
        self.cache.keep(0, self.tokens)
        self.cache.seq_rm(0, -1, -1)


@pytest.mark.parametrize("seed", range(6))
def test_texts_come_and_go(seed: int) -> None:
    texts = Texts(seed)
    for _ in range(60):
        texts.text()
        texts.cache.cells.check()
    assert texts.cache.prefix is not None
    texts.cache.prefix.clear()
    assert texts.cache.used == 0
