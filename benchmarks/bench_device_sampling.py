"""Device chains against torch's sort and top-k paths, transformers and FlashInfer, on a GPU.

    python benchmarks/bench_device_sampling.py [--rows 1 8 64 256] [--vocab 32000 128256 151936 262144]
        [--dtype float32 bfloat16] [--works W0 ...] [--replays 1000] [--out FILE.md]

Every work draws one token per row of a batch.  Ours is ``DeviceChain`` with its Triton kernels, every row
with its own seed, one step captured in a CUDA graph; and the same launched by the host; and its PyTorch
form.  torch is written like vLLM's PyTorch path (bias, penalties, one sort, masks, exponential race), and
once more with ``topk`` if there is a k; transformers is its warpers, softmax and multinomial;
FlashInfer its joint kernels, if they can be imported.  A figure is the median of the replays in
microseconds, with the 99th percentile for ours; "cold" writes 256 MiB before each, so that nothing is left
in L2.  "share" is the bytes of the logits, read once, over the time and the bandwidth that copying 1 GiB
reaches: 1 is the optimum.  "whole" is how many rows needed more than a list.  Tokens of up to 8 rows are
compared with the host's before anything is timed.

W0 greedy, W1 temperature, W2 k 50, W3 p .95, W4 k 50 and p .9, W5 min-p .05, W6 is W4 with repetition,
frequency and presence penalties over 512 tokens, 300 biases and a bitmask, and for ours top-20
log-probabilities before and after the samplers, W7 rows of all those (without log-probabilities), W8 flat
rows, ties, k = V, p = .999, masks and NaN.

Without a GPU the file says so; ``--device cpu`` tries everything on the CPU (use a small grid).
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aleator
from aleator import samplers as S

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import Report, command, machine, parser

PROMPT = 512
Call = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """A kind of batch.

    Attributes:
        name: W0 to W8, with words.
        k: top-k; 0: none.
        p: top-p.
        m: min-p.
        heat: temperature; 0: greedy.
        written: with penalties, biases and a bitmask.
        mixed: rows of all kinds; only ours can.
        rows: the kind of logits.

    """

    name: str
    k: int = 0
    p: float = 1.0
    m: float = 0.0
    heat: float = 1.0
    written: bool = False
    mixed: bool = False
    rows: str = "model"


WORKS = {
    "W0": Work("W0 greedy", heat=0.0),
    "W1": Work("W1 temperature .8", heat=0.8),
    "W2": Work("W2 k 50", k=50),
    "W3": Work("W3 p .95", p=0.95),
    "W3n": Work("W3 p .95, normal rows", p=0.95, rows="normal"),
    "W4": Work("W4 k 50, p .9", k=50, p=0.9),
    "W5": Work("W5 min-p .05", m=0.05),
    "W6": Work("W6 W4, written logits", k=50, p=0.9, written=True),
    "W7": Work("W7 mixed rows", mixed=True),
    "W8": Work("W8 adversarial", mixed=True, rows="adversarial"),
}


def make_rows(kind: str, batch: int, n: int, dtype: torch.dtype, device: str) -> Tensor:
    """Logits: a wide bulk and 300 tokens that stand out, normal ones, or the hardest cases."""
    made = torch.Generator(device).manual_seed(batch * n)
    x = torch.randn(batch, n, generator=made, device=device) * (2 if kind == "model" else 1)
    if kind == "model":
        best = torch.randint(n, (batch, 300), generator=made, device=device)
        out = torch.rand(batch, 300, generator=made, device=device)
        x.scatter_add_(1, best, 6 - 3 * out.clamp(min=1e-6).log())
    if kind == "adversarial":
        for row in range(batch):
            what = row % 6
            if what == 0:
                x[row] *= 1e-4
            elif what == 1:
                x[row] = 0.5
            elif what == 2:
                x[row].round_()
            elif what == 3:
                x[row, torch.rand(n, generator=made, device=device) < 0.999] = -torch.inf
                x[row, 0] = 0
            elif what == 4:
                x[row, ::3] = torch.nan
    return x.to(dtype)


def samplers(work: Work, row: int, n: int) -> list[Any]:
    """A row's chain."""
    if work.rows == "adversarial":
        kinds = [
            Work("", p=0.999),
            Work("", k=50),
            Work("", k=n),
            Work("", m=1e-4),
            Work("", k=1024, p=0.999),
        ]
        work = kinds[row % len(kinds)]
    elif work.mixed:
        work = WORKS[f"W{row % 7}"]
    chain: list[Any] = []
    if work.written:
        chain += [
            S.LogitBias(logit_bias={(i * 7919) % n: (i % 9 - 4) / 2 for i in range(min(300, n))}),
            S.Penalties(
                penalty_last_n=PROMPT, repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1
            ),
        ]  # fmt: skip
    chain += [S.TopK(top_k=work.k), S.TopP(top_p=work.p), S.MinP(min_p=work.m)]
    return [*chain, S.Temperature(temperature=work.heat), S.Dist()]


