"""How forced text is cut into tokens: as the tokenizer would, else the longest tokens first."""

from __future__ import annotations

import pytest

from aleator.grammar.llguidance import located
from aleator.grammar.spelling import Spelling
from aleator.text import Tokenizer, Vocabulary
from tests.text.vocabularies import byte_level, sentencepiece

# "bc" was learnt last, so it is merged first: "abc" is a, bc, and not ab, c.
PIECES = ("▁", "a", "b", "c", "ab", "bc")


def test_as_the_tokenizer_without_the_space_that_it_puts_in_front() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(sentencepiece(PIECES)))
    made = Spelling(tokenizer)
    a, c, ab, bc = 260, 3 + ord("c"), 263, 264  # of equal bytes the lower id
    assert made.tokens(b"abc") == [a, bc]
    assert made.tokens(b"a") == [a]
    assert Spelling(tokenizer.vocab).tokens(b"abc") == [ab, c]


def test_bytes_that_are_no_text_are_spelled_by_the_longest_tokens() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(byte_level(("</s>",), eos_token_id=258)))
    made = Spelling(tokenizer)
    assert made.tokens(b"\xffabcab") == [255, 257, 256]
    assert made.tokens(b"") == []
    assert made.ends == [258]
    assert made.pieces[258] == b""


def test_what_no_token_spells_is_left_out() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"][ord("q")] = "xyz"
    made = Spelling(Vocabulary.from_metadata(metadata))
    assert made.tokens(b"abq") == [256]
    assert made.tokens(b"xyz") == [ord("q")]


@pytest.mark.parametrize(("column", "first"), [(1, 0), (60, 0), (61, 1), (150, 90), (300, 240)])
def test_an_error_shows_a_hundred_characters_around_its_place(column: int, first: int) -> None:
    line = "".join(chr(0x4E00 + i) for i in range(300))
    error = located("wrong", "why", f"a\n{line}\nb", 2, column)
    message, window, caret = str(error).split("\n")
    assert message == f"wrong: line 2, column {column}: why"
    assert window == "  " + line[first : first + 100]
    assert caret.index("^") == 2 + column - 1 - first
    assert (error.line, error.column) == (2, column)


def test_an_error_without_a_place_or_beyond_the_text() -> None:
    assert str(located("wrong", "why", "a", 0, 7)) == "wrong: why"
    assert str(located("wrong", "why", "a\tb", 9, 1)).split("\n")[1] == "  a b"
    assert str(located("wrong", "why", "", 1, 1)).split("\n")[1] == "  "
