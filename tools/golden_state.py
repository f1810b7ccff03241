"""Records llama.cpp's state blobs, session files and logits, so that tests need no llama.cpp.

    python tools/golden_state.py             writes tests/data/golden_state.npz
    python tools/golden_state.py --sections  writes tests/data/golden_sections.npz: four positions (M-RoPE)

Needs llama-cpp-python (the extra ``bench``).  Per case (a model, types of K and V): the states of a
script of shared, removed, copied, shifted and divided sequences, and the logits on the way; the
logits again with a float32 cache, to know the effect of rounding.  (tools/compare_cache.py exchanges states
with llama.cpp, live.)

For a small qwen2vl, whose tokens have four positions: the states after texts and a picture's embeddings, as
bytes; which positions of a next batch it accepts; and which cells of its own position an embedding sees, found
by whether its logits change without the cell.
"""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_peer import VERSION, Context, prompt, save
from make_models import SPECS, Spec, write_model
from run_report import parser

N_TEXT = 16
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A model with heads of one size, and a cache."""

    arch: str
    head_dim: int
    type_k: str
    type_v: str
    flash: bool

    @property
    def name(self) -> str:
        """Key in the file."""
        layout = "token" if self.flash else "channel"
        return f"{self.arch}-{self.head_dim}-{self.type_k}-{self.type_v}-{layout}"

    @property
    def shifts(self) -> bool:
        """Whether llama.cpp can rotate such keys; it ends the process if it cannot."""
        return self.type_k in ("f32", "f16") or (self.type_k != "bf16" and self.head_dim % 64 == 0)


CASES = [
    Case("llama", 64, "f32", "f32", False),
    Case("llama", 64, "f16", "f16", True),
    Case("llama", 64, "q8_0", "q8_0", True),
    Case("llama", 64, "q4_0", "q4_0", True),
    Case("llama", 128, "q8_0", "f16", False),
    Case("qwen2", 32, "f16", "f16", False),
    Case("qwen2", 32, "bf16", "q8_0", True),
    Case("qwen3", 64, "q8_0", "q4_0", True),
    Case("qwen3", 32, "q4_0", "f32", True),
]


SECTIONS = Spec(arch="qwen2vl", bias=True, sections=(2, 3, 3, 0), seed=31)
PICTURES = [
    Case("qwen2vl", 16, "f32", "f32", False),
    Case("qwen2vl", 16, "f16", "bf16", True),
]
TEXT: list[Any] = [[0, [0, 1]], [1, [0, 1]], [2, [0, 1]], [3, [0]]]
"""Position and sequences of each token of the first batch; token i is 5 + i."""
PICTURE = [[4, 4 + y, 4 + x, 0] for y in range(2) for x in range(3)]
"""Sections of the second batch's embeddings, in sequence 0."""
AFTER: list[Any] = [[7, [0]], [9, [0]], [3, [1]]]
"""The third batch; token i is 20 + i."""


def opened(path: Path, case: Case, **options: Any) -> Context:
    """llama.cpp with a case's model and cache."""
    return Context(path, type_k=case.type_k, type_v=case.type_v, flash=case.flash, **options)


def write(folder: Path, case: Case) -> Path:
    spec = replace(SPECS[case.arch], n_heads=2, n_kv_heads=1, head_dim=case.head_dim)
    return write_model(folder / f"{case.arch}-{case.head_dim}.gguf", spec)


def script(llama: Context, shifts: bool) -> Iterator[tuple[str, Floats]]:
    """Logits by name; the state can be saved between two of them.

    tests/cache/formats/test_llama.py does the same.
    """
    text = prompt(llama.n_vocab, N_TEXT)
    llama.decode([(t, i, [0, 1]) for i, t in enumerate(text[:6])])
    llama.decode([(t, 6 + i, [0]) for i, t in enumerate(text[6:12])])
    yield "shared", llama.decode([(t, 6 + i, [1]) for i, t in enumerate(text[12:15])])
    yield "continued", llama.decode([(7, 12, [0]), (9, 9, [1])])
    if not shifts:
        return
    llama.verb("rm", 1, -1, -1)
    llama.verb("rm", 0, 2, 5)
    llama.verb("add", 0, 5, -1, -3)
    yield "shifted", llama.decode([(5, 10, [0])])
    llama.verb("cp", 0, 2, -1, -1)
    llama.verb("rm", 2, 8, -1)
    yield "copied", llama.decode([(6, 11, [0]), (8, 8, [2])])
    llama.verb("rm", 2, -1, -1)
    # llama.cpp's seq_div rotates keys the wrong way; so position by position.
    for p in range(1, 12):
        llama.verb("add", 0, p, p + 1, p // 2 - p)
    yield "divided", llama.decode([(4, 6, [0])])


def record(case: Case, folder: Path) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}

    def keep(name: str, blob: bytes) -> None:
        arrays[f"{case.name}/{name}"] = np.frombuffer(blob, np.uint8)

    path = write(folder, case)
    llama = opened(path, case)
    text = prompt(llama.n_vocab, N_TEXT)
    for name, logits in script(llama, case.shifts):
        arrays[f"{case.name}/logits/{name}"] = logits
        if name == "shared":
            keep("whole", llama.whole())
            keep("sequence", llama.sequence(1))
            keep("session", llama.file(text[:12]))
            keep("sequence file", llama.file(text[:6] + text[12:15], 1))
        if name == "shifted":
            keep("whole after a shift", llama.whole())
    llama.close()
    exact = Context(path)
    for name, logits in script(exact, case.shifts):
        arrays[f"{case.name}/exact/{name}"] = logits
    exact.close()
    return arrays


