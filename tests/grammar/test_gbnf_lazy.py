from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ConstraintError, ParameterError
from aleator.grammar import compile_gbnf
from aleator.text import Vocabulary
from tests.text.vocabularies import byte_level

ADDED = ("<|end|>", "<tool>", "x{", "{a")
END, TOOL, X_BRACE, BRACE_A = 258, 259, 260, 261
ABC = 'root ::= "{" [abc]* "}"'


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_metadata(byte_level(ADDED, eos_token_id=END))


def allowed(constraint: Any) -> set[int]:
    bits = np.unpackbits(constraint.mask().astype("<i4").view(np.uint8), bitorder="little")
    assert not bits[constraint.n_vocab :].any()
    return set(np.flatnonzero(bits).tolist())


def lazy(vocabulary: Vocabulary, *patterns: str, tokens: Any = (), text: str = ABC) -> Any:
    return compile_gbnf(text, "root", vocabulary, patterns, tokens)


def feed(constraint: Any, text: str) -> None:
    for byte in text.encode():
        constraint.accept(byte)


def test_everything_goes_until_the_trigger(vocabulary: Vocabulary) -> None:
    c = lazy(vocabulary, r"(\{[\s\S]*)")
    everything = set(range(len(vocabulary)))
    assert c.waiting
    assert c.complete
    assert c.jump_forward() == b""
    assert allowed(c) == everything
    feed(c, "so: ")
    c.accept(END)
    c.accept(X_BRACE)  # a token that overlaps the start gives its rest to the grammar
    assert not c.waiting
    inside = {ord(x) for x in "abc}"} | {256, 257}
    assert allowed(c) == inside
    c.rollback(1)
    assert c.waiting
    assert allowed(c) == everything
    c.accept(BRACE_A)
    assert allowed(c) == inside
    copy = c.clone()
    c.reset()
    assert c.waiting
    feed(copy, "}")
    assert allowed(copy) == {END}
    feed(c, "{}")
    assert allowed(c) == {END}


def test_tokens_trigger(vocabulary: Vocabulary) -> None:
    c = lazy(vocabulary, tokens=[TOOL], text='root ::= <tool> "a" | "<tool>" "b"')
    feed(c, "<tool>")
    assert c.waiting  # the same text in other tokens is not the trigger
    c.accept(TOOL)
    assert allowed(c) == {ord("a"), 256 - 256 + ord("b")}
    c = lazy(vocabulary, tokens=[TOOL])
    with pytest.raises(ConstraintError, match="259 starts the grammar"):
        c.accept(TOOL)
    assert c.waiting
    with pytest.raises(ParameterError, match="trigger token 1000"):
        lazy(vocabulary, tokens=[1000])


def test_an_empty_first_group_hands_over_the_match(vocabulary: Vocabulary) -> None:
    pattern = r"<t>([\s\S]*)"
    c = lazy(vocabulary, pattern, text='root ::= "<t>" "a"')
    feed(c, "...<t>")
    assert allowed(c) == {ord("a")}
    c = lazy(vocabulary, pattern)
    feed(c, "...<t")
    with pytest.raises(ConstraintError, match=r"hands over, <t> \(from the first group"):
        c.accept(ord(">"))
    assert c.waiting
    feed(c, "x")  # the token is not there: "...<tx"
    feed(c, "<t")
    assert c.waiting


# Pattern, text, and where the grammar begins, by hand from the rules of ECMAScript.
FOUND = [
    ("b", "ab", 1), ("^b", "ab", None), ("b$", "ab", 1), ("a$", "ab", None), ("^a$", "ba", None),
    ("^ab|b$", "xb", 1), ("(a|ab)(c|bcd)(d*)", "xabcd", 1), ("a(b*)c", "ac", 0), ("a(b*)c", "abbc", 1),
    ("(x)?(b)", "ab", 1), (r"\bfoo\b", "food foo", 5), (r"\Boo", "foo", 1), ("a{2,3}", "aba aa", 4),
    ("a{2}", "aba", None), ("(a+?)(a*)b", "aaab", 0), ("a+?(a*)b", "aaab", 1), (".b", "\nb", None),
    (r"[\s\S]b", "\nb", 0), ("[^]b", "\nb", 0), ("a[]", "a", None), (r"[\]a-c\-]+(d)", "]b-d", 3),
    ("[[:digit:]]+([x])", "12x", 2), (r"\x41\u0042", "AB", 0), ("(?=ab)a(.)", "acab", 3),
    ("a(?!b)(.)", "abac", 3), ("(?:ab)+(c)", "ababc", 4), ("é(中+)", "aé中中", 3), ("a||b", "b", 0),
    (r"\d+\.(\d+)", "v12.34", 4), ("a**b", "aab", 0), ("(a*)*b", "b", 0), ("{", "", ParameterError),
    ("(a", "", ParameterError), ("a)", "", ParameterError), ("[a", "", ParameterError),
    (r"(a)\1", "", ParameterError), ("a{3,1}", "", ParameterError), ("[b-a]", "", ParameterError),
    ("a{1000}{1000}", "", ParameterError), ("(" * 200 + ")" * 200, "", ParameterError),
    ("*", "", ParameterError), ("(?<x>a)", "", ParameterError), (r"\x4", "", ParameterError),
]  # fmt: skip


def test_an_error_says_where_a_pattern_is_wrong(vocabulary: Vocabulary) -> None:
    for pattern, place in ((r"a\x4", 5), (r"\u00zz", 5), (r"\xz", 3), ("ab)", 3)):
        with pytest.raises(ParameterError, match=f"character {place}:"):
            lazy(vocabulary, pattern)


@pytest.mark.parametrize(("pattern", "text", "start"), FOUND)
def test_patterns(vocabulary: Vocabulary, pattern: str, text: str, start: Any) -> None:
    if start is ParameterError:
        with pytest.raises(ParameterError, match="trigger"):
            lazy(vocabulary, pattern)
        return
    # The whole text as one token, and a grammar that takes exactly what is handed over, and then x.
    if text not in vocabulary.ids:
        vocabulary = Vocabulary.from_metadata(byte_level(("<|end|>", text), eos_token_id=END))
    rest = "" if start is None else text.encode()[start:].decode()
    literal = "".join(f"\\U{ord(c):08x}" for c in rest)
    c = lazy(vocabulary, pattern, text=f'root ::= "{literal}x"')
    c.accept(vocabulary.ids[text])
    if start is None:
        assert c.waiting
    else:
        assert not c.waiting
        assert c.allows(ord("x"))


def test_long_texts_are_read_once(vocabulary: Vocabulary) -> None:
    c = lazy(vocabulary, r"(?:[\s\S]*?)(<go>)")
    for _ in range(20_000):  # std::regex overflows the stack here
        c.accept(ord("a"))
    assert c.waiting
