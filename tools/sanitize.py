"""Run tests of the native code under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tools/sanitize.py [pytest's arguments]

Builds native/ into build/sanitize, makes sure that mistakes on purpose (native/probe.sanitize.cpp) end the
process, then runs the tests with that module in place of the usual one.
"""

from __future__ import annotations

import subprocess
import sys

from native_module import ROOT, build, environment

BUILD = ROOT / "build" / "sanitize"
TESTS = [
    "tests/core", "tests/samplers", "tests/threads", "tests/cache/test_cells.py",
    "tests/cache/test_cells_state_machine.py", "tests/cache/storage", "tests/ops/test_sample.py",
    "tests/ops/test_golden.py",
    "tests/models/test_gguf.py", "tests/models/test_native_linear.py",
    "tests/models/test_native_step.py",
    "tests/grammar/test_gbnf.py", "tests/grammar/test_gbnf_lazy.py", "tests/grammar/test_gbnf_robust.py",
    # Large rows and many draws: slow here, and nothing in them that smaller ones have not.
    "--deselect=tests/samplers/test_conformance.py::test_large_vocabularies_equal_reference",
    "--ignore=tests/samplers/test_statistics.py", "--ignore=tests/samplers/test_mutations.py",
    "--ignore=tests/samplers/test_adding.py", "--ignore=tests/samplers/test_token_first.py",
]  # fmt: skip
PROBES = {
    "write_past_end(1000)": "heap-buffer-overflow",
    "add_one(2**31 - 1)": "signed integer overflow",
}


def runtime(name: str) -> str:
    """Where the compiler has a sanitizer's runtime, which Python itself was not linked with."""
    path = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return path.stdout.strip()


def check_probes(variables: dict[str, str]) -> None:
    """Fail unless each mistake on purpose is reported and ends the process."""
    for call, report in PROBES.items():
        done = subprocess.run(
            [sys.executable, "-c", f"from aleator import _native\n_native.{call}"],
            env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not done.returncode or report not in done.stderr:
            raise SystemExit(f"{call} was not caught: status {done.returncode}\n{done.stderr}")
        print(f"caught: {call}: {report}", flush=True)


def main() -> int:
    """Build, probe, test."""
    module = build(ROOT / "native", BUILD, "-DCMAKE_BUILD_TYPE=Debug", "-DALEATOR_SANITIZE=ON")
    variables = environment(
        module,
        LD_PRELOAD=f"{runtime('libasan.so')} {runtime('libubsan.so')}",
        # Python itself leaks on purpose at exit, so leaks cannot be told apart.
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    check_probes(variables)
    tests = sys.argv[1:] or TESTS
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=variables, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
