"""Regular expressions in the npm package: the grammars that they become, and what is refused."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import aleator
from aleator.grammar import compile_gbnf
from aleator.models.hub.bundled import bundled_model
from aleator.samplers import Regex
from tests.javascript.byte_texts import BYTES, takes
from tests.javascript.conftest import Refuses, Run, Values
from tests.javascript.random_cases import told_of

WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
SINGLE = {
    "a": "a", "b": "b", "é": "é", "1": "1", r"\.": r"\.", r"\n": r"\n", r"\x41": "A", r"\u{1F600}": "😀",
    r"\d": r"\p{Nd}", r"\D": r"\P{Nd}", r"\w": f"[{WORD}]", r"\W": f"[^{WORD}]", r"\s": r"\p{White_Space}",
    r"\S": r"\P{White_Space}", ".": r"[^\n]", "[^ab]": "[^ab]", "[a-c1]": "[a-c1]",
    r"[\d_-]": r"[\p{Nd}_\-]", r"[^\s\w]": rf"[^\p{{White_Space}}{WORD}]",
}  # fmt: skip
"""What matches one character, and how JavaScript's RegExp writes it."""
TIMES = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}?")
ALPHABET = "aab1é_ \n.A٣😀\u2028-"


def _random(r: random.Random, depth: int = 0) -> tuple[str, str]:
    """An expression, and JavaScript's form of it."""
    ways = []
    for _ in range(r.choice((1, 1, 2, 3))):
        parts = []
        for _ in range(r.randint(0 if depth else 1, 3)):
            ours, theirs = r.choice(list(SINGLE.items()))
            if depth < 3 and r.random() < 0.3:
                inner = _random(r, depth + 1)
                begin = r.choice(("(", "(?:"))
                ours, theirs = f"{begin}{inner[0]})", f"(?:{inner[1]})"
            times = r.choice(TIMES)
            parts.append((ours + times, theirs + times))
        ways.append(tuple("".join(each) for each in zip(*parts, strict=True)) or ("", ""))
    first, second = ("|".join(each) for each in zip(*ways, strict=True))
    return first, second


def _grammars(run: Run, sources: list[str]) -> list[Any]:
    """Their texts, or what refuses them."""
    code = "(await inside('regex.js')).ofRegex(given)"
    return run("value", [{"code": code, "given": each} for each in sources])


def test_grammars_take_what_javascript_and_python_match(run: Run, values: Values) -> None:
    r = random.Random(5)
    pairs = [_random(r) for _ in range(80)]
    texts = ["", *("".join(r.choices(ALPHABET, k=r.randint(1, 5))) for _ in range(60))]
    code = "given[1].map((other) => given[0].map((text) => new RegExp(other, 'u').test(text)))"
    [theirs] = values(code, given=[texts, [f"^(?:{other})$" for _, other in pairs]])
    matched = 0
    found = _grammars(run, [ours for ours, _ in pairs])
    for (ours, _), matches, grammar in zip(pairs, theirs, found, strict=True):
        compiled = compile_gbnf(grammar, "root", BYTES)
        assert [takes(compiled, text) for text in texts] == matches, ours
        python = Regex(ours, BYTES).constraint
        some = [*texts[:8], *(text for text, match in zip(texts, matches, strict=True) if match)]
        assert [takes(python, text) for text in some] == [takes(compiled, text) for text in some]
        matched += sum(matches)
    assert matched > 100


def test_characters_of_classes_are_those_of_python(values: Values) -> None:
    [points] = values(
        "(({ DIGITS, WORD, SPACES }) => [DIGITS, WORD, SPACES])(await inside('facts.js'))"
    )
    for source, ranges in zip((r"\d", r"\w", r"\s"), points, strict=True):
        python = Regex(source, BYTES).constraint
        chosen = random.Random(1).sample(ranges, min(30, len(ranges)))
        ends = {point for pair in chosen for point in pair}
        near = {point + step for point in ends for step in (-1, 0, 1)} - set(range(0xD800, 0xE000))
        within = {point for begin, end in ranges for point in near if begin <= point <= end}
        assert {point for point in near if point >= 0 and takes(python, chr(point))} == within


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("^a|b$", "b"),
        (r"\Aa\z", "a"),
        ("(?<n>a)(?P<m>b)", "ab"),
        (r"[\]a]", "]"),
        (r"\a\t\v", "\a\t\v"),
        (r"\x{41}\U0001F600", "A😀"),
        ("a{1,2500}", "a" * 2500),
        ('"\\\\', '"\\'),
    ],
)
def test_a_text_matches(run: Run, source: str, text: str) -> None:
    grammar = compile_gbnf(_grammars(run, [source])[0], "root", BYTES)
    assert takes(grammar, text)
    assert not takes(grammar, text + text)
    assert takes(Regex(source, BYTES).constraint, text)


