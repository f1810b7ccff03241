"""The ends of constrained texts in the npm package: the same tokens as here."""

from __future__ import annotations

import random
from typing import Any

import aleator
from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import Refuses, Run, Values
from tests.javascript.random_cases import told_of

PATH = str(bundled_model())
GRAMMARS = {
    "brackets": r'root ::= "[" value ("," value)* "]" value ::= root | [0-9]+ | "\"" [^"]* "\""'.replace(
        " value ::=", "\nvalue ::="
    ),
    "multiples": 'root ::= "{" ([0-9] [0-9] [0-9] "5" | [0-9]{6} "0") "}"',
    "names": 'root ::= "(" (("p" | "q" | "r") "<" root ">" | "s" "." [a-z]*)+ ")"',
    "counted": 'root ::= [^\\n]{9,40} "\\n" "." ',
    "letters": 'root ::= ("\u00e9" | "\U0001f600")+ "e" | [a-z]+ " " root',
    "endless": 'root ::= [a-z]{200} "."',
    "values": 'root ::= "{" ("true" | "null" | "-" [1-9]+ | "[" root "]" | "\\"" [a-c]{4} "\\"")'
    ' ("," root)? "}"',
}  # fmt: skip


def test_endings_are_the_same(run: Run) -> None:
    works: list[dict[str, Any]] = [
        {"grammar": grammar, "seed": seed, "preset": "neutral", "temperature": 1 + seed, "maxTokens": n}
        for grammar in GRAMMARS.values()
        for seed, n in enumerate((1, 4, 9, 30))
    ]  # fmt: skip
    model, expected = aleator.load(n_threads=1), []
    for each in works:
        own = {k: v for k, v in each.items() if k != "maxTokens"}
        expected.append(told_of(model.generate("JULIET:\n", max_tokens=each["maxTokens"], **own)))
    assert (
        run("text", [{"path": PATH, "prompt": "JULIET:\n", "options": o} for o in works])
        == expected
    )
    assert {told["complete"] for told in expected} == {True, False}
    assert {told["reason"] for told in expected} >= {"grammar", "length"}


def test_an_ending_has_no_banned_token_and_may_be_left_out(values: Values) -> None:
    model = aleator.load(n_threads=1)
    [opener, closer] = [model.tokenizer.encode(each, add_special=False)[-1] for each in "a!"]
    grammar = 'root ::= [a-z]* ("!" | ">" | ".")'
    options = f"seed: 4, maxTokens: 5, grammar: {grammar!r}, logit_bias: [[{opener}, 40], [{closer}, BIAS]]"
    codes = [
        f"(async (made) => [await made.text(), made.complete])(model.generate('a', {{ {each} }}))"
        for each in (
            options.replace("BIAS", "30"),
            options.replace("BIAS", "-Infinity"),
            options.replace("BIAS", "30") + ", completeGrammar: false",
        )
    ]
    free, banned, cut = values(*codes)
    assert cut == ["aaaaa", False]
    for told, bias in ((free, 30.0), (banned, float("-inf"))):
        biases = {opener: 40.0, closer: bias}
        made = model.generate("a", seed=4, max_tokens=5, grammar=grammar, logit_bias=biases)
        assert told == [made.text, True]
    assert free[0] != banned[0]


def test_random_choices_are_those_of_python(values: Values) -> None:
    seeds = [(3, 16), (11, 2), (2**32 - 1, 7), (0, 1)]
    code = """
      const { Random } = await inside('random.js')
      return given.map(([seed, n]) => {
        const random = new Random(seed)
        return Array.from({ length: 700 }, () => random.choice([...Array(n).keys()]))
      })
    """
    own = [(random.Random(seed), n) for seed, n in seeds]
    assert values(code, given=seeds) == [[[r.choice(range(n)) for _ in range(700)] for r, n in own]]


def test_a_search_for_an_ending_can_be_interrupted(values: Values) -> None:
    code = """
      const stopper = new AbortController()
      const grammar = 'root ::= [a-z]{30} [a-z]{30} "!"'
      const made = model.generate('a', { seed: 1, grammar, maxTokens: 40, signal: stopper.signal })
      const clock = performance.now
      let step = 0
      performance.now = () => (step += 9) // each part of the work is over at once
      setImmediate(() => stopper.abort())
      const text = await made.text()
      performance.now = clock
      return [text, made.stopReason, made.tokens, made.complete, made.chain.position]
    """
    assert values(code) == [["", "interrupted", [], False, 0]]


def test_what_is_no_switch_is_refused(refuses: Refuses) -> None:
    refuses({"model.generate('a', { completeGrammar: 1 })": "completeGrammar=1"})
