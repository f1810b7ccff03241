"""What llama.cpp's cache does with tokens of four positions (M-RoPE), kept so that tests need no llama.cpp.

    python tools/golden_sections.py tests/data/golden_sections.npz

Needs llama-cpp-python (the extra ``bench``).  A small qwen2vl: the states after texts and a picture's
embeddings, as bytes; which positions of a next batch it accepts; and which cells of its own position an
embedding sees, told by whether its logits change when the cell is not there.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from golden_state import Case, Llama
from make_models import Spec, write_model

SPEC = Spec(arch="qwen2vl", bias=True, sections=(2, 3, 3, 0), seed=31)
CASES = [
    Case("qwen2vl", 16, "f32", "f32", False),
    Case("qwen2vl", 16, "f16", "bf16", True),
]

TEXT: list[Any] = [[0, [0, 1]], [1, [0, 1]], [2, [0, 1]], [3, [0]]]
"""Position and sequences of each token of the first batch; token i is 5 + i."""
PICTURE = [[4, 4 + y, 4 + x, 0] for y in range(2) for x in range(3)]
"""Sections of the second batch's embeddings, in sequence 0."""
AFTER: list[Any] = [[7, [0]], [9, [0]], [3, [1]]]
"""The third batch; token i is 20 + i."""


def decode_embeddings(
    llama: Llama, places: Sequence[Sequence[int]], seq: int, vectors: npt.NDArray[np.float32]
) -> tuple[int, npt.NDArray[np.float32]]:
    """The return code, and the last row's logits."""
    n = len(places)
    batch = llama_cpp.llama_batch_init(n, vectors.shape[1], 1)
    pointer = type(batch.pos)
    own = (
        ctypes.cast(batch.pos, ctypes.c_void_p).value or 0
    )  # a pointer object would follow the field
    flat = [p[j] for j in range(4) for p in places]
    sections = (llama_cpp.llama_pos * len(flat))(*flat)
    batch.n_tokens = n
    batch.pos = ctypes.cast(sections, pointer)
    ctypes.memmove(batch.embd, vectors[:n].tobytes(), vectors[:n].nbytes)
    for i in range(n):
        batch.n_seq_id[i], batch.logits[i] = 1, i == n - 1
        batch.seq_id[i][0] = seq
    code = int(llama_cpp.llama_decode(llama.context, batch))
    logits = np.zeros(llama.n_vocab, np.float32)
    if code == 0:
        row = llama_cpp.llama_get_logits_ith(llama.context, -1)
        logits = np.ctypeslib.as_array(row, (llama.n_vocab,)).copy()
    batch.pos = ctypes.cast(own, pointer)
    llama_cpp.llama_batch_free(batch)
    return code, logits


def fill(llama: Llama, vectors: npt.NDArray[np.float32]) -> None:
    llama.decode([(5 + i, p, s) for i, (p, s) in enumerate(TEXT)])
    decode_embeddings(llama, PICTURE, 0, vectors)
    llama.decode([(20 + i, p, s) for i, (p, s) in enumerate(AFTER)])


def accepted(path: Path) -> list[list[Any]]:
    """Kind, positions of the next batch in sequence 0, which holds 0 to 9, and the code."""
    vectors = np.ones((2, SPEC.n_embd), np.float32)
    out: list[list[Any]] = []
    for kind in ("token", "embedding"):
        for positions in ([8], [9], [10], [15], [10, 10], [10, 13], [12, 11], [9, 9]):
            llama = Llama(path, CASES[0])
            llama.decode([(1, i, [0]) for i in range(10)])
            if kind == "embedding":
                code, _ = decode_embeddings(llama, [(p, p, p, 0) for p in positions], 0, vectors)
            else:
                try:
                    llama.decode([(1, p, [0]) for p in positions])
                    code = 0
                except RuntimeError as error:
                    code = int(str(error).split()[-1])
            out.append([kind, positions, code])
            llama.close()
    return out


def visible(path: Path) -> list[list[Any]]:
    """(y, x) of a cell at t = 5, (y, x) of a query there, and whether it sees the cell."""
    vectors = np.random.default_rng(3).standard_normal((2, SPEC.n_embd)).astype(np.float32) * 4
    out: list[list[Any]] = []
    for cell in ((1, 2), (2, 0), (0, 3)):
        for query in ((1, 1), (1, 2), (2, 0), (1, 3), (0, 9)):
            rows = []
            for with_cell in (True, False):
                llama = Llama(path, CASES[0])
                llama.decode([(1, 0, [0])])
                if with_cell:
                    decode_embeddings(llama, [(5, *cell, 0)], 0, vectors)
                rows.append(decode_embeddings(llama, [(5, *query, 0)], 0, vectors[1:])[1])
                llama.close()
            out.append([list(cell), list(query), bool((rows[0] != rows[1]).any())])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("tests/data/golden_sections.npz"))
    args = parser.parse_args()
    arrays: dict[str, npt.NDArray[Any]] = {}
    vectors = np.random.default_rng(1).standard_normal((8, SPEC.n_embd)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "m.gguf", SPEC)
        for case in CASES:
            llama = Llama(path, case)
            fill(llama, vectors)
            for name, blob in (("whole", llama.whole()), ("sequence", llama.sequence(0))):
                arrays[f"{case.name}/{name}"] = np.frombuffer(blob, np.uint8)
            llama.close()
        about = {
            "generator": f"tools/golden_sections.py, llama-cpp-python {llama_cpp.__version__}",
            "cases": [[c.name, c.type_k, c.type_v, c.flash] for c in CASES],
            "text": TEXT,
            "picture": PICTURE,
            "after": AFTER,
            "accepted": accepted(path),
            "visible": visible(path),
        }
    arrays["about"] = np.array(json.dumps(about))
    np.savez_compressed(args.out, allow_pickle=False, **arrays)
    print(about["accepted"], about["visible"], args.out.stat().st_size, sep="\n")


if __name__ == "__main__":
    main()
