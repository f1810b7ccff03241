"""Random grammars and bytes, and grammars that ask for much; tools/sanitize.py runs this too."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ConstraintError, GrammarError
from aleator.grammar import compile_gbnf
from aleator.text import Vocabulary
from tests.text.vocabularies import byte_level

GRAMMARS = Path(__file__).parents[1] / "data" / "grammars"
END, THINK, BEGIN = 258, 259, 260
ADDED = ("<|end|>", "<think>", "<s>", "é", "中文", "aé", "()", "((", "))", '{"', '":', "\n\n", "  ")
CHARACTERS = [*"abc01 ", "é", "中", "😀", r"\n", r"\"", r"\\", r"\x41", r"\u00e9", r"\U0001F600"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    added = tuple(t for t in ADDED if t not in ("é",))
    return Vocabulary.from_metadata(byte_level(added, eos_token_id=END))


def bits(constraint: Any) -> Any:
    words = constraint.mask().astype("<i4").view(np.uint8)
    return np.unpackbits(words, bitorder="little")[: constraint.n_vocab].astype(bool)


def compiled(text: str, vocabulary: Vocabulary) -> Any:
    return compile_gbnf(text, "root", vocabulary)


def random_item(rng: random.Random, depth: int, names: list[str]) -> str:
    kind = rng.random()
    if kind < 0.3:
        item = '"' + "".join(rng.choices(CHARACTERS, k=rng.randint(1, 4))) + '"'
    elif kind < 0.55:
        first, last = rng.choices(CHARACTERS, k=2)
        item = f"[{rng.choice(['', '^'])}{rng.choice(CHARACTERS)}{first}-{last}]"
    elif kind < 0.62:
        item = rng.choice([".", "<think>", "!<think>", f"<[{rng.randrange(300)}]>", '""', "[]"])
    elif kind < 0.8 and names:
        item = rng.choice(names)
    elif depth:
        item = f"({random_alternates(rng, depth - 1, names)})"
    else:
        item = "[a-c]"
    while rng.random() < 0.3:
        item += rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
    return item


def random_alternates(rng: random.Random, depth: int, names: list[str]) -> str:
    def sequence() -> str:
        return " ".join(random_item(rng, depth, names) for _ in range(rng.randint(0, 3)))

    return " | ".join(sequence() for _ in range(rng.randint(1, 3)))


def random_grammar(rng: random.Random) -> str:
    names = [f"r{i}" for i in range(rng.randint(0, 4))]
    rules = [f"root ::= {random_alternates(rng, 2, names)}"]
    rules += [f"{n} ::= {random_alternates(rng, 2, names[i + 1 :])}" for i, n in enumerate(names)]
    return "\n".join(rules)


def walk(c: Any, rng: random.Random, steps: int) -> None:
    """Random tokens, allowed or not: what the methods say must fit together."""
    for _ in range(steps):
        before = bits(c)
        assert before.tolist() == [c.allows(t) for t in range(c.n_vocab)]
        assert before[END] == c.complete
        forced = c.jump_forward()
        copy = c.clone()
        for byte in forced[:8]:
            assert copy.allows(byte)
            copy.accept(byte)
        refused = np.flatnonzero(~before)
        if len(refused):
            with pytest.raises(ConstraintError):
                c.accept(int(rng.choice(refused)))
            assert (bits(c) == before).all()
        allowed = np.flatnonzero(before)
        if not len(allowed):
            return
        token = int(rng.choice(allowed))
        c.accept(token)
        after = bits(c)
        c.rollback(1)
        assert (bits(c) == before).all()
        c.accept(token)
        assert (bits(c) == after).all()


def test_random_grammars(vocabulary: Vocabulary) -> None:
    accepted = 0
    for seed in range(300):
        rng = random.Random(seed)
        text = random_grammar(rng)
        try:
            c = compiled(text, vocabulary)
        except GrammarError:
            continue
        accepted += 1
        walk(c, rng, 5)
    assert accepted > 60


def test_mutilated_grammars(vocabulary: Vocabulary) -> None:
    texts = [path.read_text() for path in sorted(GRAMMARS.glob("*.gbnf"))]
    rng = random.Random(0)
    accepted = 0
    for _ in range(300):
        text = list(rng.choice(texts))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(text))
            if rng.random() < 0.5:
                del text[place : place + rng.randint(1, 9)]
            else:
                text.insert(place, rng.choice('()[]{}"*+?|<>!^-\\#.=:\n\r\t 09aé\0😀'))
        try:
            c = compiled("".join(text), vocabulary)
        except GrammarError:
            continue
        accepted += 1
        walk(c, rng, 1)
    assert accepted > 20


def test_random_text_is_refused_or_works(vocabulary: Vocabulary) -> None:
    rng = random.Random(1)
    refused = 0
    for _ in range(500):
        text = "".join(rng.choices('root::=|()[]{}"\\<>!*+?.-^ \n#axu019é\0', k=rng.randint(1, 60)))
        for grammar in (text, "root ::= " + text):
            try:
                compiled(grammar, vocabulary).mask()
            except GrammarError:
                refused += 1
    assert 500 < refused < 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("root ::= " + "(" * 501 + '"a"' + ")" * 501, "500 groups"),
        ("root ::= " + '("a"' * 20_000, "500 groups"),
        ('root ::= "' + "a" * 600 + '"{1999}', "1000000 elements"),
        ('root ::= ("a"{1,1000}){1000}{1000}', "1000000 elements"),
        ('root ::= "a"{18446744073709551615}', "1000000 elements"),
        ('root ::= "a"{18446744073709551615,}', "1000000 elements"),
        ('root ::= "a"{3000,9999999999}', "1000000 elements"),
        ("root ::= a\n" + "".join(f'a ::= "{"x" * 99}"\n' for _ in range(11_000)), "1000000 elements"),
        ("root ::= [" + "".join(chr(0x4E00 + i) for i in range(5)) + "]" + "".join(
            f' "{chr(0x4E00 + i)}"' for i in range(10_001)), "10000 different"),
        ("root ::= a\n#" + " " * (1 << 24), "16 MiB"),
        ('root ::= blank root "y" | "z"\nblank ::= " "*', "left recursion"),
        ('root ::= a "x" | "z"\na ::= b\nb ::= none root\nnone ::= other\nother ::= ""', "left recursion"),
        ("root ::= " + " | ".join(f"a{i}" for i in range(50)) + "\n" + "\n".join(
            f"a{i} ::= a{(i + 1) % 50}" for i in range(50)), "left recursion"),
        ("".join(f"a{i} ::= a{i + 1}\n" for i in range(50_000)) + "root ::= a0", "'a50000' is not"),
    ],
)  # fmt: skip
def test_bombs_are_refused(vocabulary: Vocabulary, text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as error:
        compiled(text, vocabulary)
    assert len(str(error.value)) < 600


def test_recursion_that_leaves_nothing_behind(vocabulary: Vocabulary) -> None:
    c = compiled('root ::= blank root | "z"\nblank ::= " "*', vocabulary)
    walk(c, random.Random(0), 10)


def test_many_stacks(vocabulary: Vocabulary) -> None:
    """2 ** 60 stacks, which differ only in what comes last."""
    rules = [f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"' for i in range(60)]
    c = compiled("root ::= r0\n" + "\n".join(rules) + '\nr60 ::= "a"', vocabulary)
    c.accept(ord("a"))
    for _ in range(60):
        assert set(np.flatnonzero(bits(c))) == {ord("x"), ord("y")}
        c.accept(ord("x"))
    assert np.flatnonzero(bits(c)).tolist() == [END]


def test_ambiguity_stays_affordable(vocabulary: Vocabulary) -> None:
    began = time.perf_counter()
    c = compiled('root ::= s\ns ::= "a" s s | "a" s | "a" |', vocabulary)
    for _ in range(400):
        c.accept(ord("a"))
    assert {ord("a"), END} <= set(np.flatnonzero(bits(c)))
    assert time.perf_counter() - began < 30


def test_deep_nesting(vocabulary: Vocabulary) -> None:
    c = compiled('root ::= "(" root ")" | "x"', vocabulary)
    n = 50_000
    for _ in range(n):
        c.accept(ord("("))
    assert c.allows(ord("x"))
    c.accept(ord("x"))
    assert c.jump_forward() == b")" * 4096
    c.rollback(n)
    c.accept(ord("x"))
    assert c.jump_forward() == b")"
    c.accept(ord(")"))
    assert np.flatnonzero(bits(c)).tolist() == [END]


def test_endless_text_is_forced_in_parts(vocabulary: Vocabulary) -> None:
    assert compiled('root ::= "ab" root', vocabulary).jump_forward() == b"ab" * 2048


def test_forced_text_stops_where_it_gets_costly(vocabulary: Vocabulary) -> None:
    """After n letters the nesting may be anything from n / 3 to n: a state of that size each time."""
    began = time.perf_counter()
    c = compiled('root ::= "b"{1,3} root "c" | "b"{1,3} root "d"', vocabulary)
    c.accept(ord("b"))
    forced = c.jump_forward()
    assert 10 < len(forced) < 4096
    assert set(forced) == {ord("b")}
    assert time.perf_counter() - began < 5


def test_memory_is_given_back(vocabulary: Vocabulary) -> None:
    """More states than are kept, then most of them for nothing: their numbers change, answers do not."""
    c = compiled('root ::= ("(" | "[" root "]"){0,3} "x"', vocabulary)
    c.accept(ord("["))
    before = bits(c)
    n = 400_000
    for _ in range(n):
        c.accept(ord("["))
    deep = c.clone()
    c.rollback(n)
    assert (bits(c) == before).all()  # here the states go
    deep.accept(ord("x"))
    assert deep.jump_forward() == b"]"
    assert np.flatnonzero(bits(deep)).tolist() == [ord("]")]
    walk(c, random.Random(0), 20)


def test_many_classes(vocabulary: Vocabulary) -> None:
    """Thousands of letters: none of it may be quadratic in a way that is felt."""
    began = time.perf_counter()
    rules = " | ".join(f'[^{chr(0x4E00 + i)}] "{chr(0x4E00 + i)}"' for i in range(2000))
    c = compiled(f"root ::= {rules}", vocabulary)
    assert c.allows(ord("a"))
    assert bits(c)[ord("a")]
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize(
    ("text", "more", "reason"),
    [
        ("root ::= " + "(" * 500 + '"a"' + ")" * 500, ("(", ")"), "500 groups"),
        ('root ::= "' + "a" * 1_000_000 + '"', ("", ' "a"'), "1000000 elements"),
        ("root ::= " + " ".join(f'"{chr(0x4E00 + i)}"' for i in range(10_000)), ("", ' "é"'), "10000"),
        ('root ::= ("a"{499990})', ("", "{250001}"), "1000000 elements"),
        ('root ::= "a"\n#' + " " * ((1 << 24) - 14), ("", " "), "16 MiB"),
    ],
    ids=["groups", "elements", "sets", "repetitions", "text"],
)  # fmt: skip
def test_what_is_just_allowed(
    vocabulary: Vocabulary, text: str, more: tuple[str, str], reason: str
) -> None:
    compiled(text, vocabulary).mask()
    before, after = more
    with pytest.raises(GrammarError, match=reason):
        compiled(text.replace("::= ", "::= " + before) + after, vocabulary)
