"""Random operations on a cache, drawn by a seed; see test_accounts.py."""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from aleator.core.errors import AleatorError
from aleator.generate import Batch

BASE = [random.Random(5).randrange(3) for _ in range(400)]


def rotate(layer: int, keys: Any, deltas: Any) -> Any:
    """Keys whose numbers grow with their positions, which is exact in float32."""
    return (keys + np.asarray(deltas)[:, None, None] * (layer + 1)).astype(np.float32)


def digest(data: Any) -> str:
    """A few letters for bytes, or for anything that JSON can hold."""
    raw = bytes(data) if isinstance(data, bytes | memoryview) else json.dumps(data).encode()
    return hashlib.blake2b(raw, digest_size=4).hexdigest()


def listed(array: Any) -> Any:
    """An array as numbers; what is None stays so, and a slice becomes its bounds."""
    if isinstance(array, slice):
        return [array.start, array.stop]
    return None if array is None else np.asarray(array).tolist()


class Operations(ABC):
    """A cache, and what is done to it by its methods."""

    def __init__(self, cache: Any, seed: int) -> None:
        self.cache, self.random = cache, random.Random(seed)
        self.n_seq = min(cache.n_seq_max, 5)
        self.high = cache.n_seq_max - self.n_seq  # so the last sequences are used too
        self.texts: dict[int, list[int]] = {s: [] for s in range(cache.n_seq_max)}
        self.marks: list[Any] = []
        self.blobs: list[tuple[bytes, int, bool]] = []
        self.saved: list[bytes] = []
        self.matches: list[Any] = []
        self.leaves: list[Any] = cache.pool.leaves
        first = self.leaves[0]
        self.words = first.cells.words if hasattr(first, "cells") else (cache.n_seq_max + 63) // 64
        self.pictures = getattr(first, "n_pos_per_embd", 1) == 4
        self.depth = 0
        self.seen = self.account()

    # What is drawn

    def below(self, n: int) -> int:
        return self.random.randrange(n)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def seq(self) -> int:
        s = self.below(self.n_seq)
        return s + self.high if s else 0

    def span(self, seq: int) -> tuple[int, int]:
        end = self.cache.seq_pos_max(seq) + 3
        return self.below(end) - 1, self.random.choice((-1, self.below(end), end - 2))

    @abstractmethod
    def account(self) -> Any:
        """Everything that can be seen of the cache."""

    @abstractmethod
    def carry_out(self, batch: Batch, tokens: list[int]) -> Any:
        """Decode a batch."""

    @abstractmethod
    def write_rows(self, part: Any, tokens: list[int]) -> Any:
        """Store what tells a micro-batch's tokens; what it says of itself."""

    def step(self) -> str:
        """Do something; its name, what came of it, and a digest of what is there then."""
        names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
        name = self.random.choice(names)
        before = self.seen
        texts, marks = {s: list(t) for s, t in self.texts.items()}, self.marks
        try:
            result = getattr(self, name)()
        except (AleatorError, NotImplementedError) as error:
            result = f"{type(error).__name__}: {error}"
            self.texts, self.marks = texts, marks
            assert self.account() == before, f"{name} has changed something, and raised {result}"
        self.seen = self.account()
        self.cache.check()
        return f"{name}: {json.dumps(result)}, then {digest(self.seen)}"

    # Batches

    def decode(self) -> Any:
        """A batch of several sequences, whose tokens take turns."""
        chosen = {self.seq(): 1 + self.below(9) for _ in range(1 + self.below(3))}
        if self.cache.recurrent is None and self.chance(0.15):
            chosen = {s: n + 12 for s, n in chosen.items()}
        tokens: list[int] = []
        batch, at = Batch(), {s: self.cache.seq_pos_max(s) + 1 for s in chosen}
        explicit, some = self.chance(0.3), self.chance(0.5)
        extra = self.below(4) - 1 if self.chance(0.1) else 0
        while chosen:
            s = self.random.choice(list(chosen))
            chosen[s] -= 1
            if not chosen[s]:
                del chosen[s]
            group = [s]
            if not self.texts[s] and self.chance(0.2) and not chosen:
                group += [o for o in self.texts if o != s and not self.texts[o] and o not in at][:1]
            token = BASE[at[s]] if self.chance(0.97) else 3 + self.below(9)
            place = self.cache.seq_pos_max(s) + 1 + extra if not tokens and extra else at[s]
            batch.add(token, place if explicit else None, group, self.chance(0.4) if some else None)
            tokens.append(token)
            at[s] += 1
        return self.carry_out(batch, tokens)

    def embeddings(self) -> Any:
        """A picture, where tokens have four positions."""
        if not self.pictures:
            return self.decode()
        seq, n = self.seq(), 1 + self.below(6)
        t = max(0, self.cache.seq_pos_max(seq) + self.below(3))
        batch = Batch()
        for i in range(n):
            batch.add_embedding(np.zeros(2), (t, self.below(3), i % 3, 0), [seq], self.chance(0.5))
        return self.carry_out(batch, list(range(n)))

    def place(self) -> Any:
        """Tokens without a plan."""
        seq, n = self.seq(), 1 + self.below(5)
        first = self.cache.seq_pos_max(seq) + 1
        owners = np.zeros((n, self.words), np.uint64)
        owners[:, seq // 64] = np.uint64(1 << seq % 64)
        positions = np.arange(first, first + n, dtype=np.int32)
        tokens = BASE[first : first + n]
        with self.cache.step() as step:
            told = self.write_rows(step.place(positions, np.full(n, seq, np.int32), owners), tokens)
        self.texts[seq] += tokens
        return digest(told)

    # Verbs

    def remove(self) -> Any:
        seq = self.seq() if self.chance(0.9) else -1
        p0, p1 = self.span(max(seq, 0))
        self.cache.seq_rm(seq, p0, p1)
        for s in self.texts if seq < 0 else [seq]:
            self.texts[s] = self.texts[s][: self.cache.seq_pos_max(s) + 1]
        return [seq, p0, p1]

    def rewind(self) -> Any:
        seq = self.seq()
        n = max(0, self.cache.seq_pos_max(seq) + 1 - self.below(6))
        self.cache.seq_rm(seq, n, -1)
        self.texts[seq] = self.texts[seq][:n]
        return [seq, n]

    def leave(self) -> Any:
        seq = self.seq()
        self.cache.seq_rm(seq)
        self.texts[seq] = []
        return seq

    def copy(self) -> Any:
        src, dst = self.seq(), self.seq()
        p0, p1 = self.span(src) if self.chance(0.4) else (-1, -1)
        self.cache.seq_cp(src, dst, p0, p1)
        self.texts[dst] = list(self.texts[src])
        return [src, dst, p0, p1]

    def keep_one(self) -> Any:
        seq = self.seq()
        self.cache.seq_keep(seq)
        self.texts = {s: t if s == seq else [] for s, t in self.texts.items()}
        return seq

    def shift(self) -> Any:
        seq = self.seq()
        p0, p1 = self.span(seq)
        delta = self.below(12) - 5
        self.cache.seq_add(seq, p0, p1, delta)
        return [seq, p0, p1, delta]

    def divide(self) -> Any:
        seq, divisor = self.seq(), 1 + self.below(3)
        p0, p1 = self.span(seq)
        self.cache.seq_div(seq, p0, p1, divisor)
        return [seq, p0, p1, divisor]

    def unshare(self) -> Any:
        seq = self.seq()
        self.cache.unshare(seq, *self.span(seq))
        return seq

    def clear(self) -> Any:
        self.cache.clear(self.chance(0.5))
        self.texts = {s: [] for s in self.texts}
        return None

    @abstractmethod
    def handle(self) -> Any:
        """What a handle on a sequence does."""

    # Cached prefixes

    def keep(self) -> Any:
        seq = self.seq()
        text = self.texts[seq] if self.chance(0.7) else self.texts[seq][: self.below(30)]
        return [seq, len(text), self.cache.keep(seq, text, "b" if self.chance(0.1) else "")]

    def reuse(self) -> Any:
        seq = self.seq()
        if self.chance(0.8):
            self.cache.seq_rm(seq)
            self.texts[seq] = []
        text = BASE[: 1 + self.below(60)] + [9] * self.below(3)
        n = self.cache.reuse(seq, text)
        self.texts[seq] = text[:n]
        return [seq, len(text), n]

    def match(self) -> Any:
        text = (self.texts[self.seq()] or BASE[: self.below(60)]) + [7] * self.below(2)
        found = self.cache.match(text, "b" if self.chance(0.1) else "")
        self.matches = [*self.matches[-2:], found]
        return [found.length, found.blocks, found.why_not, found.namespace]

    def pin(self) -> Any:
        index = self.cache.prefix
        if index is None or not self.matches:
            return None
        match = self.random.choice(self.matches)
        result = (index.pin if self.chance(0.5) else index.unpin)(match)
        return [result, index.holds(match), len(index), index.numbers()]

    def evict(self) -> Any:
        index = self.cache.prefix
        if index is None:
            return None
        return index.evict_block() if self.chance(0.8) else self.cache.forget_namespace("b")

    # States

    def write(self) -> Any:
        seq, partial = self.seq() if self.chance(0.6) else -1, self.chance(0.3)
        blob = self.cache.state_write(seq, partial=partial)
        self.blobs = [*self.blobs[-3:], (blob, seq, partial)]
        return [seq, len(blob), digest(blob)]

    def read(self) -> Any:
        if not self.blobs:
            return None
        blob, seq, partial = self.random.choice(self.blobs)
        seq = seq if seq < 0 and self.chance(0.9) else self.seq()
        n = self.cache.state_read(blob, seq, partial=partial)
        self.texts = {s: t[: self.cache.seq_pos_max(s) + 1] for s, t in self.texts.items()}
        return [seq, n]

    def session(self) -> Any:
        """A session file, or a sequence's, written and read; or one of Aleator's own."""
        seq = self.seq() if self.chance(0.7) else -1
        if self.chance(0.5) and seq >= 0:
            text = self.texts[seq]
            data = self.cache.save_sequence(seq, None, text if self.chance(0.5) else (), "m")
            self.saved = [*self.saved[-2:], data]
            result = self.cache.load_sequence(self.seq(), self.random.choice(self.saved), "m")
            self.texts = {s: t[: self.cache.seq_pos_max(s) + 1] for s, t in self.texts.items()}
            return [digest(data), result]
        data = self.cache.session_write(self.texts[max(seq, 0)], seq)
        return [seq, digest(data), self.cache.session_read(data, seq)]

    # Cells

    def defragment(self) -> Any:
        if self.chance(0.3):
            self.cache.do_defrag = True
            return [self.cache.update(), self.cache.do_defrag]
        threshold, most = self.random.choice((None, 0.1, 0.5)), self.random.choice((None, 0, 1, 2))
        done = self.cache.defrag(threshold, most)
        return [threshold, most, done.moves, done.n_cells]

    def look(self) -> Any:
        cache, n, seq = self.cache, 1 + self.below(12), self.seq()
        slots = [listed(cache.find_slot(n, contiguous=c, seq=seq)) for c in (None, True, False)]
        frame = cache.frame("now")
        told = [cache.size, cache.used, cache.head, cache.has_shift, cache.do_copy, cache.v_trans]
        return [n, slots, frame.text(30), cache.map(), told, repr(cache)]

    # Steps

    def within(self) -> Any:
        """Some of all this within a step, which is undone or not."""
        if self.depth == 2:
            return None
        self.depth += 1
        before, texts, marks = self.seen, self.texts, self.marks
        self.texts = {s: list(t) for s, t in texts.items()}
        undone = self.chance(0.6)
        try:
            with self.cache.step() as step:
                told = [self.step() for _ in range(1 + self.below(4))]
                if undone:
                    step.cancel()
        finally:
            self.depth -= 1
        if undone:
            self.texts, self.marks = texts, marks
            assert self.account() == before
        return [undone, digest(told)]


WEIGHTS = {
    "decode": 14, "embeddings": 4, "place": 2, "remove": 3, "rewind": 4, "leave": 3, "copy": 3,
    "keep_one": 1, "shift": 2, "divide": 1, "unshare": 1, "clear": 1, "handle": 6, "keep": 6, "reuse": 5,
    "match": 3, "pin": 2, "evict": 1, "write": 3, "read": 3, "session": 2, "piecewise": 2,
    "defragment": 2, "look": 2, "window_of": 2, "within": 4,
}  # fmt: skip
"""How often each is done."""
