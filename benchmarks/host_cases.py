"""Cases of the benchmarks of host chains: benchmarks/host has one file per sampler, and chain.toml.

The calls of the operator whose instructions count_instructions.py counts are at the end.  A case has

    name         its line in the table
    chain        names and parameters of the samplers, or
    preset       a preset's name, and
    phases       parameters of phases beside it
    llama        llama.cpp's chain, if it differs; empty: it has none
    rows         "model" (default): a wide bulk and a few hundred tokens that stand out; "wide": a nucleus of
                 thousands, as at a high temperature
    dtype        type of the rows, float32 by default
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
from aleator import ops
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
    phases: dict[str, Any] = field(default_factory=dict)
    llama: list[tuple[str, dict[str, Any]]] | None = None
    rows: str = "model"
    dtype: str = "float32"
    numerics: str = "portable"
    history: int = 0
    vocabulary: str | None = None
    target: float | None = None

    def size(self, n: int) -> int:
        """Length of the rows if the table's is n."""
        return len(bundled().vocab) if self.vocabulary == "bundled" else n

    def samplers(self, n: int) -> list[S.Sampler]:
        """Our samplers, for rows of n."""
        if self.preset is not None:
            params = S.SamplingParams.preset(self.preset, seed=1, phases=self.phases)
            made: list[S.Sampler] = params.list()
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
        made = [ROWS_OF[self.rows](n, i) for i in range(ROWS)]
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
    """A row like those of models: a wide bulk and a few hundred tokens that stand out."""
    rng = np.random.default_rng([n, seed])
    row = rng.normal(0, 2, n).astype(np.float32)
    top = rng.choice(n, 300, replace=False)
    row[top] += rng.exponential(3, 300).astype(np.float32) + 6
    return row


def wide(n: int, seed: int) -> Row:
    """A row whose nucleus has thousands of tokens, as at a high temperature."""
    return np.random.default_rng([n, seed, 1]).normal(0, 2, n).astype(np.float32)


ROWS_OF = {"model": model_like, "wide": wide}


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
    if "watermark_key_file" in values:
        values = {
            **values,
            "watermark_key_file": aleator.WatermarkKey(values["watermark_key_file"].encode()),
        }
    return BY_NAME[name](**values)


@dataclass(frozen=True)
class OperatorCase:
    """One line of the table.

    Attributes:
        name: name of the line.
        k, p, m: the parameters; 0, 1 and 0 skip a filter.
        asks: ``draw`` a keyed token, ``q`` a token by the race, ``list`` ids and probabilities, ``select`` the
            first token and the logits that were kept.
        rows: ``model`` or ``wide``, as for host chains.
        dtype: type of the rows.
        probabilities: the rows hold probabilities.

    """

    name: str
    k: int = 0
    p: float = 1.0
    m: float = 0.0
    asks: str = "draw"
    rows: str = "model"
    dtype: str = "float32"
    probabilities: bool = False

    def make_rows(self, n: int) -> list[Row]:
        """Rows of n logits or probabilities, each of shape [1, n]."""
        made = [ROWS_OF[self.rows](n, i) for i in range(ROWS)]
        if self.probabilities:
            powers = [np.exp(row - row.max()) for row in made]
            made = [power / power.sum() for power in powers]
        return [row.astype(self.dtype)[None] for row in made]

    def call(self, row: Any) -> None:
        """Call the operator with one row."""
        k, p, m = np.array([self.k], np.int32), *np.array([[self.p], [self.m]], np.float32)
        if self.asks == "draw":
            keys = {"seeds": np.zeros(1, np.int64), "positions": np.zeros(1, np.int64)}
            ops.top_k_top_p_draw(row, k, p, m, input_is_logits=not self.probabilities, **keys)
            return
        rng = np.random.default_rng(1)
        q = rng.exponential(size=row.shape).astype(np.float32) if self.asks == "q" else None
        ops.top_k_top_p_sample(
            row, k, p, q, m, input_is_logits=not self.probabilities,
            is_need_sample_result=self.asks == "list", is_need_logits=self.asks == "select",
        )  # fmt: skip


OPERATOR_CASES = (
    OperatorCase("k 50, p .9, draw", 50, 0.9),
    OperatorCase("k 50, p .9, draw, float16", 50, 0.9, dtype="float16"),
    OperatorCase("k 50, p .9, q", 50, 0.9, asks="q"),
    OperatorCase("k 50, p .95, m .05, draw", 50, 0.95, 0.05),
    OperatorCase("k 1,000, list", 1000, asks="list"),
    OperatorCase("p .95, draw", p=0.95),
    OperatorCase("p .95, draw, wide rows", p=0.95, rows="wide"),
    OperatorCase("p .95, q", p=0.95, asks="q"),
    OperatorCase("p .95, list, wide rows", p=0.95, asks="list", rows="wide"),
    OperatorCase("p .95, select, wide rows", p=0.95, asks="select", rows="wide"),
    OperatorCase("m .05, draw", m=0.05),
    OperatorCase("q alone", asks="q"),
    OperatorCase("draw alone", asks="draw"),
    OperatorCase("list of all", asks="list"),
    OperatorCase("first token, select", asks="select"),
    OperatorCase("probabilities, k 50, p .9, q", 50, 0.9, asks="q", probabilities=True),
    OperatorCase("probabilities, p .95, draw", p=0.95, probabilities=True),
    OperatorCase("probabilities, p .95, list, wide rows", p=0.95, asks="list", rows="wide", probabilities=True),
    OperatorCase("probabilities, m .05, draw", m=0.05, probabilities=True),
    OperatorCase("probabilities, draw alone", asks="draw", probabilities=True),
)  # fmt: skip
