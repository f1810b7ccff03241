"""Seconds to the first token of a prompt: computed, from cells, memory, disk, and after a restart.

    python benchmarks/bench_prompt_cache.py -m MODEL.gguf [--tokens 1024,8192,32768]
        [--llama-server build/bin/llama-server] [--type f16] [--threads N] [--out FILE]

Ours are times of ``model.generate`` for one token.  "cold" computes; "cells": the context still holds the
prompt; "memory": only ``cache_ram`` does; "disk": only the files do, and the system has them in memory;
"dropped": the system has dropped them (as far as it heeds posix_fadvise); "restart": a process that has just
loaded the model, without the time of loading.  "files" is the time of only reading the same files, held and
dropped.  Each is the least of several tries, except "cold".  A prompt has one token more than stated: whole
blocks are loaded, and one token is computed.

llama-server reports its times for a prompt (prompt_ms) and for a slot (restore_ms): "cells": the slot holds it,
"memory": restored by ``--cache-ram`` after another prompt, "slot file": restore and prompt together, on a
server that has just started.

The last table: tokens per second of one text while another request's prompt is loaded from disk, over those of
the same text alone; the median of several tries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import aleator

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import Report, command, machine, parser, progress
from server_process import ServerProcess

TRIES = 3
PLENTY = 2**36
OTHER = 64
"""Tokens of another prompt, which takes a slot of llama-server's."""
WRITTEN = 200
"""Tokens of the text that is timed while another prompt is loaded."""


def prompt(n: int, vocabulary: int, salt: int = 0) -> list[int]:
    """``n`` tokens that do not repeat soon, and one more."""
    return [5 + (7919 * i + 104729 * salt) % (vocabulary - 10) for i in range(n + 1)]


def loaded(args: argparse.Namespace, n: int, folder: str, ram: int = 0) -> aleator.LanguageModel:
    """The model as in a process that has just started."""
    return aleator.load(
        args.model, n_threads=args.threads, n_ctx=n + OTHER + WRITTEN, type_k=args.type, type_v=args.type,
        cache_disk=PLENTY, cache_dir=folder, cache_ram=ram,
    )  # fmt: skip


def first_token(model: aleator.LanguageModel, tokens: list[int], reused: int = 0) -> float:
    """Seconds to the first token of a prompt, of which ``reused`` tokens must not be computed."""
    started = perf_counter()
    made = model.generate(tokens, max_tokens=1, seed=1)
    made.wait()
    seconds = perf_counter() - started
    if made.stats.reused_tokens < reused:
        raise AssertionError(f"{made.stats.reused_tokens} tokens were cached, and not {reused}")
    return seconds


def files(folder: str) -> list[Path]:
    """The blocks on disk."""
    return sorted(Path(folder, "blocks").iterdir())


def drop(folder: str) -> None:
    """Drop the files from the system's page cache."""
    for path in files(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder: str) -> float:
    """Seconds to read all files."""
    room = bytearray(max(path.stat().st_size for path in files(folder)))
    started = perf_counter()
    for path in files(folder):
        with path.open("rb", buffering=0) as file:
            file.readinto(room)
    return perf_counter() - started


def least(measure: Callable[[], float]) -> float:
    """The least of several tries."""
    return min(measure() for _ in range(TRIES))


def ours(args: argparse.Namespace, n: int, folder: str) -> dict[str, float]:
    """Seconds of each way to the first token."""
    model = loaded(args, n, folder, PLENTY)
    tokens = prompt(n, len(model.vocab))
    cached = n // 128 * 128
    found = {"cold": first_token(model, tokens)}
    found["cells"] = least(lambda: first_token(model, tokens, cached))
    tiers = model.prompt_tiers
    if tiers is None:
        raise AssertionError("the model has no tiers")
    tiers.flush()

    def fresh(ram: int = 0, dropped: bool = False) -> float:
        new = loaded(args, n, folder)
        if ram:
            vars(new)["prompt_tiers"] = tiers
        if dropped:
            drop(folder)
        new.own_context()
        return first_token(new, tokens, cached)

    found["memory"] = least(lambda: fresh(PLENTY))
    tiers.close()
    found["disk"] = least(fresh)
    found["dropped"] = least(lambda: fresh(dropped=True))
    words = [sys.executable, __file__, *sys.argv[1:], "--child", folder, "--tokens", str(n)]
    found["restart"] = least(lambda: float(subprocess.check_output(words, text=True)))

    def read_dropped() -> float:
        drop(folder)
        return read(folder)

    found["files, dropped"] = least(read_dropped)
    found["files"] = least(lambda: read(folder))
    return found


