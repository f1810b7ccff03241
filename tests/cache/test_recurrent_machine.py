"""Random operations on recurrent states, with the text that each state stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache, RecurrentShape
from aleator.core.errors import CannotRewind
from tests.cache.test_hybrid import hashed


class Model(RuleBasedStateMachine):
    """Random operations against texts: a row holds a number that tells the text it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = RecurrentCache(
            [RecurrentShape(1, 1, 1)],
            n_seq_max=3,
            rollback=2,
            prefix=PrefixConfig(block=2, texts=3, spacing=4, bytes=80),  # ten states
        )
        self.texts: dict[int, list[int]] = {}
        self.held: dict[int, int] = {}  # how many states back from the newest
        self.counter = 0

    def _write(self, tokens: dict[int, list[int]], fail: bool) -> None:
        """What a decode does: the state of a text is a hash of it."""
        rows = [(s, t) for s, ts in tokens.items() for t in ts]
        at = {s: len(self.texts.get(s, [])) for s in tokens}
        positions = []
        for s, _ in rows:
            positions.append(at[s])
            at[s] += 1
        seqs = np.array([s for s, _ in rows], np.int32)
        owners = (np.uint64(1) << seqs.astype(np.uint64))[:, None]
        with self.cache.step() as step:
            where = np.array(positions, np.int32)
            batch = step.place(where, seqs, owners)
            for run in batch.runs:
                value = 0.0 if run.source < 0 else float(batch.ssm[0][run.source, 0, 0])
                stores = dict(run.stores)
                for i, token in enumerate(run.tokens):
                    value = (value * 31 + rows[token][1]) % 65521
                    if i in stores:
                        batch.ssm[0][stores[i], 0, 0] = value
            if fail:
                raise KeyboardInterrupt
        for s, ts in tokens.items():
            self.texts[s] = self.texts.get(s, []) + ts
            self.held[s] = min(3, self.held.get(s, 0) + len(ts))

    @rule(
        lengths=st.dictionaries(st.integers(0, 2), st.integers(1, 5), min_size=1),
        fail=st.booleans(),
    )
    def decode(self, lengths: dict[int, int], fail: bool) -> None:
        tokens = {}
        for seq, n in lengths.items():
            tokens[seq] = [self.counter % 97 + 1 + i for i in range(n)]
            self.counter += n
        if fail:
            with pytest.raises(KeyboardInterrupt):
                self._write(tokens, fail)
        else:
            self._write(tokens, fail)

    @rule(seq=st.integers(0, 2), back=st.integers(0, 6))
    def rewind(self, seq: int, back: int) -> None:
        text = self.texts.get(seq, [])
        p0 = max(0, len(text) - back)
        if p0 > 0 and back >= self.held.get(seq, 0) and back > 0:
            with pytest.raises(CannotRewind) as caught:
                self.cache.seq_rm(seq, p0, -1)
            assert caught.value.oldest_legal == len(text) - self.held[seq] + 1
            return
        self.cache.seq_rm(seq, p0, -1)
        if text:
            self.texts[seq] = text[:p0]
            self.held[seq] = max(0, self.held[seq] - back) if p0 else 0

    @rule(src=st.integers(0, 2), dst=st.integers(0, 2))
    def copy(self, src: int, dst: int) -> None:
        self.cache.seq_cp(src, dst)
        self.texts[dst] = list(self.texts.get(src, []))
        self.held[dst] = self.held.get(src, 0)

    @rule(src=st.integers(0, 2), dst=st.integers(0, 2))
    def restore(self, src: int, dst: int) -> None:
        if self.texts.get(src):
            self.cache.restore(dst, self.cache.checkpoint(src))
            self.texts[dst], self.held[dst] = list(self.texts[src]), 1

    @rule(seq=st.integers(0, 2), length=st.integers(1, 12))
    def keep(self, seq: int, length: int) -> None:
        self.cache.keep(seq, self.texts.get(seq, [])[:length])

    @rule(src=st.integers(0, 2), dst=st.integers(0, 2), more=st.lists(st.integers(1, 97)))
    def reuse(self, src: int, dst: int, more: list[int]) -> None:
        text = [*self.texts.get(src, []), *more]
        if text and src != dst:
            self.cache.seq_rm(dst)
            n = self.cache.reuse(dst, text)
            self.texts[dst], self.held[dst] = text[:n], min(n, 1)

    @invariant()
    def keeps_states_of_beginnings(self) -> None:
        kept: Any = self.cache.kept
        texts = [(text.seq, text.tokens.tolist()) for text in kept.index]
        texts += [(kept.number(seq), text) for seq, text in self.texts.items()]
        rows = set()
        for number, tokens in texts:
            for row, position in self.cache.states.get(number, ()):
                assert float(self.cache.ssm[0][row, 0, 0]) == hashed(tokens[: position + 1])
                rows.add(row)
        assert len(rows) == kept.held() <= kept.limit == 5
        assert {s for s in self.cache.states if s >= 3} <= {number for number, _ in texts}

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        for seq in range(3):
            text = self.texts.get(seq, [])
            assert self.cache.seq_pos_max(seq) == len(text) - 1
            if text:
                row = self.cache.states[seq][-1][0]
                assert float(self.cache.ssm[0][row, 0, 0]) == hashed(text)
                assert self.cache.oldest_rewind(seq) == len(text) - self.held[seq] + 1


TestModel = Model.TestCase


TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
