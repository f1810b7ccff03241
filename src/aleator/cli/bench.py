"""``aleator bench``: measure prefill and decode speed, as llama-bench does."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from aleator.cli.arguments import Parser
from aleator.cli.options import add_model_options, load_model
from aleator.cli.terminal import write, write_json
from aleator.core.errors import ParameterError
from aleator.core.host import isa
from aleator.core.threads import default_threads
from aleator.core.version import __version__
from aleator.generate.context import Batch, Context
from aleator.language_model import LanguageModel

EXAMPLES = """\
pp N: a prompt of N tokens, prefilled.  tg N: N tokens, decoded one by one, without sampling.
The cache has the cells of -c, else as many as the longest test needs.

examples:
  aleator bench
  aleator bench -m model.gguf -p 512 -n 128 -r 5 -t 8
  aleator bench -m model.gguf -p 0 -n 64 --json
"""


def add_arguments(parser: Parser) -> None:
    group = parser.group("measurement")
    group.number("-p, --n-prompt N", "prompt tokens; 0: no prefill test", low=0, default=512)
    group.number("-n, --n-gen N", "tokens to decode; 0: no decode test", low=0, default=128)
    group.number(
        "-r, --repetitions N",
        "times to measure each test, after one that does not count",
        default=5,
    )
    group.switch("--json", "write JSON instead of a table")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> None:
    tests = [("pp", arguments.n_prompt), ("tg", arguments.n_gen)]
    tests = [(kind, n) for kind, n in tests if n]
    if not tests:
        raise ParameterError("n_prompt", "-p 0 and -n 0 leave nothing to measure")
    longest = max(n for _, n in tests)
    model = load_model(arguments)
    n_ctx = longest if arguments.n_ctx is None else model.n_ctx
    if n_ctx < longest:
        raise ParameterError(
            "n_ctx", f"-c {n_ctx}: the tests need {longest} positions; give that or more"
        )
    context = model.context(n_ctx=n_ctx)
    results = []
    for kind, n in tests:
        measure = prefill if kind == "pp" else decode
        speeds = timed(partial(measure, context, n), n, arguments.repetitions)
        results.append({"test": f"{kind}{n}", "n": n, "tokens_per_second": speeds})
    summary = describe(model, context)
    if arguments.json:
        write_json({**summary, "results": results})
    else:
        write(table(summary, results))


def timed(work: Callable[[], None], n: int, repetitions: int) -> list[float]:
    """Tokens per second of each repetition, after one unmeasured run."""
    work()
    speeds = []
    for _ in range(repetitions):
        started = perf_counter()
        work()
        speeds.append(n / (perf_counter() - started))
    return speeds


def prefill(context: Context, n: int) -> None:
    """Decode a prompt of ``n`` tokens into an empty cache."""
    context.cache.clear(data=False)
    finish(context.decode(Batch.one([i % context.n_vocab for i in range(n)])))


def decode(context: Context, n: int) -> None:
    """Decode ``n`` tokens one by one into an empty cache."""
    context.cache.clear(data=False)
    for i in range(n):
        finish(context.decode(Batch.one([i % context.n_vocab], pos=i)))


def finish(rows: Any) -> None:
    """Wait until the device has computed the logits."""
    rows[-1].max().item()


def describe(model: LanguageModel, context: Context) -> dict[str, Any]:
    weights = model.weights
    return {
        "model": weights.config.name or weights.path.name,
        "architecture": weights.config.architecture,
        "size_bytes": weights.size_bytes,
        "n_parameters": weights.n_parameters,
        "device": " + ".join(model.decoder.device_bytes),
        "dtype": model.decoder.dtype,
        "threads": context.n_threads or default_threads(),
        "isa": isa(),
        "python": sys.version.split()[0],
        "aleator": __version__,
    }


def table(summary: dict[str, Any], results: list[dict[str, Any]]) -> str:
    head = ["model", "size", "params", "device", "threads", "test", "tokens/s"]
    start = [
        f"{summary['model']} {summary['dtype']}",
        f"{summary['size_bytes'] / 2**20:.2f} MiB",
        f"{summary['n_parameters'] / 1e6:.2f} M",
        f"{summary['device']} ({summary['isa']})",
        str(summary["threads"]),
    ]
    rows = [head]
    for result in results:
        speeds = result["tokens_per_second"]
        spread = statistics.stdev(speeds) if len(speeds) > 1 else 0.0
        rows.append([*start, result["test"], f"{statistics.mean(speeds):.2f} ± {spread:.2f}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * w for w in widths))
    return "".join(f"| {line} |\n" for line in lines)