def beside(args: argparse.Namespace, n: int, folder: str) -> float:
    """Speed of a text while another request's prompt is loaded from disk, over its speed alone."""
    model = loaded(args, n, folder)
    tokens = prompt(n, len(model.vocab))
    options: dict[str, Any] = {"max_tokens": WRITTEN, "temperature": 0.0, "ignore_eos": True}
    with model.engine(n_seq_max=2, n_ctx=2 * (n + OTHER + WRITTEN)) as engine:

        def seconds(salt: int, other: Sequence[int]) -> float:
            text = engine.submit(prompt(OTHER, len(model.vocab), salt), **options)
            next(iter(text))
            started = perf_counter()
            coming = engine.submit(other, max_tokens=1) if other else text
            text.wait()
            took = perf_counter() - started
            coming.cancel()
            return took

        before, both, after = seconds(1, ()), seconds(2, tokens), seconds(3, ())
        return (before + after) / (2 * both)


class Llama:
    """llama-server, with room in memory for prompts, and a folder for slots."""

    def __init__(self, args: argparse.Namespace, n: int, folder: str) -> None:
        words = [
            args.llama_server, "-m", args.model, "-t", str(args.threads or os.cpu_count()), "-np", "1", "-c",
            str(n + OTHER + WRITTEN), "-ctk", args.type, "-ctv", args.type, "-fa", "on", "--cache-ram", "-1",
            "--slot-save-path", folder, "--host", "127.0.0.1", "--port", "{port}", "--log-disable",
            # Otherwise a slot is limited to the model's trained context.
            "--override-kv", f"llama.context_length=int:{n + OTHER + WRITTEN}",
        ]  # fmt: skip
        self.server = ServerProcess("llama-server", words, Path(folder) / "log")

    def __enter__(self) -> Llama:
        self.server.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self.server.end()

    def ask(self, path: str, **body: object) -> dict[str, Any]:
        """The server's answer."""
        request = urllib.request.Request(
            self.server.url(path), json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def prompt(self, tokens: list[int]) -> float:
        """Seconds of a prompt."""
        told = self.ask("/completion", prompt=tokens, n_predict=1, cache_prompt=True, temperature=0)
        return float(told["timings"]["prompt_ms"]) / 1000


def theirs(args: argparse.Namespace, n: int, vocabulary: int) -> dict[str, float]:
    """llama-server's seconds."""
    tokens, other = prompt(n, vocabulary), prompt(OTHER, vocabulary, 3)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        with Llama(args, n, folder) as server:
            found["cold"] = server.prompt(tokens)
            found["cells"] = least(lambda: server.prompt(tokens))

            def swapped() -> float:
                server.prompt(other)
                started = perf_counter()
                server.prompt(tokens)
                return perf_counter() - started

            found["memory"] = least(swapped)
            server.ask("/slots/0?action=save", filename="slot")
        with Llama(args, n, folder) as server:
            told = server.ask("/slots/0?action=restore", filename="slot")
            restored = float(told["timings"]["restore_ms"]) / 1000
            found["slot file"] = restored + server.prompt(tokens)
    return found


def main() -> None:
    """Measure what the command line asks for."""
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("-m", "--model")
    asked.add_argument("--tokens", default="1024,8192,32768")
    asked.add_argument("--type", default="f16", help="of keys and values")
    asked.add_argument("--threads", type=int)
    asked.add_argument("--folder", help="a folder on the disk to measure")
    asked.add_argument("--llama-server", help="llama.cpp's program")
    asked.add_argument("--child", help=argparse.SUPPRESS)
    args = asked.parse_args()
    if args.child:
        n = int(args.tokens)
        model = loaded(args, n, args.child)
        model.own_context()
        print(first_token(model, prompt(n, len(model.vocab)), n // 128 * 128))
        return
    vocabulary = len(aleator.load(args.model).vocab)
    report = Report("The prompt cache", machine("aleator"), f"    {command(__file__)}")
    ratios: list[tuple[int, float]] = []
    report.table("", "tokens:", "way", "seconds:", "of cold:", "of the files' time:")
    for n in map(int, args.tokens.split(",")):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            progress(f"{n} tokens")
            found = ours(args, n, folder)
            for way, seconds in found.items():
                alone = found["files, dropped" if way == "dropped" else "files"]
                figures = (
                    f"{seconds:.3f}",
                    f"{seconds / found['cold']:.4f}",
                    f"{seconds / alone:.2f}",
                )
                report.row("aleator", n, way, *figures)
            ratios.append((n, median(beside(args, n, folder) for _ in range(3 * TRIES))))
        for way, seconds in theirs(args, n, vocabulary).items() if args.llama_server else ():
            report.row("llama-server", n, way, f"{seconds:.3f}", "", "")
    report.say("")
    report.table("tokens of the other prompt:", "speed of a text beside it, of that alone:")
    for n, ratio in ratios:
        report.row(n, f"{ratio:.3f}")
    report.write(args.out)


if __name__ == "__main__":
    main()
