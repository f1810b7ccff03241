"""What a model with states keeps: rewinds, checkpoints, cached prefixes, states and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aleator import load
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder


def check_rewinds(decoder: Decoder) -> None:
    """Whatever a context comes from, it gives the bits of a fresh one."""
    text = [int(t) for t in np.random.default_rng(4).integers(0, decoder.config.n_vocab, 70)]
    types: dict[str, Any] = {"type_k": "f32", "type_v": "f32"} if decoder.cache_shapes else {}

    def context(**options: Any) -> Any:
        return Context(decoder, n_ctx=160, n_seq_max=2, **types, **options)

    def feed(ctx: Any, seq: int, tokens: list[int]) -> bytes:
        row = np.asarray(ctx.decode(Batch.one(tokens, None, seq)))[-1]
        ctx.cache.check()
        return bytes(row.tobytes())

    def fresh(tokens: list[int]) -> bytes:
        return feed(context(), 0, tokens)

    ctx = context(n_ubatch=16, n_rollback=3, prefix=PrefixConfig(block=4, spacing=8))
    cache = ctx.cache
    feed(ctx, 0, text[:50])
    sequence = cache.sequence(0)
    with pytest.raises(CannotRewind) as caught:
        sequence.truncate(46)
    assert caught.value.oldest_legal == 47
    mark = sequence.checkpoint()
    feed(ctx, 0, text[50:])
    sequence.restore(mark)
    for token in text[50:53]:  # a rewind needs a state of each of these
        feed(ctx, 0, [token])
    sequence.truncate(51)
    assert feed(ctx, 0, text[51:60]) == fresh(text[:60])
    cache.seq_rm(0)
    feed(ctx, 0, text[:60])
    assert cache.keep(0, text[:60])
    other = context()
    other.cache.state_read(cache.state_write())
    other.cache.state_read(cache.state_write(0), 1)
    for seq in (0, 1):
        assert feed(other, seq, text[60:63]) == fresh(text[:63])
    part = cache.state_write(0, partial=True)
    feed(ctx, 0, text[60:])
    cache.state_read(part, 0, partial=True)
    assert sequence.next == 60
    cache.seq_rm(0)
    for parts, found in ((60, 60), (59, 56), (24, 24), (23, 16), (7, 0)):
        tokens = [*text[:parts], 1, 2, 3]
        assert cache.reuse(1, tokens) == found
        assert feed(ctx, 1, tokens[found:]) == fresh(tokens)
        cache.seq_rm(1)


def check_texts(path: Path) -> None:
    """Texts are the same with and without a prompt cache, go on past the context, and from a session."""
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    model = load(path, n_threads=1)
    first = model.generate("ROMEO: But soft, what light", **options)
    plain = load(path, n_threads=1, prompt_cache=False).generate(first.request.tokens, **options)
    assert first.text == plain.text
    shifted = load(path, n_threads=1, n_ctx=24).generate(
        first.request.tokens, context_shift=True, seed=1, max_tokens=50, ignore_eos=True
    )
    assert len(shifted.tokens) == 50  # which computes them
    assert shifted.stats.context_shifts > 1
    session = path.with_suffix(".session")
    model.save_session(session, first)
    again = load(path, n_threads=1)
    rest = again.generate(again.load_session(session), **options)
    whole = model.generate([*first.request.tokens, *first.tokens], **options)
    assert rest.tokens == whole.tokens
    assert rest.stats.prompt_tokens == 1


def check_states(
    decoder: Decoder, ids: list[int], expected: Sequence[npt.NDArray[np.float32]]
) -> None:
    """The convolution's values and the state of each layer with one have the expected bits after a text."""
    for threads, ubatch in ((1, 5), (3, 9)):
        context: Any = Context(decoder, n_ctx=32, n_ubatch=ubatch, n_threads=threads)
        context.decode(Batch.one(ids))
        states = context.cache.pool.recurrent
        (row, _), *_ = states.states.book()[0]
        held = [t[row] for pair in zip(states.conv, states.ssm, strict=True) for t in pair]
        for ours, theirs in zip(held, expected, strict=True):
            assert np.array_equal(ours, theirs)
