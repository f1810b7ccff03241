"""Checks other processors for the tokens and bits of x86-64, under QEMU: aarch64, riscv64, big-endian s390x.

    python tools/machines.py [--machines NAME ...] [--checks NAME ...] [--out FILE.md]
    python tools/machines.py --record

Each machine gets a folder of Debian's packages (tools/debian_root.py) and the native code from a cross
compiler, and is checked by

    decoders  tools/machines.cpp: decoders without Python, in every type of weights
    corpus    draws of many chains (tools/corpus.py)
    models    logits of small GGUF files (tools/decoder_bits.py); on big-endian machines, that they are refused
    tests     tests of the core, caches, grammars and the operator (TESTS below)

with every instruction set that the native code has for it. The expected results were recorded on x86-64, which
is checked too, without QEMU. It needs qemu-user-static and a cross compiler for each machine (docs/testing.md).
Emulated processors should give the tokens and bits of real ones, but not their times, nor the order in which
threads see each other's writes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import corpus
import decoder_bits
from debian_root import SUITE, make_root
from instruction_sets import here
from native_module import ROOT, build, environment

GOLDEN = ROOT / "tests" / "golden" / "machines" / "logits.txt"
FOLDER = ROOT / "build" / "machines"
CHECKS = ("decoders", "corpus", "models", "tests")
TESTS = (
    "tests/samplers/test_golden_portable.py", "tests/samplers/test_dist.py",
    "tests/samplers/test_token_mask.py",
    "tests/core", "--ignore=tests/core/test_options.py",
    "tests/cache/test_kv_cache.py", "tests/cache/test_cells.py", "tests/cache/test_cells_mask.py",
    "tests/cache/test_cells_many.py", "tests/cache/test_window.py",
    "tests/cache/test_recurrent.py", "tests/cache/test_recurrent_sizes.py",
    "tests/cache/test_journal.py", "tests/cache/test_pools_golden.py",
    "tests/cache/test_stored_rows.py", "tests/cache/test_sequence.py", "tests/grammar/test_gbnf.py",
    "tests/grammar/test_gbnf_golden.py", "tests/grammar/test_gbnf_lazy.py", "tests/ops/test_sample.py",
)  # fmt: skip
NEEDS_PACKAGES = ("tests/cache/test_sequence.py",)
"""Tests that make models with the package gguf, which Debian lacks."""
NEEDS_FILES = ("tests/grammar/test_gbnf_golden.py",)
"""Tests that read vocabularies of GGUF files, which big-endian machines refuse."""
STARTS_PROCESSES = " and ".join(
    f"not {each}"
    for each in (
        "thread_pool", "subprocess", "import", "process", "openmp", "one_for_each_core", "header_is_made",
        "option_is_a_field", "every_instruction_set",
    )
)  # fmt: skip
"""Tests that start processes: the kernel cannot start another processor's programs without system settings."""


@dataclass(frozen=True)
class Machine:
    """A processor, and how its programs are made and run.

    Attributes:
        debian: Its name in Debian; "" for this machine.
        triplet: The triplet of its compiler and libraries.
        isas: QEMU's options for each instruction set (native/simd/dispatch.hpp).
        big_endian: Models are refused.
    """

    debian: str
    triplet: str
    isas: dict[str, tuple[str, ...]]
    big_endian: bool = False

    @property
    def processor(self) -> str:
        return self.triplet.partition("-")[0]

    @property
    def compiler(self) -> str:
        return f"{self.triplet}-g++" if self.debian else "g++"

    def runs(self, isa: str) -> list[str]:
        """The command that runs a program."""
        return [f"qemu-{self.processor}-static", *self.isas[isa]] if self.debian else []


MACHINES = {
    "x86-64": Machine("", "x86_64-linux-gnu", dict.fromkeys(here(), ())),
    "aarch64": Machine(
        "arm64",
        "aarch64-linux-gnu",
        {"base": ("-cpu", "cortex-a72"), "dotprod": ("-cpu", "neoverse-n1")},
    ),
    "riscv64": Machine("riscv64", "riscv64-linux-gnu", {"base": ()}),
    "s390x": Machine("s390x", "s390x-linux-gnu", {"base": ()}, big_endian=True),
}


