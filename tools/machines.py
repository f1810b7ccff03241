"""Holds the native decoder of other machines to the bits that x86-64 gives.

    python tools/machines.py [--machines aarch64 aarch64-dotprod x86-64] [--jobs N] [--out FILE.md]
    python tools/machines.py --record

tools/machines.cpp makes small decoders of random weights, in every type, and prints a hash of their logits'
bits.  Here it is compiled with the native layers alone, by a cross compiler, and run under QEMU; what it prints
must be tests/golden/machines/logits.txt, which --record writes on x86-64.  It needs, by apt,
g++-aarch64-linux-gnu and qemu-user-static.  The processor is emulated: results are meant to be those of a real
one, times are not.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "machines" / "logits.txt"
PARTS = (
    "layers/decoder_step.cpp", "layers/experts.cpp", "layers/feed_forward.cpp", "layers/attention_step.cpp",
    "layers/products.cpp", "layers/ssm_step.cpp", "layers/ssm_layers.cpp",
    "layers/angles.cpp", "layers/elementary.cpp", "layers/gelu.cpp", "simd/dispatch.cpp", "threads/pool.cpp",
    "../tools/machines.cpp",
)  # fmt: skip
FLAGS = ("-std=gnu++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


@dataclass(frozen=True)
class Machine:
    """What compiles for a machine and what runs its programs.

    Attributes:
        compiler: the C++ compiler.
        runs: what comes before the program.
        isas: flags of each instruction set that the program chooses from (native/simd/dispatch.hpp).
        chosen: values of ALEATOR_ISA that the program is run with; "" leaves it out.
    """

    compiler: str
    runs: tuple[str, ...]
    isas: dict[str, tuple[str, ...]]
    chosen: tuple[str, ...] = ("",)


MACHINES = {
    "aarch64": Machine(
        "aarch64-linux-gnu-g++", ("qemu-aarch64-static", "-cpu", "cortex-a72"), {"base": ()}
    ),
    "aarch64-dotprod": Machine(
        "aarch64-linux-gnu-g++",
        ("qemu-aarch64-static", "-cpu", "max"),
        {"base": ("-march=armv8.2-a+dotprod",)},
    ),
    "x86-64": Machine(
        "g++",
        (),
        {
            "base": (),
            "v3": ("-march=x86-64-v3",),
            "v4": ("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512"),
        },
        ("", "v3", "base"),
    ),
}


def build(name: str, folder: Path, jobs: int) -> Path:
    """Compile the program for a machine."""
    machine, native = MACHINES[name], ROOT / "native"
    sources = [p.relative_to(native) for p in sorted(native.glob("layers/*.isa.cpp"))]
    sources.append(Path("cache/quantise.isa.cpp"))
    # Every part is compiled for the least processor; only the copies of an instruction set use it.
    common = machine.isas["base"]
    work = [(Path(part), (*common, "-I."), "") for part in PARTS]
    for isa, flags in machine.isas.items():
        named = (f"-DALEATOR_ISA=isa_{isa}", f"-DALEATOR_ISA_{isa}=1")
        work += [(source, (*flags, "-I.", *named), isa) for source in sources]
    folder.mkdir(parents=True, exist_ok=True)

    def compiled(each: tuple[Path, tuple[str, ...], str]) -> str:
        source, flags, isa = each
        out = str(folder / f"{source.name}.{isa}.o")
        launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split()
        command = [*launcher, machine.compiler, *FLAGS, *flags, "-c", str(source), "-o", out]
        subprocess.run(command, cwd=native, check=True)
        return out

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compiled, work))
    program = folder / "machines"
    link = [machine.compiler, "-static", *objects, "-pthread", "-o", str(program)]
    subprocess.run(link, check=True)
    return program


def printed(machine: Machine, program: Path, isa: str) -> list[str]:
    """What the program prints of each decoder; it fails where a decoder's own ways differ."""
    environment = {**os.environ, **({"ALEATOR_ISA": isa} if isa else {})}
    done = subprocess.run(
        [*machine.runs, str(program)], env=environment, stdout=subprocess.PIPE, text=True
    )
    return [line for line in done.stdout.splitlines() if not line.startswith("#")]


def differences(lines: Sequence[str], golden: Sequence[str]) -> list[str]:
    """Decoders whose line is another one or missing, or that are in no golden line."""
    mine, right = ({line.split()[0]: line for line in each} for each in (lines, golden))
    return [name for name in {**right, **mine} if mine.get(name) != right.get(name)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", nargs="+", choices=list(MACHINES), default=list(MACHINES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "machines")
    parser.add_argument("--record", action="store_true", help="write the golden lines, on x86-64")
    parser.add_argument("--out", type=Path, help="Markdown with the table")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.record:
        machine = MACHINES["x86-64"]
        lines = printed(machine, build("x86-64", options.folder / "x86-64", options.jobs), "")
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text("\n".join(lines) + "\n")
        return 0
    golden = GOLDEN.read_text().splitlines()
    table, wrong = [], 0
    for name in options.machines:
        machine = MACHINES[name]
        program = build(name, options.folder / name, options.jobs)
        for isa in machine.chosen:
            lines = printed(machine, program, isa)
            bad = differences(lines, golden)
            wrong += len(bad)
            how = " ".join(machine.runs) or "this processor"
            table.append(
                f"| {name} | {isa or 'best'} | {how} | {len(lines)} | {len(bad)} {', '.join(bad)} |"
            )
            print(table[-1], flush=True)
    compilers = {MACHINES[name].compiler for name in options.machines}
    versions = [
        subprocess.run([c, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
        for c in sorted(compilers)
    ]
    text = [
        "# Decoders on other machines", "",
        f"{datetime.date.today()}; {'; '.join(versions)}.", "",
        f"    python tools/machines.py {' '.join(given)}".rstrip(), "",
        "Decoders of random weights in every type: logits token by token on one thread, in one batch on two, "
        "in pieces of seven on three. Their bits are compared with those of x86-64.", "",
        "| machine | instruction set | run by | decoders | that differ |", "|---|---|---|---:|---:|", *table,
    ]  # fmt: skip
    if options.out:
        options.out.write_text("\n".join(text) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
