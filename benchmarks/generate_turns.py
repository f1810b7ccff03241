"""Engines of generate_engines.py in their processes, and measurements in which they take turns."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from generate_engines import LEFT_OUT, VARIANTS

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import ROOT, about

Order = tuple[str, list[int], int, int]
"""Name, its numbers, tokens that it computes, rounds."""
TWO_NUMBERS = ("decode", "filled", "batch", "beams")
ONE_NUMBER = ("prefill", "sampled", "drawn")
"""Names of orders by how many numbers follow them."""
PAUSE = 0.1
"""Seconds before an order: the threads of OpenMP, which llama.cpp uses, spin for milliseconds after a step."""


def add_options(told: argparse.ArgumentParser) -> None:
    """Options of a tool that measures in turns."""
    own = sys.executable if importlib.util.find_spec("llama_cpp") else None
    told.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    told.add_argument("--most", type=float, default=math.inf, help="seconds of an order")
    told.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "models", help="of the models"
    )
    told.add_argument("--llama-python", default=own, help="a Python that has llama-cpp-python")
    told.add_argument("--llama-bin", help="the folder with llama.cpp's programs and libraries")


class Worker:
    """The parent's side of an engine's process."""

    def __init__(self, kind: str, path: Path, options: argparse.Namespace) -> None:
        python = options.llama_python if kind == "llama.cpp" else sys.executable
        program = str(Path(__file__).with_name("generate_engines.py"))
        self._process = subprocess.Popen(
            [python, program, kind, str(path), str(options.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(options),
        )
        self._orders = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        self._read()

    def _read(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("an engine's process ended; its message is above")
        return json.loads(line)

    def order(self, *words: Any) -> float:
        time.sleep(PAUSE)
        self._orders.write(json.dumps(words) + "\n")
        self._orders.flush()
        return float(self._read())

    def close(self) -> None:
        self._orders.close()
        self._process.wait(timeout=60)
        self._answers.close()


def environment(options: argparse.Namespace) -> dict[str, str]:
    """The environment of an engine's process."""
    libraries = {"LLAMA_CPP_LIB_PATH": options.llama_bin} if options.llama_bin else {}
    # Modules are compiled once, as pip does when it installs a package, whatever this shell's settings.
    libraries["PYTHONPYCACHEPREFIX"] = str(options.folder / "pycache")
    libraries["PYTHONDONTWRITEBYTECODE"] = ""
    return {**os.environ, "OMP_NUM_THREADS": str(options.threads), **libraries}


def run_facts(options: argparse.Namespace, *packages: str) -> dict[str, Any]:
    """Facts of a run, with the version of the llama.cpp that is measured."""
    found = about(*packages) | {"threads": options.threads}
    if options.llama_python:
        asked = [options.llama_python, "-c", "import llama_cpp; print(llama_cpp.__version__)"]
        told = subprocess.run(
            asked, check=True, stdout=subprocess.PIPE, text=True, env=environment(options)
        )
        found["versions"] += f", llama-cpp-python {told.stdout.strip()}"
    return found


def opened(path: Path, options: argparse.Namespace) -> dict[str, Worker]:
    """A process of each engine that is measured."""
    engines = ["aleator", *(["llama.cpp"] if options.llama_python else [])]
    engines += ["transformers"] if options.transformers else []
    return {engine: Worker(engine, path, options) for engine in engines}


def asked(words: str, rounds: int) -> Order:
    """An order of the command line, such as "decode 16 2000"."""
    name, *numbers = words.split()
    wanted = 2 if name in TWO_NUMBERS else 1 if name in ONE_NUMBER else 0
    if not wanted or len(numbers) != wanted:
        raise SystemExit(f'no order: {words!r}; such as "prefill 512", "decode 16 0", "batch 8 4"')
    found = [int(number) for number in numbers]
    return name, found, found[0] * (found[1] if name == "batch" else 1), rounds


def in_turns(
    workers: dict[str, Worker],
    order: Order,
    options: argparse.Namespace,
    before: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Tokens per second of an order by engine and variant, which take turns: medians of the rounds.

    The first round warms up.  After ``options.most`` seconds none begins but the first that counts.
    """
    name, numbers, n_tokens, rounds = order
    taken: dict[str, list[float]] = {}
    end = time.monotonic() + options.most
    for turn in range(rounds + 1):
        if turn > 1 and time.monotonic() > end:
            break
        if before is not None:
            before()
        for engine, worker in workers.items():
            if (engine, name) in LEFT_OUT:
                continue
            cells = options.cache_types if engine != "transformers" else None
            for variant in cells or VARIANTS[engine]:
                seconds = worker.order(name, variant, *numbers)
                if turn:
                    taken.setdefault(f"{engine} {variant}".strip(), []).append(n_tokens / seconds)
    return {who: statistics.median(values) for who, values in taken.items()}
