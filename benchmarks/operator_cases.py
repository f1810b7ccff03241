"""Calls of the operator whose instructions benchmarks/count_instructions.py counts: one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from host_cases import ROWS, Row, model_like, wide

from aleator import ops


@dataclass(frozen=True)
class OperatorCase:
    """One line of the table.

    Attributes:
        name: of the line.
        k, p, m: the parameters; 0, 1 and 0 skip a filter.
        asks: ``draw`` a keyed token, ``q`` a token by the race, ``list`` ids and probabilities, ``select`` the
            first token and the logits that were kept.
        rows: ``model`` or ``wide``, as for host chains.
        dtype: of the rows.
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
        made = [{"model": model_like, "wide": wide}[self.rows](n, i) for i in range(ROWS)]
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


CASES = (
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
