"""llama.cpp's state blobs, session files and logits, kept so that tests need no llama.cpp.

    python tools/golden_state.py tests/data/golden_state.npz     writes them
    python tools/golden_state.py --check                         exchanges states with llama.cpp, live

Needs llama-cpp-python (the extra ``bench``).  Per case (a model, types of K and V): the states of a
script of shared, removed, copied, shifted and divided sequences, and the logits on the way; the
logits again with a float32 cache, to know what rounding costs.  ``--check`` reads every state of
llama.cpp with aleator and the other way round, compares bytes, and prints how far the next logits
are apart.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from golden_logits import LlamaCpp, prompt
from make_models import SPECS, write_model

GGML = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
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
        """Whether llama.cpp can turn such keys; it ends the process where it cannot."""
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


class Llama(LlamaCpp):
    """llama.cpp with a case's model and cache."""

    def __init__(self, path: Path, case: Case, **options: Any) -> None:
        k, v = GGML[case.type_k], GGML[case.type_v]
        super().__init__(path, type_k=k, type_v=v, flash=case.flash, **options)

    def whole(self) -> bytes:
        """What llama_state_get_data gives."""
        size = llama_cpp.llama_state_get_size(self.context)
        out = (ctypes.c_uint8 * size)()
        return bytes(out[: llama_cpp.llama_state_get_data(self.context, out, size)])

    def sequence(self, seq: int) -> bytes:
        """What llama_state_seq_get_data gives."""
        size = llama_cpp.llama_state_seq_get_size(self.context, seq)
        out = (ctypes.c_uint8 * size)()
        return bytes(out[: llama_cpp.llama_state_seq_get_data(self.context, out, size, seq)])

    def restore(self, blob: bytes, seq: int = -1) -> bool:
        """Whether llama.cpp takes the state."""
        data = (ctypes.c_uint8 * len(blob)).from_buffer_copy(blob)
        if seq < 0:
            read = llama_cpp.llama_state_set_data(self.context, data, len(blob))
        else:
            read = llama_cpp.llama_state_seq_set_data(self.context, data, len(blob), seq)
        return int(read) == len(blob)

    def file(self, tokens: Sequence[int], seq: int = -1) -> bytes:
        """What llama_state_save_file or llama_state_seq_save_file writes."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            if seq < 0:
                llama_cpp.llama_state_save_file(self.context, str(path).encode(), ids, len(tokens))
            else:
                llama_cpp.llama_state_seq_save_file(
                    self.context, str(path).encode(), seq, ids, len(tokens)
                )
            return path.read_bytes()


def write(folder: Path, case: Case) -> Path:
    spec = replace(SPECS[case.arch], n_heads=2, n_kv_heads=1, head_dim=case.head_dim)
    return write_model(folder / f"{case.arch}-{case.head_dim}.gguf", spec)


def script(llama: LlamaCpp, shifts: bool) -> Iterator[tuple[str, Floats]]:
    """Logits by name; between two of them the state can be taken.

    tests/cache/formats/test_llama.py does the same.
    """
    m, memory, text = llama_cpp, llama.memory, prompt(llama.n_vocab, N_TEXT)
    llama.decode([(t, i, [0, 1]) for i, t in enumerate(text[:6])])
    llama.decode([(t, 6 + i, [0]) for i, t in enumerate(text[6:12])])
    yield "shared", llama.decode([(t, 6 + i, [1]) for i, t in enumerate(text[12:15])])
    yield "continued", llama.decode([(7, 12, [0]), (9, 9, [1])])
    if not shifts:
        return
    m.llama_memory_seq_rm(memory, 1, -1, -1)
    m.llama_memory_seq_rm(memory, 0, 2, 5)
    m.llama_memory_seq_add(memory, 0, 5, -1, -3)
    yield "shifted", llama.decode([(5, 10, [0])])
    m.llama_memory_seq_cp(memory, 0, 2, -1, -1)
    m.llama_memory_seq_rm(memory, 2, 8, -1)
    yield "copied", llama.decode([(6, 11, [0]), (8, 8, [2])])
    m.llama_memory_seq_rm(memory, 2, -1, -1)
    # llama.cpp's seq_div rotates keys the wrong way; so position by position.
    for p in range(1, 12):
        m.llama_memory_seq_add(memory, 0, p, p + 1, p // 2 - p)
    yield "divided", llama.decode([(4, 6, [0])])


def record(case: Case, folder: Path) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}

    def keep(name: str, blob: bytes) -> None:
        arrays[f"{case.name}/{name}"] = np.frombuffer(blob, np.uint8)

    path = write(folder, case)
    llama = Llama(path, case)
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
    exact = LlamaCpp(path)
    for name, logits in script(exact, case.shifts):
        arrays[f"{case.name}/exact/{name}"] = logits
    exact.close()
    return arrays


def check(case: Case, folder: Path) -> bool:
    """Exchange states with llama.cpp in both directions."""
    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    path = write(folder, case)
    decoder = build_decoder(open_weights(path))

    def context() -> Context:
        return Context(
            decoder,
            n_ctx=256,
            n_seq_max=4,
            type_k=case.type_k,
            type_v=case.type_v,
            flash_attn=case.flash,
        )

    def ours(ctx: Context, rows: Sequence[tuple[int, int, Sequence[int]]]) -> Floats:
        batch = Batch()
        for token, pos, seqs in rows:
            batch.add(token, pos, seqs, logits=True)
        made: npt.NDArray[np.float32] = ctx.decode(batch)
        return made

    theirs, ctx = Llama(path, case), context()
    next(script(theirs, case.shifts))
    whole, one = theirs.whole(), theirs.sequence(1)
    ctx.state_read(whole)
    good = ctx.state_write() == whole and ctx.cache.state_write(1) == one
    other = context()
    other.cache.state_read(one, seq=1)
    good &= other.cache.state_write(1) == one
    rows = [(7, 12, [0]), (9, 9, [1])]
    a, b = theirs.decode(rows), ours(ctx, rows)
    # What aleator has computed, in llama.cpp.
    back = Llama(path, case)
    blob, one = ctx.state_write(), ctx.cache.state_write(1)
    good &= back.restore(blob) and back.whole() == blob
    good &= back.restore(one, 3) and back.sequence(3)[16:20] == one[16:20]
    rows = [(3, 13, [0]), (2, 10, [3])]
    ctx.cache.seq_cp(1, 3)
    c, d = back.decode(rows), ours(ctx, rows)
    apart = [float(np.abs(x - y).max() / np.ptp(x)) for x, y in ((a, b), (c, d))]
    print(f"{case.name:32} {'equal bytes' if good else 'DIFFERENT BYTES'}, logits apart", end="")
    print(f" {apart[0]:.1e} and {apart[1]:.1e} of their range")
    theirs.close()
    back.close()
    return bool(good) and max(apart) < 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("tests/data/golden_state.npz"))
    parser.add_argument("--check", action="store_true", help="compare live, write nothing")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.check:
            kinds = [(t, t) for t in GGML]
            more = [
                Case(arch, dim, k, v, flash)
                for arch in ("llama", "qwen2", "qwen3")
                for dim in ((32,) if arch == "qwen2" else (32, 64, 128))
                for k, v in kinds
                for flash in ((True,) if v.startswith("q") else (True, False))
            ]
            results = [check(case, Path(folder)) for case in [*CASES, *more]]
            return int(not all(results))
        arrays: dict[str, npt.NDArray[Any]] = {}
        for case in CASES:
            arrays |= record(case, Path(folder))
    arrays["cases"] = np.array(json.dumps([asdict(c) | {"name": c.name} for c in CASES]))
    arrays["generator"] = np.array(
        f"tools/golden_state.py, llama-cpp-python {llama_cpp.__version__}"
    )
    np.savez_compressed(args.out, allow_pickle=False, **arrays)
    print(f"{args.out}: {args.out.stat().st_size / 1024:.1f} KiB, {len(CASES)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
