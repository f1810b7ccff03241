"""Golden blocks of the cache's quantised types, from ggml's own reference quantisers.

    python tools/golden_blocks.py libggml-base.so

The library is llama.cpp's (llama-cpp-python installs it in ``llama_cpp/lib``), or ``ggml-quants.c`` alone:
``gcc -O2 -fPIC -shared -Iinclude -Isrc src/ggml-quants.c -o quants.so -lm``.  Writes
tests/data/golden_blocks.npz: ``x`` float32 [n, 96], and per type ggml's blocks, uint8 [n, bytes].

ggml does not initialise the integers of an iq4_nl block of zeros, so there is none here; Aleator's are zeros.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

BYTES = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}
WIDTH = 96


def rows() -> np.ndarray:
    """Ordinary rows, rows of few different values, and blocks whose rounding is delicate."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((96, WIDTH))
    x[:64] *= np.exp2(rng.integers(-20, 12, (64, 1)))
    x[64:] = rng.integers(-40, 41, (32, WIDTH)) / rng.choice([1, 2, 4, 8], (32, 1))
    x[64:80, ::3] = -0.0
    x[0, :32] = np.tile([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5], 4)
    x[1, :32] = np.tile([8, -8, 0.5, -0.5], 8)
    x[2, :32] = np.tile([-8, 8, 0.5, -0.5], 8)
    x[3, :32] = np.tile([-8, 7.5, 7.4999995, -7.5], 8)
    x[4, :32] = np.abs(x[4, :32])
    x[5, :32] = -np.abs(x[5, :32])
    x[6, :32] = 3
    x[7, :32] = np.tile([0.0, -0.0, 1.0, 31.0], 8)
    x[8, :32] = np.tile([-0.0, 0.0, 1.0, 31.0], 8)
    return x.astype(np.float32)


def main() -> None:
    """Write the file."""
    library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_LAZY)  # only some of its symbols are there
    x = np.ascontiguousarray(rows())
    found: dict[str, Any] = {"x": x}
    for name, size in BYTES.items():
        out = np.zeros((len(x), WIDTH // 32 * size), np.uint8)
        quantise = getattr(library, f"quantize_row_{name}_ref")
        quantise(
            x.ctypes.data_as(ctypes.c_void_p),
            out.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(x.size),
        )
        found[name] = out
    np.savez_compressed(Path(__file__).parents[1] / "tests/data/golden_blocks.npz", **found)


if __name__ == "__main__":
    main()
