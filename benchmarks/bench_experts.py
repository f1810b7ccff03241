"""A mixture of experts on the CPU: tokens per second beside llama.cpp's, and memory that a token touches.

    python tools/make_models.py qwen3moe-1b-active --type Q4_0 --out mixture.gguf
    python benchmarks/bench_experts.py mixture.gguf --llama-bench .../llama-bench

Linux counts the pages of the mapped file that a step reads (/proc/self/clear_refs and smaps); elsewhere
only speed is measured.  Beside them stands what the dense matrices and the chosen experts take in the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.weights import Weights

PROMPT = 64
REPEATS = 5


def expected(weights: Weights) -> tuple[int, int]:
    """Bytes of matrices that one token's step reads, and bytes of all of them."""
    experts = weights.config.experts
    share = experts.n_used / experts.n_experts if experts else 1.0
    one = total = 0.0
    for name in weights.names():
        size = weights.stored(name).data.size
        total += size
        if name == "token_embd.weight" and not weights.config.tied:
            continue
        one += size * (share if "_exps" in name else 1.0)
    return round(one), round(total)


def referenced(path: Path) -> int:
    """Bytes of the mapped file's pages that have been read since the last :func:`forget`."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(maxsplit=5)
        if "-" in head[0] and not head[0].endswith(":"):
            inside = len(head) == 6 and head[5] == str(path.resolve())
        elif inside and line.startswith("Referenced:"):
            found += int(line.split()[1]) * 1024
    return found


def forget() -> None:
    """Have Linux count anew which pages are read."""
    Path("/proc/self/clear_refs").write_text("1")


def measured(path: Path, tokens: int, threads: int) -> dict[str, float]:
    """Speeds once the file's pages have been read, as llama-bench warms up too, and bytes per token."""
    weights = open_weights(path)
    context = Context(build_decoder(weights), n_ctx=PROMPT + 2 * tokens + 8, n_threads=threads)
    n = PROMPT + 2 * tokens
    ids = np.random.default_rng(3).integers(0, weights.config.n_vocab, n).tolist()

    def seconds(batch: Batch) -> float:
        begin = time.perf_counter()
        context.decode(batch)
        return time.perf_counter() - begin

    prompts = []
    for _ in range(1 + REPEATS):
        context.cache.clear()
        prompts.append(seconds(Batch.one(ids[:PROMPT])))
    steps = [seconds(Batch.one([ids[i]], i)) for i in range(PROMPT, PROMPT + tokens)]
    touched = []
    if sys.platform == "linux":  # apart from the speeds: counting slows a step
        for i in range(PROMPT + tokens, n):
            forget()
            context.decode(Batch.one([ids[i]], i))
            touched.append(referenced(path))
    one, total = expected(weights)
    return {
        "prefill tokens/s": PROMPT / float(np.median(prompts[1:])),
        "decode tokens/s": 1 / float(np.median(steps)),
        "MB touched per token": float(np.mean(touched)) / 1e6 if touched else float("nan"),
        "MB of its matrices": one / 1e6,
        "MB of all matrices": total / 1e6,
    }


def llama_bench(program: Path, path: Path, tokens: int, threads: int) -> dict[str, float]:
    """llama.cpp's speeds, by its own benchmark."""
    command = [
        str(program),
        "-m",
        str(path),
        "-p",
        str(PROMPT),
        "-n",
        str(tokens),
        "-t",
        str(threads),
    ]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    return {
        f"llama.cpp {'decode' if row['n_gen'] else 'prefill'} tokens/s": row["avg_ts"]
        for row in rows
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program")
    options = parser.parse_args(arguments)
    found = measured(options.model, options.tokens, options.threads)
    if options.llama_bench:
        found |= llama_bench(options.llama_bench, options.model, options.tokens, options.threads)
    for name, value in found.items():
        print(f"| {name} | {value:.1f} |")


if __name__ == "__main__":
    main()