REFUSED = [
    ("(?i)a", 1, "flags of groups"), ("ab(?=c)", 3, "looking around"),
    ("a(?<!b)c", 2, "looking around"), (r"a\b", 2, r"\b is not supported"),
    (r"(a)\1", 4, r"\1 is not supported"), (r"\p{L}", 1, r"\p is not supported"),
    (r"a\<", 2, r"\< is not supported"), ("a(b", 2, "a group is not closed"),
    ("a)", 2, ") is not supported here"), ("a^b", 2, "^ is not supported here"),
    ("(a$)", 3, "has ^ or $ in it"), ("a**", 3, "a repetition is repeated"),
    ("*a", 1, "repeats or closes nothing"), ("a{3,1}", 2, "a maximum below its minimum"),
    ("a{,3}", 2, "is not {m}"), ("a{1,200000}", 2, "of more than 100000"),
    ("[a", 1, "a class is not closed"), ("[]a]", 2, r"write \]"), ("[a[b]]", 3, r"write \["),
    ("[a&&b]", 3, r"write \&"), ("[a--b]", 4, r"write \-"), ("[b-a]", 2, "a range of a class"),
    (r"[\d-z]", 2, "a range of a class"), ("a\\", 2, "escapes nothing"),
    (r"\u{110000}", 1, "no such character"), (r"\ud800", 1, "halves of characters"),
    ("(" * 60, 52, "too deep"), ("a" * 20_001, 20_001, "more than 20000 characters"),
    ("é(?i)", 2, "flags of groups"),
]  # fmt: skip


def test_what_is_not_kept_is_refused_with_its_place(values: Values) -> None:
    code = """
      const { ofRegex } = await inside('regex.js')
      const told = ({ name, message, column }) => [name, message, column]
      return Promise.all(given.map((source) => (async () => ofRegex(source))().catch(told)))
    """
    [told] = values(code, given=[source for source, _, _ in REFUSED])
    for (source, column, said), found in zip(REFUSED, told, strict=True):
        assert found[0] == "GrammarError", source[:80]
        assert said in found[1], source[:80]
        assert found[2] == column, source[:80]


def test_what_asks_for_too_many_elements_is_refused(refuses: Refuses) -> None:
    refuses({"model.generate('a', { regex: 'a{90000}'.repeat(20) })": "elements"}, "GrammarError")


def test_repetitions_within_repetitions_share_their_rules(run: Run) -> None:
    sources = ["((.{1,999}){1,999}){1,999}", "(" * 40 + "a" + "{1000})" * 40, "(a{100000}){100000}"]
    case = {"path": str(bundled_model()), "prompt": "a"}
    options = {"seed": 1, "maxTokens": 4}
    found = run("text", [{**case, "options": {**options, "regex": each}} for each in sources])
    assert [len(told["tokens"]) for told in found] == [4] * 3
    assert found[1]["text"] == "aaaa"


def test_no_text(run: Run) -> None:
    [told] = _grammars(run, [r"a[^\s\S]"])
    assert "no text obeys it" in told["message"]


@pytest.mark.parametrize(
    "source", ["[A-Z][a-z]+, [0-9]{2}", r"(\w+ ){2,5}\w+[.!?]", "aye|no|never"]
)
def test_texts_match_and_are_those_of_the_grammar_in_python(run: Run, source: str) -> None:
    options: dict[str, Any] = {"seed": 3, "preset": "neutral"}
    case = {"path": str(bundled_model()), "prompt": "NURSE:\n"}
    [told] = run("text", [{**case, "options": {**options, "regex": source, "maxTokens": 40}}])
    [grammar] = _grammars(run, [source])
    made = aleator.load(n_threads=1).generate("NURSE:\n", grammar=grammar, max_tokens=40, **options)
    assert told == told_of(made)
    assert told["complete"]
    assert re.fullmatch(source, told["text"])


def test_an_expression_needs_a_tokenizer_and_stands_alone(refuses: Refuses) -> None:
    both = "model.generate('a', { regex: 'a', grammar: 'root ::= \"a\"' })"
    refuses({both: "grammar and regex are both given"})
    refuses({"model.generate('a', { regex: 5 })": "regex=5 is no text"})
    refuses({"new Chain({ regex: 'a' })": "regex needs a tokenizer"})
