"""What the benchmarks of host chains measure: benchmarks/host, one file per sampler, and chain.toml.

A case has

    name         its line in the table
    chain        names and parameters of the samplers, or
    preset       a preset's name
    llama        the chain that llama.cpp gets, if it is another one; empty: it has none
    rows         "model" (default): a wide bulk and a few hundred tokens that stand out; "wide": a nucleus of
                 thousands, as at a high temperature
    dtype        of the rows, float32 by default
    numerics     "portable" by default
    history      tokens accepted before
    vocabulary   "bundled": the bundled model's, instead of the table's size
    target       how many times llama.cpp's speed is wanted
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aleator
from aleator import samplers as S

FOLDER = Path(__file__).parent / "host"
ROWS = 4
BY_NAME = {cls.name: cls for cls in S.SAMPLERS}
Row = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    stem: str
    name: str
    chain: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    preset: str | None = None
    llama: list[tuple[str, dict[str, Any]]] | None = None
    rows: str = "model"
    dtype: str = "float32"
    numerics: str = "portable"
    history: int = 0
    vocabulary: str | None = None
    target: float | None = None

    def size(self, n: int) -> int:
        """Length of the rows where the table's is n."""
        return len(bundled().vocab) if self.vocabulary == "bundled" else n

    def samplers(self, n: int) -> list[S.Sampler]:
        """Our samplers, for rows of n."""
        if self.preset is not None:
            made: list[S.Sampler] = S.SamplingParams.preset(self.preset, seed=1).list()
            return made
        return [_sampler(name, values, n) for name, values in self.chain]

    def past(self, n: int) -> list[int]:
        """The tokens accepted before: a few hundred different ones, so that runs repeat."""
        rng = np.random.default_rng([n, self.history])
        tokens: list[int] = rng.integers(0, min(n, 300), self.history).tolist()
        return tokens

    def ours(self, n: int) -> S.SamplerChain:
        """Our chain, which has seen the history."""
        chain = S.SamplerChain(self.samplers(n), numerics=self.numerics, seed=1)
        for token in self.past(n):
            chain.accept(token)
        return chain

    def make_rows(self, n: int) -> list[Any]:
        """Rows of n logits in the case's type."""
        made = [{"model": model_like, "wide": wide}[self.rows](n, i) for i in range(ROWS)]
        if self.dtype == "bfloat16":
            import torch

            return [torch.from_numpy(row).bfloat16() for row in made]
        return [row.astype(self.dtype) for row in made]


@cache
def cases() -> tuple[Case, ...]:
    """All cases: those of whole chains first, then by sampler."""
    stems = ["chain", *sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "chain")]
    return tuple(
        Case(stem, **case)
        for stem in stems
        for case in tomllib.loads((FOLDER / f"{stem}.toml").read_text())["case"]
    )


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


@cache
def bundled() -> Any:
    """The bundled model's tokenizer."""
    from aleator.text import Tokenizer, Vocabulary

    path = Path(aleator.__file__).parent / "data" / "shakespeare.gguf"
    return Tokenizer(Vocabulary.from_gguf(path))


def _sampler(name: str, values: dict[str, Any], n: int) -> S.Sampler:
    if name == "infill":
        return S.Infill(bundled())
    if name == "token_mask":
        return S.TokenMask(np.arange(n) % values["every"] == 0)
    return BY_NAME[name](**values)
