"""Constraints in chains: at their place, in step with accept, rollback, reset and clone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import ConstraintError, LogitsError, ParameterError
from aleator.samplers.reference import ReferenceChain
from tests.samplers.steps import Texts

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "n": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": {"enum": ["a", None]},
}
GBNF = 'root ::= word (" " word){0,6} "."\nword ::= [a-z]+ | "\\"" [A-Z] [^"\\n]* "\\""'
TAIL = [S.TopK(top_k=30), S.Temperature(temperature=1.5), S.Dist(seed=7)]


@pytest.fixture(scope="module")
def constraints(model: aleator.LanguageModel) -> dict[str, S.ConstraintSampler]:
    tokenizer = model.tokenizer
    return {
        "gbnf": S.Grammar(GBNF, vocabulary=tokenizer),
        "json": S.JSONSchema(SCHEMA, tokenizer),
        "regex": S.Regex("([a-z]{1,4}-)*[0-9]+", tokenizer),
        "lark": S.Lark('start: WORD (", " WORD)*\nWORD: /[a-z]+/', tokenizer),
    }


def rows(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, 2048)).astype(np.float32) * 3


def text(model: aleator.LanguageModel, tokens: list[int]) -> bytes:
    return b"".join(map(model.vocab.token_bytes, tokens))


@pytest.mark.parametrize("name", ["gbnf", "json", "regex", "lark"])
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@pytest.mark.parametrize("place", ["grammar", "list"])
def test_any_order_of_operations_equals_a_replay(
    name: str, numerics: str, place: str, constraints: Any
) -> None:
    """Tokens from a chain that went forth and back equal those of a new chain that went straight."""
    grammar = constraints[name]

    def new() -> S.SamplerChain:
        if place == "list":
            return S.SamplerChain([grammar, *TAIL], numerics)
        return S.SamplerChain(TAIL, numerics, grammar=grammar)

    rng = random.Random(f"{name} {numerics} {place}")
    logits = rows(40)
    straight = new()
    tokens: list[int] = []
    while len(tokens) < 14 and not straight.finished:
        tokens.append(straight.sample(logits[len(tokens)]))
    chain, at = new(), 0
    for _ in range(80):
        action = rng.choice(("sample", "sample", "sample", "back", "clone", "reset", "accept"))
        if action == "sample" and at < len(tokens):
            assert chain.sample(logits[at]) == tokens[at]
            at += 1
        elif action == "accept" and at < len(tokens) and numerics == "portable":
            chain.accept(tokens[at], generated=True)
            at += 1
        elif action == "back":
            n = rng.randint(0, min(at, 5))
            chain.rollback(n)
            at -= n
        elif action == "clone":
            other = chain.clone()
            if at < len(tokens):
                other.sample(logits[at])
            chain = chain.clone()
        elif action == "reset" and rng.random() < 0.3:
            chain.reset()
            at = 0
        with pytest.raises(ConstraintError):  # "#", or the end
            chain.accept(3 if chain.constraints[0].constraint.complete else 0, generated=True)
        fresh = new()
        for token in tokens[:at]:
            fresh.accept(token, generated=True)
        assert chain.history == tokens[:at]
        assert chain.position == at
        assert chain.jump_forward() == fresh.jump_forward()
        mine, theirs = chain.constraints[0], fresh.constraints[0]
        assert mine.constraint.mask().tobytes() == theirs.constraint.mask().tobytes()
        assert mine.count() == theirs.count()
        assert chain.finished == fresh.finished


@pytest.mark.parametrize("name", ["gbnf", "json"])
def test_a_portable_chain_masks_first_and_draws_once(name: str, constraints: Any) -> None:
    """As its reference does, and as a mask given by hand."""
    grammar = constraints[name]
    chain = S.SamplerChain(TAIL, grammar=grammar)
    reference = ReferenceChain(chain)
    parser = grammar.constraint.clone()
    for step, logits in enumerate(rows(12, 1)):
        by_hand = S.SamplerChain([S.TokenMask.of_words(parser.mask()), *TAIL])
        by_hand.position = step
        row = reference.apply(logits)
        candidates = S.Candidates(logits)
        chain.apply(candidates)
        assert candidates.ids.tolist() == row.ids.tolist()
        token = chain.sample(logits)
        assert token == row.selected == by_hand.sample(logits)
        parser.accept(token)
        reference.accept(token, generated=True)
        if chain.finished:
            break


@pytest.mark.parametrize("density", [0.0005, 0.02, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("n", [31, 128, 1000, 4099])
def test_masks_of_any_density_and_length(density: float, n: int) -> None:
    """Dense and compact rows, masks shorter and longer than the row, masked tokens and infinities."""
    rng = np.random.default_rng(int(density * 1e4) + n)
    for size in (n, n - 7, n + 90):
        kept = rng.random(size) < density
        kept[rng.integers(min(size, n))] = True
        logits = rng.normal(size=n).astype(np.float32)
        logits[rng.random(n) < 0.2] = -np.inf
        logits[np.flatnonzero(kept[:n])[0]] = -0.0
        chosen = np.flatnonzero(kept[:n] & (logits[: len(kept)] > -np.inf)[: len(kept[:n])])
        for before in ([], [S.TopK(top_k=n - 1)]):
            chain = S.SamplerChain(before, grammar=None)
            chain.add(S.MatcherGrammar(Fixed(kept), vocabulary=numbers(size)))
            candidates = S.Candidates(logits)
            chain.apply(candidates)
            if not before:
                assert candidates.ids.tolist() == chosen.tolist()
                assert candidates.logits.tobytes() == (logits[chosen] + np.float32(0)).tobytes()
        llama = S.SamplerChain(
            [S.MatcherGrammar(Fixed(kept), vocabulary=numbers(size))], "llama.cpp"
        )
        candidates = S.Candidates(logits)
        llama.apply(candidates)
        assert np.flatnonzero(candidates.logits > -np.inf).tolist() == chosen.tolist()


def numbers(n: int) -> Texts:
    """A vocabulary of tokens that are numbers."""
    return Texts([b"%d " % token for token in range(n)], frozenset({0}))


class Fixed:
    """A matcher whose mask never changes."""

    def __init__(self, kept: Any) -> None:
        bits = np.zeros(-(-len(kept) // 32) * 32, np.bool_)
        bits[: len(kept)] = kept
        self.words = np.packbits(bits, bitorder="little").view(np.int32)

    def fill_next_token_bitmask(self, bitmask: Any, index: int = 0) -> bool:
        bitmask[index] = self.words
        return True

    def accept_token(self, token: int) -> bool:
        return True

    def rollback(self, num_tokens: int) -> None: ...
    def reset(self) -> None: ...
    def is_terminated(self) -> bool:
        return False


def test_a_wrong_token_changes_nothing(constraints: Any, model: aleator.LanguageModel) -> None:
    for numerics in ("portable", "llama.cpp"):
        chain = S.SamplerChain(
            [S.Penalties(repetition_penalty=1.2), *TAIL], numerics, grammar=constraints["json"]
        )
        chain.accept(40)
        chain.accept(model.vocab.ids["{"], generated=True)
        before = chain.history, chain.position, chain.jump_forward(), chain.clone()
        with pytest.raises(ConstraintError, match="41") as error:
            chain.accept(41, generated=True)
        assert error.value.token == 41
        assert (chain.history, chain.position, chain.jump_forward()) == before[:3]
        row = rows(1)[0]
        assert chain.sample(row) == before[3].sample(row)
        chain.accept(41)  # a token of a prompt is not part of the text


def test_prompt_tokens_are_not_parsed(constraints: Any) -> None:
    row = rows(1)[0]
    chains = [S.SamplerChain(TAIL, grammar=constraints["gbnf"]) for _ in range(2)]
    for token in (5, 900, 3):
        chains[1].accept(token)
    assert chains[0].sample(row) == chains[1].sample(row)
    chains[1].rollback(4)
    assert chains[1].history == []


def test_a_lark_grammar_has_no_triggers() -> None:
    lark = '%llguidance {}\nstart: "a"'
    assert S.Grammar(lark).grammar == lark
    for triggers in ({"trigger_patterns": ["a"]}, {"trigger_tokens": [1]}):
        with pytest.raises(ParameterError, match="a Lark grammar cannot have triggers"):
            S.Grammar(lark, **triggers)


def test_what_is_missing_is_said(constraints: Any) -> None:
    for made in (S.Grammar(GBNF), S.JSONSchema({}), S.Regex("a"), S.Lark('start: "a"')):
        with pytest.raises(ParameterError, match=r"vocabulary=model\.tokenizer"):
            S.SamplerChain(TAIL, grammar=made)
    with pytest.raises(ParameterError, match="not a sampler with a constraint"):
        S.SamplerChain(TAIL, grammar=S.TopK(top_k=3))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="not a sampler with a constraint"):
        S.SamplerChain(TAIL, grammar=GBNF)  # type: ignore[arg-type]


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_when_nothing_is_left(
    numerics: str, constraints: Any, model: aleator.LanguageModel
) -> None:
    """The mask leaves nothing finite: an error that names the grammar, and the chain is as before."""
    chain = S.SamplerChain(TAIL, numerics, grammar=constraints["json"])
    row = rows(1)[0]
    masked = row.copy()
    masked[model.vocab.ids["{"]] = -np.inf
    with pytest.raises(LogitsError, match="no token that the grammar allows"):
        chain.sample(masked)
    assert chain.history == []
    assert chain.sample(row) == model.vocab.ids["{"]


def test_grammar_is_apart_from_the_list(constraints: Any) -> None:
    chain = S.SamplerChain(TAIL, grammar=constraints["gbnf"])
    assert chain.describe() == "logits -> grammar -> top_k -> temperature -> dist"
    assert len(chain) == 3
    assert chain.grammar is constraints["gbnf"]
    plain = chain.clone()
    chain.insert(0, S.MinP(min_p=0.01))
    assert [s.name for s in chain] == ["min_p", "top_k", "temperature", "dist"]
    chain.remove(0)
    logits = rows(6, 3)
    assert [chain.sample(each) for each in logits] == [plain.sample(each) for each in logits]


def test_restart_begins_a_new_text(constraints: Any, model: aleator.LanguageModel) -> None:
    for numerics in ("portable", "llama.cpp"):
        chain = S.SamplerChain(TAIL, numerics, grammar=constraints["json"])
        chain.sample(rows(1)[0])
        chain.accept(9)
        chain.restart()
        assert chain.position == 1
        assert chain.jump_forward() == b'{"name": "'
        chain.sample(rows(1)[0])
        chain.rollback(1)
        with pytest.raises(ParameterError, match="began anew 0 tokens ago"):
            chain.rollback(1)
        chain.reset()
        assert chain.jump_forward() == b'{"name": "'


def test_sample_batch(constraints: Any) -> None:
    logits = rows(4, 5)
    chains = [S.SamplerChain(TAIL, grammar=c) for c in constraints.values()]
    alone = [chain.clone().sample(row) for chain, row in zip(chains, logits, strict=True)]
    assert S.sample_batch(chains, logits, n_threads=2) == alone


def test_explain_counts_what_the_grammar_masks(constraints: Any) -> None:
    row = rows(1)[0]
    chain = S.SamplerChain(TAIL, grammar=constraints["json"])
    stage = chain.explain(row).stages[0]
    assert (stage.name, stage.n_removed, stage.state) == ("json_schema", 2047, {"allowed": 1.0})
    llama = S.SamplerChain(TAIL, "llama.cpp", grammar=constraints["json"])
    explained = llama.explain(row)
    assert explained.stages[0].n_removed == 2047
    assert explained.stages[0].state == {"allowed": 1.0, "first draw refused": 1.0}
    assert explained.draw is not None
    assert llama.sample(row) == explained.draw.token.id
    likely = row.copy()
    likely[explained.draw.token.id] = 50
    llama.reset()
    assert llama.explain(likely).stages[0].state["first draw refused"] == 0


def test_lazy_grammars_wait(model: aleator.LanguageModel) -> None:
    comma = model.vocab.ids[","]
    grammar = S.Grammar('root ::= "," [0-9]+', vocabulary=model.tokenizer, trigger_tokens=(comma,))
    chain = S.SamplerChain([S.Greedy()], grammar=grammar)

    def waiting() -> bool:
        return chain.constraints[0].constraint.waiting

    row = np.zeros(2048, np.float32)
    row[900] = 5
    assert chain.sample(row) == 900
    assert waiting()
    assert chain.explain(row).stages[0].state == {"waiting": 1.0}
    assert chain.jump_forward() == b""
    chain.accept(comma, generated=True)
    assert not waiting()
    assert model.vocab.token_bytes(chain.sample(row)).isdigit()
    chain.rollback(2)
    assert waiting()


def test_params(model: aleator.LanguageModel) -> None:
    params = S.SamplingParams(grammar=GBNF, seed=3)
    assert isinstance(params.constraint, S.Grammar)
    assert params.chain(model.tokenizer).describe().startswith("logits -> grammar -> ")
    assert params.replace(grammar=None).constraint is None
    assert S.SamplingParams(json_schema={"type": "null"}).constraint == S.JSONSchema(
        '{"type": "null"}'
    )
    with pytest.raises(ParameterError, match="grammar and regex are both given"):
        S.SamplingParams(grammar=GBNF, regex="a")
    with pytest.raises(ParameterError, match="neither GBNF text nor"):
        S.SamplingParams(grammar=7)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="vocabulary"):
        params.chain()


def test_a_reference_parses_what_was_generated_and_waits_as_its_chain_does(
    model: aleator.LanguageModel,
) -> None:
    comma = model.vocab.ids[","]
    grammar = S.Grammar('root ::= "," [0-9]+', vocabulary=model.tokenizer, trigger_tokens=(comma,))
    for prompt, generated in (([], []), ([comma], []), ([], [900]), ([900, comma], [900, comma])):
        chain = S.SamplerChain([S.Greedy()], grammar=grammar)
        reference = ReferenceChain(chain)
        for token, drawn in [*((t, False) for t in prompt), *((t, True) for t in generated)]:
            chain.accept(token, generated=drawn)
            reference.accept(token, generated=drawn)
        row = rows(1, 5)[0]
        candidates = S.Candidates(row)
        chain.apply(candidates)
        assert reference.apply(row).selected == candidates.selected
        assert chain.constraints[0].constraint.waiting == (comma not in generated)
