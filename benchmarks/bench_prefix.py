"""Tokens that cached prefixes save, and the memory they hold, for caches of models of three kinds.

    python benchmarks/bench_prefix.py                  table into benchmarks/results/
    python benchmarks/bench_prefix.py --no-write

The caches have the shapes of real models.  Computed tokens are only counted, since what a cache finds and holds
depends only on the texts.  Texts are processed as by ``generate``: the cached prefix is reused, the rest is
prefilled in micro-batches of 512, the prompt is cached, the answer is decoded token by token, all of it is
cached, and the sequence is removed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from aleator.cache import (
    HybridCache,
    KVCache,
    LayerShape,
    PrefixConfig,
    RecurrentCache,
    RecurrentShape,
)
from aleator.cache.pools.window import WindowPool, window_capacity
from aleator.generate import Batch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import RESULTS, Report, command, parser

N_CTX, N_UBATCH = 8192, 512
Turn = tuple[list[int], list[int]]  # a prompt, and its answer


class Model:
    """A cache of a model's shape, and the bytes of what is in use."""

    def __init__(self, name: str, mib: int) -> None:
        config = PrefixConfig(bytes=mib * 2**20)
        own: dict[str, Any] = {"n_seq_max": 1, "prefix": config}
        self.window: Any = None
        self.states: Any = None
        if name == "mamba 130M":
            layers = [RecurrentShape(1536, 3, 16)] * 24
            self.row = RecurrentCache.bytes_for(layers) // 2
            self.cache: Any = RecurrentCache(layers, **own)
            self.states = self.cache
        elif name == "gemma3 270M":
            shape, window = LayerShape(1, 256, 256), 512
            cell = sum(KVCache.bytes_for([shape] * 15, 1))
            cells = window_capacity(window, N_CTX, 1, N_UBATCH) + config.bytes // cell
            self.window = WindowPool(
                [shape] * 15,
                min(N_CTX, cells),
                window=window,
                n_seq_max=1,
                n_kept=config.texts,
            )
            self.cache = HybridCache([shape] * 3, N_CTX, window=self.window, **own)
        else:
            self.cache = KVCache([LayerShape(12, 64, 64)] * 12, N_CTX, **own)

    def decode(self, n: int) -> None:
        """Place the next ``n`` tokens of sequence 0."""
        with self.cache.step(self.cache.plan(Batch.one([0] * n), n_ubatch=N_UBATCH)) as step:
            for _ in step:
                pass

    def answer(self, prompt: list[int], made: list[int]) -> int:
        """Run one request; return how many tokens of the prompt were computed."""
        found: int = self.cache.reuse(0, prompt)
        for start in range(found, len(prompt), N_UBATCH):
            self.decode(min(N_UBATCH, len(prompt) - start))
        self.cache.keep(0, prompt)
        for _ in made:
            self.decode(1)
        self.cache.keep(0, prompt + made)
        self.cache.seq_rm(0)
        return len(prompt) - found

    def held(self) -> int:
        """Bytes of the cached prefixes."""
        if self.states is not None:
            return int(self.states.kept.held() * self.row)
        held = 0
        for pool in self.cache.pools:
            held += pool.used * (pool.bytes_k + pool.bytes_v) // pool.cells.size
        return held


def one_system_prompt(r: random.Random) -> Iterator[Turn]:
    system = words(r, 600)
    for _ in range(20):
        yield system + words(r, 40), words(r, 100)


def chat(r: random.Random) -> Iterator[Turn]:
    text = words(r, 200)
    for _ in range(12):
        text = text + words(r, 60)
        answer = words(r, 120)
        yield text, answer
        text = text + answer


def again(r: random.Random) -> Iterator[Turn]:
    text = words(r, 800)
    for _ in range(5):
        yield text, words(r, 50)


def edits(r: random.Random) -> Iterator[Turn]:
    text = words(r, 3000)
    for _ in range(10):
        yield text, words(r, 50)
        at = r.randrange(len(text))
        text = [*text[:at], *words(r, 1), *text[at + 1 :]]


def many_system_prompts(r: random.Random) -> Iterator[Turn]:
    systems = [words(r, 400) for _ in range(40)]
    for _ in range(200):
        yield systems[min(39, int(r.expovariate(0.15)))] + words(r, 40), words(r, 60)


SCENES = (one_system_prompt, chat, again, edits, many_system_prompts)
MODELS = (
    ("llama 134M", 0),  # it cannot use more memory
    ("gemma3 270M", 128),
    ("gemma3 270M", 16),
    ("mamba 130M", 128),
    ("mamba 130M", 512),
)


def words(r: random.Random, n: int) -> list[int]:
    """A piece of text."""
    return [r.randrange(32000) for _ in range(n)]


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--no-write", action="store_true")
    args = asked.parse_args()
    config = PrefixConfig()
    report = Report(
        "Prompts that begin like earlier ones",
        f"""- date: {date.today()}
- command: {command(__file__)}
- n_ctx {N_CTX:,}, block {config.block}, spacing {config.spacing}, f16 keys and values, float32 states; without
  cached prefixes all prompt tokens are prefilled
- `bytes` of PrefixConfig, {config.bytes / 2**20:.0f} MiB by default, is for states or more window cells
- held: at the end, by the texts that are kept, keys and values of layers that see everything included""",
    )
    report.table(
        "texts", "model", "`bytes`, MiB:", "prompt tokens:", "prefilled:", "reused:", "held, MiB:"
    )
    for scene in SCENES:
        for name, mib in MODELS:
            r, model, asked_for, computed = random.Random(1), Model(name, mib), 0, 0
            for prompt, answer in scene(r):
                asked_for += len(prompt)
                computed += model.answer(prompt, answer)
            report.row(
                scene.__name__.replace("_", " "), name, mib or "-", f"{asked_for:,}", f"{computed:,}",
                f"{1 - computed / asked_for:.0%}", f"{model.held() / 2**20:.1f}",
            )  # fmt: skip
    if not args.no_write:
        report.write(RESULTS / f"bench_prefix.{date.today()}.md")


if __name__ == "__main__":
    main()
