"""Records what llama.cpp's caches do, so that tests need no llama.cpp.

    python tools/golden_cache.py scripts    tests/golden/cache/scripts.json
    python tools/golden_cache.py pools      tests/data/golden_pools.npz

Needs llama-cpp-python (the extra ``bench``).  ``--out FILE`` writes to another file.

scripts: random decodes (also of tokens with several sequences, of wrong positions, and of more than fits),
removals, copies, shifts and divisions on a cache of 256 cells, 4 sequences and micro-batches of 64 tokens.
After each operation: the return code of a decode, the lowest and highest position of each sequence, and a
digest of all used cells (position and owners) in the order of the cells, as llama.cpp's own state blob lists
them.

pools: states, positions and answers of window and recurrent caches.  A model with window layers is fed past
its window pool, a recurrent one through llama.cpp's truth table of removals, copies and shifts.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_peer import VERSION, Context, prompt, save
from make_models import SPECS, write_model
from run_report import parser

N_SCRIPTS, N_OPERATIONS = 30, 60
KINDS = {
    "one": 8, "many": 5, "coupled": 4, "wrong": 2, "rm": 8, "cp": 5, "keep": 0.4, "add": 4, "div": 1,
    "clear": 0.3,
}  # fmt: skip
"""Operations of the scripts, and how often each is drawn."""
Twins = set[frozenset[int]]
"""Pairs of sequences that hold the same cells."""
GEMMA3 = replace(
    SPECS["gemma3"], n_layers=2, pattern=2, n_heads=2, n_kv_heads=1, head_dim=8, context=1024
)
MAMBA = replace(SPECS["mamba"], n_embd=16, d_state=4, d_conv=3, dt_rank=2)
ENDS = (16, 240, 256, 257, 260, 300)


def digest(cells: list[tuple[int, list[int]]]) -> str:
    """Digest of (position, owners) of all used cells in order; the tests compute the same."""
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def used_cells(llama: Context) -> list[tuple[int, list[int]]]:
    blob = llama.whole()
    at = 4 + struct.unpack_from("<I", blob)[0]
    _, count = struct.unpack_from("<II", blob, at)
    at += 8
    cells = []
    for _ in range(count):
        pos, n = struct.unpack_from("<iI", blob, at)
        cells.append((pos, list(struct.unpack_from(f"<{n}i", blob, at + 8))))
        at += 8 + 4 * n
    return cells


def operation(
    rng: random.Random,
    kinds: Mapping[str, float],
    top: Sequence[int],
    twins: Twins,
    parts: bool = True,
) -> list[Any]:
    """Draw an operation.

    Args:
        rng: random numbers.
        kinds: weights of the kinds.
        top: highest positions of the sequences.
        twins: pairs that decode tokens together.
        parts: whether parts of sequences are also copied.
    """
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
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
        pos = -3 if top[a] < 0 else top[a] + rng.choice([0, 2, -5, 9])
        return ["decode", [[pos, [a]]]]
    p0, p1 = rng.randrange(-1, 60), rng.choice([-1, rng.randrange(0, 90)])
    if kind == "rm":
        return ["rm", rng.choice([a, a, a, a, -1]), *rng.choice([(p0, p1), (p0, -1), (-1, -1)])]
    if kind == "cp":
        return ["cp", a, b, *rng.choice([(-1, -1), (0, -1), (p0, p1)][: 2 + parts])]
    if kind == "add":
        return ["add", a, p0, p1, rng.choice([-20, -3, -1, 1, 4, 30])]
    if kind == "div":
        return ["div", a, p0, p1, rng.choice([2, 3])]
    if kind == "sequence":
        return ["sequence", a, rng.choice([a, b]), rng.random() < 0.5]
    if kind == "whole":
        return ["whole", rng.random() < 0.5]
    return [kind, a] if kind == "keep" else [kind]


def apply(llama: Context, op: list[Any]) -> int:
    """Run an operation; return the code of a decode, else 0."""
    if op[0] == "decode":
        rows = [(1 + i % 50, pos, seqs) for i, (pos, seqs) in enumerate(op[1])]
        return llama.try_decode(rows, logits=False)[0]
    llama.verb(*op)
    return 0


def update_twins(op: list[Any], before: list[int], twins: Twins) -> None:
    """Update which sequences certainly hold the same cells."""
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
    rng, llama = random.Random(seed), Context(path)
    twins: Twins = set()
    steps = []
    for _ in range(N_OPERATIONS):
        before = llama.tops()
        op = operation(rng, KINDS, before, twins)
        code = apply(llama, op)
        if code == 0:
            update_twins(op, before, twins)
        cells = used_cells(llama)
        steps.append({
            "op": compact(op), "code": code, "used": len(cells), "spans": llama.ranges(),
            "cells": digest(cells),
        })  # fmt: skip
    llama.close()
    return steps


def compact(op: list[Any]) -> list[Any]:
    """Runs of increasing positions of one sequence or pair, as [first, number, sequences]."""
    if op[0] != "decode":
        return op
    runs: list[list[Any]] = []
    for pos, seqs in op[1]:
        if runs and runs[-1][2] == seqs and runs[-1][0] + runs[-1][1] == pos:
            runs[-1][1] += 1
        else:
            runs.append([pos, 1, seqs])
    return ["decode", runs]


def scripts(out: Path) -> None:
    """Write the scripts."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "model.gguf", SPECS["llama-one-layer"])
        made = [script(path, seed) for seed in range(N_SCRIPTS)]
    name, _, version = VERSION.partition(" ")
    about = {"generator": "tools/golden_cache.py", name: version}
    out.parent.mkdir(parents=True, exist_ok=True)
    body = "],\n[".join(",\n".join(json.dumps(s) for s in steps) for steps in made)
    out.write_text(f'{{"about": {json.dumps(about)},\n"scripts": [[{body}]]}}\n')
    codes = [s["code"] for steps in made for s in steps if s["op"][0] == "decode"]
    print({code: codes.count(code) for code in sorted(set(codes))}, out.stat().st_size)


