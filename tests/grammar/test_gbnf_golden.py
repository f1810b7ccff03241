"""Masks equal to llama.cpp's, bit for bit, on real vocabularies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator._native import Constraint
from aleator.grammar import compile_gbnf
from aleator.text import Tokenizer
from tests.text.conftest import tokenizer as tokenizer

TESTS = Path(__file__).parents[1]
GOLDEN: dict[str, Any] = json.loads((TESTS / "golden" / "grammar" / "gbnf.json").read_text())


def record(constraint: Constraint) -> list[Any]:
    words = constraint.mask().tobytes()
    count = int(np.unpackbits(np.frombuffer(words, np.uint8)).sum())
    return [count, hashlib.blake2b(words, digest_size=8).hexdigest()]


def check(constraint: Constraint, case: dict[str, Any]) -> None:
    tokens, masks = case["tokens"], case["masks"]
    assert record(constraint) == masks[0]
    for step, token in enumerate(tokens):
        assert constraint.allows(token)
        constraint.accept(token)
        assert record(constraint) == masks[step + 1], f"after {step + 1} tokens"
    copy = constraint.clone()
    for n in (1, len(tokens) // 2):
        constraint.rollback(n)
        assert record(constraint) == masks[len(tokens) - n]
        for token in tokens[len(tokens) - n :]:
            constraint.accept(token)
    constraint.reset()
    assert record(constraint) == masks[0]
    assert record(copy) == masks[len(tokens)]


@pytest.mark.parametrize(
    "case", GOLDEN["walks"], ids=lambda c: f"{c['vocabulary']}-{c['grammar']}-{len(c['masks'])}"
)
def test_masks(case: dict[str, Any], tokenizer: Callable[[str], Tokenizer]) -> None:
    path = TESTS / "data" / "grammars" / f"{case['grammar']}.gbnf"
    text = case["text"] if "text" in case else path.read_text()
    check(compile_gbnf(text, "root", tokenizer(case["vocabulary"])), case)


@pytest.mark.parametrize("name", GOLDEN["lazy"])
def test_lazy_masks(name: str, tokenizer: Callable[[str], Tokenizer]) -> None:
    case = GOLDEN["lazy"][name]
    triggers = {k: case[k] for k in ("trigger_patterns", "trigger_tokens")}
    constraint = compile_gbnf(case["grammar"], "root", tokenizer(case["vocabulary"]), **triggers)
    n_vocab = constraint.n_vocab
    assert constraint.waiting
    assert case["masks"][0][0] == n_vocab
    check(constraint, case)
    assert case["masks"][-1][0] < n_vocab  # it was triggered
