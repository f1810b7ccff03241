"""One step of a short chain on rows small enough to check by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aleator import samplers as S

Row = NDArray[np.float32]
INF = float("inf")
NAN = float("nan")


@dataclass(eq=False)
class Texts:
    """A vocabulary of these texts; ``eog`` are the tokens that end a generation."""

    texts: Sequence[bytes]
    eog: frozenset[int] = frozenset()
    eot: int | None = None
    eos: int | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def token_bytes(self, token: int) -> bytes:
        return self.texts[token]


def texts_and_ends(*texts: str) -> Texts:
    """Texts of which the last two end a generation."""
    eot, eos = len(texts) - 2, len(texts) - 1
    return Texts([text.encode() for text in texts], frozenset({eot, eos}), eot, eos)


def logs(probabilities: Sequence[float]) -> Row:
    """Logits of these probabilities."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.array(probabilities)), np.float32)


def normal_rows(n: int, n_vocab: int, spread: float = 1.0) -> list[Row]:
    """Rows of normal numbers, the same at every call."""
    random = np.random.default_rng(5)
    return [(random.normal(size=n_vocab) * spread).astype(np.float32) for _ in range(n)]


def f32(*logits: float | np.floating) -> Row:
    return np.array(logits, np.float32)


def applied(
    logits: Row, *samplers: S.Sampler, history: Iterable[int] = (), seed: int = 1
) -> S.Candidates:
    """The candidates that a portable chain leaves; its reference leaves the same."""
    chain = S.SamplerChain(samplers, seed=seed)
    reference = S.ReferenceChain(chain)
    for token in history:
        chain.accept(token)
        reference.accept(token)
    candidates = S.Candidates(logits)
    chain.apply(candidates)
    row = reference.apply(logits)
    assert (candidates.ids.tolist(), candidates.selected) == (row.ids.tolist(), row.selected)
    row.materialise()
    assert candidates.logits.tobytes() == row.logits.tobytes()
    return candidates


def kept(logits: Row, *samplers: S.Sampler, seed: int = 1) -> list[int]:
    ids: list[int] = applied(logits, *samplers, seed=seed).ids.tolist()
    return ids


def kept_by_llama(logits: Row, *samplers: S.Sampler) -> list[int]:
    """The tokens that a chain with llama.cpp's numbers does not mask, by id."""
    candidates = S.Candidates(logits)
    S.SamplerChain(samplers, numerics="llama.cpp", seed=1).apply(candidates)
    ids: list[int] = sorted(candidates.ids[candidates.logits > -np.inf].tolist())
    return ids


def logits_after(sampler: S.Sampler, logits: Row, history: Iterable[int] = ()) -> list[float]:
    values: list[float] = applied(logits, sampler, history=history).logits.tolist()
    return values


def draws(logits: Row, *samplers: S.Sampler, n: int, seed: int = 1) -> list[int]:
    """Tokens of a portable chain, one after the other from the same row."""
    chain = S.SamplerChain(samplers, seed=seed)
    return [chain.sample(logits) for _ in range(n)]


SHARES = (0.5, 0.25, 0.125, 0.0625, 0.0625)


def follows_shares(tokens: Iterable[int]) -> bool:
    """Whether draws have the probabilities of SHARES: chi-square of 4 degrees of freedom, alpha = 1e-4."""
    counts = np.bincount(list(tokens), minlength=5)
    expected = counts.sum() * np.array(SHARES)
    return float(((counts - expected) ** 2 / expected).sum()) < 23.5


def check_draws(chain: S.SamplerChain, rows: Iterable[Row]) -> None:
    """The chain draws what its reference does, each token of its history."""
    reference = S.ReferenceChain(chain)
    for token in chain.history:
        reference.accept(token)
    for row in rows:
        expected = reference.apply(row).selected
        assert chain.sample(row) == expected
        assert expected is not None
        reference.accept(expected, generated=True)


def mu(chain: S.SamplerChain) -> float:
    """The bound of a chain's last sampler, which is a mirostat."""
    kernel = chain._native.samplers[-1]
    return float(kernel.mu)  # type: ignore[union-attr]


def average_surprise(sampler: S.Sampler, row: Row) -> float:
    """Bits of the tokens that a mirostat lets a chain draw, once it has settled."""
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    chain = S.SamplerChain([sampler], seed=5)
    surprises = []
    for _ in range(1500):
        candidates = S.Candidates(row)
        chain.apply(candidates)
        token = candidates.selected
        assert token is not None
        surprises.append(-math.log2(p[token] / p[candidates.ids].sum()))
        chain.accept(token, generated=True)
    return float(np.mean(surprises[200:]))


def check_warper(
    name: str, cutoff: Any, bounds: Any = ((3e-4, 1), (0.01, 1), (0.2, 7), (0.9, 3))
) -> None:
    """``cutoff(bound, min_keep)`` keeps the tokens that transformers' class of a name keeps with these."""
    torch = pytest.importorskip("torch")
    warper = getattr(pytest.importorskip("transformers").generation.logits_process, name)
    for seed in range(20):
        row = (2 * np.random.default_rng(seed).normal(size=300)).astype(np.float32)
        for bound, least in bounds:
            left = warper(bound, min_tokens_to_keep=least)(
                None, torch.from_numpy(row).double()[None]
            )[0]
            theirs = torch.isfinite(left).nonzero().ravel().tolist()
            assert kept(row, cutoff(bound, least)) == theirs