def decode_embeddings(
    llama: Context, places: Sequence[Sequence[int]], seq: int, vectors: npt.NDArray[np.float32]
) -> tuple[int, npt.NDArray[np.float32]]:
    """The return code, and the last row's logits."""
    n = len(places)
    batch = llama_cpp.llama_batch_init(n, vectors.shape[1], 1)
    pointer = type(batch.pos)
    # A pointer object would follow the field.
    own = ctypes.cast(batch.pos, ctypes.c_void_p).value or 0
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


def fill(llama: Context, vectors: npt.NDArray[np.float32]) -> None:
    llama.decode([(5 + i, p, s) for i, (p, s) in enumerate(TEXT)])
    decode_embeddings(llama, PICTURE, 0, vectors)
    llama.decode([(20 + i, p, s) for i, (p, s) in enumerate(AFTER)])


def accepted(path: Path) -> list[list[Any]]:
    """Kind, positions of the next batch in sequence 0, which holds 0 to 9, and the return code."""
    vectors = np.ones((2, SECTIONS.n_embd), np.float32)
    out: list[list[Any]] = []
    for kind in ("token", "embedding"):
        for positions in ([8], [9], [10], [15], [10, 10], [10, 13], [12, 11], [9, 9]):
            llama = opened(path, PICTURES[0])
            llama.prefill([1] * 10)
            if kind == "embedding":
                code, _ = decode_embeddings(llama, [(p, p, p, 0) for p in positions], 0, vectors)
            else:
                code, _ = llama.try_decode([(1, p, [0]) for p in positions])
            out.append([kind, positions, code])
            llama.close()
    return out


def visible(path: Path) -> list[list[Any]]:
    """(y, x) of a cell at t = 5, (y, x) of a query there, and whether it sees the cell."""
    vectors = np.random.default_rng(3).standard_normal((2, SECTIONS.n_embd)).astype(np.float32) * 4
    out: list[list[Any]] = []
    for cell in ((1, 2), (2, 0), (0, 3)):
        for query in ((1, 1), (1, 2), (2, 0), (1, 3), (0, 9)):
            rows = []
            for with_cell in (True, False):
                llama = opened(path, PICTURES[0])
                llama.decode([(1, 0, [0])])
                if with_cell:
                    decode_embeddings(llama, [(5, *cell, 0)], 0, vectors)
                rows.append(decode_embeddings(llama, [(5, *query, 0)], 0, vectors[1:])[1])
                llama.close()
            out.append([list(cell), list(query), bool((rows[0] != rows[1]).any())])
    return out


def sections(folder: Path, out: Path) -> None:
    """Record llama.cpp's behaviour with tokens of four positions."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    vectors = np.random.default_rng(1).standard_normal((8, SECTIONS.n_embd)).astype(np.float32)
    path = write_model(folder / "m.gguf", SECTIONS)
    for case in PICTURES:
        llama = opened(path, case)
        fill(llama, vectors)
        for name, blob in (("whole", llama.whole()), ("sequence", llama.sequence(0))):
            arrays[f"{case.name}/{name}"] = np.frombuffer(blob, np.uint8)
        llama.close()
    about = {
        "generator": f"tools/golden_state.py, {VERSION}",
        "cases": [[c.name, c.type_k, c.type_v, c.flash] for c in PICTURES],
        "text": TEXT, "picture": PICTURE, "after": AFTER,
        "accepted": accepted(path), "visible": visible(path),
    }  # fmt: skip
    save(out, arrays | {"about": np.array(json.dumps(about))})
    print(about["accepted"], about["visible"], sep="\n")


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--sections", action="store_true", help="tokens of four positions")
    asked.add_argument("--out", type=Path)
    args = asked.parse_args()
    subject = "sections" if args.sections else "state"
    out = args.out or Path(f"tests/data/golden_{subject}.npz")
    with tempfile.TemporaryDirectory() as folder:
        if args.sections:
            sections(Path(folder), out)
            return
        arrays: dict[str, npt.NDArray[Any]] = {}
        for case in CASES:
            arrays |= record(case, Path(folder))
    arrays["cases"] = np.array(json.dumps([asdict(c) | {"name": c.name} for c in CASES]))
    save(out, arrays | {"generator": np.array(f"tools/golden_state.py, {VERSION}")})


if __name__ == "__main__":
    main()