@dataclass
class Report:
    """Rows of the table, and how many of them are wrong."""

    rows: list[str] = field(default_factory=list)
    wrong: int = 0

    def add(self, name: str, isa: str, check: str, passed: bool, said: str, seconds: float) -> None:
        self.wrong += not passed
        last = said.strip().splitlines()[-1] if said.strip() else ""
        verdict = "" if passed else " **fails**"
        self.rows.append(f"| {name} | {isa} | {check} | {last}{verdict} | {seconds:.0f} |")
        print(said.strip() if not passed else self.rows[-1], flush=True)

    def text(self, versions: Sequence[str], given: Sequence[str]) -> str:
        """Markdown with the rows so far.

        Args:
            versions: Those of compilers and emulators.
            given: The command's arguments.
        """
        lines = [
            "# Other processors, emulated", "",
            f"{datetime.date.today()}; {'; '.join(versions)}.", "",
            f"    python tools/machines.py {' '.join(given)}".rstrip(), "",
            "Tokens and bits are compared with those that x86-64 recorded (tests/golden/machines). "
            "aarch64, riscv64 and s390x run under QEMU's user emulation, with Debian's Python and NumPy; "
            "no real processor of these kinds was used.", "",
            "| machine | instruction set | check | result | seconds |", "|---|---|---|---|---:|", *self.rows,
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


def cross(machine: Machine) -> list[str]:
    """CMake's options for another processor."""
    if not machine.debian:
        return []
    return [
        "-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine.processor}",
        f"-DCMAKE_CXX_COMPILER={machine.compiler}",
    ]  # fmt: skip


def program(name: str) -> Path:
    """tools/machines.cpp, compiled."""
    options = ["-DALEATOR_MACHINES=ON", *cross(MACHINES[name])]
    return build(ROOT / "native", FOLDER.with_name(f"{name}-decoders"), *options, made="machines")


def module(name: str, root: Path) -> Path:
    """The native module for the Python of a folder of packages."""
    machine = MACHINES[name]
    headers = next(root.glob("usr/include/python3.*"))
    own = (
        headers / machine.triplet
    )  # pyconfig.h, which the compiler looks for beside the common ones
    if not own.is_symlink():
        own.symlink_to(f"../{machine.triplet}")
    tag = headers.name.removeprefix("python").replace(".", "")
    return build(
        ROOT / "native", FOLDER.with_name(f"{name}-module"), *cross(machine),
        f"-DALEATOR_PYTHON_HEADERS={headers}", f"-DSKBUILD_SOABI=cpython-{tag}-{machine.triplet}",
    )  # fmt: skip


class Runner:
    """Runs Python on a machine, with the package of this checkout."""

    def __init__(self, name: str, suite: str) -> None:
        self.name, self.machine, self.suite = name, MACHINES[name], suite

    @cached_property
    def python(self) -> tuple[list[str], dict[str, str]]:
        """The command and variables that start Python under QEMU; made on first use."""
        if not self.machine.debian:
            return [sys.executable], dict(os.environ)
        debian = self.machine.debian
        root = make_root(debian, ROOT / "build" / "roots" / debian, self.suite)
        variables = environment(module(self.name, root))
        variables["PYTHONPYCACHEPREFIX"] = str(FOLDER / self.name / "pyc")
        # Settings for this machine's processor do not apply to that one.
        variables.pop("OPENBLAS_CORETYPE", None)
        return ["-L", str(root), str(root / "usr" / "bin" / "python3")], variables

    def run(self, isa: str, *arguments: str) -> tuple[bool, str]:
        """Run a Python program; return whether it succeeded, and its output."""
        python, variables = self.python
        done = subprocess.run(
            [*self.machine.runs(isa), *python, *arguments],
            cwd=ROOT, env={**variables, "ALEATOR_ISA": isa}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        return done.returncode == 0, done.stdout


REFUSED = """
import sys
from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
try:
    open_weights(sys.argv[1])
except UnsupportedModel as error:
    said = str(error)
    print(said.partition(": ")[2])
    sys.exit("\\n" in said or "big-endian" not in said)
sys.exit("not refused")
"""


def check_decoders(name: str, isa: str) -> tuple[bool, str]:
    """The hashes that tools/machines.cpp prints, which also compares ways of computing them."""
    command = [*MACHINES[name].runs(isa), str(program(name))]
    variables = {**os.environ, "ALEATOR_ISA": isa}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    said = done.stdout.splitlines()
    used = next((line[2:] for line in said if line.startswith("# ")), "none")
    if used != isa:
        return False, f"asked for {isa}, and the program runs {used}"
    lines = [line for line in said if not line.startswith("#")]
    wrong = differences(lines, GOLDEN.read_text().splitlines())
    return not wrong and not done.returncode, "\n".join(
        [*wrong, f"{len(lines)} decoders, {len(wrong)} differ"]
    )


def check(runner: Runner, isa: str, kind: str) -> tuple[bool, str]:
    """Run one check for one instruction set; return whether it passed, and the output."""
    if kind == "corpus":
        return runner.run(isa, "tools/corpus.py", "--isa", isa)
    if kind == "models" and runner.machine.big_endian:
        return runner.run(isa, "-c", REFUSED, str(FOLDER / "models" / "llama.gguf"))
    if kind == "models":
        return runner.run(isa, "tools/decoder_bits.py", "--isa", isa, str(FOLDER / "models"))
    # Debian's pytest does not know all options in pyproject.toml: without --strict-config it warns.
    options = ["-q", "-p", "no:cacheprovider", "-k", STARTS_PROCESSES]
    for each in ("addopts=", "filterwarnings="):
        options += ["-o", each]
    # pytest heeds --ignore for folders only, not for files that it is given by name.
    left_out = (NEEDS_PACKAGES if runner.machine.debian else ()) + (
        NEEDS_FILES if runner.machine.big_endian else ()
    )
    tests = [each for each in TESTS if each not in left_out]
    if runner.machine.debian:  # Debian's Python lacks `tokenizers`, PyTorch, Starlette
        tests += ["--ignore=tests/core/test_memory.py", "--ignore=tests/core/test_moved.py"]
    return runner.run(isa, "-m", "pytest", *options, *tests)


def differences(lines: Sequence[str], golden: Sequence[str]) -> list[str]:
    """Decoders whose line differs, is missing, or has no golden line."""
    mine, right = ({line.split()[0]: line for line in each} for each in (lines, golden))
    return [name for name in {**right, **mine} if mine.get(name) != right.get(name)]


def record() -> None:
    """Write the golden files, on x86-64."""
    said = subprocess.run([str(program("x86-64"))], stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in said.stdout.splitlines() if not line.startswith("#")]
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text("\n".join(lines) + "\n")
    corpus.main(["--record"])
    decoder_bits.main([str(FOLDER / "models"), "--record"])


def first_line(*command: str) -> str:
    """The first line of a program's version."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[
        0
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", nargs="+", choices=list(MACHINES), default=list(MACHINES))
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=CHECKS)
    parser.add_argument("--suite", default=SUITE, help="Debian's, if a mirror lacks packages: sid")
    parser.add_argument("--record", action="store_true", help="write the golden files, on x86-64")
    parser.add_argument("--out", type=Path, help="Markdown with the table")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.record:
        record()
        return 0
    decoder_bits.make(FOLDER / "models")
    report = Report()
    versions = []
    for name in options.machines:
        runner = Runner(name, options.suite)
        programs = runner.machine.compiler, *runner.machine.runs("base")[:1]
        versions.append(f"{name}: {', '.join(first_line(p, '--version') for p in programs)}")
        for kind in options.checks:
            # Tests take longest, and one instruction set is as good as another for them.
            isas = list(runner.machine.isas) if kind != "tests" else ["base"]
            if kind == "decoders" and runner.machine.big_endian:
                continue
            for isa in isas:
                start = time.monotonic()
                passed, said = (
                    check_decoders(name, isa) if kind == "decoders" else check(runner, isa, kind)
                )
                report.add(name, isa, kind, passed, said, time.monotonic() - start)
                if options.out:  # a run takes an hour: its results so far survive an interrupt
                    options.out.write_text(report.text(versions, given))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
