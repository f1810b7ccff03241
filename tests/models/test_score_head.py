"""Heads that make scores, against NumPy: which parts a file has, and what the score is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_models import ENCODERS, write_encoder

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from aleator.models.score_head import ScoreHead, has_head, pooling_of, sigmoid, yes_probability
from tests.models.builders import N_EMBD, model_tensors, write_gguf


def rows(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2])
def test_rows_of_decoders(n: int, tmp_path: Path) -> None:
    """One row makes the score; of two the score is the probability of the first."""
    matrix, bias, state = rows(n, N_EMBD), rows(n, seed=2), rows(N_EMBD, seed=3)
    head = {"cls.output.weight": matrix, "cls.output.bias": bias}
    weights = open_weights(write_gguf(tmp_path / "m.gguf", None, model_tensors() | head))
    made = ScoreHead(weights)
    y = (matrix @ state + bias).tolist()
    assert has_head(weights)
    assert (made.pooling, made.probability) == ("last", n == 2)
    wanted = 1 / (1 + math.exp(y[1] - y[0])) if n == 2 else y[0]
    assert made.score(state) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("tensors", "has"), [({}, False), ({"cls.weight": 1}, True), ({"cls.weight": 2}, False)]
)
def test_a_dense_part_of_one_row_is_a_head(
    tensors: dict[str, int], has: bool, tmp_path: Path
) -> None:
    named = {name: rows(n, N_EMBD) for name, n in tensors.items()}
    weights = open_weights(write_gguf(tmp_path / "m.gguf", None, model_tensors() | named))
    assert has_head(weights) is has
    if has:
        state = rows(N_EMBD, seed=3)
        y = math.tanh(float(named["cls.weight"][0] @ state))
        assert ScoreHead(weights).score(state) == pytest.approx(y, rel=1e-5)


@pytest.mark.parametrize("n", [3, 4])
def test_classes_are_no_scores(n: int, tmp_path: Path) -> None:
    tensors = model_tensors() | {"cls.output.weight": rows(n, N_EMBD)}
    with pytest.raises(UnsupportedModel, match=f"a head with {n} outputs"):
        ScoreHead(open_weights(write_gguf(tmp_path / "m.gguf", None, tensors)))


@pytest.mark.parametrize("name", ["bert-score", "xlm-roberta", "modern-bert"])
def test_heads_of_encoders(name: str, tmp_path: Path) -> None:
    weights = open_weights(write_encoder(tmp_path / "m.gguf", ENCODERS[name]))
    made, state = ScoreHead(weights), rows(weights.config.n_embd)
    assert (made.pooling, made.probability) == (pooling_of(weights), False)
    assert made.pooling == {"modern-bert": "mean"}.get(name, "cls")

    def part(stem: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        bias = weights.floats(f"{stem}.bias") if f"{stem}.bias" in weights else 0.0
        y: np.ndarray[Any, Any] = weights.floats(f"{stem}.weight").astype(np.float64) @ x + bias
        return y

    x = state.astype(np.float64)
    if "cls.weight" in weights:
        x = part("cls", x)
        if name == "modern-bert":
            x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        else:
            x = np.tanh(x)
    if "cls.norm.weight" in weights:
        x = (
            (x - x.mean())
            / np.sqrt(x.var() + weights.config.rms_eps)
            * weights.floats("cls.norm.weight")
        )
    if "cls.output.weight" in weights:
        x = part("cls.output", x)
    assert made.score(state) == pytest.approx(float(x[0]), rel=2e-3, abs=2e-3)


@pytest.mark.parametrize(
    ("x", "y"), [(0.0, 0.5), (1.0, 0.7310585786300049), (-1.0, 0.2689414213699951)]
)
def test_probabilities(x: float, y: float) -> None:
    assert sigmoid(x) == pytest.approx(y, rel=1e-15)
    assert yes_probability(x + 3.0, 3.0) == pytest.approx(y, rel=1e-15)
    assert (sigmoid(1e4), sigmoid(-1e4)) == (1.0, 0.0)
