"""Native steps that are interrupted, forked in the middle of, or give hidden states."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from make_models import write_model
from wide_models import SMALL

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder

LONG = 12_000


def decoder_of(path: Path, name: str, context: int = 512) -> Decoder:
    spec = replace(SMALL[name], context=context)
    return build_decoder(open_weights(write_model(path / "m.gguf", spec)))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system has no such signals")
@pytest.mark.parametrize("name", ["llama", "mamba", "qwen2moe", "qwen3next"])
def test_a_signal_ends_a_long_micro_batch(tmp_path: Path, name: str) -> None:
    n = 4 * LONG if name == "mamba" else LONG
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    def begins() -> bool:
        threading.Thread(target=interrupt).start()
        return False

    context = Context(
        decoder_of(tmp_path, name, context=n),
        n_ctx=n,
        n_batch=n,
        n_ubatch=n,
        n_threads=1,
        abort_callback=begins,
    )
    # A process that was started in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            context.decode(Batch.one([i % 60 for i in range(n)]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert context.cache.used == 0
    context.abort_callback = None
    fresh = Context(context.decoder, n_ctx=16, n_threads=1)
    again, expected = (c.decode(Batch.one([1, 2, 3])) for c in (context, fresh))
    assert again.tobytes() == expected.tobytes()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_a_handler_cannot_compute_with_the_step_it_stopped(tmp_path: Path) -> None:
    def begins() -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        return False

    context = Context(
        decoder_of(tmp_path, "llama", context=LONG),
        n_ctx=LONG,
        n_batch=LONG,
        n_ubatch=LONG,
        n_threads=1,
        abort_callback=begins,
    )
    other = Context(context.decoder, n_ctx=16, n_threads=1)

    def handler(*_: object) -> None:
        other.decode(Batch.one([1]))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(RuntimeError, match="a signal handler cannot compute"):
            context.decode(Batch.one([i % 60 for i in range(LONG)]))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert context.cache.used == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_a_child_does_not_wait_for_a_thread_of_its_parent(tmp_path: Path, name: str) -> None:
    n = LONG // 2 if name == "llama" else LONG
    context = Context(
        decoder_of(tmp_path, name, context=n), n_ctx=n, n_batch=n, n_ubatch=n, n_threads=1
    )
    own = Context(context.decoder, n_ctx=16, n_threads=1)
    expected = own.decode(Batch.one([1, 2])).tobytes()
    own.cache.seq_rm(0, -1, -1)
    begun = threading.Event()

    def begins() -> bool:
        begun.set()
        return False

    context.abort_callback = begins
    busy = threading.Thread(target=context.decode, args=(Batch.one([1] * n),))
    busy.start()
    begun.wait()
    time.sleep(0.02)  # the thread is in native code, with the step's lock
    own._step._step = context._step._step  # type: ignore[attr-defined]
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends a child that waits for the lock
        os._exit(0 if own.decode(Batch.one([1, 2])).tobytes() == expected else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    busy.join()
    assert status == 0


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_hidden_states_are_what_the_norm_gives(tmp_path: Path, name: str) -> None:
    decoder = decoder_of(tmp_path, name)
    context = Context(decoder, n_ctx=16, embeddings=True)
    rows = context.decode(Batch.one([1, 2, 3], logits=True))
    assert rows.shape == (3, decoder.config.n_embd)
    assert np.isfinite(rows).all()
    norm = np.sqrt(np.mean((rows / decoder.output_norm) ** 2, axis=1))  # type: ignore[attr-defined]
    assert np.abs(norm - 1).max() < 1e-3
