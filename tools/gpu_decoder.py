"""Runs the decoder with the CPU's bits on a GPU: compares it with the CPU, then measures it.

    python tools/gpu_decoder.py [--models FILE|NAME:TYPE ...] [--seconds 840] [--out FILE.jsonl]
                                [--only logits texts speed llama] [--workers N] [--device cuda]
                                [--llama-bench PROGRAM]

1. logits: random models of every architecture and in every storage type, which take the walk of
   decoder_walk.py: prompts, sequences beside each other, removals, a shift, and a sequence that is saved on one
   device and read on the other.  Each row is compared with the CPU's, bit for bit.
2. texts: requests with many options, through an engine; each text is compared with the CPU's.
3. speed: tokens per second of 1, 4, 16 and 64 sequences, and of prompts of 512 and 4,096 tokens; beside the
   limit of memory with 3.35 TB/s.
4. llama: the same files and shapes by llama.cpp's llama-bench and llama-batched-bench, if given.

A few items of 1. come first, then texts and speed, then the rest, until the time is over.  Items run in child
processes.  If an item exceeds its limit, or its process dies, that is its outcome, and the rest continues in a
new process.  The file has a line of JSON for each item, written to disk before the next begins: outcome
("passed", "differs", "failed", "hung", "died", or "cut off" by the end of the time), seconds, and the findings.
The first line describes the machine, the last lists what was not run.  The exit status is 0 if everything that
ran passed.

With ``--device cpu`` Triton's interpreter computes, to test the tool itself without a GPU.  The tests that need
a GPU are run by tools/gpu_tests.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import gpu_tests
from gpu_decoder_items import BUNDLED, Item, name_of
from run_report import RESULTS, parser

KINDS = ("logits", "texts", "speed", "llama")
LIMITS = {"logits": 120.0, "texts": 180.0, "speed": 120.0, "llama": 120.0}
"""Seconds for an item, including the compilation of its kernels; a process's first item has twice that."""
SMOKE = ("llama F16", "llama Q8_0", "llama Q4_K", "qwen3moe Q4_K", "jamba Q4_K")
"""Models that are compared first."""
CACHES = (("f16", "f16"), ("q8_0", "q8_0"), ("f32", "f32"), ("q8_0", "q4_0"), ("bf16", "bf16"))
SEQUENCES, PROMPTS = (1, 4, 16, 64), (512, 4096)
MEASURED = 1
"""The stage that runs with nothing beside it."""


# In the parent.


@dataclass
class Group:
    """Items for one process after another, in their order.

    Attributes:
        kind: what is done with each, a name of :data:`KINDS`.
        items: the items that are left.
        limit: seconds for each.
    """

    kind: str
    items: deque[Item]
    limit: float


@dataclass
class Results:
    """The file of results, written by several threads.

    Attributes:
        path: path of the file.
        end: when the time is over, by time.monotonic.
        counts: counts of outcomes.
    """

    path: Path
    end: float
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, line: Item) -> None:
        """Write a line to disk, and show it."""
        with self._lock, self.path.open("a") as file:
            gpu_tests.write_line(file, line)
            if "outcome" in line:
                self.counts[line["outcome"]] += 1
                found = {
                    k: v for k, v in line.items() if k not in ("outcome", "item", "seconds", "said")
                }
                shown = " ".join(f"{k}={v}" for k, v in found.items())
                print(
                    f"{line['outcome']:<8}{line['seconds']:7.1f} s  {line['item']}  {shown}",
                    flush=True,
                )


def do(group: Group, child: Sequence[str], results: Results) -> None:
    """Run a group's items, in as many processes as necessary."""
    while group.items and time.monotonic() < results.end:
        with tempfile.TemporaryDirectory(prefix="gpu-decoder-") as name:
            one_process(group, child, results, Path(name))


def one_process(group: Group, child: Sequence[str], results: Results, folder: Path) -> None:
    """Run a group's items in one process, until it ends or is ended."""
    work = {"kind": group.kind, "items": list(group.items), "events": str(folder / "events")}
    (folder / "work").write_text(json.dumps(work))
    process = gpu_tests.Child([*child, str(folder / "work")], folder, 2 * group.limit)
    began, under_way = time.monotonic(), True
    for event in process.events(results.end):
        now = time.monotonic()
        if "begun" in event:
            under_way = True
        elif "outcome" in event:
            group.items.popleft()
            results.write({**event, "seconds": now - began})
            began, process.limit, under_way = now, group.limit, False
        elif under_way:
            outcome = event["ended"] if isinstance(event["ended"], str) else "died"
            item = name_of(group.items.popleft())
            line = {"item": item, "outcome": outcome, "seconds": now - began, "said": event["said"]}
            results.write(line)


# Lists of items.


