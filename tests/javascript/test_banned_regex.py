"""Banned expressions in the npm package: RE2's matches of any bytes, and the same texts as here."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import re2  # noqa: F401  # without it this file is skipped

import aleator
from aleator.generate.bans import Bans
from aleator.generate.expressions import Searcher, any_of, compiled, read, searchers
from aleator.generate.logprobs import top_logprobs
from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import Refuses, Run, Values
from tests.javascript.random_cases import check_texts, told_of

PATH = str(bundled_model())
ATOMS = (
    "a", "b", "k", "\u00e9", "\u017f", "\U0001f600", ".", "[ab]", "[^a]", "[\u00e9-\u00fc]", r"\d",
    r"\w", r"\W", r"\S", r"\pL", r"\p{Greek}", r"\P{Lu}", "[[:alpha:]]", "[[:^space:]x]", r"\b", r"\B",
    "^", "$", r"\A", r"\z", r"\x41", r"\x{1F600}", r"\Qa.\U0001f600\E", "(?i:k)", "(?i:\u00c9)", "(?i)",
    "(?s)", "(?m)", "(?U)", r"[\s\S]", r"[^\n]", r"[\x{80}-\x{10FFFF}]", r"[\x{100}-\x{10FFFF}]",
    r"\pC", "[]a]", "[^]a-]", "{", "a{,2}", "(|a)", "(?i:[k-l])", "(?i:\u03c2)", r"\_", "()",
)  # fmt: skip
QUANTIFIERS = ("*", "+", "?", "*?", "??", "{2}", "{1,3}", "{0}", "{2,}", "{0,3}?")
PIECES = (
    b"a", b"b", b"k", "\u212a".encode(), "\u017f".encode(), "\u00e9".encode(), "\u03c2".encode(), b"\n",
    b" ", b"_", b"A", "\U0001f600".encode(), "\ufffd".encode(), b"\xc3", b"\xa9", b"\xff",
    b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x82",
    b"\xf0\x9f\x98",
)  # fmt: skip


def expression(r: random.Random, depth: int = 0) -> str:
    kind = r.random()
    if depth > 3 or kind < 0.45:
        return r.choice(ATOMS)
    one, other = (expression(r, depth + 1) for _ in range(2))
    if kind < 0.7:
        return one + other
    return f"({one}|{other})" if kind < 0.8 else f"(?:{one}){r.choice(QUANTIFIERS)}"


def text(r: random.Random) -> bytes:
    return b"".join(r.choice(PIECES) for _ in range(r.randrange(9)))


def test_bytes_match_as_in_re2(values: Values) -> None:
    r = random.Random(1)
    cases: list[Any] = []
    expected: list[Any] = []
    while len(cases) < 1500:
        source, data = expression(r), text(r)
        at = r.choice((0, r.randrange(len(data) + 1)))
        end = r.choice((len(data), r.randrange(at, len(data) + 1)))
        try:
            found = compiled(source).search(data, at, end)
        except ValueError:
            continue
        if found and found.start() == found.end():
            continue  # RE2 finds an empty match within a character, too; none is looked for
        cases.append([source, data.decode("latin-1"), at, end])
        expected.append(list(found.span()) if found else None)
    code = """
      const { Expression } = await inside('re2.js')
      const found = given.map(([source, ...where]) => new Expression(source).search(...where))
      return found.map((each) => (each && each[0] === each[1] ? null : each))
    """
    [made] = values(code, given=cases)
    assert not isinstance(made, dict), made
    wrong = [(c, e, m) for c, e, m in zip(cases, expected, made, strict=True) if e != m]
    assert not wrong
    assert sum(each is not None for each in expected) > 300


def test_searchers_find_what_they_find_here(values: Values) -> None:
    r = random.Random(2)
    cases: list[Any] = []
    expected: list[Any] = []
    while len(cases) < 300:
        source, data = expression(r), text(r)
        try:
            part, _ = read(source)
        except aleator.ParameterError:
            continue
        at = r.randrange(len(data) + 1)
        since, over, pieces = (
            r.randrange(at, len(data) + 1),
            r.random() < 0.5,
            [text(r) for _ in range(9)],
        )
        searcher = Searcher([any_of([part])], 1.0)
        cases.append(
            [
                source,
                data.decode("latin-1"),
                at,
                since,
                int(over),
                [p.decode("latin-1") for p in pieces],
            ]
        )
        expected.append(
            {
                "longest": searcher.longest,
                "matches": [list(each) for each in searcher.matches(data, at, since, over)],
                "open": searcher.open(data, at),
                "before": searcher.before(data[-1:]).decode(),
                "within": searcher.within(pieces, data[-1:]),
            }
        )
    code = """
      const { searchers } = await inside('expressions.js')
      return given.map(([source, data, at, since, over, pieces]) => {
        const [searcher] = searchers(source)
        const matches = [...searcher.matches(data, at, since, Boolean(over))]
        const before = searcher.before(data.slice(-1))
        const within = searcher.within(pieces, data.slice(-1))
        return { longest: searcher.longest, matches, open: searcher.open(data, at), before, within }
      })
    """
    [made] = values(code, given=cases)
    assert [(c, m) for c, m in zip(cases, made, strict=True)] == list(
        zip(cases, expected, strict=True)
    )


TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("ROMEO:", {"banned_regex": ["the", r"\bm[a-z]{1,3}\b", "(?i:[t-w])h"]}),
    ("ROMEO:", {"banned_regex": [r"[^a-z]\z", r"e\b", ".{1,3}y"], "top_k": 20}),
    ("ROMEO:", {"banned_regex": ["(?m:^)[A-Z]", r"\Bn", r"\pL{5,9}", r"\Q.\E|,$", "(?s:.)s"]}),
    ("ROMEO:", {"banned_regex": ["[[:upper:]]{2}", "a(?:b|)(?U)e?", "[\u00e9-\U0001f600]|s"]}),
    *(
        ("ROMEO:", {"banned_regex": [["[aeiou]", 0.5], [" [a-z]{1,9}", 0.25], ["s$", 1]], "seed": n})
        for n in range(3)
    ),
    ("ROMEO:", {"banned_regex": '{"regex": "[ato]{1,3}.", "probability": 0.6}', "banned_strings": ["I"]}),
    ("ROMEO: \u00e9", {"banned_regex": ["[^\\n -~]{1,2}", r"\W\W"], "temperature": 3.0}),
    ("ROMEO:", {"banned_regex": r"[a-y]\b|\b[z]", "top_k": 40}),
    ("What light through yonder win", {"heal": True, "banned_regex": "d.{0,2}w|ch|ter"}),
    ("ROMEO:", {"banned_regex": "b|ou", "grammar": 'root ::= ("ay" | "nay") " " [a-z ]{30}'}),
    ("ROMEO:", {"banned_regex": "[aeo] ", "stop_loops": [2, 2, 9.0, 5], "top_k": 3}),
]  # fmt: skip


def test_texts_are_the_same(run: Run) -> None:
    check_texts(run, TEXTS, 50)


def test_completions_toss_other_coins(run: Run) -> None:
    model = aleator.load(n_threads=1)
    given: dict[str, Any] = {"seed": 5, "banned_regex": [["[aeiou]", 0.5]]}
    made = model.generate_batch(["ROMEO:"], n=2, max_tokens=30, **given)
    options = {"seed": 5, "bannedRegex": [["[aeiou]", 0.5]], "maxTokens": 30}
    cases = [
        {"path": PATH, "prompt": "ROMEO:", "options": {**options, "completion": i}} for i in (0, 1)
    ]
    assert run("text", cases) == [told_of(each) for each in made]


REFUSED = {
    "'a('": "missing",
    "'(?=a)'": "bannedRegex=",
    "'(?<=a)b'": "bannedRegex=",
    r"'\\C'": "bannedRegex=",
    "'a*'": "any number of bytes",
    "'a?'": "an empty text matches it",
    r"'\ud800'": "half of a character",
    "'a'.repeat(1001)": "1001 characters",
    "'(?:a{30}){30}'": "900 bytes",
    "Array.from({ length: 513 }, (_, i) => `a${i}`)": "513 expressions",
    "Array.from({ length: 200 }, (_, i) => `[b${i}]{400}`)": "20000 of re2js's instructions",
    "'a'.repeat(512)": "(expression nests too deeply): give shorter",
    "[1, 2, 3, 4, 5].map((n) => ['a', n / 10])": "4 probabilities",
    "[['a', 0]]": "probability=0 is out of range",
    "{ regex: 'a', probability: 2 }": "probability=2 is out of range",
    "{ regex: 'a', probability: '1' }": "probability=",
    "{ regexp: 'a' }": "bannedRegex=",
    "5": "bannedRegex=5",
    "'a', reasoningBudget: 3": "bannedRegex=",
    "'a', completeGrammar: true": "completeGrammar=true",
}


def test_what_is_wrong_is_refused_by_name(refuses: Refuses) -> None:
    code = "model.generate('a', { bannedRegex: %s })"
    refuses({code % each: said for each, said in REFUSED.items()})


SEVERAL = (
    ("[ab]{2}", 0.5), ("a[^a]", 0.7), (r"\bb", 1.0), ("\u00e9{2,4}", 0.9), (r"aba|b\z", 0.2), ("^a", 1.0),
)  # fmt: skip
OF_LENGTHS = ((r"aba|b\z", 0.3), ("[ab]{2,3}", 1.0), (r"\bb", 0.6))


@pytest.mark.parametrize(
    ("bans", "begun", "skip", "strip"),
    [
        (SEVERAL, [0, 4], 1, False),
        (SEVERAL, [], 0, True),
        (SEVERAL, [], 2, False),
        (OF_LENGTHS, [2, 2, 11], 0, False),
    ],
)
def test_tokens_are_held_and_taken_back_as_here(
    values: Values, bans: tuple[tuple[str, float], ...], begun: list[int], skip: int, strip: bool
) -> None:
    """With other tokens than a model's: matches that stay, and characters in several tokens."""
    r = random.Random(3)
    ends = [b"\n", b"", b" a", b"aa", b"ba"]
    pieces = [b"a", b"b", b" ab", b" ", b"\xc3", b"\xa9", "\u00e9".encode(), *ends]
    given: dict[str, Any] = {"begun": begun, "skip": skip, "strip": strip}
    streams = [[r.randrange(len(pieces)) for _ in range(60)] for _ in range(400)]

    def told(stream: list[int]) -> list[Any]:
        own = Bans(
            searchers(bans),
            pieces.__getitem__,
            len(pieces),
            lambda place: place * 37 % 100 / 100,
            **given,
        )
        made: list[Any] = []
        left = iter(stream)
        for token in left:
            try:
                while n := own.take(token, partial(top_logprobs, []), False):
                    made.append([n, own.back(n).token, sorted(own._refused[-1].tokens)])
                    token = next(left, 3)
            except aleator.LogitsError:
                return [*made, "refused"]
            made.append([held.token for held in own.ready(False)])
        return made

    code = """
      const { Bans } = await inside('bans.js')
      const { searchers } = await inside('expressions.js')
      const { pieces, bans, streams, text } = given
      const coin = (place) => ((place * 37) % 100) / 100
      const bytesOf = (token) => pieces[token]
      return streams.map((stream) => {
        const own = new Bans(searchers(bans), { bytesOf, size: pieces.length, coin, ...text })
        const made = []
        for (const left = [...stream]; left.length; ) {
          let token = left.shift()
          try {
            for (let n; (n = own.take(token, null, false)); token = left.shift() ?? 3) {
              const gone = own.back(n).token
              made.push([n, gone, [...own.refused.at(-1).tokens].sort((a, b) => a - b)])
            }
          } catch (error) {
            made.push('refused')
            return made
          }
          made.push(own.ready(false))
        }
        return made
      })
    """
    latin = [piece.decode("latin-1") for piece in pieces]
    asked = {"pieces": latin, "bans": bans, "streams": streams, "text": given}
    assert values(code, given=asked) == [[told(stream) for stream in streams]]
