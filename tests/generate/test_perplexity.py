"""Perplexity: against another way to compute it, and against llama.cpp's tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel
from aleator.core.errors import ParameterError
from aleator.generate import Batch
from aleator.generate import scores as module
from aleator.generate.scores import Perplexity, losses_of

TEXT = (Path(__file__).parents[1] / "data" / "coriolanus.txt").read_text()


def by_hand(model: LanguageModel, tokens: list[int], n_ctx: int, bos: bool) -> list[float]:
    """Losses of every scored token: one decode of each chunk, all in float64."""
    losses = []
    for start in range(0, len(tokens) - n_ctx + 1, n_ctx):
        part = tokens[start : start + n_ctx]
        if bos:
            part[0] = model.vocab.bos or 0
        rows = np.asarray(model.context(n_ctx).decode(Batch.one(part, 0, logits=True)), np.float64)
        for i in range(n_ctx // 2, n_ctx - 1):
            losses.append(np.log(np.exp(rows[i]).sum()) - rows[i, part[i + 1]])
    return losses


def test_value_and_error(model: LanguageModel) -> None:
    tokens = model.tokenizer.encode(TEXT)[:200]
    found = model.perplexity(tokens, n_ctx=48)
    losses = by_hand(model, tokens, 48, model.vocab.add_bos)
    assert (found.chunk, found.n_chunks, found.n_ctx, found.n_read) == (4, 4, 48, 192)
    assert found.n_scored == len(losses) == 4 * 23
    assert found.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    spread = np.std(losses) / np.sqrt(len(losses) - 1)
    assert found.error == pytest.approx(found.value * spread, rel=1e-3)


def test_bos_stands_before_each_chunk(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.vocab.add_bos
    tokens = model.tokenizer.encode(TEXT)[:96]
    found = model.perplexity(tokens, n_ctx=48)
    monkeypatch.setattr(model, "vocab", replace(model.vocab, add_bos=False))
    other = model.perplexity(tokens, n_ctx=48)
    assert other.value == pytest.approx(
        np.exp(np.mean(by_hand(model, tokens, 48, False))), rel=1e-4
    )
    assert other.value != found.value


def test_as_llama_perplexity_says(model: LanguageModel) -> None:
    """``llama-perplexity -m shakespeare.gguf -f coriolanus.txt -c 256 --chunks 6``, llama.cpp 0.5.0."""
    found = model.perplexity(TEXT.removesuffix("\n"), n_ctx=256, chunks=6)
    assert found.value == pytest.approx(23.0695, rel=1e-4)
    assert found.error == pytest.approx(1.95861, rel=1e-4)


def test_pieces_do_not_matter(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = model.tokenizer.encode(TEXT)[:64]
    whole = model.perplexity(tokens, n_ctx=64)
    monkeypatch.setattr(module, "ROWS_BYTES", 5 * 4 * len(model.vocab))
    assert model.perplexity(tokens, n_ctx=64).value == pytest.approx(whole.value, rel=1e-5)


def test_progress_and_chunks(model: LanguageModel) -> None:
    tokens = model.tokenizer.encode(TEXT)[:100]
    seen: list[Perplexity] = []
    found = model.perplexity(tokens, n_ctx=16, chunks=3, progress=seen.append)
    assert [each.chunk for each in seen] == [1, 2, 3]
    assert seen[-1] == found
    assert seen[0].value == model.perplexity(tokens[:16], n_ctx=16).value


@pytest.mark.parametrize(
    ("options", "named", "says"),
    [
        ({"n_ctx": 3}, "n_ctx", "n_ctx=3: a chunk has at least 4"),
        ({"n_ctx": 8.5}, "n_ctx", "n_ctx=8.5"),
        ({"n_ctx": 8, "chunks": 0}, "chunks", "chunks=0: read at least 1"),
        ({"n_ctx": 4096}, "text", "fewer than one chunk of n_ctx=4096"),
    ],
)
def test_refused(model: LanguageModel, options: dict[str, Any], named: str, says: str) -> None:
    with pytest.raises(ParameterError, match=says) as error:
        model.perplexity([1, 2, 3, 4, 5, 6, 7, 8], **options)
    assert error.value.parameter == named


def test_losses_of_impossible_and_certain_tokens() -> None:
    rows = np.array([[0, -np.inf, 0], [1000, 0, -1000]], np.float32)
    assert losses_of(rows, [1, 0]).tolist() == [np.inf, 0]
