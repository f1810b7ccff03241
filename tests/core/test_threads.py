"""How many threads there are where no number is given."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.core.threads import BackgroundCall, default_threads, pool

SCRIPT = "from aleator.core.threads import pool; print(pool().threads)"


def threads(**environment: str) -> int:
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=env | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(made.stdout)


def test_the_variable_of_openmp_is_heeded() -> None:
    assert threads(OMP_NUM_THREADS="3") == 3
    assert threads(OMP_NUM_THREADS="1000") == 256


@pytest.mark.parametrize("value", ["", "0", "4,2", "-3", "two"])
def test_otherwise_there_is_one_for_each_core(value: str) -> None:
    assert 1 <= threads(OMP_NUM_THREADS=value) <= len(os.sched_getaffinity(0))


def test_processors_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = default_threads.__wrapped__  # it is read once
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(6))
    monkeypatch.setattr("aleator.core.threads._core", lambda processor: f"core {processor % 4}")
    assert count() == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    assert count() == 256


def test_pools_are_shared_and_their_size_has_limits() -> None:
    assert pool() is pool(default_threads())
    assert pool(2).threads == 2
    for bad in (0, -1, 257):
        with pytest.raises(ParameterError, match=f"n_threads={bad} is out of range: give 1 to 256"):
            pool(bad)
    wrong: list[Any] = ["x", 1.5, True]
    for value in wrong:
        with pytest.raises(ParameterError, match=f"n_threads={value!r} is out of range"):
            pool(value)


def test_a_call_beside_a_block_gives_what_it_makes_at_the_blocks_end() -> None:
    caller = threading.current_thread()
    with BackgroundCall(threading.current_thread) as beside:
        pass
    assert beside.made is not caller
    assert not beside.made.is_alive()


def test_where_no_thread_can_be_started_a_call_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with BackgroundCall(threading.current_thread) as beside:
        assert beside.made is threading.current_thread()
    with pytest.raises(ZeroDivisionError), BackgroundCall(lambda: 1 // 0):
        pass


def test_an_error_of_the_call_comes_before_one_of_the_block() -> None:
    with pytest.raises(ZeroDivisionError), BackgroundCall(lambda: 1 // 0):
        raise KeyError("block")
    with pytest.raises(KeyError), BackgroundCall(lambda: 1):
        raise KeyError("block")
