"""Memory that native code takes from the C library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aleator.server import native_memory

ARENAS = """
import ctypes, os, threading
from aleator.server.native_memory import share_arenas
if {shared}:
    share_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
all_there = threading.Barrier(6)
def take():
    all_there.wait()
    assert libc.malloc(ctypes.c_size_t(5000))
    all_there.wait()
threads = [threading.Thread(target=take) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
"""


@pytest.mark.skipif(native_memory._LIBC is None, reason="the C library is not glibc")
@pytest.mark.parametrize("shared", [True, False])
def test_threads_of_a_server_of_models_share_two_arenas(shared: bool) -> None:
    command = [sys.executable, "-c", ARENAS.format(shared=shared)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert (told.count("<heap nr=") <= 2) is shared
