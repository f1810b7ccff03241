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
    bits = np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little")[
        : constraint.n_vocab
    ]
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
        ('root ::= "a"{1000001}', 1, 13, "1000000 elements"),
        ('root ::= ("a"{50} "b"){50}{50}{500}', 1, 31, "1000000 elements"),
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


def accept(constraint: Any, *tokens: int) -> None:
    for token in tokens:
        constraint.accept(token)


def test_token_terminals(vocabulary: Vocabulary) -> None:
    text = f'root ::= <think> "a" !<think> | <[{YES}]> "yes"'
    c = compile_gbnf(text, "root", vocabulary)
    assert allowed(c) == {THINK, YES}
    c.accept(THINK)
    assert allowed(c) == {ord("a"), 256, 257}  # "ab": a, and then any token but <think>
    copy = c.clone()
    c.accept(ord("a"))
    assert allowed(c) == {t for t in range(256) if 0 < t < 128} | {256, 257, YES, NO}
    # llama.cpp's mask allows "abc" here and its accept then throws: the terminal takes the rest.
    copy.accept(257)
    assert allowed(copy) == {END}
    c.reset()
    accept(c, YES, YES)
    assert allowed(c) == {END}


def test_characters_that_tokens_cut_in_two(vocabulary: Vocabulary) -> None:
    c = compile_gbnf('root ::= [é中] "." | "\\U0001F600"', "root", vocabulary)
    assert allowed(c) == {0xC3, 0xE4, 0xF0}
    c.accept(0xE4)
    assert c.jump_forward() == b"\xb8\xad."
    assert allowed(c) == {0xB8}
    accept(c, 0xB8, 0xAD)
    assert allowed(c) == {ord(".")}
    c.rollback(3)
    accept(c, 0xF0, 0x9F, 0x98)
    assert allowed(c) == {0x80}
    c.accept(0x80)
    assert allowed(c) == {END}
    # A negated set refuses a beginning that could become what it names; 0xC0 and 0xC1 begin nothing.
    c = compile_gbnf("root ::= [^é]", "root", vocabulary)
    leading = set(range(0xC2, 0x100)) - {0xC3}
    assert allowed(c) == set(range(1, 128)) | leading


def test_the_text_may_go_on_after_its_end_was_offered(vocabulary: Vocabulary) -> None:
    c = compile_gbnf('root ::= "a"*', "root", vocabulary)
    for _ in range(3):
        assert c.complete
        assert allowed(c) == {ord("a"), END}
        c.accept(ord("a"))
    c.accept(END)
    assert allowed(c) == {ord("a"), END}
    with pytest.raises(ParameterError, match="outside the vocabulary"):
        c.accept(1 << 20)
    with pytest.raises(ParameterError, match="n"):
        c.rollback(-1)


def test_what_elements_bound_is_not_bounded_by_repetitions(vocabulary: Vocabulary) -> None:
    c = compile_gbnf('root ::= "a"{3000,3001} "b"', "root", vocabulary)
    accept(c, *[ord("a")] * 3000)
    assert allowed(c) == {ord("a"), ord("b"), 256}
    c.accept(ord("a"))
    assert allowed(c) == {ord("b")}
    c = compile_gbnf('root ::= ("a"{1,1000}){1,1000} "b"', "root", vocabulary)
    accept(c, *b"a" * 100)
    assert {ord("a"), ord("b")} <= allowed(c)


def test_a_large_maximum_is_none_as_in_llama_cpp(vocabulary: Vocabulary) -> None:
    c = compile_gbnf('root ::= "a"{2000} "b"', "root", vocabulary)
    accept(c, *[ord("a")] * 2000)
    assert allowed(c) == {ord("b")}
    c = compile_gbnf('root ::= "a"{1,2001}', "root", vocabulary)  # without end
    accept(c, *[ord("a")] * 2500)
    assert allowed(c) == {ord("a"), 256 + 2}
    c = compile_gbnf('root ::= "a"{1,2000}', "root", vocabulary)
    accept(c, *[ord("a")] * 2000)
    assert allowed(c) == {END}


def test_a_line_ends_a_rule_but_not_a_group(vocabulary: Vocabulary) -> None:
    text = '# first\nroot ::=\n  "a" ( # here\n "b"\n |\n [c] ) |\n other\nother ::= "d" # last'
    c = compile_gbnf(text.replace("\n", "\r\n"), "root", vocabulary)
    assert allowed(c) == {ord("a"), ord("d"), 256}
    c.accept(ord("a"))
    assert allowed(c) == {ord("b"), ord("c")}
    c = compile_gbnf('root ::= "a"\nroot ::= "b"', "root", vocabulary)  # the last one counts
    assert allowed(c) == {ord("b")}
    c = compile_gbnf('root ::= "a"\nother ::= "b"', "other", vocabulary)
    assert allowed(c) == {ord("b")}


def test_a_grammar_is_text_for_a_vocabulary(vocabulary: Vocabulary) -> None:
    with pytest.raises(ParameterError, match="a grammar needs a vocabulary"):
        compile_gbnf('root ::= "a"', "root", None)
    for wrong in (None, b'root ::= "a"', 3):
        with pytest.raises(ParameterError, match="grammar must be a str, not"):
            compile_gbnf(wrong, "root", vocabulary)  # type: ignore[arg-type]
