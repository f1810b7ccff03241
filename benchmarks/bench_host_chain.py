"""Host chains against llama.cpp's, in the same process, interleaved, on the same rows.

    python benchmarks/bench_host_chain.py [--vocab 32000 128256 ...] [--out benchmarks/results/NAME.md]

llama.cpp runs through llama-cpp-python's ctypes; its time includes what its own sample() does first, building
an array of candidates from the logits, which is done here with NumPy as its binding does it, and measured
by itself so that both ratios can be read.  A figure is the median of the repetitions, in microseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

import aleator
from aleator import samplers as S
from aleator.kernels import host

Row = NDArray[np.float32]


def model_like(n: int, seed: int) -> Row:
    """A row as models give them: a wide bulk and a few hundred tokens that stand out."""
    rng = np.random.default_rng([n, seed])
    row = rng.normal(0, 2, n).astype(np.float32)
    top = rng.choice(n, 300, replace=False)
    row[top] += rng.exponential(3, 300).astype(np.float32) + 6
    return row


def wide(n: int, seed: int) -> Row:
    """A row whose nucleus has thousands of tokens, as at a high temperature."""
    return np.random.default_rng([n, seed, 1]).normal(0, 2, n).astype(np.float32)


class Llama:
    """One of llama.cpp's chains, with an array of candidates that is refilled for every step."""

    def __init__(self, samplers: list[Any], n: int) -> None:
        self.chain = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        for sampler in samplers:
            llama_cpp.llama_sampler_chain_add(self.chain, sampler)
        self.data = np.zeros(
            n, np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
        )
        self.ids = np.arange(n, dtype=np.intc)
        self.array = llama_cpp.llama_token_data_array(
            data=self.data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data)),
            size=n, selected=-1, sorted=False,
        )  # fmt: skip
        self.first = self.array.data
        self.pointer = ctypes.byref(self.array)

    def fill(self, row: Row) -> None:
        self.data["id"], self.data["logit"], self.data["p"] = self.ids, row, 0
        self.array.data, self.array.size = self.first, len(row)
        self.array.selected, self.array.sorted = -1, False

    def sample(self, row: Row) -> None:
        self.fill(row)
        llama_cpp.llama_sampler_apply(self.chain, self.pointer)
        llama_cpp.llama_sampler_accept(self.chain, self.array.data[self.array.selected].id)


def works(n: int) -> dict[str, tuple[list[S.Sampler], Callable[[], list[Any]]]]:
    """Name of the work: our samplers, and a maker of llama.cpp's."""
    c = llama_cpp

    def default() -> list[Any]:
        return [
            c.llama_sampler_init_top_k(40), c.llama_sampler_init_top_p(0.95, 0),
            c.llama_sampler_init_min_p(0.05, 0), c.llama_sampler_init_temp(0.8),
            c.llama_sampler_init_dist(1),
        ]  # fmt: skip

    truncate = [S.TopK(top_k=40), S.TopP(top_p=0.95), S.MinP(min_p=0.05)]
    temperature = S.Temperature(temperature=0.8)
    return {
        "default (k40 p.95 m.05 t.8)": ([*truncate, temperature, S.Dist(1)], default),
        "temperature + dist": (
            [temperature, S.Dist(1)],
            lambda: [c.llama_sampler_init_temp(0.8), c.llama_sampler_init_dist(1)],
        ),
        "top-p .95 + dist": (
            [S.TopP(top_p=0.95), S.Dist(1)],
            lambda: [c.llama_sampler_init_top_p(0.95, 0), c.llama_sampler_init_dist(1)],
        ),
        "typical .9 + dist": (
            [S.TypicalP(typical_p=0.9), S.Dist(1)],
            lambda: [c.llama_sampler_init_typical(0.9, 0), c.llama_sampler_init_dist(1)],
        ),
        "min-p .05 + temperature + dist": (
            [S.MinP(min_p=0.05), temperature, S.Dist(1)],
            lambda: [
                c.llama_sampler_init_min_p(0.05, 0), c.llama_sampler_init_temp(0.8),
                c.llama_sampler_init_dist(1),
            ],
        ),
        "top-n-sigma 1 + dist": (
            [S.TopNSigma(top_n_sigma=1.0), S.Dist(1)],
            lambda: [c.llama_sampler_init_top_n_sigma(1.0), c.llama_sampler_init_dist(1)],
        ),
        "mirostat 2": (
            [S.MirostatV2()], lambda: [c.llama_sampler_init_mirostat_v2(1, 5.0, 0.1)]
        ),
        "greedy": ([S.Greedy()], lambda: [c.llama_sampler_init_greedy()]),
        "penalties + default": (
            [S.Penalties(penalty_last_n=4096, repetition_penalty=1.1), *truncate, temperature, S.Dist(1)],
            lambda: [c.llama_sampler_init_penalties(n, 4096, 1.1, 0.0, 0.0), *default()],
        ),
    }  # fmt: skip


