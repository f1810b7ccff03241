"""The tools' quantiser: what is stored is near what was given, in every type."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from make_models import SPECS, type_of
from quantise import KINDS, quantise

ERRORS = {
    "Q2_K": 0.4, "Q3_K": 0.25, "Q4_K": 0.1, "Q5_K": 0.05, "Q6_K": 0.025, "IQ4_XS": 0.1, "IQ4_NL": 0.1,
    "IQ2_XXS": 0.6, "IQ2_XS": 0.5, "IQ2_S": 0.5, "IQ3_XXS": 0.3, "IQ3_S": 0.3, "IQ1_S": 0.9, "IQ1_M": 0.9,
}  # fmt: skip
"""Largest root mean square of the error, over that of the weights."""


@pytest.mark.parametrize("kind", KINDS)
def test_near(kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((6, 768)).astype(np.float32)
    rows *= np.exp(rng.standard_normal((6, 24, 1))).astype(np.float32).repeat(32, 2).reshape(6, 768)
    stored = quantise(kind, rows)
    back = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    assert np.square(back - rows).mean() < ERRORS[kind] ** 2 * np.square(rows).mean()
    assert np.abs(back - rows).mean() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = quantise(kind, np.zeros((2, 256), np.float32))
    assert not gguf.quants.dequantize(zeros, gguf.GGMLQuantizationType[kind]).any()
    rows = np.random.default_rng(2).standard_normal((5, 256)).astype(np.float32)
    whole = quantise(kind, rows)
    monkeypatch.setattr("quantise.AT_ONCE", 512)
    assert np.array_equal(quantise(kind, rows), whole)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q8_0"])
def test_other_types_are_written_by_gguf(kind: str) -> None:
    rows = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    back = gguf.quants.dequantize(quantise(kind, rows), gguf.GGMLQuantizationType[kind])
    assert np.abs(back - rows).max() < 0.5


def test_types_of_a_mixture() -> None:
    spec = replace(SPECS["llama-134m"], type="Q4_K_M")
    square, narrow = np.zeros((1, 768), np.float32), np.zeros((1, 96), np.float32)
    assert type_of(spec, "output.weight", square) == "Q6_K"
    assert type_of(spec, "token_embd.weight", square) == "Q4_K"
    assert type_of(replace(spec, tied=True), "token_embd.weight", square) == "Q6_K"
    more = [type_of(spec, f"blk.{i}.attn_v.weight", square) == "Q6_K" for i in range(12)]
    assert more == [i in (0, 3, 6, 9, 10, 11) for i in range(12)]
    assert type_of(spec, "blk.0.attn_q.weight", square) == "Q4_K"
    assert type_of(spec, "blk.0.attn_q.weight", narrow) == "Q8_0"  # no whole blocks of 256
    assert type_of(spec, "blk.0.attn_norm.weight", square[0]) == "F32"
