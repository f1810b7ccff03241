"""What bounds the kernels that multiply one token: instructions and ports by llvm-mca, and times.

    python benchmarks/kernel_bounds.py [--mca llvm-mca-19] [--cpu znver5] [--plain-read 45] [--out FILE.md]

The kernels are compiled alone, with the flags of native/CMakeLists.txt, into build/kernels (a minute; kept
until a source is newer). llvm-mca counts the innermost loop of each that asks for memory, with branches that
are not taken, for the ports of the processor that it models. Figures are per KiB of weights: "vector" and
"addresses" are cycles of the busiest port, "issue" the micro-operations over how many begin in a cycle. Times
are those of the built module, on one thread: with a matrix in the second-level cache, and with 160 MB. The
bound is memory where two threads would take over 1.2 times --plain-read GB/s from their caches, what takes most
cycles where they would take less than it, and both between. Rows of floats are counted side by side, as they
are read from the cache; from memory they are read one after another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import ROOT, Report, command, machine, parser

from aleator import _native
from aleator.core.threads import pool
from aleator.models.files.tensor_types import TENSOR_TYPES

NATIVE, MADE = ROOT / "native", ROOT / "build" / "kernels"
BLOCKS = {
    "Q4_0": "small", "Q4_1": "small", "Q5_0": "small", "Q5_1": "small", "Q8_0": "small", "IQ4_NL": "small",
    "MXFP4": "small", "Q2_K": "sixteens", "Q3_K": "sixteens", "Q4_K": "six_bits", "Q5_K": "six_bits",
    "Q6_K": "sixteens", "IQ4_XS": "iq4_xs",
}  # fmt: skip
"""Kernels of AVX-512."""
AVX2 = {"Q2_K": "pairs", "Q3_K": "pairs", "Q6_K": "large"}
"""Where AVX2's are others; those of pairs have loops within loops, and are only timed."""
FLOATS = {
    "F32": "times_few<ReadF32, 1>",
    "F16": "times_few<ReadF16, 1>",
    "BF16": "times_few<ReadPairs, 1>",
}
STEPS = {"F32": 4 * 16 * 4, "F16": 4 * 32 * 2, "BF16": 4 * 32 * 2}
"""Bytes of a step of four rows."""
SETS = {"v3": "AVX2", "v4": "AVX-512"}


def step_bytes(kind: str, isa: str) -> int:
    """Bytes of weights that a loop's step reads: a block of eight or four rows."""
    of = TENSOR_TYPES[kind]
    eight = of.block == 32 or (isa == "v3" and BLOCKS.get(kind) == "six_bits")
    return STEPS.get(kind) or of.size * (8 if eight else 4)


def source(isa: str, floats: bool) -> str:
    """A unit with pointers to the kernels, by type."""
    if floats:
        kernels = FLOATS
    else:
        own = {k: v if isa == "v4" else AVX2.get(k, v) for k, v in BLOCKS.items()}
        kernels = {kind: f"few_{kernel}<Block{kind}, 1>" for kind, kernel in own.items()}
    file = "linear" if floats else "block_few"
    pointers = [f'extern "C" {{ auto* kernel_{kind} = {name}; }}' for kind, name in kernels.items()]
    return "\n".join(
        [f'#include "layers/{file}.isa.cpp"', "namespace aleator::ALEATOR_ISA {", *pointers, "}"]
    )


def assembly(isa: str, floats: bool) -> str:
    """The unit compiled, which is kept."""
    text = (NATIVE / "CMakeLists.txt").read_text()

    def flags(name: str) -> list[str]:
        return first(rf"set\({name} ([^)]*)\)", text).split()

    made = MADE / f"{isa}_{'floats' if floats else 'blocks'}.s"
    newest = max(path.stat().st_mtime for path in NATIVE.glob("**/*.[ch]pp"))
    if not made.exists() or made.stat().st_mtime < newest:
        MADE.mkdir(parents=True, exist_ok=True)
        made.with_suffix(".cpp").write_text(source(isa, floats))
        told = f"g++ -S -std=c++20 -O3 -fPIC -w -I{NATIVE}".split()
        told += [f"-DALEATOR_ISA=isa_{isa}", f"-DALEATOR_ISA_{isa}=1"]
        told += [*flags("ALEATOR_FLAGS"), *flags(f"ALEATOR_FLAGS_{isa}")]
        subprocess.run([*told, made.with_suffix(".cpp"), "-o", made], check=True)
    return made.read_text()