def measure(ours: S.SamplerChain, theirs: Llama, rows: list[Row], budget: float) -> list[float]:
    """Medians in microseconds: ours, llama.cpp's whole step, its filling of candidates alone."""
    samples: list[list[float]] = [[], [], []]
    calls: tuple[Callable[[Row], object], ...] = (ours.sample, theirs.sample, theirs.fill)
    ends = time.perf_counter() + budget
    turn = 0
    while time.perf_counter() < ends or turn < 9:
        row = rows[turn % len(rows)]
        for index, call in enumerate(calls):
            began = time.perf_counter()
            call(row)
            samples[index].append((time.perf_counter() - began) * 1e6)
        turn += 1
    return [statistics.median(s) for s in samples]


def lanes(n: int) -> Iterator[tuple[str, S.SamplerChain, list[Any], list[Row]]]:
    """Each line of the table: its name, our chain, llama.cpp's samplers, the rows."""
    peaked, flat = [model_like(n, i) for i in range(4)], [wide(n, i) for i in range(4)]
    for name, (samplers, make) in works(n).items():
        yield name, S.SamplerChain(samplers), make(), peaked
    for name in ("top-p .95 + dist", "typical .9 + dist", "mirostat 2"):
        samplers, make = works(n)[name]
        yield f"{name}, wide rows", S.SamplerChain(samplers), make(), flat
    for name in ("default (k40 p.95 m.05 t.8)", "temperature + dist", "greedy"):
        samplers, make = works(n)[name]
        chain = S.SamplerChain(samplers, numerics="llama.cpp")
        yield f'{name}, numerics="llama.cpp"', chain, make(), peaked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, nargs="+", default=[32000, 128256, 151936, 262144])
    parser.add_argument("--seconds", type=float, default=1.5, help="per line")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    args = parser.parse_args()
    lines = [
        "# Host chains against llama.cpp",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, one thread, instruction "
        f"set {host.isa()}, aleator {aleator.__version__}, llama-cpp-python {llama_cpp.__version__}, "
        f"Python {platform.python_version()}",
        "",
        f"`python {' '.join(sys.argv)}`",
    ]
    print("\n".join(lines), flush=True)
    for n in args.vocab:
        table = [
            "", f"## V = {n:,}", "",
            "| work | aleator us | llama.cpp us | of it, candidates | ratio | ratio without |",
            "|---|---:|---:|---:|---:|---:|",
        ]  # fmt: skip
        print("\n".join(table), flush=True)
        lines += table
        for name, chain, theirs, rows in lanes(n):
            ours, whole, fill = measure(chain, Llama(theirs, n), rows, args.seconds)
            line = (
                f"| {name} | {ours:.1f} | {whole:.1f} | {fill:.1f} | {whole / ours:.1f} | "
                f"{(whole - fill) / ours:.1f} |"
            )
            print(line, flush=True)
            lines.append(line)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
