"""Batches whose tokens have four positions (M-RoPE), against what llama.cpp did (tools/golden_state.py)."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.cache import KVCache, LayerShape
from aleator.cache.batches import bits_of, checked_positions, owner_bits
from aleator.cache.kv_cache import HybridCache
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import (
    CacheFull,
    CannotShift,
    Corrupt,
    Incompatible,
    InvalidBatch,
    ParameterError,
)
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.cache.caches import mask
from tests.models.builders import write_gguf

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden_sections.npz", allow_pickle=False)
ABOUT: dict[str, Any] = json.loads(str(GOLDEN["about"]))


def sections(n_cells: int = 256, **options: Any) -> KVCache:
    return KVCache(
        [LayerShape(2, 16, 16)] * 2,
        n_cells,
        n_pos_per_embd=4,
        **{"n_seq_max": 4, "architecture": "qwen2vl", **options},
    )


def add(cache: KVCache, batch: Batch) -> Any:
    """Place a batch; its last micro-batch."""
    with cache.step(cache.plan(batch)) as step:
        parts = list(step)
    cache.check()
    return parts[-1]


def texts(rows: list[tuple[int, int, list[int]]]) -> Batch:
    batch = Batch()
    for token, pos, seqs in rows:
        batch.add(token, pos, seqs)
    return batch


def embeddings(places: list[Any], seq: int = 0) -> Batch:
    batch = Batch()
    for place in places:
        batch.add_embedding(np.zeros(4), place, [seq])
    return batch


def filled(**options: Any) -> KVCache:
    """As fill of golden_state.py."""
    cache = sections(**options)
    add(cache, texts([(5 + i, p, s) for i, (p, s) in enumerate(ABOUT["text"])]))
    add(cache, embeddings(ABOUT["picture"]))
    add(cache, texts([(20 + i, p, s) for i, (p, s) in enumerate(ABOUT["after"])]))
    return cache


@pytest.mark.parametrize(("kind", "positions", "code"), ABOUT["accepted"])
def test_continuity(kind: str, positions: list[int], code: int) -> None:  # [L] study T8
    cache = sections()
    add(cache, texts([(1, i, [0]) for i in range(10)]))
    before = cache.state_write()
    batch = texts([(1, p, [0]) for p in positions])
    if kind == "embedding":
        batch = embeddings([(p, p, p, 0) for p in positions])
    if code == 0:
        add(cache, batch)
        assert cache.seq_pos_max(0) == positions[-1]
        return
    with pytest.raises(InvalidBatch) as caught:
        cache.plan(batch)
    assert caught.value.code == code
    assert cache.state_write() == before


@pytest.mark.parametrize(("cell", "query", "sees"), ABOUT["visible"])
def test_what_an_embedding_sees(
    cell: list[int], query: list[int], sees: bool
) -> None:  # [L] study T24
    cache = sections()
    add(cache, texts([(1, 0, [0])]))
    add(cache, embeddings([(5, *cell, 0)]))
    part = add(cache, embeddings([(5, *query, 0)]))
    seen = part.seen.cells[: part.seen.counts[0]].tolist()
    assert set(seen) == ({0, 1, 2} if sees else {0, 2})
    visible = np.zeros((1, 3), np.bool_)
    at = [np.array(x, np.int32) for x in ([5], [0], [query])]
    assert mask(cache.cells, at[0], at[1], visible, coordinates=at[2]) == len(seen)
    assert np.flatnonzero(visible).tolist() == sorted(seen)
    # Not causal: everything.
    assert mask(cache.cells, at[0], at[1], visible, causal=False, coordinates=at[2]) == 3


def test_a_picture_is_read_in_order_of_its_rows() -> None:
    pytest.importorskip("torch")
    cache = sections()
    places = [(3, y, x, 0) for y, x in ((1, 1), (0, 5), (1, 0), (0, 2))]
    part = add(cache, embeddings(places))
    assert part.sections.tolist() == [list(p) for p in places]
    assert part.seen.cells.tolist() == [3, 1, 2, 0]
    assert part.seen.counts.tolist() == [4, 2, 3, 1]
    assert part.tensors().mask(0).isneginf().tolist() == [
        [False, False, False, False],
        [False, False, True, True],
        [False, False, False, True],
        [False, True, True, True],
    ]


@pytest.mark.parametrize("case", ABOUT["cases"], ids=lambda c: c[0])
def test_states_are_llamas_byte_for_byte(case: list[Any]) -> None:
    name, type_k, type_v, flash = case
    options = {"type_k": type_k, "type_v": type_v, "v_layout": "token" if flash else "channel"}
    whole, one = (GOLDEN[f"{name}/{kind}"].tobytes() for kind in ("whole", "sequence"))
    ours, cache = filled(**options), sections(**options)
    assert cache.state_read(whole) == 13
    assert cache.state_write() == whole
    assert cache.state_write(0) == one
    other = sections(**options)
    assert other.state_read(one, 0) == 12
    assert other.state_write(0) == one
    # What stands before the rows, computed here.
    rows = whole.index(b"\x02\0\0\0" + (b"\0\0\0\0" if type_k == "f32" else b"\x01\0\0\0"), 40)
    assert ours.state_write()[:rows] == whole[:rows]
    assert ours.state_write() != whole
    assert len(ours.state_write()) == len(whole)
    extras = ours.cells.extras
    assert extras is not None
    assert extras[4].tolist() == [4, 4, -1]
    assert extras[9].tolist() == [5, 6, -1]
    assert extras[12].tolist() == [3, 3, 22]


def test_the_same_states_with_streams() -> None:
    cache = filled_streams()
    blob = cache.state_write()
    other = sections(policy="streams")
    other.state_read(blob)
    assert other.state_write() == blob
    cache.seq_cp(0, 2)
    copied, original = (cache.cells.seq_cell_list(s) for s in (2, 0))
    assert cache.cells.extras is not None
    assert cache.cells.extras[copied].tolist() == cache.cells.extras[original].tolist()


def filled_streams() -> KVCache:
    cache = sections(policy="streams")
    add(cache, texts([(5 + i, i, [0]) for i in range(3)]))
    add(cache, embeddings(ABOUT["picture"]))
    return cache


def test_every_change_carries_coordinates() -> None:
    cache = filled()
    before, state = cache.state_write(0), cache.state_write()
    cache.seq_cp(0, 2)
    cache.seq_keep(2)
    cache.state_read(cache.state_write(2), 0)
    cache.seq_rm(2)
    assert cache.state_write(0) == before
    cache.defrag()
    assert cache.map() == "0" * 12
    assert cache.state_write(0) == before
    cache.state_read(state)
    with cache.sequence(0) as text:
        copy = text.fork()
        cache.unshare(copy.id)
        assert cache.state_write(copy.id)[8:] != before[8:]  # its id is in there
        with cache.step() as step:
            text.truncate(5)
            add(cache, texts([(1, 50, [0])]))
            step.cancel()
        assert cache.state_write(0) == before
        data = text.save()
        assert data is not None
        assert text.load(data).usable == 10
        assert cache.state_write(0) == before


def test_splits_and_full_caches() -> None:
    cache = sections(8)
    plan = cache.plan(embeddings([(2, 0, x, 0) for x in range(7)]), n_ubatch=3)
    with cache.step(plan) as step:
        seen = [part.seen.counts.tolist() for part in step]
    assert seen == [[1, 2, 3], [4, 5, 6], [7]]
    before = cache.state_write()
    with pytest.raises(CacheFull):
        cache.plan(embeddings([(2, 1, 0, 0), (2, 1, 1, 0)]), n_ubatch=1)
    assert cache.state_write() == before


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (texts([(1, (1, 1, 1, 0), [0])]), "only embeddings"),  # type: ignore[list-item]
        (embeddings([(1, 1, 1)]), r"must be \(t, y, x, z\)"),
        (embeddings([(1, 1, -1, 0)]), "each in"),
        (embeddings([(1, 1, 2**31 - 1, 0)]), "each in"),
        (embeddings([2**31 - 1]), "must lie in"),
    ],
)
def test_positions_refused(batch: Batch, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        sections().plan(batch)


def test_positions_left_out_and_single_ones() -> None:
    cache = sections()
    part = add(cache, embeddings([None, 3, None]))
    assert part.sections.tolist() == [[0, 0, 0, 0], [3, 3, 3, 0], [4, 4, 4, 0]]
    part = add(cache, texts([(9, None, [0])]))  # type: ignore[list-item]
    assert part.sections.tolist() == [[5, 5, 5, 0]]


def test_models_with_one_position_refuse_four(tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_gguf(tmp_path / "m.gguf")))
    ctx = Context(decoder, n_ctx=16)
    with pytest.raises(InvalidBatch, match="one number"):
        ctx.decode(embeddings([(0, 0, 0, 0)]))
    plain = KVCache([LayerShape(1, 8, 8)], 16)
    assert plain.cells.extras is None
    with pytest.raises(ValueError, match="no extras"):
        plain.cells.place(
            np.zeros(1, np.int32), np.ones((1, 1), np.uint64), False, np.zeros((1, 3), np.int32)
        )
    with pytest.raises(ValueError, match="need extras"):
        sections().cells.place(np.zeros(1, np.int32), np.ones((1, 1), np.uint64))


def test_what_does_not_go_together() -> None:
    cache = filled()
    assert not cache.can_shift()
    with pytest.raises(CannotShift):
        cache.seq_add(0, 0, -1, 1)
    with pytest.raises(CannotShift):
        cache.seq_div(0, 0, -1, 2)
    for options in (
        {"prefix": PrefixConfig()},
        {"rotate": lambda layer, keys, deltas: keys},
        {"n_pos_per_embd": 3},
    ):
        arguments: dict[str, Any] = {"n_pos_per_embd": 4, **options}
        with pytest.raises(ParameterError, match="n_pos_per_embd"):
            KVCache([], 16, **arguments)
    with pytest.raises(ParameterError, match="one pool"):
        HybridCache([], 16, n_pos_per_embd=4)


def test_damaged_states_change_nothing() -> None:
    cache, blob = filled(), GOLDEN["qwen2vl-16-f32-f32-channel/whole"].tobytes()
    before = cache.state_write()
    for end in range(len(blob) - 1):
        if end < 700 or end % 97 == 0:
            with pytest.raises((Corrupt, Incompatible)):
                cache.state_read(blob[:end])
    token = 4 + 7 + 8 + 8 + 8  # of the first cell
    assert blob[token : token + 4] == b"\x05\0\0\0"
    with pytest.raises(Corrupt, match="below -1"):
        cache.state_read(blob[:token] + b"\xfe\xff\xff\xff" + blob[token + 4 :])
    plain = KVCache([LayerShape(2, 16, 16)] * 2, 256, n_seq_max=4, architecture="qwen2vl")
    with pytest.raises((Corrupt, Incompatible)):
        plain.state_read(blob)
    assert cache.state_write() == before


def test_a_token_attends_as_the_first_of_its_sequences() -> None:  # [L] study T24
    cache = KVCache([LayerShape(1, 8, 8)], 16, n_seq_max=2)
    add(cache, texts([(1, 0, [0])]))
    add(cache, texts([(1, 0, [1])]))
    rows = [add(cache, texts([(1, 1, [s])])).seen.cells.tolist() for s in (0, 1)]
    assert rows == [[0, 2], [1, 3]]
    cache.seq_rm(0)
    cache.seq_cp(1, 0)
    part = add(cache, texts([(1, 2, [1, 0])]))
    assert cache.cells.owners_of(int(part.cell_ids[0])) == [0, 1]
    plan = cache.plan(texts([(1, 3, [1, 0])]))
    assert plan.seqs.tolist() == [1]


def test_positions_without_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        checked_positions([0, 1], [(0,)], Held(-1), 1)


class Held:
    """Sequences by their last positions; those with the same one hold the same cells."""

    n_streams = 1

    def __init__(self, *last: int) -> None:
        self.last = last

    def seq_pos_max(self, seq: int) -> int:
        return self.last[seq]

    def same_cells(self, a: int, b: int) -> bool:
        return self.last[a] == self.last[b]


@pytest.mark.parametrize("least_step", [None, 0, 1])
@pytest.mark.parametrize("last", [-1, 0, 1, 5])
def test_every_first_and_second_position(last: int, least_step: int | None) -> None:
    places = [None, *range(-2, 9), 2**31 - 2, 2**31 - 1]
    for given in product(places, places):
        positions = []
        before = last
        for i, place in enumerate(given):
            pos = before + 1 if place is None else place
            if place is None or (not i and before < 0):
                fits = True
            elif i:
                fits = pos >= before and (least_step is not None or pos <= before + 1)
            else:
                fits = pos == before + 1 if least_step is None else pos >= before + least_step
            if not fits or not 0 <= pos < 2**31 - 1:
                break
            positions.append(pos)
            before = pos
        call = (list(given), [(0,), (0,)], Held(last), 1, least_step)
        if len(positions) == 2:
            assert checked_positions(*call) == positions
        else:
            with pytest.raises(InvalidBatch) as caught:
                checked_positions(*call)
            assert caught.value.index == len(positions)


@pytest.mark.parametrize(
    ("sequences", "index"),
    [
        ([(0, 1), (2,), (1, 0)], None),  # the same two again
        ([(0, 1), (1,), (0,), (2,), (0,)], None),
        ([(0, 1, 2), (1, 2), (0,)], None),
        ([(0,), (1, 2)], None),
        ([(0,), (0, 1)], 1),
        ([(1, 2), (0, 1)], 1),
        ([(0, 1, 3)], 0),  # the last does not hold what the others do
        ([(3, 0)], 0),
        ([()], 0),
        ([(0,), (4,)], 1),
        ([(-1,)], 0),
        ([(0,), (1, 1)], 1),
        ([(0,), (1,), ("2",)], 2),
    ],
)
def test_groups_of_sequences(sequences: list[Any], index: int | None) -> None:
    call = ([None] * len(sequences), sequences, Held(4, 4, 4, 7), 4)
    if index is None:
        counts = dict.fromkeys(range(3), 4)
        expected = []
        for group in sequences:
            expected.append(max(counts[s] for s in group) + 1)
            counts |= dict.fromkeys(group, expected[-1])
        assert checked_positions(*call) == expected
        return
    with pytest.raises(InvalidBatch) as caught:
        checked_positions(*call)
    assert caught.value.index == index


@pytest.mark.parametrize(("n_seq_max", "words"), [(1, 1), (64, 1), (65, 2), (200, 4)])
def test_bits_of_sequences(n_seq_max: int, words: int) -> None:
    batch = Batch()
    last = n_seq_max - 1
    groups = sorted({(0,), (last,), tuple({0, last // 2, last})})
    for group in groups:
        batch.add(1, None, group)
    bits = bits_of(owner_bits(batch, words, n_seq_max))
    assert bits.shape == (len(groups), 64 * words)
    assert [tuple(np.flatnonzero(row).tolist()) for row in bits] == list(
        map(tuple, map(sorted, groups))
    )


def test_a_plan_of_every_rule() -> None:
    """One token after the other, or sequences by themselves; what fits at once is one part."""
    batch = Batch()
    for seq, wanted in ((0, True), (1, False), (0, False), (1, True), (2, True)):
        batch.add(1, None, [seq], wanted)
    expected = {
        "simple": ([[0, 1, 2, 3, 4]], None),
        "equal": ([[0, 1, 4], [2, 3]], [0, 2, 1]),
        "sequence": ([[0, 2], [1, 3], [4]], None),
    }
    for rule, (parts, order) in expected.items():
        for n_ubatch, n_batch in ((5, None), (9, 5)):
            cache = KVCache([LayerShape(1, 2, 2)], 16, n_seq_max=3)
            plan = cache.plan(batch, n_ubatch=n_ubatch, n_batch=n_batch, rule=rule)
            made = [np.arange(5)[part.tokens].tolist() for part in plan.parts]
            assert made == parts
            assert (None if plan.rows is None else plan.rows.tolist()) == order
    for n_ubatch, n_batch in ((4, None), (9, 4)):
        cache = KVCache([LayerShape(1, 2, 2)], 16, n_seq_max=3)
        plan = cache.plan(batch, n_ubatch=n_ubatch, n_batch=n_batch)
        assert [np.arange(5)[part.tokens].tolist() for part in plan.parts] == [[0, 1, 2, 3], [4]]


def test_tokens_that_see_each_other_are_one_part() -> None:
    cache = KVCache([LayerShape(1, 2, 2)], 16, n_seq_max=2)
    batch = texts([(1, i, [0, 1]) for i in range(4)])
    plan = cache.plan(batch, n_ubatch=4, causal=False)
    assert plan.seqs.tolist() == [1] * 4
    assert cache.plan(batch, n_ubatch=4).seqs.tolist() == [0] * 4
    with cache.step(plan) as step:
        (part,) = step
    assert part.seen.counts.tolist() == [4] * 4
    with pytest.raises(
        InvalidBatch, match=r"4 tokens that see each other.* n_ubatch is 3"
    ) as caught:
        cache.plan(Batch.one([1] * 4), n_ubatch=3, causal=False)
    assert caught.value.index == -1
    with pytest.raises(InvalidBatch, match="the batch is empty") as caught:
        cache.plan(Batch())
    assert caught.value.index == -1
