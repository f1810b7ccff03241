"""Regular expressions that are banned: what is read of them, against RE2 itself and by trying all places."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from typing import Any

import pytest
import re2  # noqa: F401  # without it this file is skipped

from aleator import ParameterError
from aleator.generate import expressions
from aleator.generate.expressions import (
    MAX_MATCH_BYTES,
    Searcher,
    banned_expressions,
    compiled,
    read,
    searchers,
)
from tests.drawn import recorded

ATOMS = (
    *"abkS. é^$", r"\w", r"\W", "[ab]", "[^a]", r"\b", r"\B", "(?i)a", "(?m)", "(?s)", "(?-i)", r"\n", r"\.",
    "[[:alpha:]]", r"\Qa.\E", r"\x61", r"\p{L}", r"\z", r"\A", "(?U)", r"[\w-]", r"\101", "[]a]",
)  # fmt: skip
GROUPS = ("(", "(?:", "(?i:", "(?P<n>", "(?s-i:")
TIMES = ("?", "{0,2}", "{2}", "{1,3}", "??", "{2,3}?")


def expression(draw: random.Random, depth: int) -> str:
    """An expression at random; RE2 may refuse it."""
    kind = draw.random() if depth else 1.0

    def inner() -> str:
        return expression(draw, depth - 1)

    if kind < 0.45:
        return "".join(inner() for _ in range(draw.randint(1, 3)))
    if kind < 0.6:
        return "|".join(inner() for _ in range(draw.randint(2, 3)))
    if kind < 0.75:
        return f"{draw.choice(GROUPS)}{inner()})"
    return f"({inner()}){draw.choice(TIMES)}" if kind < 0.95 else draw.choice(ATOMS)


def test_random_expressions_against_all_places() -> None:
    """Lengths hold; all is open that becomes a match later; the own form matches what the expression does."""
    draw = random.Random(1)
    seen = opened = 0
    while seen < 200:
        source = expression(draw, 3)
        try:
            part, _ = read(source)
        except ParameterError:
            continue
        seen += 1
        theirs, ours = compiled(source), compiled(part.whole)
        search = Searcher([part], 1.0)
        for _ in range(12):
            text = "".join(
                draw.choice("aabckKSſ\u212a. \né") for _ in range(draw.randint(0, 7))
            ).encode()
            places = [(i, j) for i in range(len(text) + 1) for j in range(i, len(text) + 1)]
            spans = [(i, j) for i, j in places if theirs.fullmatch(text, i, j)]
            assert spans == [(i, j) for i, j in places if ours.fullmatch(text, i, j)]
            assert all(part.shortest <= j - i <= part.longest for i, j in spans)
            firsts = [start for start, _ in search.matches(text, 0, 0, True)]
            assert firsts[:1] == [min(i for i, _ in spans)] if spans else not firsts
            for end in range(len(text) + 1):
                later = [
                    i for i, j in spans if i < end and (j > end or (j == end and part.looks_on))
                ]
                opened += bool(later)
                assert search.open(text[:end], 0) <= min(later, default=end)
    assert opened > 500


FORMS = (
    *(f"x{each}" for each in ATOMS if not each.startswith("(")), *(f"(?i:{each})x" for each in "akKsS.é"),
    "a*?b{0,3}", "a{2,}", "a{0}b", "a{1}", "(a|b?){2}", r"(?i)\w\W\pL\x41\d\101[a][é][^a]", "(?s).(?-s:.)",
    "(?m)^a$", "(?m:a)^b$", r"\Aa\zb", r"\bab\B", "a|b|", "((a)(?:b|c{2,3}))d?", r"[\w-][]a][^]a][\W]",
    r"\Q*\E*?", "(?iU)ka+(?-i)k", "ſKK", "(?i)ſKK",
)  # fmt: skip
"""Each kind of atom, group and repeat."""


def account(source: str, texts: list[bytes]) -> list[Any]:
    """All that is read of an expression, and where its matches are and may still begin."""
    part = expressions._Reader(source).alternatives()
    told = [
        part.whole,
        part.begun,
        part.shortest,
        str(part.longest),
        part.looks_back,
        part.looks_on,
    ]
    if part.longest > MAX_MATCH_BYTES or part.shortest == 0:
        return told
    search = Searcher([part], 0.5)
    places = [
        [[*search.matches(text, at, since, over)] for over in (False, True)]
        for text in texts
        for at in range(0, len(text) + 1, 2)
        for since in (at, at + 1)
    ]
    opened = [search.open(text, at) for text in texts for at in (0, 1, len(text), len(text) + 1)]
    before = [search.before(last).decode("latin-1") for last in (b"", b"a", b"_", b"\n", b".")]
    digest = hashlib.blake2b(repr(places).encode(), digest_size=4).hexdigest()
    return [*told, search.longest, search.looks, search.within(texts, b"a"), before, opened, digest]


def test_what_is_read_of_expressions_is_as_recorded() -> None:
    """Not only that nothing is missed: that no more text is held back than must be."""
    draw = random.Random(3)
    texts = ["".join(draw.choices("aabckKsſ. \né", k=k)).encode() for k in (0, 1, 2, 3, 5, 7, 9)]
    texts += [b"ab\xc3", b"\xa9ab"]
    sources = [*FORMS]
    while len(sources) < 100:
        source = expression(draw, 3)
        with suppress(ParameterError):
            read(source)
            sources.append(source)
    told = {source: account(source, texts) for source in sources}
    assert told == recorded("expressions", "read", told)


def test_lengths() -> None:
    for source, shortest, longest in (
        (r"\bdelve\b", 5, 5),
        (
            "(?i)disk",
            4,
            8,
        ),  # a long s has two bytes and the Kelvin sign three, of which three are counted
        ("a{2,5}|bc", 2, 5),
        ("é.", 2, 6),
        (r"[a-z]{1,20}ing", 4, 23),
        (r"[^a]\p{Greek}?", 1, 8),
        (r"\Q{2}\E{2}", 4, 4),
        ("(ab){0}c", 1, 1),
        ("(?:a+){0}c", 1, 1),
    ):
        part, _ = read(source)
        assert (part.shortest, part.longest) == (shortest, longest), source


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a.*b", "any number of bytes"),
        (r"\p{Han}{1,200}", "a match may have 800 bytes"),
        ("((a{20}){20}){20}", "invalid repetition size"),
        ("(a", "missing"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?<=a)b", "invalid perl operator"),
        (r"a\Cb", "part of a character"),
        ("a?", "an empty text matches it"),
        (r"\b", "an empty text matches it"),
        ("x" * 1001, "1001 characters"),
        ("(" * 450 + "a" + ")" * 450, "too many groups within groups"),
        (r"(?i)[\p{L}\p{N}]{1,127}" + r"|[\p{L}\p{Nd}]{3}" * 40, "pattern too large"),
        ([rf"[^\p{{L}}]{{{n}}}" for n in range(20, 60)], "together the expressions are larger"),
        ("\ud800", "surrogate"),
        (7, "give a regular expression"),
        ({"regex": "a", "p": 1}, "give a regular expression"),
        ({"regex": "a", "probability": 0}, "probability=0 is out of range"),
        ([f"a{i}" for i in range(513)], "513 expressions"),
        ([("a", p / 100) for p in range(1, 6)], "more than 4 probabilities"),
    ],
)
def test_what_is_refused(given: object, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as refused:
        banned_expressions(given)
    assert refused.value.parameter == "banned_regex"


def test_just_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("x{512}")[0].longest == MAX_MATCH_BYTES == 512
    assert read("x" * 500 + "|" + "y" * 499)[0].longest == 500
    assert len(banned_expressions([f"a{i}" for i in range(512)])) == 512
    assert len(banned_expressions(["a", *(("a", p / 8) for p in range(1, 5))])) == 5
    sources = ["ab{2,9}", "[^c]{4}", "ab{2,9}"]
    size = sum(read(source)[1] for source in sources)
    expressions.searchers.cache_clear()
    monkeypatch.setattr(expressions, "MOST_SIZE", size)
    assert len(searchers(tuple((source, 1.0) for source in sources))) == 1
    expressions.searchers.cache_clear()
    monkeypatch.setattr(expressions, "MOST_SIZE", size - 1)
    with pytest.raises(ParameterError, match=f"are larger than {size - 1} of RE2's"):
        searchers(tuple((source, 1.0) for source in sources))
    expressions.searchers.cache_clear()


def test_forms() -> None:
    half = (("a", 0.5),)
    for given in (
        {"regex": "a", "probability": 0.5},
        '{"regex": "a", "probability": 0.5}',
        [["a", 0.5]],
        half,
    ):
        assert banned_expressions(given) == half
    assert banned_expressions("a{1,2}") == (("a{1,2}", 1.0),)
    assert banned_expressions(["a", "b", "a"]) == (("a", 1.0), ("b", 1.0))
    assert banned_expressions('{"a"') == (('{"a"', 1.0),)  # no JSON
    with pytest.raises(ParameterError, match="has 1000000 characters"):
        banned_expressions('{"a":' * 200_000)
    assert banned_expressions([]) == ()


def searcher(*sources: str) -> Searcher:
    (made,) = searchers(tuple((source, 1.0) for source in sources))
    return made


def test_several_expressions_are_searched_at_once() -> None:
    search = searcher("(?i)ab", "c$", r"\Qx|y\E")
    assert list(search.matches(b"AB c.x|y c", 0, 0, over=True)) == [(0, 2), (5, 8), (9, 10)]
    assert list(search.matches(b"c", 0, 0, over=False)) == []  # the text may go on
    assert search.within([b"a", b"ab", b"ab ", b"c"], b"") == [
        2
    ]  # what follows the others may be anything
    search = searcher(r"\bc|^a.")
    assert search.within([b"c", b"a c", b"ac.", b"c."], b"") == [1, 2, 3]
    assert search.within([b"c", b"a c", b"ac.", b"c."], b"b") == []
    assert search.within([b"c.", b"a c.", b"ac.", b".c."], b"b") == [1, 3]
    search = searcher("(?i)ab", "é")
    assert search.within([b"a", b"xABab", b"", b"\xc3", b"\xa9", "aé".encode()], b"") == [1, 5]
    assert search.longest == 2 <= MAX_MATCH_BYTES


@pytest.mark.parametrize(
    "sources",
    [
        (r"\bab?\b", r"b\B"),
        (r"\Bb|a\b",),
        (r"[^b]{1,3}\b",),
        ("(?m)^a.{0,2}$",),
        (r"^a|\bc",),
        (r"\Aab", "(?i)é$"),
        (r"a[^c]\Bb", r"\x01\b"),
    ],
)
def test_texts_with_a_match_are_found_all_at_once(sources: tuple[str, ...]) -> None:
    """As one by one, behind every kind of byte; texts without parts of characters in one search."""
    dice = random.Random(7)
    letters = [b"a", b"b", b"c", b" ", b"\n", "é".encode(), b"_", b"\x01"]
    pieces = [b"".join(dice.choices(letters, k=dice.randrange(6))) for _ in range(300)]
    broken = [b"ab\xc3", b"\xa9 ab ", b"\xff", b"a\xffb c"]
    search = searcher(*sources)
    for last in (b"a", b"_", b"9", b"\n", b" ", b"\xc3", b"\x01", b""):
        one_by_one = [
            i
            for i, piece in enumerate([*pieces, *broken])
            if next(search.matches(last + piece, len(last), len(last), over=False), None)
        ]
        assert search.within([*pieces, *broken], last) == one_by_one, last
        assert search.within([*pieces, *broken], search.before(last)) == one_by_one
    asked: list[bytes] = []
    whole = search._whole

    class Counted:
        def search(self, text: bytes, *places: int) -> Any:
            asked.append(text)
            return whole.search(text, *places)

    search._whole = Counted()
    search.within([*pieces, *broken], b"b")
    assert len(asked) <= len(broken)


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ParameterError, match=r"google-re2: pip install 'aleator\[regex\]'"):
        banned_expressions("some expression")
