from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ConstraintError, GrammarError, ParameterError
from aleator.grammar import compile_gbnf
from aleator.text import Vocabulary
from tests.text.vocabularies import byte_level

# Byte b is token b; "ab" is 256, "abc" 257, and these from 258 on.
ADDED = ("<|end|>", "<think>", "yes", "no")
END, THINK, YES, NO = 258, 259, 260, 261


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_metadata(byte_level(ADDED, eos_token_id=END))


def allowed(constraint: Any) -> set[int]:
    words = constraint.mask()
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: constraint.n_vocab]
    ids = set(np.flatnonzero(bits).tolist())
    assert ids == {t for t in range(constraint.n_vocab) if constraint.allows(t)}
    return ids


def test_yes_or_no(vocabulary: Vocabulary) -> None:
    c: Any = compile_gbnf('root ::= "yes" | "no"', "root", vocabulary)
    assert allowed(c) == {ord("y"), ord("n"), YES, NO}
    assert not c.complete
    c.accept(ord("y"))
    assert allowed(c) == {ord("e")}
    assert c.jump_forward() == b"es"
    with pytest.raises(ConstraintError, match=str(NO)) as error:
        c.accept(NO)
    assert error.value.token == NO
    assert allowed(c) == {ord("e")}
    c.accept(ord("e"))
    c.accept(ord("s"))
    assert c.complete
    assert allowed(c) == {END}
    c.rollback(2)
    copy = c.clone()
    assert allowed(copy) == allowed(c) == {ord("e")}
    c.reset()
    assert allowed(c) == {ord("y"), ord("n"), YES, NO}
    assert allowed(copy) == {ord("e")}
    with pytest.raises(ParameterError, match="2 tokens"):
        copy.rollback(2)


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("root ::= [a-z", 1, 10, "no closing ]"),
        ('root ::= "a\n', 1, 10, "no closing"),
        ('root ::= "a"\n  b ::= (root', 2, 14, "expected )"),
        ('root ::= x y\nx ::= "a"', 1, 12, "'y' is not defined"),
        ('root ::= root "a" | "b"', 1, 1, "left recursion"),
        ('root ::= "a" | *', 1, 16, "nothing stands before"),
        (r'root ::= "\q"', 1, 11, "unknown escape"),
        (r'root ::= "\x4"', 1, 11, "2 hexadecimal digits"),
        ('root ::= "é" \'', 1, 14, "found '''"),
        ('root ::= "a"{2001}', 1, 13, "2000"),
        ('root ::= ("a"{50} "b"){50}{50}', 1, 27, "2500"),
        ('root ::= "a"{3,2}', 1, 13, "below the smallest"),
        ("root ::= <nothing>", 1, 10, "not one token"),
        ('"a"', 1, 1, "name of a rule"),
        ('root ::= "a"\n| "b"', 2, 1, "name of a rule"),
    ],
)
def test_faults_have_a_place(
    vocabulary: Vocabulary, text: str, line: int, column: int, reason: str
) -> None:
    with pytest.raises(GrammarError) as error:
        compile_gbnf(text, "root", vocabulary)
    message = str(error.value)
    assert (error.value.line, error.value.column) == (line, column), message
    first, shown, caret = message.split("\n")
    assert f"line {line}, column {column}" in first
    assert reason in first
    assert shown.strip() == text.split("\n")[line - 1].strip()
    assert caret.index("^") - 2 == column - 1


@pytest.mark.parametrize("text", ["", "# nothing\n", 'other ::= "a"'])
def test_a_root_is_needed(vocabulary: Vocabulary, text: str) -> None:
    with pytest.raises(GrammarError, match=r"root"):
        compile_gbnf(text, "root", vocabulary)
