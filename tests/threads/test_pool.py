"""The pool of native threads: limits, forks, sleep, several callers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from aleator import _native

WORK = """
import os, sys
import numpy as np
from aleator import _native
rng = np.random.default_rng(0)
w = rng.standard_normal((64, 32), dtype=np.float32)
matrix = _native.StoredMatrix(w.view(np.uint8).ravel(), "F32", 64, 32)
x = rng.standard_normal((2, 32), dtype=np.float32)
def work(pool):
    y = np.zeros((2, 64), np.float32)
    _native.linear(pool, matrix, x, y)
    return y.tobytes()
"""


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_number_of_threads_has_limits(threads: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 256 threads, not {threads}"):
        _native.ThreadPool(threads)


def test_a_forked_child_gets_threads_of_its_own() -> None:
    script = WORK + (
        "pool = _native.ThreadPool(3)\n"
        "expected = work(pool)\n"
        "child = os.fork()\n"
        "same = work(pool) == expected\n"
        "if child == 0: os._exit(0 if same else 1)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "sys.exit(status if same else 2)\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_idle_threads_use_no_processor_time() -> None:
    script = WORK + (
        "import time\n"
        "pool = _native.ThreadPool(4)\n"
        "work(pool)\n"
        "time.sleep(0.05)\n"
        "before = time.process_time()\n"
        "time.sleep(0.5)\n"
        "used = time.process_time() - before\n"
        "assert used < 0.1, used\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_several_callers_take_turns() -> None:
    pool = _native.ThreadPool(2)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((256, 64), dtype=np.float32)
    matrix = _native.StoredMatrix(w.view(np.uint8).ravel(), "F32", 256, 64)
    xs = [rng.standard_normal((1, 64), dtype=np.float32) for _ in range(4)]
    wrong: list[int] = []

    def caller(i: int) -> None:
        expected = xs[i].astype(np.float64) @ w.T
        y = np.empty((1, 256), np.float32)
        for _ in range(50):
            _native.linear(pool, matrix, xs[i], y)
            if not np.allclose(y, expected, atol=1e-4):
                wrong.append(i)

    callers = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


def test_pools_come_and_go() -> None:
    script = WORK + "assert len({work(_native.ThreadPool(n)) for n in (1, 2, 3) * 20}) == 1\n"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_a_job_that_throws_leaves_the_pool_as_it_was(tmp_path: Path) -> None:
    program = tmp_path / "failing_jobs"
    here = Path(__file__).parent
    native = here.parent.parent / "native"
    command = ["g++", "-std=c++20", "-O1", "-pthread", "-I", str(native), "-o", str(program)]
    command += os.environ.get("CXXFLAGS", "").split()  # tools/sanitize.py --threads
    sources = [str(here / "failing_jobs.cpp"), str(native / "threads" / "pool.cpp")]
    subprocess.run([*command, *sources], timeout=300, check=True)
    done = subprocess.run([program], timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_forked_during_a_job_works_alike(threads: int) -> None:
    script = WORK + (
        "import threading, time\n"
        f"pool = _native.ThreadPool({threads})\n"
        "expected = work(pool)\n"
        "rows = rng.standard_normal((4096, 32), dtype=np.float32)\n"
        "done = threading.Event()\n"
        "def load():\n"
        "    while not done.is_set(): _native.linear(pool, matrix, rows, np.empty((4096, 64), np.float32))\n"
        "thread = threading.Thread(target=load)\n"
        "thread.start()\n"
        "wrong = 0\n"
        "for _ in range(8):\n"
        "    time.sleep(0.007)\n"
        "    child = os.fork()\n"
        "    if child == 0: os._exit(work(pool) != expected)\n"
        "    wrong += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "done.set()\n"
        "thread.join()\n"
        "sys.exit(wrong)\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    assert subprocess.run(command, timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_numbers_are_kept_whatever_the_caller_has_set(threads: int) -> None:
    pytest.importorskip("torch")
    script = WORK + (
        "import torch\n"
        "w = np.full((4096, 16), 1e-25, np.float32)\n"
        'small = _native.StoredMatrix(w.view(np.uint8).ravel(), "F32", 4096, 16)\n'
        "y = np.empty((1, 4096), np.float32)\n"
        "torch.set_flush_denormal(True)\n"
        f"_native.linear(_native.ThreadPool({threads}), small, np.full((1, 16), 1e-18, np.float32), y)\n"
        "torch.set_flush_denormal(False)\n"
        "assert (y.view(np.uint32) == 1136).all(), np.unique(y.view(np.uint32))\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