def prompt(row: int, n: int) -> list[int]:
    """Tokens that penalties see."""
    return [(i * i + 31 * row) % n for i in range(PROMPT)]


TEMPLATE = [S.LogitBias(), S.Penalties(), S.TopK(), S.TopP(), S.MinP(), S.Temperature(), S.Dist()]


def ours(
    work: Work, batch: int, n: int, device: str, kernels: str, steps: int
) -> tuple[aleator.DeviceChain, list[aleator.SamplerChain]]:
    """A device chain, and the rows' chains on the host."""
    made = aleator.DeviceChain(
        TEMPLATE, batch, n, device=device, kernels=kernels, max_tokens=PROMPT + steps,
        logprobs=min(20, n) if work.written else None,
    )  # fmt: skip
    chains = []
    for row in range(batch):
        chain = aleator.SamplerChain(samplers(work, row, n), seed=row)
        for token in prompt(row, n) if work.written or work.mixed else []:
            chain.accept(token)
        made.set_row(row, chain)
        chains.append(chain)
    return made, chains


def bitmask(work: Work, batch: int, n: int, device: str) -> Tensor | None:
    """A mask of three of four tokens, if the work has one."""
    if not work.written:
        return None
    words = torch.full((batch, -(-n // 32)), 0x77777777, dtype=torch.int32)
    return words.to(device)


def by_sort(work: Work, x: Tensor, use_topk: bool) -> Call:
    """Sampling as serving engines write it in PyTorch; ``use_topk`` finds the k largest instead of sorting."""
    batch, n = x.shape
    counts = torch.zeros(batch, n, device=x.device)
    bias, allowed = torch.zeros(batch, n, device=x.device), None
    if work.written:
        for row in range(batch):
            counts[row] = torch.bincount(torch.tensor(prompt(row, n)), minlength=n).to(x.device)
            for token, value in samplers(work, row, n)[0].logit_bias:
                bias[row, token] = value
        allowed = torch.arange(n, device=x.device) % 4 != 3

    def call() -> Tensor:
        z = x.float()
        if allowed is not None:
            z = (z + bias).masked_fill(~allowed, -torch.inf)
            z = torch.where(counts > 0, torch.where(z > 0, z / 1.1, z * 1.1), z)
            z = z - counts * 0.1 - (counts > 0) * 0.1
        if work.heat == 0:
            return z.argmax(-1)
        z = z / work.heat
        if work.m:
            probs = z.softmax(-1)
            z = z.masked_fill(probs < work.m * probs.amax(-1, keepdim=True), -torch.inf)
        ids = None
        if use_topk:
            z, ids = z.topk(min(work.k, n), -1)
        elif work.k or work.p < 1:
            z, ids = z.sort(-1, descending=True)
            if work.k:
                z[:, work.k :] = -torch.inf
        if work.p < 1:
            probs = z.softmax(-1)
            z = z.masked_fill(probs.cumsum(-1) - probs >= work.p, -torch.inf)
        if ids is not None and not use_topk:
            z = torch.empty_like(z).scatter_(-1, ids, z)
        chosen = z.softmax(-1).div(torch.empty_like(z).exponential_()).argmax(-1, keepdim=True)
        return (ids.gather(-1, chosen) if use_topk and ids is not None else chosen).squeeze(-1)

    return call


def by_transformers(work: Work, x: Tensor) -> Call | None:
    """transformers' warpers, with one set of parameters for the batch."""
    try:
        from transformers import (
            MinPLogitsWarper,
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )
    except ImportError:
        return None
    if work.written or work.heat == 0:
        return None
    chain: list[Any] = [TemperatureLogitsWarper(work.heat)] if work.heat != 1 else []
    chain += [TopKLogitsWarper(work.k)] if work.k else []
    chain += [TopPLogitsWarper(work.p)] if work.p < 1 else []
    chain += [MinPLogitsWarper(work.m)] if work.m else []
    ids = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)

    def call() -> Tensor:
        z = x.float()
        for warper in chain:
            z = warper(ids, z)
        return z.softmax(-1).multinomial(1)

    return call


def by_flashinfer(work: Work, x: Tensor) -> Call | None:
    """FlashInfer's sampling kernels, if they can be imported."""
    try:
        from flashinfer import sampling
    except ImportError:
        return None
    if work.written or work.heat == 0 or x.device.type != "cuda":
        return None

    def call() -> object:
        if work.k:
            return sampling.top_k_top_p_sampling_from_logits(
                x.float(), work.k, work.p, filter_apply_order="joint"
            )
        probs = (x.float() / work.heat).softmax(-1)
        if work.m:
            return sampling.min_p_sampling_from_probs(probs, work.m)
        if work.p < 1:
            return sampling.top_p_sampling_from_probs(probs, work.p)
        return sampling.sampling_from_probs(probs)

    return call


class Clock:
    """Times calls on a device, with the L2 cache as the last call left it or overwritten."""

    def __init__(self, device: str, replays: int) -> None:
        self.device, self.replays = device, replays
        big = 64 * 2**20 if device == "cuda" else 2**16
        self._flush = torch.zeros(big, dtype=torch.int32, device=device)

    def once(self, call: Call, cold: bool) -> float:
        """Microseconds of one call."""
        if cold:
            self._flush.add_(1)
        if self.device != "cuda":
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def measure(self, call: Call, cold: bool, before: Call | None = None) -> tuple[float, float]:
        """Median and 99th percentile; ``before`` is called before each call, untimed."""
        took = []
        for _ in range(self.replays):
            if before is not None:
                before()
            took.append(self.once(call, cold))
        took.sort()
        return statistics.median(took), took[min(len(took) - 1, len(took) * 99 // 100)]

    def bandwidth(self) -> float:
        """Bytes per second that a copy reads and writes."""
        size = 2**28 if self.device == "cuda" else 2**20
        source = torch.zeros(size, dtype=torch.int32, device=self.device)
        target = torch.empty_like(source)
        us, _ = self.measure(lambda: target.copy_(source), cold=False)
        return 2 * 4 * size / (us * 1e-6)


def captured(chain: aleator.DeviceChain, x: Tensor, allowed: Tensor | None) -> Any:
    """A graph of one step."""
    chain.sample(x, allowed, torch.zeros(len(x), dtype=torch.bool, device=x.device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.sample(x, allowed)
    return graph


def line(
    work: Work, batch: int, n: int, dtype: torch.dtype, clock: Clock, bandwidth: float
) -> list[str]:
    """The cells of a row of the table."""
    device, gpu = clock.device, clock.device == "cuda"
    x = make_rows(work.rows, batch, n, dtype, device)
    allowed = bitmask(work, batch, n, device)
    kernels = "triton" if gpu else "host"
    steps = 6 * clock.replays + 16
    chain, chains = ours(work, batch, n, device, kernels, steps)
    tokens = chain.sample(x, allowed).tolist()
    z = x.float().cpu()
    if allowed is not None:
        z[:, 3::4] = -torch.inf
    wrong = sum(chains[row].sample(z[row]) != tokens[row] for row in range(min(8, batch)))
    paths = chain.paths(reset=True)
    whole = f"{paths['whole'] + paths['torch']}/{batch}" if paths else ""
    cells: list[str] = []
    times: list[float] = []
    for cold in (True, False):
        if gpu:
            graph = captured(chain, x, allowed)
            us, late = clock.measure(graph.replay, cold, lambda: chain.before_replay(batch))
        else:
            us, late = clock.measure(lambda: chain.sample(x, allowed), cold)
        share = x.numel() * x.element_size() / (us * 1e-6) / bandwidth
        cells += [f"{us:.1f}", f"{late:.1f}", f"{share:.2f}"]
        times.append(us)
    if gpu:
        cells.append(f"{clock.measure(lambda: chain.sample(x, allowed), False)[0]:.1f}")
    plain, _ = ours(work, batch, n, device, "torch", steps)
    few = Clock(device, min(20, clock.replays))
    few.once(lambda: plain.sample(x, allowed), False)
    cells.append(f"{few.measure(lambda: plain.sample(x, allowed), False)[0]:.1f}")
    others: list[Call | None] = [None] * 4
    if not work.mixed:
        others = [
            by_sort(work, x, False), by_sort(work, x, True) if work.k else None,
            by_transformers(work, x), by_flashinfer(work, x),
        ]  # fmt: skip
    for call in others:
        if call is None:
            cells += ["", ""]
            continue
        few.once(call, False)
        us = few.measure(call, False)[0]
        cells += [f"{us:.1f}", f"{us / times[1]:.1f}"]
    kind = str(dtype).removeprefix("torch.")
    return [work.name, str(batch), str(n), kind, *cells, whole, str(wrong)]


def main(argv: list[str] | None = None) -> int:
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("--rows", type=int, nargs="*", default=[1, 8, 64, 256])
    asked.add_argument("--vocab", type=int, nargs="*", default=[32000, 128256, 151936, 262144])
    asked.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    asked.add_argument("--works", nargs="*", default=list(WORKS), choices=list(WORKS))
    asked.add_argument("--replays", type=int, default=1000)
    asked.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = asked.parse_args(argv)
    gpu, there = options.device == "cuda", torch.cuda.is_available()
    report = Report(
        "Device chains against torch, transformers and FlashInfer",
        f"{torch.cuda.get_device_name() if gpu and there else 'no GPU'}; {machine('torch')}",
        f"    {command(__file__, argv)}",
    )
    if gpu and not there:
        report.say(
            "**not run**, this machine has no CUDA device. On one the command above compares tokens with the",
            "host's and prints, for every batch, vocabulary, type and work of the grid: times of a captured",
            "step with cold and warm L2, the share of the copy bandwidth that one read of the logits in that",
            "time is, and the times of the other implementations.",
        )
        report.write(options.out)
        return 0
    clock = Clock(options.device, options.replays)
    bandwidth = clock.bandwidth()
    report.say(f"Copy: {bandwidth / 1e9:.0f} GB/s read and written. Microseconds for a batch.", "")
    report.table(
        "work", "B", "V", "type", "cold", "p99", "share", "warm", "p99", "share",
        *(["launched"] if gpu else []), "PyTorch form", "sort", "ratio", "topk", "ratio", "transformers",
        "ratio", "FlashInfer", "ratio", "whole", "wrong",
    )  # fmt: skip
    for name, kind, n, batch in itertools.product(
        options.works, options.dtype, options.vocab, options.rows
    ):
        report.row(*line(WORKS[name], batch, n, getattr(torch, kind), clock, bandwidth))
    report.write(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
