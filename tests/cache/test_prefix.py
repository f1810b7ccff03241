"""The index of cached prefixes: what is found, why not more, what is evicted, and that nothing leaks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aleator.cache import Cells, prefix_index
from aleator.cache.journal import Journal
from aleator.cache.prefix_index import PrefixConfig, PrefixIndex
from aleator.core.errors import CacheFull, ParameterError
from tests.cache.caches import fill, small

USERS = 4


class Pool:
    """Cells with an index, and texts written into them as a decode would."""

    def __init__(self, size: int = 256, block: int = 4, texts: int = 8) -> None:
        self.cells = Cells(size, USERS + texts)
        self.journal = Journal()
        self.journal.enlist(self.cells)
        self.index = PrefixIndex(PrefixConfig(block, texts), self.journal, self, USERS)

    def hold(self, seq: int, text: int, length: int) -> None:
        self.cells.seq_cp(seq, text, 0, length)

    def shorten(self, text: int, length: int) -> None:
        self.cells.seq_rm(text, length, -1)

    def write(self, seq: int, tokens: list[int], start: int = 0) -> None:
        words = self.cells.owners.shape[1]
        owners = np.zeros((len(tokens), words), np.uint64)
        owners[:, seq // 64] = 1 << (seq % 64)
        positions = np.arange(start, start + len(tokens), dtype=np.int32)
        self.cells.place(positions, owners)

    def run(self, tokens: list[int], namespace: str = "") -> int:
        """Compute a text in sequence 0, reusing what is kept; returns how much was computed."""
        match = self.index.match(tokens, namespace)
        if match.text is not None:
            self.cells.seq_cp(match.text.seq, 0, 0, match.length)
        self.write(0, tokens[match.length :], match.length)
        self.index.keep(0, tokens, namespace)
        self.cells.seq_rm(0, 0, -1)
        return len(tokens) - match.length

    def cells_of_texts(self) -> int:
        return int((np.asarray(self.cells.owners)[:, 0] >> np.uint64(USERS) != 0).sum())


def test_a_repeated_text_is_found_but_for_its_last_token() -> None:
    pool = Pool()
    assert pool.run(list(range(10))) == 10
    assert pool.run(list(range(10))) == 1
    match = pool.index.match(list(range(8)))
    assert (match.length, match.blocks, match.why_not) == (7, 1, ())


def test_a_fork_shares_up_to_the_token_where_it_parts() -> None:
    pool = Pool()
    pool.run(list(range(10)))
    match = pool.index.match([*range(9), 99, 100])
    assert match.length == 9
    assert match.blocks == 2
    assert match.why_not == ("token 9 is 99 and in the cached prefix 9",)
    assert pool.run([*range(9), 99, 100]) == 2
    assert pool.cells.used == 12  # the first 9 are one set of cells


def test_a_longer_text_takes_the_place_of_its_beginning() -> None:
    pool = Pool()
    pool.run(list(range(10)))
    assert pool.index.match(list(range(30))).why_not == ("the cached prefix ends after 10 tokens",)
    assert pool.run(list(range(30))) == 20
    assert len(pool.index) == 1
    assert pool.cells.used == 30
    assert pool.run(list(range(12))) == 1
    assert len(pool.index) == 1


def test_namespaces_do_not_see_each_other() -> None:
    pool = Pool()
    pool.run(list(range(10)), "a")
    assert pool.index.match(list(range(10)), "b").why_not == ("no text is kept in namespace 'b'",)
    assert pool.index.match([5, 6], "a").why_not == (
        "no cached prefix begins with its first token",
    )
    assert pool.run(list(range(10)), "b") == 10
    assert pool.index.match(list(range(10)), "a").length == 9


def test_equal_blocks_after_different_beginnings_are_not_confused() -> None:
    pool = Pool()
    pool.run([1, 2, 3, 4, 9, 9, 9, 9, 5])
    assert pool.index.match([5, 6, 7, 8, 9, 9, 9, 9, 5]).length == 0


def test_tails_are_evicted_before_beginnings_and_the_oldest_first() -> None:
    pool = Pool()
    pool.run([*range(8), 50, 51, 52, 53])
    pool.run([*range(8), 60, 61, 62, 63])
    pool.run([*range(8), 50, 51, 52, 53])  # now the one with 60 is older
    assert pool.cells.used == 16
    assert pool.index.evict_block()
    assert pool.cells.used == 12
    assert pool.index.match([*range(8), 50, 51, 52, 53]).length == 11
    match = pool.index.match([*range(8), 60, 61, 62, 63])
    assert match.length == 8
    assert match.why_not == ("what followed the first 8 tokens was evicted to make room",)
    while pool.index.evict_block():
        pool.cells.check()
    assert pool.cells.used == 0
    assert len(pool.index) == 0
    assert pool.index.match(list(range(8))).why_not == ("it was evicted to make room",)


def test_what_is_pinned_stays() -> None:
    pool = Pool()
    pool.run(list(range(12)))
    match = pool.index.match([*range(5), 99])
    pool.index.pin(match)
    while pool.index.evict_block():
        pass
    assert pool.cells.used == 8  # the block that holds the fifth token is whole
    assert pool.index.holds(match)
    pool.index.unpin(match)
    assert pool.index.evict_block()
    assert pool.index.evict_block()
    assert not pool.index.holds(match)
    with pytest.raises(ParameterError, match="match again"):
        pool.index.pin(match)
    with pytest.raises(ParameterError, match="no pin"):
        pool.index.unpin(match)


def test_the_oldest_text_goes_when_there_are_too_many() -> None:
    pool = Pool(texts=2)
    for first in (1, 2, 3):
        pool.run([first] * 5)
    assert len(pool.index) == 2
    assert pool.cells.used == 10
    assert pool.index.match([1] * 5).length == 0
    for first in (2, 3):
        pool.index.pin(pool.index.match([first] * 5))
    pool.write(0, [4] * 5)
    assert not pool.index.keep(0, [4] * 5)


@pytest.mark.parametrize("seed", range(5))
def test_free_and_kept_and_used_cells_add_up(seed: int) -> None:
    random_ = random.Random(seed)
    pool = Pool(size=200, block=4, texts=6)
    for _ in range(400):
        tokens = [random_.randrange(2) for _ in range(random_.randrange(1, 40))]
        while pool.cells.size - pool.cells.used < len(tokens):
            assert pool.index.evict_block()
        truth = max(
            (
                sum(np.cumprod(t.tokens[: len(tokens)] == tokens[: len(t.tokens)]))
                for t in pool.index
            ),
            default=0,
        )
        assert pool.run(tokens) == len(tokens) - min(truth, len(tokens) - 1)
        pool.cells.check()
        assert pool.cells.used == pool.cells_of_texts()
        if random_.random() < 0.1:
            pool.index.shorten(random_.choice(list(pool.index)).seq, random_.randrange(10))


@pytest.mark.parametrize(("field", "value"), [("block", 0), ("block", 5000), ("texts", 0)])
def test_refuses_a_configuration_out_of_range(field: str, value: int) -> None:
    with pytest.raises(ParameterError, match=field):
        PrefixConfig(**{field: value})


@pytest.mark.parametrize("tokens", [[[1, 2]], [-1, 2], [1.5, 2.0], [2**31, 1]])
def test_refuses_what_are_no_tokens(tokens: list[Any]) -> None:
    with pytest.raises(ParameterError, match="token"):
        Pool().index.match(tokens)


def test_evictions_after_a_rollback_are_the_same() -> None:
    pool = Pool()
    for first in (1, 2, 3):
        pool.run([first] * 4)
    for text in pool.index:
        text.used[:] = [7]  # equally old

    def evicted() -> list[list[int]]:
        tables = []
        while pool.index.evict_block():
            tables.append(sorted(text.seq for text in pool.index))
        return tables

    first_time = pool.journal.attempt(evicted)
    assert evicted() == first_time


def test_so_many_evictions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "REMEMBERED_EVICTIONS", 3)
    index, counts = Pool().index, []
    for i in range(9):
        index._remember(bytes([i]))
        counts.append(len(index._evicted))
    assert counts == [1, 2, 3, 4, 5, 6, 3, 4, 5]
    assert list(index._evicted) == [bytes([i]) for i in range(4, 9)]


def test_a_cache_without_an_index_finds_nothing() -> None:
    found = small(8).match([1, 2, 3], "a")
    assert (found.length, found.blocks, found.namespace) == (0, 0, "a")
    assert "caches no prefixes" in found.why_not[0]


@pytest.mark.parametrize("seq", [-1, 0, 1])
def test_a_whole_session_replaces_what_is_cached_and_one_sequence_does_not(seq: int) -> None:
    cache = small(64, prefix=PrefixConfig(block=4))
    fill(cache, "00000000")
    tokens = list(range(8))
    written = cache.session_write(tokens, seq if seq < 0 else 0)
    assert cache.keep(0, tokens)
    assert cache.match(tokens).length == 7
    cache.seq_rm(0)
    assert cache.session_read(written, seq) == tokens
    assert cache.match(tokens).length == (0 if seq == -1 else 7)
    assert cache.seq_pos_max(max(seq, 0)) == 7


def test_cached_prefixes_make_room_for_cells_that_a_sequence_shares_no_more() -> None:
    cache = small(16, prefix=PrefixConfig(block=4))
    fill(cache, "0000000011111111")
    assert cache.keep(0, list(range(8)))
    cache.seq_rm(0)
    cache.seq_cp(1, 2)
    cache.unshare(2, 2)
    assert cache.map() == "2" * 6 + "." * 2 + "M" * 2 + "1" * 6
    cache.seq_cp(2, 3)
    with pytest.raises(CacheFull, match="8 of the cells are shared and 2 are free"):
        cache.unshare(3)


KEPT = list(range(10))
CASES: list[tuple[list[int], int, int, tuple[str, ...]]] = [
    ([], 0, 0, ("the only token is always computed",)),
    ([0], 0, 0, ("the only token is always computed",)),
    ([0, 1], 1, 0, ()),
    ([1, 1], 0, 0, ("no cached prefix begins with its first token",)),
    ([0, 9], 1, 0, ("token 1 is 9 and in the cached prefix 1",)),
    ([0, 1, 2, 3], 3, 0, ()),
    ([0, 1, 2, 3, 4], 4, 1, ()),
    ([0, 1, 2, 3, 9], 4, 1, ("token 4 is 9 and in the cached prefix 4",)),
    ([0, 1, 2, 9, 4], 3, 0, ("token 3 is 9 and in the cached prefix 3",)),
    (KEPT, 9, 2, ()),
    ([*KEPT, 5], 10, 2, ()),
    ([*KEPT, 5, 5], 10, 2, ("the cached prefix ends after 10 tokens",)),
]


@pytest.mark.parametrize(("tokens", "length", "blocks", "why"), CASES)
def test_what_is_found_and_why_not_more(
    tokens: list[int], length: int, blocks: int, why: tuple[str, ...]
) -> None:
    pool = Pool()
    pool.run(KEPT)
    pool.run([3] * 9)
    found = pool.index.match(tokens)
    assert (found.length, found.blocks, found.why_not, found.namespace) == (length, blocks, why, "")
    assert (found.text is None) == (length == 0)
    assert replace(found, text=None) == found
    assert "text" not in repr(found)
    assert pool.index.match(tokens, "x").length == 0


@pytest.mark.parametrize(("pinned", "left"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, 10)])
def test_blocks_with_pinned_tokens_stay(pinned: int, left: int) -> None:
    pool = Pool()
    pool.run(KEPT)
    match = pool.index.match([*range(pinned), 99])
    assert match.length == pinned
    pool.index.pin(match)
    pool.index.pin(pool.index.match([0, 1]))
    assert pool.index.pinned(USERS) == pinned
    assert pool.index.forget_namespace("") == 0
    while pool.index.evict_block():
        pass
    assert pool.cells.used == left
    pool.index.shorten(USERS, left)
    assert pool.index.holds(match)
    pool.index.shorten(USERS, pinned - 1)
    assert not pool.index.holds(match)
    pool.index.clear()
    assert (len(pool.index), pool.cells.used) == (0, 0)


def test_the_block_of_a_position_has_the_time_of_its_last_use() -> None:
    pool = Pool()
    pool.run(KEPT)
    pool.index.match([0, 1, 2, 3, 4, 99])
    assert pool.index.pinned(USERS) == 0
    ages = [pool.index.used_at(USERS, position) for position in range(14)]
    assert ages[:8] == [ages[0]] * 8
    assert ages[8:] == [ages[8]] * 6
    assert ages[8] < ages[0]


def test_texts_are_kept_in_the_lowest_free_number_and_for_their_namespace() -> None:
    pool = Pool(texts=3)
    for first in (1, 2, 3):
        pool.run([first] * 5, "a" if first == 2 else "")
    assert pool.index.numbers() == [USERS, USERS + 1, USERS + 2]
    assert [pool.index.forget_namespace(name) for name in ("b", "a", "a")] == [0, 1, 0]
    assert pool.index.numbers() == [USERS, USERS + 2]
    pool.run([4] * 5)
    assert sorted(pool.index.numbers()) == [USERS, USERS + 1, USERS + 2]
    assert not pool.index.keep(0, [])
    assert pool.index.match([1] * 5).length == 4


def test_a_pinned_beginning_is_kept_beside_its_continuation() -> None:
    pool = Pool()
    pool.run(KEPT)
    match = pool.index.match([*KEPT, 1])
    pool.index.pin(match)
    pool.run([*KEPT, *range(7)])
    assert len(pool.index) == 2
    assert pool.cells.used == 17
    pool.index.unpin(match)
    pool.run([*KEPT, *range(12)])
    assert len(pool.index) == 1


def test_every_whole_block_has_a_digest() -> None:
    tokens = np.arange(13, dtype=np.int32)
    for n in range(14):
        made = list(prefix_index._digests(tokens[:n], 4, ""))
        assert len(set(made)) == len(made) == n // 4
        assert made == list(prefix_index._digests(tokens, 4, ""))[: n // 4]
