"""A context's options and the batches that it refuses."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from aleator.core.errors import CannotRewind, InvalidBatch
from aleator.generate import Batch, Context
from aleator.models import build_decoder
from aleator.models.decoder import Decoder
from tests.generate.test_context import tokens


def test_sizes(llama: Decoder) -> None:
    ctx = Context(llama)
    assert (ctx.n_ctx, ctx.n_batch, ctx.n_ubatch, ctx.n_vocab) == (512, 512, 512, 64)
    assert (ctx.cache.type_k, ctx.cache.type_v) == ("f16", "f16")

    class Model:
        decoder = llama

    ctx = Context(Model(), n_ctx=100, n_batch=40, n_ubatch=64)
    assert (ctx.n_ctx, ctx.n_batch, ctx.n_ubatch) == (100, 40, 40)


def test_threads_follow_the_kind_of_decode(llama: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx: Any = Context(llama, n_ctx=32, n_threads=1, n_threads_batch=2)
    run, calls = ctx._step.run, []

    def noted(*given: Any) -> Any:
        calls.append(given[4])  # n_threads
        return run(*given)

    monkeypatch.setattr(ctx._step, "run", noted)
    for n in (4, 1, 1, 3):
        ctx.decode(Batch.one([1] * n))
    assert calls == [2, 1, 1, 2]


def test_threads_of_layers_in_torch(llama: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    calls: list[int] = []
    current = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: current[0])

    def set_threads(n: int) -> None:
        calls.append(n)
        current[0] = n

    monkeypatch.setattr(torch, "set_num_threads", set_threads)
    llama = build_decoder(llama.weights, form="torch")
    ctx = Context(llama, n_ctx=32, n_threads=1, n_threads_batch=2)
    for n in (4, 1, 1, 3):
        ctx.decode(Batch.one([1] * n))
    assert calls == [2, 1, 2]
    calls.clear()
    Context(llama, n_ctx=32).decode(Batch.one([1, 2]))
    assert calls == []


def test_invalid_batch_is_a_cache_error(llama: Decoder) -> None:
    from aleator.core.errors import AleatorError, CacheError

    with pytest.raises(CacheError):
        Context(llama, n_ctx=8).decode(Batch())
    assert issubclass(InvalidBatch, AleatorError)


def test_what_is_wrong_with_a_batch_as_a_whole_has_no_index(llama: Decoder) -> None:
    context, both = Context(llama, n_ctx=8), Batch()
    both.add(1)
    both.add_embedding(np.zeros(llama.config.n_embd))
    wrong: tuple[Any, ...] = (
        lambda: Batch.one(cast(Any, 5)), lambda: context.decode(both),
        lambda: context.decode(cast(Any, [1, 2])),
    )  # fmt: skip
    for call in wrong:
        with pytest.raises(InvalidBatch) as error:
            call()
        assert error.value.index == -1


def test_positions_below_0_are_refused(llama: Decoder) -> None:
    context = Context(llama, n_ctx=16)
    with pytest.raises(InvalidBatch) as error:
        context.decode(Batch.one([1], -1))
    assert error.value.code == -1
    assert context.cache.used == 0


def test_a_refused_rewind_names_the_option_of_the_context(make_decoder: Any) -> None:
    ctx = Context(make_decoder("mamba"), n_rollback=1)
    ctx.decode(Batch.one(tokens(9)))
    with pytest.raises(CannotRewind, match="larger n_rollback"):
        ctx.cache.seq_rm(0, 3, -1)