def first(pattern: str, text: str) -> str:
    """The first group of the first match."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"the compiler's output has nothing like {pattern!r}")
    return found[1]


def loop_of(text: str, kind: str) -> str:
    """The longest innermost loop of a type's kernel that asks for memory."""
    symbol = first(rf"^kernel_{kind}:\n\t\.quad\t(\S+)", text)
    body = first(rf"^{re.escape(symbol)}:\n((?s:.*?))\.cfi_endproc", text)
    lines = [line for line in body.splitlines() if not re.match(r"\s+\.", line)]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    jumps = [(i, re.match(r"\tj\w+\t(\.L\w+)", line)) for i, line in enumerate(lines)]
    loops = [(labels[m[1]], i) for i, m in jumps if m and labels.get(m[1], i) < i]
    asking = [(a, b) for a, b in loops if any("prefetch" in line for line in lines[a : b + 1])]
    shortest = dict(sorted(asking, reverse=True))  # of several ways back
    inner = [(a, b) for a, b in shortest.items() if not any(a < c and d <= b for c, d in loops)]
    begin, end = max(inner, key=lambda loop: loop[1] - loop[0])
    return "\n".join(lines[begin : end + 1]) + "\n"


def counted(loop: str, mca: str, cpu: str) -> dict[str, float]:
    """What a step takes."""
    told = [mca, "-mtriple=x86_64", f"-mcpu={cpu}", "-json", "-instruction-info", "-iterations=100"]
    done = subprocess.run(told, input=loop, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    region, names = answer["CodeRegions"][0], answer["TargetInfo"]["Resources"]
    summary, listed = region["SummaryView"], region["InstructionInfoView"]["InstructionList"]
    ports: dict[str, float] = {}
    for each in region["ResourcePressureView"]["ResourcePressureInfo"]:
        if each["InstructionIndex"] == len(listed):
            ports[names[each["ResourceIndex"]]] = each["ResourceUsage"]
    operations = summary["TotaluOps"] / summary["Iterations"]
    return {
        "instructions": len(listed),
        "loads": sum(each["mayLoad"] for each in listed),
        "operations": operations,
        "vector": max(use for name, use in ports.items() if re.search(r"FPP?[0-3]$", name)),
        "addresses": max(use for name, use in ports.items() if re.search(r"AGU\d|Load", name)),
        "issue": operations / summary["DispatchWidth"],
    }


def speed(kind: str, rows: int, columns: int, copies: int) -> float:
    """GB/s of weights, the best of nine rounds."""
    of = TENSOR_TYPES[kind]
    size = rows * columns // of.block * of.size
    data = np.random.default_rng(0).integers(100, 120, size * copies, dtype=np.uint8)
    matrices = [
        _native.StoredMatrix(data[i * size :][:size], kind, rows, columns) for i in range(copies)
    ]
    x, y = np.ones((1, columns), np.float32), np.empty((1, rows), np.float32)
    best, again = float("inf"), max(1, round(1e8 / (size * copies)))
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(again):
            for matrix in matrices:
                _native.linear(pool(1), matrix, x, y)
        best = min(best, (time.perf_counter() - start) / again / copies)
    return size / best / 1e9


def speeds() -> dict[str, list[float]]:
    """Of every type, from the cache and from memory."""
    found = {}
    for kind in (*BLOCKS, *FLOATS):
        of, columns = TENSOR_TYPES[kind], 2048
        near, far = (round(n / (columns / of.block * of.size) / 8) * 8 for n in (450e3, 4e6))
        found[kind] = [speed(kind, near, columns, 1), speed(kind, far, columns, 40)]
    return found


def main() -> None:
    """Count and time every kernel, and write the table."""
    told = parser(__doc__, "write a file")
    told.add_argument("--mca", default="llvm-mca")
    told.add_argument("--cpu", default="znver5")
    told.add_argument("--plain-read", type=float, default=45, help="GB/s of two threads")
    told.add_argument("--speeds", action="store_true", help="only times, as JSON")
    args = told.parse_args()
    if args.speeds:
        print(json.dumps(speeds()))
        return
    report = Report(
        "What bounds one token's products", f"    {command(__file__)}", machine("aleator", "numpy")
    )
    for isa, name in SETS.items():
        units = {floats: assembly(isa, floats) for floats in (False, True)}
        done = subprocess.run(
            [sys.executable, __file__, "--speeds"], env={**os.environ, "ALEATOR_ISA": isa},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        report.say(f"## {name}", "")
        report.table(
            "type", "instructions:", "loads:", "operations:", "vector:", "addresses:", "issue:", "GB/s, cache:",
            "memory:", "bound by",
        )  # fmt: skip
        for kind, (near, far) in json.loads(done.stdout).items():
            if isa == "v3" and AVX2.get(kind) == "pairs":
                report.row(kind, *["-"] * 6, f"{near:.1f}", f"{far:.1f}", "-")
                continue
            step = counted(loop_of(units[kind in FLOATS], kind), args.mca, args.cpu)
            per_kib = {key: value * 1024 / step_bytes(kind, isa) for key, value in step.items()}
            most = max(("vector", "addresses", "issue"), key=per_kib.__getitem__)
            share = 2 * near / args.plain_read
            bound = most if share < 1 else "memory" if share > 1.2 else f"{most}, memory"
            report.row(
                kind, *(f"{v:,.0f}" for v in per_kib.values()), f"{near:.1f}", f"{far:.1f}", bound
            )
        report.say("")
    report.write(args.out)


if __name__ == "__main__":
    main()
