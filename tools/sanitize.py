"""Run tests of the native code under AddressSanitizer and UndefinedBehaviorSanitizer, or ThreadSanitizer.

    python tools/sanitize.py [--threads] [pytest's arguments]

Builds native/ into build/sanitize, checks that deliberate mistakes (native/probe.sanitize.cpp) end the process,
then runs the tests with that module instead of the usual one. --threads uses ThreadSanitizer, which finds
writes of one thread that another one sees without synchronisation; the tests are then those of the pool, of
products divided among threads, and of engines.
"""

from __future__ import annotations

import subprocess
import sys

from native_module import ROOT, build, environment

BUILD = ROOT / "build" / "sanitize"
SUPPRESSIONS = ROOT / "tools" / "sanitize_threads.txt"
STEADY = ["setarch", "-R"]
"""Turns off random addresses: ThreadSanitizer of GCC 12 fails if they are too high."""
TESTS = [
    "tests/core", "tests/samplers", "tests/threads", "tests/cache/test_cells.py",
    "tests/cache/test_cells_mask.py", "tests/cache/test_cells_many.py",
    "tests/cache/test_cells_state_machine.py", "tests/cache/storage", "tests/ops/test_sample.py",
    "tests/ops/test_golden.py",
    "tests/models/test_gguf.py", "tests/models/test_native_linear.py",
    "tests/models/test_native_step.py", "tests/models/test_attention_numerics.py",
    "tests/models/test_adapter_numerics.py",
    "tests/grammar/test_gbnf.py", "tests/grammar/test_gbnf_lazy.py", "tests/grammar/test_gbnf_robust.py",
    # Large rows and many draws are slow here and add nothing to smaller ones.
    "--deselect=tests/samplers/test_conformance.py::test_large_vocabularies_equal_reference",
    "--ignore=tests/samplers/test_statistics.py", "--ignore=tests/samplers/test_mutations.py",
    "--ignore=tests/samplers/test_adding.py", "--ignore=tests/samplers/test_token_first.py",
]  # fmt: skip
PROBES = {
    "write_past_end(1000)": "heap-buffer-overflow",
    "add_one(2**31 - 1)": "signed integer overflow",
}
THREAD_TESTS = [
    "tests/threads", "tests/core/test_threads.py", "tests/models/test_native_linear.py",
    "tests/models/test_native_step.py", "tests/models/test_native_ssm.py", "tests/models/test_delta_net.py",
    "tests/models/test_experts.py", "tests/models/test_finite_check.py", "tests/models/test_fingerprint.py",
    "tests/engine/test_engine.py", "tests/engine/test_run.py", "tests/engine/test_context_calls.py",
    "tests/generate/test_two_threads.py", "tests/generate/test_two_contexts.py", "tests/ops/test_sample.py",
    # ThreadSanitizer cannot follow children of a process with threads, and times mean nothing under it.
    "-k", "not fork and not child and not idle and not time and not large and not interrupt",
]  # fmt: skip
THREAD_PROBES = {"race_to(100000)": "data race"}


def runtime(name: str) -> str:
    """The path of a sanitizer's runtime, which Python itself is not linked with."""
    path = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return path.stdout.strip()


def check_probes(variables: dict[str, str], probes: dict[str, str]) -> None:
    """Fail unless each deliberate mistake is reported and ends the process."""
    for call, report in probes.items():
        done = subprocess.run(
            [*STEADY, sys.executable, "-c", f"from aleator import _native\n_native.{call}"],
            env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not done.returncode or report not in done.stderr:
            raise SystemExit(f"{call} was not caught: status {done.returncode}\n{done.stderr}")
        print(f"caught: {call}: {report}", flush=True)


def address_environment() -> dict[str, str]:
    """Build with AddressSanitizer; variables under which Python takes that module."""
    module = build(ROOT / "native", BUILD, "-DCMAKE_BUILD_TYPE=Debug", "-DALEATOR_SANITIZE=ON")
    return environment(
        module,
        LD_PRELOAD=f"{runtime('libasan.so')} {runtime('libubsan.so')}",
        # Python itself leaks deliberately at exit, so real leaks cannot be told apart.
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="print_stacktrace=1",
    )


def thread_environment() -> dict[str, str]:
    """Build with ThreadSanitizer; variables under which Python takes that module."""
    module = build(
        ROOT / "native", BUILD.with_name("sanitize-threads"), "-DCMAKE_BUILD_TYPE=Debug",
        "-DALEATOR_SANITIZE=thread",
    )  # fmt: skip
    return environment(
        module,
        LD_PRELOAD=runtime("libtsan.so"),
        # For programs that tests compile: their synchronisation is visible in no other way.
        CXXFLAGS="-fsanitize=thread -g1",
        # NumPy's own threads would be reported as well; only ours are tested.
        OPENBLAS_NUM_THREADS="1",
        TSAN_OPTIONS=f"halt_on_error=1 suppressions={SUPPRESSIONS}",
    )


def main() -> int:
    """Build, probe, test."""
    threads = sys.argv[1:2] == ["--threads"]
    variables = thread_environment() if threads else address_environment()
    check_probes(variables, THREAD_PROBES if threads else PROBES)
    tests = sys.argv[1 + threads :] or (THREAD_TESTS if threads else TESTS)
    return subprocess.run(
        [*STEADY, sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=variables, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
