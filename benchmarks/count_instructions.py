"""Instructions of host chains and of the operator, counted by callgrind, against a recorded baseline.

    python benchmarks/count_instructions.py [--record] [--only TEXT]

A regression shows here without a clock.  The native module is built a second time, with symbols, in
build/count; then every case of benchmarks/host and of the operator samples a warm-up row and four more at
V = 128,256.  Only the chain's own sample(), or the operator's work on a row, is counted, without Python.
valgrind does not support AVX-512, so the AVX2 level is counted.  Fails if a case takes over 2 % more than
in benchmarks/results/instructions.json, if the compiler and the level are the same; otherwise the
figures are only shown.  --record writes that file.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from host_cases import OPERATOR_CASES, ROWS, Case, OperatorCase, cases

sys.path.append(str(Path(__file__).parent.parent / "tools"))
from native_module import ROOT, build, environment
from run_report import table_head, table_row

BASELINE = ROOT / "benchmarks" / "results" / "instructions.json"
VOCABULARY = 128_256
TOLERANCE = 0.02
COUNTED = (
    "aleator::Chain::sample*", "aleator::llama::LlamaChain::sample*",
    *(
        f"aleator::KeptRow<aleator::{values}>::{step}*"
        for values in ("LogitValues", "ProbabilityValues")
        for step in ("load", "filter", "race", "write_list", "write_select", "draw")
    ),
)  # fmt: skip
MARK = "aleator::llama::LlamaChain::rollback*"  # called after the warm-up and after the rows
SETTINGS = ("compiler", "level", "vocabulary")


def name_of(case: Case | OperatorCase) -> str:
    """A case by its file and name."""
    return f"{case.stem if isinstance(case, Case) else 'operator'}: {case.name}"


def run_cases(only: str) -> None:
    """Sample every case; callgrind runs this, and writes what it counted at every mark."""
    from aleator import samplers as S
    from aleator.core import host

    print(host.isa(), flush=True)
    mark = S.SamplerChain([S.Greedy()], numerics="llama.cpp")
    for case in chosen(only):
        n = case.size(VOCABULARY) if isinstance(case, Case) else VOCABULARY
        rows = case.make_rows(n)
        call = case.ours(n).sample if isinstance(case, Case) else case.call
        call(rows[0])
        mark.rollback(0)
        for row in rows:
            call(row)
        mark.rollback(0)


def all_cases() -> tuple[Case | OperatorCase, ...]:
    """The host chains' cases, then the operator's."""
    return (*cases(), *OPERATOR_CASES)


def chosen(only: str) -> list[Case | OperatorCase]:
    """The cases with this text in their name."""
    return [case for case in all_cases() if only in name_of(case)]


def count(only: str) -> dict[str, Any]:
    """Build, run under callgrind, and return settings and instructions per call."""
    # Debug for its symbols; native/CMakeLists.txt sets the optimisation itself.
    symbols = "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-DNDEBUG"
    module = build(ROOT / "native", ROOT / "build" / "count", *symbols)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = [
            "valgrind", "--tool=callgrind", "--collect-atstart=no", "--combine-dumps=yes",
            f"--callgrind-out-file={out}",
            f"--dump-before={MARK}", *(f"--toggle-collect={name}" for name in COUNTED),
            sys.executable, __file__, "--run", "--only", only,
        ]  # fmt: skip
        done = subprocess.run(
            command, env=environment(module, OMP_NUM_THREADS="1", PYTHONHASHSEED="0"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr}")
        totals = totals_of(out.read_text())
    names = [name_of(case) for case in chosen(only)]
    return {
        "generator": "benchmarks/count_instructions.py",
        "compiler": compiler_of(ROOT / "build" / "count"),
        "level": done.stdout.split()[0],
        "vocabulary": VOCABULARY,
        "instructions": per_case(names, totals),
    }


def totals_of(text: str) -> list[int]:
    """Instructions of each dump of a callgrind file, without the last: it is written at the end."""
    return [int(n) for n in re.findall(r"^totals: (\d+)", text, re.MULTILINE)][:-1]


def per_case(names: list[str], totals: list[int]) -> dict[str, int]:
    """The mean of each case's calls: two dumps per case, after the warm-up and after the rows."""
    if len(totals) != 2 * len(names):
        raise SystemExit(
            f"callgrind wrote {len(totals)} dumps for {len(names)} cases, not two each"
        )
    return {name: round(n / ROWS) for name, n in zip(names, totals[1::2], strict=True)}


def compiler_of(folder: Path) -> str:
    """The compiler that CMake found, such as ``GNU 12.2.0``."""
    text = next(folder.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")).read_text()
    identity = re.search(r'CMAKE_CXX_COMPILER_ID "(.*?)"', text)
    version = re.search(r'CMAKE_CXX_COMPILER_VERSION "(.*?)"', text)
    return f"{identity[1] if identity else '?'} {version[1] if version else '?'}"


def comparable(baseline: dict[str, Any], measured: dict[str, Any]) -> bool:
    """Whether the same compiler and instruction set made both."""
    return all(baseline[key] == measured[key] for key in SETTINGS)


def grown(baseline: dict[str, int], measured: dict[str, int]) -> list[str]:
    """The cases that take over 2 % more than before."""
    return [
        f"{name}: {baseline[name]:,} -> {n:,} ({n / baseline[name] - 1:+.1%})"
        for name, n in measured.items()
        if name in baseline and n > baseline[name] * (1 + TOLERANCE)
    ]


def table(baseline: dict[str, int], measured: dict[str, int]) -> list[str]:
    """A line per case: instructions, per logit, and the change."""
    lines = table_head("case", "instructions per call:", "change:")
    for name, n in measured.items():
        change = f"{n / baseline[name] - 1:+.1%}" if name in baseline else "new"
        lines.append(table_row(name, f"{n:,}", change))
    return lines


def main() -> int:
    """Count, show, and record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="make this the baseline")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_cases(args.only)
        return 0
    measured = count(args.only)
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else measured
    print("\n".join(table(baseline["instructions"], measured["instructions"])))
    if args.record:
        if args.only:  # the others stay, if they can be compared
            if not comparable(baseline, measured):
                raise SystemExit("another compiler or level made the baseline: record all cases")
            measured["instructions"] = {**baseline["instructions"], **measured["instructions"]}
        BASELINE.write_text(json.dumps(measured, indent=1) + "\n")
        return 0
    if not comparable(baseline, measured):
        print(f"not compared: the baseline is of {[baseline[key] for key in SETTINGS]}")
        return 0
    for problem in (problems := grown(baseline["instructions"], measured["instructions"])):
        print(f"grown: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