def pooled(path: Path) -> Context:
    """llama.cpp with a window pool of its usual size, 256 cells, and micro-batches of 16."""
    return Context(path, n_ctx=1024, n_ubatch=16, swa_full=False)


def empty(llama: Context) -> dict[str, npt.NDArray[Any]]:
    """States of an empty cache and sequence, and the ranges after they replaced others."""
    arrays = {
        "empty whole": np.frombuffer(llama.whole(), np.uint8),
        "empty sequence": np.frombuffer(llama.sequence(1), np.uint8),
    }
    llama.decode([(1, i, [s]) for i in range(4) for s in (0, 1)])
    ranges = []
    for name, seq in (("empty sequence", 1), ("empty whole", -1)):
        llama.restore(arrays[name].tobytes(), seq)
        ranges.append(llama.ranges())
    return arrays | {"empty ranges": np.array(ranges)}


def windows(folder: Path) -> dict[str, npt.NDArray[Any]]:
    llama = pooled(write_model(folder / "gemma3.gguf", GEMMA3))
    arrays = empty(llama)
    text, at, ranges = prompt(llama.n_vocab, 304), 0, []
    for end in ENDS:
        while at < end:
            n = min(16, end - at)
            logits = llama.decode([(text[at + i], at + i, [0]) for i in range(n)])[-1:]
            at += n
        ranges.append(llama.ranges()[0])
    arrays |= {"ranges": np.array(ranges), "logits": logits}
    arrays["sequence"] = np.frombuffer(llama.sequence(0), np.uint8)
    arrays["whole"] = np.frombuffer(llama.whole(), np.uint8)
    llama.verb("rm", 0, 290, -1)
    arrays["rewound"] = llama.decode([(text[300], 290, [0])])
    llama.close()
    return {f"gemma3/{name}": values for name, values in arrays.items()}


def states(folder: Path) -> dict[str, npt.NDArray[Any]]:
    llama = pooled(write_model(folder / "mamba.gguf", MAMBA))
    arrays = empty(llama)
    text = prompt(llama.n_vocab, 40)
    llama.prefill(text[:10])
    llama.prefill(text[10:14], 1)
    arrays["whole"] = np.frombuffer(llama.whole(), np.uint8)
    arrays["sequence"] = np.frombuffer(llama.sequence(0), np.uint8)
    answers, ranges = [], []
    for p0, p1 in ((0, 5), (3, 6), (5, -1), (9, -1), (10, -1)):
        answers.append(llama.verb("rm", 0, p0, p1))
        ranges.append(llama.ranges())
    llama.verb("cp", 0, 2, -1, -1)
    llama.verb("cp", 0, 3, -1, -1)
    ranges.append(llama.ranges())
    llama.verb("add", 0, 0, -1, -4)
    ranges.append(llama.ranges())
    arrays["diverged"] = llama.decode([(text[20], 6, [2])])
    ranges.append(llama.ranges())
    llama.verb("keep", 2)
    ranges.append(llama.ranges())
    arrays |= {"answers": np.array(answers), "ranges": np.array(ranges)}
    llama.close()
    return {f"mamba/{name}": values for name, values in arrays.items()}


def pools(out: Path) -> None:
    """Write the states of pools."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = windows(Path(folder)) | states(Path(folder))
    save(out, arrays | {"generator": np.array(f"tools/golden_cache.py, {VERSION}")})


SUBJECTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "scripts": (scripts, "tests/golden/cache/scripts.json"),
    "pools": (pools, "tests/data/golden_pools.npz"),
}
"""The function that writes each subject, and its file."""


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("subject", choices=list(SUBJECTS))
    asked.add_argument("--out", type=Path)
    args = asked.parse_args()
    write, usual = SUBJECTS[args.subject]
    write(args.out or Path(usual))


if __name__ == "__main__":
    main()
