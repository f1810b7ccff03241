"""Scripts of cache operations and what llama.cpp makes of them, kept so that tests need no llama.cpp.

    python tools/golden_cache.py tests/golden/cache/scripts.json

Needs llama-cpp-python (the extra ``bench``).  Random decodes (also of tokens with several sequences, of wrong
positions, and of more than fits), removals, copies, shifts and divisions on a cache of 256 cells, 4
sequences and micro-batches of 64 tokens.  After each operation: the return code of a decode, the lowest and
highest position of each sequence, and a digest of all used cells (position and owners) in the order of the
cells, as llama.cpp's own state blob lists them.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.metadata
import json
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
from golden_logits import LlamaCpp
from make_models import SPECS, write_model

N_SCRIPTS, N_OPERATIONS = 30, 60


def digest(cells: list[tuple[int, list[int]]]) -> str:
    """Of (position, owners) of all used cells in order; the tests make the same."""
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def used_cells(llama: LlamaCpp) -> list[tuple[int, list[int]]]:
    size = llama_cpp.llama_state_get_size(llama.context)
    buffer = (ctypes.c_uint8 * size)()
    if llama_cpp.llama_state_get_data(llama.context, buffer, size) != size:
        raise RuntimeError("llama.cpp did not write its state")
    blob = bytes(buffer)
    at = 4 + struct.unpack_from("<I", blob)[0]
    _, count = struct.unpack_from("<II", blob, at)
    at += 8
    cells = []
    for _ in range(count):
        pos, n = struct.unpack_from("<iI", blob, at)
        cells.append((pos, list(struct.unpack_from(f"<{n}i", blob, at + 8))))
        at += 8 + 4 * n
    return cells


def decode(llama: LlamaCpp, rows: list[tuple[int, list[int]]]) -> int:
    batch = llama._batch
    batch.n_tokens = len(rows)
    for i, (pos, seqs) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = 1 + i % 50, pos, 0
        batch.n_seq_id[i] = len(seqs)
        for j, s in enumerate(seqs):
            batch.seq_id[i][j] = s
    return int(llama_cpp.llama_decode(llama.context, batch))


def operation(rng: random.Random, llama: LlamaCpp, twins: set[frozenset[int]]) -> list[Any]:
    """Draws one; ``twins`` are pairs of sequences that hold the same cells."""
    top = [int(llama_cpp.llama_memory_seq_pos_max(llama.memory, s)) for s in range(4)]
    kind = rng.choices(
        ["one", "many", "coupled", "wrong", "rm", "cp", "keep", "add", "div", "clear"],
        [8, 5, 4, 2, 8, 5, 0.4, 4, 1, 0.3],
    )[0]
    a, b = rng.sample(range(4), 2)
    if kind == "one":
        n = rng.choice([1, 1, 2, 5, 30, 70, 100])
        start = top[a] + 1 if top[a] >= 0 else rng.choice([0, 0, 0, 12])
        return ["decode", [[start + i, [a]] for i in range(n)]]
    if kind == "many":
        nexts = {s: top[s] + 1 for s in rng.sample(range(4), 3)}
        rows = []
        for _ in range(rng.choice([3, 9, 40, 80])):
            s = rng.choice(list(nexts))
            rows.append([nexts[s], [s]])
            nexts[s] += 1
        return ["decode", rows]
    if kind == "coupled":
        if twins:
            a, b = sorted(rng.choice(sorted(twins, key=sorted)))
        if top[a] != top[b] or (top[a] >= 0 and not twins):
            return ["rm", a, -1, -1]
        return ["decode", [[top[a] + 1 + i, [a, b]] for i in range(rng.choice([1, 4, 20]))]]
    if kind == "wrong":
        if top[a] < 0:
            return ["decode", [[-3, [a]]]]
        return ["decode", [[top[a] + rng.choice([0, 2, -5, 9]), [a]]]]
    p0, p1 = rng.randrange(-1, 60), rng.choice([-1, rng.randrange(0, 90)])
    if kind == "rm":
        return ["rm", rng.choice([a, a, a, a, -1]), *rng.choice([(p0, p1), (p0, -1), (-1, -1)])]
    if kind == "cp":
        return ["cp", a, b, *rng.choice([(-1, -1), (0, -1), (p0, p1)])]
    if kind == "add":
        return ["add", a, p0, p1, rng.choice([-20, -3, -1, 1, 4, 30])]
    if kind == "div":
        return ["div", a, p0, p1, rng.choice([2, 3])]
    return [kind, a] if kind == "keep" else [kind]


def apply(llama: LlamaCpp, op: list[Any]) -> int:
    """Carries it out; the return code of a decode, else 0."""
    memory = llama.memory
    if op[0] == "decode":
        return decode(llama, op[1])
    if op[0] == "rm":
        llama_cpp.llama_memory_seq_rm(memory, *op[1:])
    elif op[0] == "cp":
        llama_cpp.llama_memory_seq_cp(memory, *op[1:])
    elif op[0] == "keep":
        llama_cpp.llama_memory_seq_keep(memory, op[1])
    elif op[0] == "add":
        llama_cpp.llama_memory_seq_add(memory, *op[1:])
    elif op[0] == "div":
        llama_cpp.llama_memory_seq_div(memory, *op[1:])
    else:
        llama_cpp.llama_memory_clear(memory, True)
    return 0


def update_twins(op: list[Any], before: list[int], twins: set[frozenset[int]]) -> None:
    """Follow which sequences certainly hold the same cells."""
    changed: set[int] = set()
    if op[0] == "decode":
        for _, seqs in op[1]:
            if len(seqs) == 1:
                changed |= set(seqs)
            else:
                twins.add(frozenset(seqs))
    elif op[0] == "cp":
        changed = {op[2]}
    elif op[0] == "rm" and op[1] >= 0:
        changed = {op[1]}
    elif op[0] in ("keep", "clear"):
        changed = set(range(4))
    for pair in [p for p in twins if p & changed]:
        twins.remove(pair)
    if op[0] == "cp" and op[3] <= 0 and op[4] < 0 and before[op[2]] < 0:
        twins.add(frozenset(op[1:3]))


def script(path: Path, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    llama = LlamaCpp(path)
    twins: set[frozenset[int]] = set()
    steps = []
    for _ in range(N_OPERATIONS):
        before = [int(llama_cpp.llama_memory_seq_pos_max(llama.memory, s)) for s in range(4)]
        op = operation(rng, llama, twins)
        code = apply(llama, op)
        if code == 0:
            update_twins(op, before, twins)
        cells = used_cells(llama)
        low, high = llama_cpp.llama_memory_seq_pos_min, llama_cpp.llama_memory_seq_pos_max
        steps.append(
            {
                "op": compact(op),
                "code": code,
                "used": len(cells),
                "spans": [
                    [int(low(llama.memory, s)), int(high(llama.memory, s))] for s in range(4)
                ],
                "cells": digest(cells),
            }
        )
    llama.close()
    return steps


def compact(op: list[Any]) -> list[Any]:
    """Positions that count up, of one sequence or pair, as [first, number, sequences]."""
    if op[0] != "decode":
        return op
    runs: list[list[Any]] = []
    for pos, seqs in op[1]:
        if runs and runs[-1][2] == seqs and runs[-1][0] + runs[-1][1] == pos:
            runs[-1][1] += 1
        else:
            runs.append([pos, 1, seqs])
    return ["decode", runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, SPECS["llama-one-layer"])
        scripts = [script(path, seed) for seed in range(N_SCRIPTS)]
    version = importlib.metadata.version("llama-cpp-python")
    about = {"generator": "tools/golden_cache.py", "llama-cpp-python": version}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [",\n".join(json.dumps(s) for s in steps) for steps in scripts]
    body = "],\n[".join(lines)
    args.out.write_text(f'{{"about": {json.dumps(about)},\n"scripts": [[{body}]]}}\n')
    codes = [s["code"] for steps in scripts for s in steps if s["op"][0] == "decode"]
    print({code: codes.count(code) for code in sorted(set(codes))}, args.out.stat().st_size)


if __name__ == "__main__":
    main()
