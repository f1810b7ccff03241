"""Records digests of rows quantised by llama.cpp, with and without importances.

    python tools/golden_quantised.py libggml-base.so

The library is llama.cpp's, as llama-cpp-python installs it in ``llama_cpp/lib``.  Writes
tests/data/quantised.json: by type, CRC-32 of each row's bytes, first without importances.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aleator.models.files.tensor_types import TENSOR_TYPES

TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
WIDTH = 768
FILE = Path(__file__).parents[1] / "tests/data/quantised.json"
Floats = npt.NDArray[np.float32]


def rows() -> Floats:
    """Rows of many sizes, uneven ones, and blocks in which scales or all is 0."""
    rng = np.random.default_rng(39)
    x = rng.standard_normal((96, WIDTH))
    x[:48] *= np.exp2(rng.integers(-14, 8, (48, 1)))
    x[16:32] *= np.exp2(rng.integers(-6, 4, (16, WIDTH // 16)).repeat(16, 1))
    x[48:64] = rng.standard_t(3, (16, WIDTH)) / 32
    x[64:80] = rng.integers(-9, 10, (16, WIDTH)) / rng.choice([1, 2, 4, 64], (16, 1))
    x[80] = 0
    x[81], x[82] = np.abs(x[81]), -np.abs(x[82])
    x[83] = 0.25
    x[84, ::3] = 0
    x[85, :256] = 0
    x[86, 16:48] = 0
    x[87] *= 1e-7
    x[88, 5::32] *= 50
    x[89] *= 1e-17
    x[90, ::16] = -0.0
    return x.astype(np.float32)


def importances() -> Floats:
    """The weights of errors in each column: uneven, and 0 for some columns."""
    rng = np.random.default_rng(40)
    found: Floats = (rng.standard_normal(WIDTH) ** 2 * np.exp2(rng.integers(-8, 6, WIDTH))).astype(
        np.float32
    )
    found[7::64] = 0
    found[512:544] = 0
    return found


def digests(made: npt.NDArray[np.uint8]) -> list[int]:
    """A digest of each row's bytes."""
    return [zlib.crc32(row.tobytes()) for row in made]


def main() -> None:
    """Write the file."""
    library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_LAZY)  # only some of it may be there
    x, weights, none = rows(), importances(), ctypes.c_void_p(0)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    found: dict[str, list[list[int]]] = {}
    for name in TYPES:
        kind = TENSOR_TYPES[name]
        found[name] = []
        for importance in (none, weights.ctypes.data_as(ctypes.c_void_p)):
            out = np.zeros((len(x), WIDTH // kind.block * kind.size), np.uint8)
            library.ggml_quantize_chunk(
                kind.id, x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int64(0), ctypes.c_int64(len(x)), ctypes.c_int64(WIDTH), importance,
            )  # fmt: skip
            found[name].append(digests(out))
    FILE.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
