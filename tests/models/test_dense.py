"""Every dense architecture: bits that depend on nothing but the text, prefixes, states, and interrupts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dense_models import DENSE

from aleator.cache.prefix_index import PrefixConfig
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.models.check_golden import decoder_of

NAMES = list(DENSE)
N = 14
OPTIONS: Any = {"n_ctx": 128, "n_seq_max": 4, "type_k": "f16", "type_v": "f16"}


def text(decoder: Decoder, seed: int = 3) -> list[int]:
    drawn = np.random.default_rng(seed).integers(0, decoder.config.n_vocab, N)
    return [int(token) for token in drawn]


def alone(decoder: Decoder, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Logits of a text, token by token, on one thread."""
    context = Context(decoder, **OPTIONS, n_threads=1)
    return np.concatenate([np.asarray(context.decode(Batch.one([t]))) for t in tokens])


@pytest.mark.parametrize("name", NAMES)
def test_bits_depend_on_the_text_alone(name: str, tmp_path: Path) -> None:
    decoder = decoder_of(name, tmp_path, "native")
    tokens, other = text(decoder), text(decoder, 4)
    expected = alone(decoder, tokens)
    for n_ubatch, threads in ((3, 2), (64, 2), (64, 1)):
        context = Context(
            decoder, **OPTIONS, n_ubatch=n_ubatch, n_threads=threads, n_threads_batch=threads
        )
        batch = Batch()
        for i in range(N):
            batch.add(other[i], i, [1], logits=False)
            batch.add(tokens[i], i, [0], logits=True)
        assert np.asarray(context.decode(batch)).tobytes() == expected.tobytes(), (
            n_ubatch,
            threads,
        )
        # A fork, and a state in another sequence.
        context.cache.seq_rm(0, N - 1, -1)
        context.cache.seq_cp(0, 2)
        state = context.cache.state_write(0)
        for seq in (2, 3):
            if seq == 3:
                context.cache.state_read(state, 3)
            row = np.asarray(context.decode(Batch.one(tokens[-1:], N - 1, seq)))
            assert row.tobytes() == expected[-1:].tobytes(), seq


@pytest.mark.parametrize("name", NAMES)
def test_cached_prefixes(name: str, tmp_path: Path) -> None:
    decoder = decoder_of(name, tmp_path, "native")
    tokens = text(decoder)
    expected = alone(decoder, tokens)
    context = Context(decoder, **OPTIONS, prefix=PrefixConfig(block=1, texts=2))
    context.decode(Batch.one(tokens, 0))
    context.cache.keep(0, tokens)
    context.cache.seq_rm(0)
    known = context.cache.reuse(1, tokens)
    assert known >= N - 1
    got = np.asarray(context.decode(Batch.one(tokens[known:], known, 1)))
    assert got[-1:].tobytes() == expected[-1:].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_changes_nothing(name: str, tmp_path: Path) -> None:
    decoder = decoder_of(name, tmp_path, "native")
    tokens = text(decoder)
    expected = alone(decoder, tokens)
    calls = 0

    def interrupt() -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return False

    context = Context(decoder, **OPTIONS, n_ubatch=3, abort_callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        context.decode(Batch.one(tokens, 0, logits=True))
    assert context.cache.seq_pos_max(0) == -1
    got = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    assert got.tobytes() == expected.tobytes()
