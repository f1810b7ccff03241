"""Bookkeeping of the KV cache at 4,096 to 1,048,576 cells, against llama.cpp; and a cache's cost per token.

    python benchmarks/bench_cache.py                     everything, results into benchmarks/results/
    python benchmarks/bench_cache.py --sizes 4096 --no-write

Both caches have the same contents: aleator's is filled and written in llama.cpp's format, which llama.cpp
reads.  The model has one tiny layer, so that almost only bookkeeping is left.  Contents: one sequence in order
("whole"), four whose tokens alternate ("alternating"), and four in random order ("random": runs of one cell or
two, the worst case).  Operations are called through the C interface (ctypes) and the extension module; the two
take turns, and the best of several is reported, with the median.  llama.cpp has no call that finds a slot: its
time is that of a decode that must search past all used cells, minus that of one that need not.

The second table is the cache's cost of a decode step, without the model: aleator's placing, visibility, writing
and reading of every layer, against `update` of transformers' caches.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.cache import KVCache, LayerShape

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from make_models import Spec, write_model
from run_report import RESULTS, Report, about, command, parser

SIZES = (4096, 16384, 65536, 262144, 1048576)
CONTENTS = ("whole", "alternating", "random")
SPEC = Spec(n_layers=1, n_embd=32, n_heads=1, n_kv_heads=1, head_dim=32, n_ff=32, context=1 << 21)
OURS = 5  # calls of aleator's for each of llama.cpp's, which takes much longer
TARGETS = {"seq_rm": 1.0, "seq_cp": 1000.0, "seq_add": 1000.0, "find_slot": 1.0}


def fill(cache: KVCache, n: int, content: str) -> None:
    """Give ``n`` tokens cells, in order."""
    cache.clear(data=False)
    i = np.arange(n)
    if content == "whole":
        positions, seqs = i, np.zeros(n, np.int64)
    elif content == "alternating":
        positions, seqs = i // 4, i % 4
    else:
        seqs, positions = np.random.default_rng(1).integers(0, 4, n), np.empty(n, np.int64)
        for s in range(4):
            positions[seqs == s] = np.arange((seqs == s).sum())
    owners = (np.uint64(1) << seqs.astype(np.uint64)).reshape(-1, 1)
    cache.cells.place(positions.astype(np.int32), owners)
    cache.key_positions[:n] = positions


class Peer:
    """llama.cpp's memory, by its C interface."""

    def __init__(self, path: Path, size: int) -> None:
        import llama_cpp
        from llama_peer import Context

        self.lib = llama_cpp
        small: dict[str, Any] = {"n_ubatch": 8, "n_batch": 8, "n_seq_max": 8}
        self._context = Context(path, size, "f16", "f16", flash=True, swa_full=False, **small)
        self.memory, self.close = self._context.memory, self._context.close

    def load(self, blob: bytes) -> None:
        if not self._context.restore(blob):
            raise RuntimeError("llama.cpp refused the state")

    def decode(self, pos: int, seq: int) -> None:
        if self._context.try_decode([(1, pos, (seq,))], logits=False)[0]:
            raise RuntimeError("llama_decode failed")


