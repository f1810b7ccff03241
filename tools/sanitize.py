"""Run tests of the native code under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tools/sanitize.py [pytest's arguments]

Builds native/ into build/sanitize, makes sure that a mistake on purpose ends the process (native/probe.sanitize.cpp),
then runs the tests with that module in place of the usual one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "sanitize"
TESTS = [
    "tests/core", "tests/samplers", "tests/threads", "tests/cache/test_cells.py",
    "tests/models/test_gguf.py", "tests/models/test_native_linear.py",
    "tests/models/test_native_step.py",
    # Large rows and many draws: slow here, and nothing in them that smaller ones have not.
    "--deselect=tests/samplers/test_conformance.py::test_large_vocabularies_equal_reference",
    "--ignore=tests/samplers/test_statistics.py", "--ignore=tests/samplers/test_mutations.py",
]  # fmt: skip
PROBES = {
    "write_past_end(1000)": "heap-buffer-overflow",
    "add_one(2**31 - 1)": "signed integer overflow",
}


def build(source: Path, folder: Path, *options: str) -> Path:
    """Configure and build the native module, incrementally, and return its path."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    folder.mkdir(parents=True, exist_ok=True)
    configure = [
        "cmake",
        "-S",
        source,
        "-B",
        folder,
        "-G",
        "Ninja",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    for command in ([*configure, *options], ["cmake", "--build", folder]):
        done = subprocess.run(command, env=tools, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr}")
    return next(folder.glob("_native*.so"))


def environment(module: Path, **more: str) -> dict[str, str]:
    """Variables under which every Python process takes ``module`` for ``aleator._native``."""
    paths = [
        str(ROOT / "tools" / "other_native"),
        str(ROOT / "src"),
        os.environ.get("PYTHONPATH", ""),
    ]
    return {
        **os.environ,
        "ALEATOR_NATIVE": str(module),
        "PYTHONPATH": os.pathsep.join(paths),
        **more,
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
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=variables, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
