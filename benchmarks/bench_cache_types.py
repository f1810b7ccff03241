"""Decode speed by type of the KV cache and length of the text, for aleator and llama.cpp.

    python benchmarks/bench_cache_types.py                    results into benchmarks/results/
    python benchmarks/bench_cache_types.py --depths 512 --types f16,q8_0 --no-write

The model is a Llama with random q8_0 weights (12 layers, n_embd 768, 12 heads of 64, vocabulary
32,000).  Every engine and type is a process of its own; it computes the text once, and then the same
tokens after it again and again, in turns with the others, so that a change in the machine's load meets
all.  Times are the process's time on one core, not the clock's.  llama.cpp uses flash attention where
values are in blocks, which it must, and its default elsewhere.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import IO, Any, cast

from bench_peers import PACKAGES, ROOT, machine, version, write_random

TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
ENGINES = ("aleator", "llama.cpp")
BATCH = 512


class Aleator:
    def __init__(self, path: Path, kind: str, threads: int, n_ctx: int) -> None:
        import torch

        from aleator.generate import Batch, Context
        from aleator.models import build_decoder, open_weights

        torch.set_num_threads(threads)
        self.batch = Batch
        self.context = Context(
            build_decoder(open_weights(path)),
            n_ctx=n_ctx,
            n_threads=threads,
            type_k=kind,
            type_v=kind,
        )
        cache = self.context.cache
        self.mib = (cache.keys.nbytes + cache.values.nbytes) / 2**20

    def forget(self, pos: int) -> None:
        self.context.cache.seq_rm(0, pos, -1)

    def decode(self, tokens: list[int], pos: int) -> int:
        return int(self.context.decode(self.batch.one(tokens, pos))[0].argmax())


class LlamaCpp:
    def __init__(self, path: Path, kind: str, threads: int, n_ctx: int) -> None:
        import llama_cpp
        import numpy as np

        self.np, self.lib = np, llama_cpp
        # Kept: the library calls it for as long as the process lives.
        self.log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, threads, threads
        params.type_k = params.type_v = TYPES[kind]
        self.context = llama_cpp.llama_init_from_model(model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.mib = 0.0

    def forget(self, pos: int) -> None:
        self.lib.llama_memory_seq_rm(self.memory, 0, pos, -1)

    def decode(self, tokens: list[int], pos: int) -> int:
        array = (self.lib.llama_token * len(tokens))(*tokens)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(self.np.ctypeslib.as_array(logits, shape=(self.n_vocab,)).argmax())


def worker(engine: str, path: str, kind: str, threads: int, n_ctx: int) -> None:
    """Answers each line on standard input ([depth, tokens]) with a line of JSON."""
    run: Any = {"aleator": Aleator, "llama.cpp": LlamaCpp}[engine](Path(path), kind, threads, n_ctx)
    print(json.dumps({"mib": run.mib}), flush=True)
    filled = 0
    for line in sys.stdin:
        depth, n = json.loads(line)
        run.forget(min(filled, depth))
        for start in range(min(filled, depth), depth, BATCH):
            run.decode([(i * 37) % 32000 for i in range(start, min(depth, start + BATCH))], start)
        filled = depth
        token, begin = 1, time.process_time()
        for pos in range(depth, depth + n):
            token = run.decode([token], pos)
        print(json.dumps({"seconds": time.process_time() - begin}), flush=True)


class Worker:
    """The parent's side."""

    def __init__(self, engine: str, path: Path, kind: str, threads: int, n_ctx: int) -> None:
        command = [sys.executable, __file__, "--worker", engine, str(path), kind]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        path_ = filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
        environment["PYTHONPATH"] = os.pathsep.join(path_)
        self.process = subprocess.Popen(
            [*command, str(threads), str(n_ctx)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.mib = self.read()["mib"]

    def read(self) -> dict[str, float]:
        line = cast("IO[str]", self.process.stdout).readline()
        if not line:
            raise RuntimeError("a worker ended; its message is above")
        return cast("dict[str, float]", json.loads(line))

    def round(self, depth: int, n: int) -> float:
        orders = cast("IO[str]", self.process.stdin)
        orders.write(json.dumps([depth, n]) + "\n")
        orders.flush()
        return self.read()["seconds"]

    def close(self) -> None:
        cast("IO[str]", self.process.stdin).close()
        self.process.wait(timeout=60)


HEAD = (
    "| text | type of K and V | cache MiB | aleator tok/s: best (median) "
    "| llama.cpp tok/s: best (median) | aleator's: best (median) |\n|---:|---|---:|---|---|---|"
)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        engine, path, kind, threads, n_ctx = sys.argv[2:]
        return worker(engine, path, kind, int(threads), int(n_ctx))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--depths", default="128,1024,2000", help="lengths of the text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16, help="tokens decoded in each round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    kinds, depths = args.types.split(","), [int(d) for d in args.depths.split(",")]
    if unknown := set(kinds) - set(TYPES):
        parser.error(f"unknown types: {', '.join(unknown)}; known: {', '.join(TYPES)}")
    about: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench_cache_types.py", *sys.argv[1:]]),
        **machine(),
        "versions": ", ".join(f"{p} {version(p)}" for p in PACKAGES[:4]),
        "threads": args.threads,
        "tokens": args.tokens,
        "rounds": args.rounds,
    }
    rows = [HEAD]
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        write_random(Path(temporary), "q8_0")
        model, n_ctx = Path(temporary) / "model.gguf", max(depths) + args.tokens
        workers = {(e, k): Worker(e, model, k, args.threads, n_ctx) for e in ENGINES for k in kinds}
        for depth in depths:
            seconds: dict[Any, list[float]] = defaultdict(list)
            for i in range(args.rounds + 1):
                for key, each in workers.items():
                    taken = each.round(depth, args.tokens)
                    if i:
                        seconds[key].append(taken)
            for kind in kinds:
                speed = {e: [args.tokens / s for s in seconds[e, kind]] for e in ENGINES}
                best = {e: max(speed[e]) for e in ENGINES}
                middle = {e: statistics.median(speed[e]) for e in ENGINES}
                a, b = ENGINES
                row = f"| {depth:,} | {kind} | {workers[a, kind].mib * depth / n_ctx:.1f} "
                row += "".join(f"| {best[e]:,.1f} ({middle[e]:,.1f}) " for e in ENGINES)
                row += f"| {best[a] / best[b]:.2f}x ({middle[a] / middle[b]:.2f}x) |"
                rows.append(row)
                print(row, flush=True)
        for each in workers.values():
            each.close()
    about["load_average_after"] = os.getloadavg()
    if args.no_write:
        return
    facts = [f"- {key}: {value}" for key, value in about.items()]
    out = ROOT / "benchmarks" / "results" / f"bench_cache_types.{about['date']}.md"
    out.write_text("\n".join(["# Types of the cache: speed and memory", "", *facts, "", *rows, ""]))
    print(f"written: {out}")


if __name__ == "__main__":
    main()
