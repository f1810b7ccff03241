"""Matrices that are not finite are reported, wherever in a file they are."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aleator.core.errors import FileFormatError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, finite_check, open_weights
from aleator.models.decoder import Decoder
from aleator.models.finite_check import FiniteCheck
from tests.models.builders import model_tensors, write_gguf

NAN = float("nan")


def damaged(path: Path, name: str, place: tuple[int, int]) -> Path:
    tensors = model_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"].copy()
    tensors[name][place] = NAN
    return write_gguf(path / "m.gguf", tensors=tensors)


def decoder_without_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setattr(finite_check, "CHUNK_BYTES", 0)
    monkeypatch.setattr(finite_check.FiniteCheck, "start", lambda check: None)
    return build_decoder(open_weights(path))


def test_first_matrices_are_looked_at_while_they_are_loaded(tmp_path: Path) -> None:
    path = damaged(tmp_path, "blk.1.ffn_up.weight", (3, 4))
    with pytest.raises(FileFormatError, match=r"blk\.1\.ffn_up"):
        build_decoder(open_weights(path))


def test_the_background_finds_what_no_token_has_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite_check, "CHUNK_BYTES", 0)
    monkeypatch.setattr(finite_check, "_PIECE", 256)
    path = damaged(tmp_path, "token_embd.weight", (7, 4))
    decoder = build_decoder(open_weights(path))
    with pytest.raises(FileFormatError, match=r"token_embd.*near element 228"):
        decoder.weights.check.wait()
    context = Context(decoder, n_ctx=16)
    with pytest.raises(FileFormatError, match=r"'token_embd\.weight' holds NaN"):
        context.decode(Batch.one([1]))
    assert context.cache.used == 0


def test_logits_that_are_not_finite_wait_for_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damaged(tmp_path, "blk.1.ffn_down.weight", (7, 4))
    context = Context(decoder_without_thread(path, monkeypatch), n_ctx=16)
    with pytest.raises(FileFormatError, match=r"'blk\.1\.ffn_down\.weight' holds NaN"):
        context.decode(Batch.one([1]))
    assert context.cache.used == 0


def test_finite_logits_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = damaged(tmp_path, "token_embd.weight", (7, 4))
    decoder = decoder_without_thread(path, monkeypatch)
    context = Context(decoder, n_ctx=16)
    assert np.isfinite(context.decode(Batch.one([1]))).all()
    with pytest.raises(FileFormatError, match="token_embd"):
        context.decode(Batch.one([7], 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_looks_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_without_thread(damaged(tmp_path, "token_embd.weight", (7, 4)), monkeypatch)
    check = decoder.weights.check
    check._lock.acquire()  # as the thread may hold it when the process forks
    child = os.fork()
    if not child:
        try:
            check.wait()
        except FileFormatError:
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_the_queue_is_never_empty_while_something_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite_check, "_PIECE", 256)
    decoder = decoder_without_thread(
        write_gguf(tmp_path / "m.gguf", tensors=model_tensors()), monkeypatch
    )
    check, lengths = decoder.weights.check, []

    class Watched(deque[tuple[str, int]]):
        def popleft(self) -> tuple[str, int]:
            lengths.append(len(self))
            return super().popleft()

    check._left = Watched(check._left)
    names = len(check._left)
    check.wait()
    assert lengths == list(range(names, 0, -1))  # each matrix leaves it once, when it is done


class Noted:
    """Matrices of these bytes; it is noted which are checked, and from where on."""

    def __init__(self, **sizes: int) -> None:
        self.sizes, self.checked = sizes, list[tuple[str, int]]()

    def stored(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(data=np.zeros(self.sizes[name], np.uint8))

    def check_finite(self, name: str, first: int = 0, most: int | None = None) -> int | None:
        self.checked.append((name, first))
        end = self.sizes[name] if most is None else first + most
        return end if end < self.sizes[name] else None


def test_what_is_checked_at_once_and_what_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to CHUNK_BYTES at once, each matrix once; what is seldom used only where rows are not finite."""
    monkeypatch.setattr(finite_check, "CHUNK_BYTES", 10)
    monkeypatch.setattr(finite_check, "_PIECE", 4)
    matrices = Noted(a=6, b=4, c=1, d=9, e=3)
    check = FiniteCheck(matrices)
    for name in "aabcde":
        check.add(name, seldom=name in "be")
    assert matrices.checked == [("a", 0), ("b", 0)]  # ten bytes are not too many
    check.start()
    assert check._thread is not None
    check._thread.join(10)
    assert not check._thread.is_alive()
    later = [("c", 0), ("d", 0), ("d", 4), ("d", 8)]
    assert matrices.checked[2:] == later
    check.raise_found(np.ones((1, 2), np.float32))
    assert matrices.checked[2:] == later
    check.raise_found(np.full((1, 2), np.inf, np.float32))
    assert matrices.checked[2:] == [*later, ("e", 0)]
    check.raise_found(np.full((1, 2), np.nan, np.float32))  # there is nothing left to look at
    check.wait()
    assert matrices.checked[2:] == [*later, ("e", 0)]


def test_one_thread_at_a_time_and_none_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite_check, "CHUNK_BYTES", 0)
    check = FiniteCheck(Noted(a=1, b=1))
    check.start()
    assert check._thread is None
    made: list[object] = []

    class Thread:
        alive = True

        def __init__(self, **_: object) -> None:
            made.append(self)

        def start(self) -> None: ...

        def is_alive(self) -> bool:
            return self.alive

    monkeypatch.setattr("threading.Thread", Thread)
    check.add("a")
    check.start()
    check.start()
    assert len(made) == 1
    Thread.alive = False
    check.start()
    assert len(made) == 2