def all_logits(device: str, names: Sequence[str], types: Sequence[str]) -> list[Item]:
    """Every architecture in two types, and the first in all of them; cache types take turns."""
    pairs = [(names[0], kind) for kind in types]
    for number, name in enumerate(names[1:]):
        pairs += [(name, types[(2 * number + i) % len(types)]) for i in range(min(2, len(types)))]
    made = [
        {"model": name, "type": kind, "cache": CACHES[i % len(CACHES)], "device": device}
        for i, (name, kind) in enumerate(pairs)
    ]
    smoke = [item for item in made if f"{item['model']} {item['type']}" in SMOKE]
    return smoke + [item for item in made if item not in smoke]


def all_texts(options: argparse.Namespace) -> list[Item]:
    """Requests, some at a time; the first half is sampled on the host."""
    n, at_once = options.requests, 25
    return [
        {
            "first": i,
            "requests": min(at_once, n - i),
            "sampling": "host" if 2 * i < n else "auto",
            "device": options.device,
            "tokens": options.tokens,
        }
        for i in range(0, n, at_once)
    ]


def all_speed(options: argparse.Namespace) -> list[Item]:
    """Shapes to measure, of every file."""
    shapes = [{"sequences": n} for n in SEQUENCES if n <= options.most_sequences]
    shapes += [{"prompt": n} for n in PROMPTS if n <= options.most_prompt]
    return [
        {"file": path, **shape, "device": options.device, "tokens": options.tokens}
        for path in (BUNDLED, *options.models)
        for shape in shapes
    ]


def all_llama(options: argparse.Namespace) -> list[Item]:
    """The same shapes of the given files for llama.cpp, if its program is given."""
    if options.llama_bench is None:
        return []
    layers = 0 if options.device == "cpu" else 99
    own = {"llama": str(options.llama_bench), "layers": layers}
    return [{**own, **item} for item in all_speed(options) if Path(item["file"]).exists()]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    from equality_decoder import TYPES
    from wide_models import MODELS

    asked = parser(__doc__)
    asked.add_argument("--out", type=Path, help="where results are written, as JSON lines")
    asked.add_argument(
        "--models", nargs="+", default=[],
        help="files to measure besides, or random models of make_models.py such as llama-1b:BF16",
    )  # fmt: skip
    asked.add_argument(
        "--llama-bench", type=Path, help="llama.cpp's program, to measure the files too"
    )
    asked.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    asked.add_argument(
        "--names",
        nargs="+",
        metavar="NAME",
        choices=list(MODELS),
        default=list(MODELS),
        help="default: all; a wrong one prints their names",
    )
    asked.add_argument(
        "--types",
        nargs="+",
        metavar="TYPE",
        choices=TYPES,
        default=list(TYPES),
        help="default: all; a wrong one prints their names",
    )
    asked.add_argument("--seconds", type=float, default=840.0, help="for everything")
    asked.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--requests", type=int, default=200, help="texts to compare")
    asked.add_argument("--tokens", type=int, default=64, help="of a text, and of a measurement")
    asked.add_argument("--most-sequences", type=int, default=64)
    asked.add_argument("--most-prompt", type=int, default=4096)
    return asked.parse_args(arguments)


def groups_of(options: argparse.Namespace) -> tuple[list[Group], list[Group], list[Group]]:
    """The first items, those measured with nothing beside them, and the rest."""
    rows = (
        all_logits(options.device, options.names, options.types) if "logits" in options.only else []
    )
    n = sum(f"{item['model']} {item['type']}" in SMOKE for item in rows)

    def shared(kind: str, items: Sequence[Item], parts: int) -> list[Group]:
        dealt = [deque(items[i::parts]) for i in range(parts)]
        return [Group(kind, each, LIMITS[kind]) for each in dealt if each]

    first = shared("logits", rows[:n], options.workers)
    if "texts" in options.only:
        first += shared("texts", all_texts(options), min(2, options.workers))
    measured = shared("speed", all_speed(options), 1) if "speed" in options.only else []
    if "llama" in options.only:
        measured += shared("llama", all_llama(options), 1)
    rest = shared("logits", rows[n:], options.workers)
    return first, measured, rest


def run(options: argparse.Namespace) -> Results:
    """Run everything, until the time is over."""
    out = options.out or RESULTS / f"gpu_decoder.{date.today().isoformat()}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("")
    results = Results(out, time.monotonic() + options.seconds)
    results.write({"machine": gpu_tests.machine(), "device": options.device})
    words = [sys.executable, str(Path(__file__).with_name("gpu_decoder_items.py"))]
    stages = groups_of(options)
    for number, groups in enumerate(stages):
        at_once = 1 if number == MEASURED else max(options.workers, 1)
        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(do, group, words, results) for group in groups]:
                done.result()
    left = [name_of(item) for groups in stages for group in groups for item in group.items]
    results.write({"not run": left, "counts": dict(results.counts)})
    return results


def main() -> int:
    """Run what the command line asks for."""
    options = parsed()
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    results = run(options)
    print(", ".join(f"{n} {how}" for how, n in sorted(results.counts.items())) or "nothing ran")
    return 0 if set(results.counts) == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())