@dataclass
class Times:
    """Microseconds of one operation."""

    operation: str
    ours: list[float]
    theirs: list[float]

    def row(self, size: int, content: str) -> dict[str, Any]:
        best, peer = min(self.ours), min(self.theirs)
        return {
            "cells": size,
            "content": content,
            "operation": self.operation,
            "aleator_us": best,
            "aleator_median_us": statistics.median(self.ours),
            "llama_us": peer,
            "llama_median_us": statistics.median(self.theirs),
            "ratio": peer / best,
        }


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def operations(size: int, content: str, path: Path, reps: int) -> Iterator[Times]:
    """Every operation's times; the caches are full except for one cell."""
    cache = KVCache([LayerShape(1, 32, 32)], size, n_seq_max=8, architecture="llama")
    n = size - 1
    fill(cache, n, content)
    blob = cache.state_write(-1)
    peer = Peer(path, size)
    lib, memory, cells = peer.lib, peer.memory, cache.cells
    length = n if content == "whole" else cells.seq_pos_max(0) + 1

    def reset() -> None:
        fill(cache, n, content)
        peer.load(blob)

    def pair(name: str, ours: Callable[[int], object], theirs: Callable[[int], object]) -> Times:
        times = Times(name, [], [])
        for i in range(reps):
            for k in range(OURS):
                times.ours.append(timed(lambda i=OURS * i + k: ours(i)))  # type: ignore[misc]
            times.theirs.append(timed(lambda i=i: theirs(i)))  # type: ignore[misc]
        return times

    reset()
    yield pair(
        "seq_pos_max",
        lambda i: cells.seq_pos_max(0),
        lambda i: lib.llama_memory_seq_pos_max(memory, 0),
    )
    yield pair(
        "seq_rm, nothing there",
        lambda i: cells.seq_rm(5, 7, 8),
        lambda i: lib.llama_memory_seq_rm(memory, 5, 7, 8),
    )
    at = [length // 2 + 3 * i for i in range(OURS * reps)]
    yield pair(
        "seq_rm",
        lambda i: cells.seq_rm(0, at[i], at[i] + 1),
        lambda i: lib.llama_memory_seq_rm(memory, 0, at[i], at[i] + 1),
    )
    reset()
    cp, rm = Times("seq_cp", [], []), Times("seq_rm of the copy", [], [])
    add = Times("seq_add", [], [])

    def remove_copy() -> None:  # and check that it is gone: a delayed index update would show
        cells.seq_rm(5)
        cells.seq_pos_max(5)

    def move(step: int) -> None:
        cells.seq_add(0, 0, -1, step)
        cells.seq_pos_max(0)

    for _ in range(2 if size > 1 << 17 else 5):
        # Several times each, since the other's work evicts the processor's caches.
        for _ in range(OURS):
            cp.ours.append(timed(lambda: cells.seq_cp(0, 5)))
            rm.ours.append(timed(remove_copy))
        for _ in range(2):
            cp.theirs.append(timed(lambda: lib.llama_memory_seq_cp(memory, 0, 5, -1, -1)))
            rm.theirs.append(timed(lambda: lib.llama_memory_seq_rm(memory, 5, -1, -1)))
        for step in (1, -1) * OURS:
            add.ours.append(timed(lambda s=step: move(s)))  # type: ignore[misc]
        for step in (1, -1):
            add.theirs.append(
                timed(lambda s=step: lib.llama_memory_seq_add(memory, 0, 0, -1, s))  # type: ignore[misc]
            )
    yield from (cp, rm, add)
    half = Times("seq_rm of half", [], [])
    clear = Times("clear", [], [])
    for _ in range(2):
        reset()
        half.ours.append(timed(lambda: cells.seq_rm(0, 0, length // 2)))
        clear.ours.append(timed(cells.clear))
        half.theirs.append(timed(lambda: lib.llama_memory_seq_rm(memory, 0, 0, length // 2)))
        clear.theirs.append(timed(lambda: lib.llama_memory_clear(memory, False)))
    yield from (half, clear)
    # The one free cell is the last, and the search starts at the first.
    find = Times("find_slot", [], [])
    reset()
    peer.decode(0, 6)
    for _ in range(2):
        cells.seq_add(7, 0, -1, 1)  # moves nothing, and sets the head to 0
        find.ours += [timed(lambda: cells.find(1)) for _ in range(20)]
        near, far = [], []
        for _ in range(3):
            lib.llama_memory_seq_rm(memory, 6, -1, -1)  # sets the head to the cell it frees
            near.append(timed(lambda: peer.decode(0, 6)))
            lib.llama_memory_seq_rm(memory, 6, -1, -1)
            lib.llama_memory_seq_add(memory, 7, 0, -1, 1)  # and this to 0
            far.append(timed(lambda: peer.decode(0, 6)))
        find.theirs.append(max(0.0, min(far) - min(near)))
    yield find
    peer.close()


# What a cache costs in a decode step


def steps(
    layers: int, heads: int, dim: int, lengths: tuple[int, ...], reps: int
) -> list[dict[str, Any]]:
    """Microseconds per token and layer, and bytes per token, at several lengths."""
    from transformers import DynamicCache, LlamaConfig, StaticCache

    rows = []
    for length in lengths:
        size = length + 512
        times: dict[str, list[float]] = {"aleator": [], "DynamicCache": [], "StaticCache": []}
        shapes = [LayerShape(heads, dim, dim)] * layers
        cache = KVCache(shapes, size, type_k="f32", type_v="f32")
        ones = np.ones((length, 1), np.uint64)
        cache.cells.place(np.arange(length, dtype=np.int32), ones)
        cache.key_positions[:length] = np.arange(length)
        config = LlamaConfig(
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=dim,
            hidden_size=heads * dim,
        )
        dynamic, static = DynamicCache(), StaticCache(config=config, max_cache_len=size)
        block = torch.zeros(1, heads, length, dim)
        for layer in range(layers):
            dynamic.update(block, block, layer)
            static.update(block, block, layer, {"cache_position": torch.arange(length)})
        k = torch.randn(1, heads, dim)
        k4 = k.view(1, heads, 1, dim)
        seq = np.zeros(1, np.int32)
        with torch.inference_mode():
            for i in range(reps):
                pos = length + i
                start = time.perf_counter()
                with cache.step() as step:
                    part = step.place(np.array([pos], np.int32), seq, ones[:1])
                    view = part.tensors()
                    for layer in range(layers):
                        view.write(layer, k, k)
                        view.read(layer)
                times["aleator"].append(time.perf_counter() - start)
                start = time.perf_counter()
                for layer in range(layers):
                    dynamic.update(k4, k4, layer)
                times["DynamicCache"].append(time.perf_counter() - start)
                start = time.perf_counter()
                at = {"cache_position": torch.tensor([pos])}
                for layer in range(layers):
                    static.update(k4, k4, layer, at)
                times["StaticCache"].append(time.perf_counter() - start)
        row: dict[str, Any] = {"length": length, "layers": layers, "heads": heads, "head_dim": dim}
        for name, seconds in times.items():
            row[name + "_us"] = statistics.median(seconds) * 1e6 / layers
        k_bytes, v_bytes = KVCache.bytes_for(shapes, size, "f32", "f32")
        row["bytes_per_token"] = (cache.keys.nbytes + cache.values.nbytes) / size
        row["formula"] = (k_bytes + v_bytes) / size
        rows.append(row)
    return rows


# Reporting


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = ["find_slot", "seq_rm", "seq_cp", "seq_add"]
    figure, axes = plt.subplots(1, len(names), figsize=(15, 4.2), sharey=True)
    colours = {"aleator": "#1f6f8b", "llama.cpp": "#c8553d"}
    for axis, name in zip(axes, names, strict=True):
        for content, style in (("whole", "-"), ("alternating", "--"), ("random", ":")):
            chosen = [r for r in rows if r["operation"] == name and r["content"] == content]
            for engine, key in (("aleator", "aleator_us"), ("llama.cpp", "llama_us")):
                axis.plot(
                    [r["cells"] for r in chosen], [max(r[key], 0.05) for r in chosen], style,
                    marker="o", markersize=3.5, color=colours[engine], label=f"{engine}, {content}",
                )  # fmt: skip
        axis.set(title=name, xlabel="cells", xscale="log", yscale="log")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("microseconds per call")
    axes[0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(
    facts: dict[str, Any], rows: list[dict[str, Any]], tokens: list[dict[str, Any]]
) -> Report:
    """Both tables."""

    def us(value: float) -> str:
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"

    def both(row: dict[str, Any], who: str) -> str:
        return f"{us(row[f'{who}_us'])} ({us(row[f'{who}_median_us'])})"

    made = Report(
        "The cache: what its operations cost",
        "\n".join(f"- {key}: {value}" for key, value in facts.items()),
        "Microseconds per call, best (median); the ratio is of the best.",
    )
    made.table("cells:", "content", "operation", "aleator:", "llama.cpp:", "ratio:", "target")
    for r in rows:
        target, goal = TARGETS.get(r["operation"]), ""
        if target is not None and r["cells"] == max(SIZES) and r["content"] != "random":
            met = r["aleator_us"] <= target and r["ratio"] >= 100
            goal = f"{target:,.0f} us and 100x: {'met' if met else 'missed'}"
        ours, theirs = both(r, "aleator"), both(r, "llama")
        what = f"{r['cells']:,}", r["content"], r["operation"]
        made.row(*what, ours, theirs, f"{r['ratio']:,.0f}x", goal)
    if tokens:
        made.say("", "A decode step's cache work, microseconds per token and layer (median):", "")
        caches = ("aleator", "DynamicCache", "StaticCache")
        made.table("length:", *(f"{each}:" for each in caches), "bytes per token:", "formula:")
        for t in tokens:
            sizes = f"{t['bytes_per_token']:,.0f}", f"{t['formula']:,.0f}"
            made.row(f"{t['length']:,}", *(us(t[f"{each}_us"]) for each in caches), *sizes)
    return made


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--sizes", default=",".join(map(str, SIZES)))
    asked.add_argument("--contents", default=",".join(CONTENTS))
    asked.add_argument("--reps", type=int, default=20)
    asked.add_argument("--no-steps", action="store_true", help="leave the second table out")
    asked.add_argument("--no-write", action="store_true", help="print only")
    args = asked.parse_args()
    facts = {
        **about("torch", "numpy", "llama-cpp-python", "transformers"),
        "command": command(__file__),
        "repetitions": args.reps,
    }
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "model.gguf", SPEC)
        for size in map(int, args.sizes.split(",")):
            for content in args.contents.split(","):
                for times in operations(size, content, path, args.reps):
                    rows.append(times.row(size, content))
                    r = rows[-1]
                    print(
                        f"{size:>9,} {content:<12} {r['operation']:<22} {r['aleator_us']:>10.2f} us "
                        f"{r['llama_us']:>12.2f} us {r['ratio']:>9.0f}x",
                        flush=True,
                    )
    tokens = [] if args.no_steps else steps(12, 8, 64, (256, 1024, 4096), 20)
    made = report(facts, rows, tokens)
    if args.no_write:
        return
    out = RESULTS / f"bench_cache.{facts['date']}"
    everything = {"about": facts, "operations": rows, "steps": tokens}
    out.with_name(out.name + ".json").write_text(json.dumps(everything, indent=1) + "\n")
    made.write(out.with_name(out.name + ".md"))
    plot(rows, out.with_name(out.name + ".png"))


if __name__ == "__main__":
    main()
