"""A chain that one thread uses and another reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError
from aleator.samplers.phases import Phases

ROW = np.linspace(0, 1, 9, dtype=np.float32)
READS: list[Callable[[S.SamplerChain], Any]] = [
    lambda chain: chain.history,
    lambda chain: chain.generated,
    lambda chain: chain.finished,
    lambda chain: chain.jump_forward(),
    lambda chain: chain.clone(),
    lambda chain: chain.state_write(),
]


class Slow:
    """A sampler that takes until an event, or for a moment."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds
        self.began, self.over, self.order = threading.Event(), threading.Event(), list[str]()

    def apply(self, candidates: Any) -> None:
        self.began.set()
        self.over.wait(self.seconds)
        self.order.append("applied")

    def clone(self) -> Slow:
        return self

    def state_write(self) -> bytes:
        return b""

    def state_read(self, state: bytes) -> None: ...


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_who_reads_a_chain_waits_for_the_call_of_another_thread(
    numerics: str, read: Callable[[S.SamplerChain], Any]
) -> None:
    slow = Slow()
    chain = S.SamplerChain([slow, S.Greedy()], numerics)
    caller = threading.Thread(target=chain.sample, args=(ROW,))
    caller.start()
    slow.began.wait()
    try:
        read(chain)
        slow.order.append("read")
    finally:
        slow.over.set()
        caller.join()
    assert slow.order == ["applied", "read"]


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_a_call_waits_for_another_thread_that_reads(numerics: str) -> None:
    chain, drawn = S.SamplerChain([S.Greedy()], numerics), list[int]()
    over = threading.Event()

    def call() -> None:
        drawn.append(chain.sample(ROW))
        over.set()

    def read() -> list[int]:
        caller.start()
        over.wait(0.05)
        return [*drawn, *chain.history]  # a read within a read is the same thread's

    caller = threading.Thread(target=call)
    assert chain._native.read(read) == []
    caller.join()
    assert drawn == chain.history == [8]


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_two_calls_at_once_are_refused(numerics: str) -> None:
    slow = Slow(60)
    chain = S.SamplerChain([slow, S.Greedy()], numerics)
    caller = threading.Thread(target=chain.sample, args=(ROW,))
    caller.start()
    slow.began.wait()
    try:
        with pytest.raises(LogitsError, match="in use by another thread"):
            chain.accept(1)
    finally:
        slow.over.set()
        caller.join()
    assert chain.history == [8]


@pytest.mark.parametrize("name", ["phases", "phase", "present", "state_history"])
def test_who_reads_phases_or_a_state_waits_too(name: str) -> None:
    slow = Slow()
    table = S.SamplingParams(phases={"thinking": {"begin": 7, "end": 6}, "answer": {}})
    greedy = {name: [S.Greedy()] for name in ("answer", "thinking")}
    chain = S.SamplerChain([slow, Phases(table.values()["phases"], greedy)])
    caller = threading.Thread(target=chain.sample, args=(ROW,))
    caller.start()
    slow.began.wait()
    try:
        chain.state_history(1) if name == "state_history" else getattr(chain, name)
        slow.order.append("read")
    finally:
        slow.over.set()
        caller.join()
    assert slow.order == ["applied", "read"]
