"""Grammars with numerics="llama.cpp": the tokens of llama.cpp's common layer (tools/golden_grammar.py)."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden_rows import row

from aleator import samplers as S
from aleator.text import Tokenizer, Vocabulary

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "grammar" / "token_first.json").read_text())
CASES = GOLDEN["cases"]
BY_NAME: dict[str, Any] = {cls.name: cls for cls in S.SAMPLERS}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By name, as the golden file has them."""
    folder = tmp_path_factory.mktemp("vocabularies")

    @cache
    def made(name: str) -> Tokenizer:
        path = ROOT / "src" / "aleator" / "data" / "shakespeare.gguf"
        if name != "bundled":
            path = folder / f"{name}.gguf"
            packed = ROOT / "tests" / "data" / "vocab" / f"{name}.gguf.xz"
            path.write_bytes(lzma.decompress(packed.read_bytes()))
        return Tokenizer(Vocabulary.from_gguf(path))

    return made


@cache
def compiled(tokenizer: Tokenizer, grammar: str) -> S.Grammar:
    return S.Grammar(**json.loads(grammar), vocabulary=tokenizer)


def chain_of(case: dict[str, Any], tokenizer: Tokenizer) -> S.SamplerChain:
    samplers = [BY_NAME[name](**values) for name, values in case["chain"]]
    grammar = compiled(tokenizer, json.dumps(case["grammar"]))
    chain = S.SamplerChain(samplers, numerics="llama.cpp", grammar=grammar)
    for token in GOLDEN["prompt"]:
        chain.accept(token)
    return chain


def rows(case: dict[str, Any], tokenizer: Tokenizer) -> list[Any]:
    made = [row("spread", len(tokenizer.vocab), 4, step) for step in range(len(case["tokens"]))]
    step, token = case["boosted"]
    if step < len(made):
        made[step][token] = 60
    return made


@pytest.mark.parametrize("index", range(len(CASES)))
def test_tokens_are_those_of_the_common_layer(index: int, tokenizers: Any) -> None:
    case = CASES[index]
    tokenizer = tokenizers(case["vocabulary"])
    chain = chain_of(case, tokenizer)
    logits = rows(case, tokenizer)
    assert [chain.sample(each) for each in logits] == case["tokens"]
    if case["vocabulary"] != "bundled":
        return
    half = len(logits) // 2
    chain.rollback(len(logits) - half)
    copy = chain.clone()
    for each, expected in zip(logits[half:], case["tokens"][half:], strict=True):
        assert copy.explain(each).draw.token.id == expected  # type: ignore[union-attr]
        assert chain.sample(each) == copy.sample(each) == expected
    chain.reset()
    for token in GOLDEN["prompt"]:
        chain.accept(token)
    assert [chain.sample(each) for each in logits] == case["tokens"]


def test_the_cases_are_of_both_kinds() -> None:
    refused = sum(case["refused"] for case in CASES)
    drawn = sum(len(case["tokens"]) for case in CASES)
    assert 0.2 < refused / drawn < 0.8
    lazy = [
        c for c in CASES if "trigger_patterns" in c["grammar"] or "trigger_tokens" in c["grammar"]
    ]
    assert sum(case["refused"] for case in lazy) > 20  # they do begin
    assert all(c["refused"] < len(c["tokens"]) for c in lazy)


def test_a_refusal_costs_a_second_draw(tokenizers: Any) -> None:
    """Masking first, as portable chains do, draws once per token, and so draws other tokens."""
    case = next(c for c in CASES if c["chain"][-1][0] == "dist" and c["refused"] > 3)
    tokenizer = tokenizers(case["vocabulary"])
    samplers = [BY_NAME[name](**values) for name, values in case["chain"]]
    grammar = compiled(tokenizer, json.dumps(case["grammar"]))
    masked = S.SamplerChain([grammar, *samplers], numerics="llama.cpp")
    for token in GOLDEN["prompt"]:
        masked.accept(token)
    differ = False
    for logits, token in zip(rows(case, tokenizer), case["tokens"], strict=True):
        drawn = masked.sample(logits)
        differ |= drawn != token
        masked.rollback(1)
        masked.accept(token, generated=True)
    assert differ
