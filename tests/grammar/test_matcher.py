"""Matchers of other packages: a toy one, and xgrammar's where it is installed."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import ConstraintError, ParameterError
from aleator.grammar.matcher import MatcherConstraint


class Counting:
    """Allows a token if it is a multiple of how many there were before, plus one; ends after four."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.tokens: list[int] = []

    def fill_next_token_bitmask(self, bitmask: Any, index: int = 0) -> bool:
        assert (bitmask.shape, index) == ((1, -(-self.n // 32)), 0)
        bits = np.zeros(bitmask.shape[1] * 32, np.bool_)
        if len(self.tokens) == 4:
            bits[0] = True
        else:
            bits[1 : self.n : len(self.tokens) + 1] = True
        bitmask[index] = np.packbits(bits, bitorder="little").view(np.int32)
        return True

    def accept_token(self, token: int) -> bool:
        self.tokens.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[len(self.tokens) - num_tokens :]

    def reset(self) -> None:
        self.tokens = []

    def is_terminated(self) -> bool:
        return self.tokens[-1:] == [0]

    def is_completed(self) -> bool:
        return len(self.tokens) >= 4


def test_a_matcher_in_a_chain(model: aleator.LanguageModel) -> None:
    sampler = S.MatcherGrammar(Counting(2048), model.vocab)
    chain = S.SamplerChain([S.Temperature(temperature=9.0), S.Dist(seed=2)], grammar=sampler)
    row = np.random.default_rng(0).normal(size=2048).astype(np.float32)
    tokens = [chain.sample(row) for _ in range(4)]
    assert all((t - 1) % (i + 1) == 0 for i, t in enumerate(tokens))
    states = [chain.finished]
    assert chain.clone().sample(row) == 0
    chain.rollback(2)
    states.append(chain.finished)
    assert states == [True, False]
    assert [chain.sample(row) for _ in range(2)] == tokens[2:]
    with pytest.raises(ConstraintError):
        chain.accept(5, generated=True)
    assert S.SamplerChain([S.Dist(seed=2)], grammar=sampler).history == []  # each has its own state


def test_what_a_matcher_lacks_is_named(model: aleator.LanguageModel) -> None:
    class Half:
        def accept_token(self, token: int) -> bool:
            return True

    with pytest.raises(
        ParameterError, match="fill_next_token_bitmask, rollback, reset, is_terminated"
    ):
        S.MatcherGrammar(Half(), model.vocab)


def test_xgrammar(model: aleator.LanguageModel) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    vocab = model.vocab
    info = xgrammar.TokenizerInfo(
        [b"" if vocab.is_special(i) else vocab.token_bytes(i) for i in range(len(vocab))],
        xgrammar.VocabType.RAW,
        vocab_size=len(vocab),
        stop_token_ids=sorted(vocab.eog),
    )
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"enum": [1, 25]}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(
        json.dumps(schema), any_whitespace=False
    )
    matcher = xgrammar.GrammarMatcher(compiled)
    sampler = S.MatcherGrammar(copy.copy(matcher), model.tokenizer)
    for jump_forward in (True, False):
        made = model.generate(
            "ROMEO:", grammar=sampler, temperature=2.0, seed=4, jump_forward=jump_forward
        )
        value = json.loads(made.text)
        assert made.complete
        assert len(value["name"]) <= 5
        assert value["n"] in (1, 25)


def test_the_mask_follows_every_change() -> None:
    made = MatcherConstraint(Counting(40), 40)

    def allowed() -> list[int]:
        return [token for token in range(40) if made.allows(token)]

    masks = [allowed()]
    for _ in range(3):
        made.accept(1)
        masks.append(allowed())
    assert masks == [list(range(1, 40, step)) for step in (1, 2, 3, 4)]
    made.rollback(2)
    assert allowed() == masks[1]
    made.reset()
    assert allowed() == masks[0]
    with pytest.raises(ConstraintError, match="token 0 is not allowed"):
        made.accept(0)
    for token in (-1, 40, 64):
        assert not made.allows(token)
    assert allowed() == masks[0]
    copied = made.clone()
    made.accept(1)
    assert [token for token in range(40) if copied.allows(token)] == masks[0]
    assert made.jump_forward() == b""


def test_nothing_is_allowed_after_the_end() -> None:
    made = MatcherConstraint(Counting(40), 40)
    for token in (1, 1, 1, 1, 0):
        assert made.allows(token)
        made.accept(token)
    assert made.complete()
    assert not made.mask().any()


class Forced(Counting):
    """Knows what comes next, and how to copy itself."""

    def find_jump_forward_string(self) -> str:
        return "é" * len(self.tokens)

    def fork(self) -> Forced:
        made = Forced(self.n)
        made.tokens = [*self.tokens, 1]
        return made


def test_what_is_forced_and_what_a_copy_is() -> None:
    made = MatcherConstraint(Forced(40), 40)
    made.accept(1)
    assert made.jump_forward() == "é".encode()
    copied = made.clone()
    assert (copied.jump_forward(), copied.n_vocab) == ("éé".encode(), 40)
    for token in (1, 1, 1, 0):
        made.accept(token)
    assert made.jump_forward() == b""


class Counted(Counting):
    """Counts how often it is asked for a mask."""

    asked = 0

    def fill_next_token_bitmask(self, bitmask: Any, index: int = 0) -> bool:
        self.asked += 1
        return super().fill_next_token_bitmask(bitmask, index)


def test_a_matcher_is_asked_once_for_each_place() -> None:
    matcher = Counted(40)
    made = MatcherConstraint(matcher, 40)
    for change in (made.reset, lambda: made.accept(1), lambda: made.rollback(1)):
        before = matcher.asked
        change()
        assert matcher.asked == before
        assert [token for token in range(40) if made.allows(token)] == list(
            range(1, 40, len(matcher.tokens) + 1)
        )
        assert matcher.asked == before + 1
