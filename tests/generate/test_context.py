"""Decoding: micro-batches, several sequences, undo, shifts, and cells that hold rubbish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache import HybridCache, KVCache, RecurrentCache
from aleator.core.errors import Aborted, NoLogits, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from aleator.samplers import Greedy, SamplerChain
from tests.cache.caches import decode

F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}


def tokens(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 64, n)]


def close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() <= tolerance * (b.max() - b.min()))


def test_logits_by_batch_index(llama: Decoder) -> None:  # [L] S3
    ctx = Context(llama, n_ctx=32, n_seq_max=3, split="equal", **F32)
    with pytest.raises(NoLogits, match="i=0 has no logits: nothing has been decoded"):
        ctx.logits(0)
    batch = Batch()
    for i, s in enumerate((1, 0, 1)):  # "equal" takes sequence 1's two tokens apart
        batch.add(i + 1, seqs=[s], logits=i != 1)
    rows = ctx.decode(batch)
    assert np.array_equal(ctx.logits(0), rows[0])
    assert np.array_equal(ctx.logits(2), rows[1])
    assert np.array_equal(ctx.logits(-1), rows[1])
    assert np.array_equal(ctx.logits(-2), rows[0])
    for i in (1, 3, -3):
        with pytest.raises(NoLogits, match=f"i={i} has no logits: .* 0, 2 .2 in all"):
            ctx.logits(i)
    second = Batch()
    second.add(1, logits=False)
    second.add(2, logits=True)
    rows = ctx.decode(second)
    assert np.array_equal(ctx.logits(1), rows[0])
    with pytest.raises(
        IndexError,
        match=r"i=0 has no logits: .* tokens 1 \(1 in all, of which -1 is the last\): give",
    ):
        ctx.logits(0)
    with pytest.raises(ParameterError, match="i must be an integer"):
        ctx.logits(0.0)  # type: ignore[arg-type]
    silent = Batch()
    silent.add(1, logits=False)
    ctx.decode(silent)
    with pytest.raises(NoLogits, match="no token of the last batch has any"):
        ctx.logits(-1)


def chosen(ctx: Context, row: int) -> int:
    """The token that a chain of its own takes of one row of the context."""
    return SamplerChain([Greedy()]).sample(ctx, row=row)


def test_a_chain_samples_a_token_of_the_batch_by_its_index(llama: Decoder) -> None:
    ctx = Context(llama, n_ctx=64, n_ubatch=3, n_seq_max=3, split="equal", **F32)
    with pytest.raises(NoLogits, match=r"row=-1 has no logits: nothing has been decoded") as caught:
        chosen(ctx, -1)
    assert caught.value.parameter == "row"
    # "equal" takes a token of each sequence, so the order of micro-batches is not the batch's.
    wanted = [1, 2, 5, 8]
    batch = Batch()
    for i, (token, s) in enumerate(
        zip(tokens(9, seed=3), (1, 1, 1, 0, 0, 2, 2, 0, 2), strict=True)
    ):
        batch.add(token, seqs=[s], logits=i in wanted)
    best = [int(row.argmax()) for row in ctx.decode(batch)]
    assert len(set(best)) == 4  # the test tells the rows apart
    assert [chosen(ctx, i) for i in wanted] == best
    assert [chosen(ctx, -n) for n in (4, 3, 2, 1)] == best
    for row in (0, 3, 9, -5, 2**70):
        chain = SamplerChain([Greedy()])
        with pytest.raises(
            NoLogits, match=f"row={row} has no logits: .* 1, 2, 5, 8 .4 in all"
        ) as e:
            chain.sample(ctx, row)
        assert (e.value.parameter, e.value.outputs, chain.history) == ("row", wanted, [])
        with pytest.raises(NoLogits, match=f"row={row} "):
            chain.explain(ctx, row=row)
    for wrong in (1.0, True, "1", None):
        with pytest.raises(ParameterError, match="row must be an integer"):
            chosen(ctx, wrong)  # type: ignore[arg-type]
    # The next batch has indices of its own.
    second = ctx.decode(Batch.one([5, 6], seq=1))
    assert chosen(ctx, 1) == chosen(ctx, -1) == int(second[0].argmax())
    with pytest.raises(NoLogits, match="row=5 "):
        chosen(ctx, 5)
    # A decode that fails in its second micro-batch leaves the rows of the batch before it.
    answers = iter([False, True])
    ctx.abort_callback = lambda: next(answers)
    with pytest.raises(Aborted):
        ctx.decode(Batch.one(tokens(6), seq=2, logits=True))
    assert chosen(ctx, 1) == int(second[0].argmax())
    with pytest.raises(NoLogits, match="row=0 "):
        chosen(ctx, 0)


def test_a_row_is_for_contexts(llama: Decoder) -> None:
    row = Context(llama, n_ctx=8, **F32).decode(Batch.one([1]))[0]
    chain = SamplerChain([Greedy()])
    with pytest.raises(ParameterError, match="row=1 needs a context"):
        chain.sample(row, row=1)
    assert (chain.history, chain.sample(row, row=-1)) == ([], int(row.argmax()))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(1, 1), (7, 3), (16, 16), (2048, 5)])
def test_any_split_gives_the_same_logits(
    make_decoder: Any, name: str, n_batch: int, n_ubatch: int
) -> None:
    text = tokens(30)
    whole = Context(make_decoder(name), n_ctx=32, **F32).decode(Batch.one(text, 0, logits=True))
    ctx = Context(make_decoder(name), n_ctx=32, n_batch=n_batch, n_ubatch=n_ubatch, **F32)
    assert close(ctx.decode(Batch.one(text, 0, logits=True)), whole)
    assert ctx.cache.map() == "0" * 30


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_several_sequences_in_one_batch_equal_separate_ones(
    make_decoder: Any, name: str, flash_attn: bool
) -> None:
    decoder = make_decoder(name)
    texts = [tokens(n, seed=n) for n in (5, 9, 3)]
    alone = [Context(decoder, n_ctx=32, **F32).decode(Batch.one(t, 0, logits=True)) for t in texts]
    # Interleaved, longest first, so that cells of the sequences alternate.
    rows = [(texts[s][i], i, [s]) for i in range(9) for s in (1, 2, 0) if i < len(texts[s])]
    ctx = Context(decoder, n_ctx=32, n_seq_max=3, n_ubatch=4, flash_attn=flash_attn, **F32)
    together = decode(ctx, *rows)
    for row, (_, pos, (s,)) in zip(together, rows, strict=True):
        assert close(row, alone[s][pos])


def test_as_many_visible_cells_as_a_causal_batch_but_others(llama: Decoder) -> None:
    # Three tokens at one position see each other, the fourth only itself: 10 pairs, like four
    # causal tokens.  A cell used before makes the second context build the mask it needs.
    batch = [(1, 0, [0]), (2, 0, [0]), (3, 0, [0]), (4, 0, [1])]
    rows = []
    for first in (False, True):
        ctx = Context(llama, n_ctx=16, n_seq_max=3, **F32)
        if first:
            ctx.decode(Batch.one([9], 0, seq=2))
        rows.append(decode(ctx, *batch))
    assert close(rows[0], rows[1])


@pytest.mark.parametrize(("types", "tolerance"), [("f32", 1e-5), ("bf16", 0.02), ("f16", 2e-3)])
def test_remove_and_shift_equal_the_shortened_text(
    make_decoder: Any, types: str, tolerance: float
) -> None:
    # Exact for one layer: deeper ones remember the removed text in their keys and values.
    decoder = make_decoder("llama-one-layer")
    text = tokens(40)
    ctx = Context(decoder, n_ctx=64, type_k=types, type_v=types)
    ctx.decode(Batch.one(text, 0))
    ctx.cache.seq_rm(0, 5, 17)
    ctx.cache.seq_add(0, 17, -1, -12)
    assert len(ctx.cache.cells.shifted()) == 23
    row = ctx.decode(Batch.one([9], 28))
    assert len(ctx.cache.cells.shifted()) == 0
    short = [*text[:5], *text[17:], 9]
    fresh = Context(decoder, n_ctx=64, type_k=types, type_v=types).decode(Batch.one(short, 0))
    assert close(row, fresh, tolerance)


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-linear", "llama-yarn", "llama-freqs", "qwen2-tied-yarn", "qwen3-tied-yarn"],
)
def test_shifting_a_whole_sequence_changes_no_logits(make_decoder: Any, name: str) -> None:
    text = tokens(24)
    ctx = Context(make_decoder(name), n_ctx=64, **F32)
    plain = ctx.decode(Batch.one([*text, 1], 0))
    ctx.cache.clear()
    ctx.decode(Batch.one(text, 0))
    cells = range(24)
    keys = [ctx.cache.read_keys(i, cells) for i in range(len(ctx.cache.shapes))]
    for delta in (7, 30, -12):
        ctx.cache.seq_add(0, 0, -1, delta)
        start = ctx.cache.seq_pos_max(0) + 1
        assert close(ctx.decode(Batch.one([1], start)), plain, 1e-4)
        ctx.cache.seq_rm(0, start, -1)
        for i, then in enumerate(keys):
            now = ctx.cache.read_keys(i, cells)
            ratio = np.linalg.norm(now, axis=-1) / np.linalg.norm(then, axis=-1)
            assert np.abs(ratio - 1).max() < 1e-4  # llama.cpp: 1.14 with YaRN of factor 4


def test_divided_positions_are_those_of_a_fresh_run(make_decoder: Any) -> None:  # study T12
    decoder = make_decoder("llama-one-layer")
    ctx = Context(decoder, n_ctx=32, **F32)
    ctx.decode(Batch.one(text := tokens(8), 0))
    ctx.cache.seq_div(0, 0, -1, 2)
    ctx.decode(Batch.one([1], 4))
    other = Context(decoder, n_ctx=32, **F32)
    decode(other, *((t, i // 2, [0]) for i, t in enumerate(text)))
    difference = ctx.cache.read_keys(0, range(8)) - other.cache.read_keys(0, range(8))
    assert np.abs(difference).max() < 1e-5


def test_positions_beyond_the_table(make_decoder: Any) -> None:
    # Attention depends on distances only, so a far start gives the same logits but for rounding.
    ctx = Context(make_decoder("llama"), n_ctx=32, n_seq_max=2, **F32)
    near = ctx.decode(Batch.one(text := tokens(6), 0, logits=True))
    far = ctx.decode(Batch.one(text, (1 << 15) - 3, seq=1, logits=True))
    assert close(far, near, 1e-4)


@pytest.mark.parametrize(("name", "n"), [("llama", 1), ("gemma3", 2), ("mamba", 1), ("jamba", 2)])
def test_addresses_are_those_of_all_pools(make_decoder: Any, name: str, n: int) -> None:
    decoder = make_decoder(name)
    context = Context(decoder, n_ctx=64, n_threads=1)
    where = context.cache.addresses()
    assert len(context.cache.pools) == n
    assert len(where) == len(set(where)) == 2 * decoder.config.n_layers
    context.decode(Batch.one([1, 2, 3]))
    assert context.cache.addresses() == where


def test_every_cache_has_the_same_verbs() -> None:
    names = {name for name in dir(KVCache) if not name.startswith("_")}
    assert {"seq_rm", "state_write", "defrag", "find_slot", "cells"} < names
    assert names <= set(dir(HybridCache))
    assert names <= set(dir(RecurrentCache))


@pytest.mark.parametrize(
    ("seqs", "third"),
    [(seqs, third) for seqs in ([0, 1], [1, 0], [0, 1, 2], [2, 0, 1]) for third in seqs],
)
def test_without_causality_a_shared_token_sees_its_last_sequence(
    llama: Decoder, seqs: list[int], third: int
) -> None:
    """As llama.cpp 0.5, whose logits these are within rounding."""

    def decode(*rows: tuple[int, int, list[int]]) -> Any:
        batch = Batch()
        for row in rows:
            batch.add(*row, logits=True)
        return Context(llama, n_ctx=64, n_seq_max=3, causal_attn=False, **F32).decode(batch)

    rows = decode((1, 0, seqs), (2, 1, seqs), (3, 2, [third]))
    if third == seqs[-1]:
        assert close(rows, decode((1, 0, [0]), (2, 1, [0]), (3, 2, [0])))
    else:
        assert close(rows[:2], decode((1, 0, [0]), (2, 1, [0])))


def test_states_of_a_context_are_those_of_its_cache(llama: Decoder) -> None:
    ctx, other = (Context(llama, n_ctx=32, n_seq_max=2, **F32) for _ in range(2))
    ctx.decode(Batch.one([1, 2, 3]))
    ctx.decode(Batch.one([4, 5], None, 1))
    assert ctx.state_write() == ctx.cache.state_write(-1)
    assert ctx.state_write(1) == ctx.cache.state_write(1)
    other.state_read(ctx.state_write())
    assert [other.cache.seq_pos_max(seq) for seq in (0, 1)] == [2, 1]


def test_so_many_tokens_of_several_sequences_can_be_taken_back(make_decoder: Any) -> None:
    """With windows, those of one micro-batch: all but its first token."""
    context = Context(make_decoder("gemma3"), n_ctx=64, n_seq_max=4, n_ubatch=12)
    most = context.cache.rewindable
    for n, tokens in ((1, 11), (2, 5), (3, 3), (5, 1), (12, 0), (40, 0)):
        assert context.rewindable(n) == min(most, tokens)
    plain = Context(make_decoder("llama"), n_ctx=64, n_seq_max=4, n_ubatch=12)
    assert plain.rewindable(1) == plain.rewindable(40) == plain.cache.rewindable
