"""Gemma 4's vocabularies: merges over characters, bytes for what has no token; llama.cpp's ids."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aleator.core.errors import TokenizerError
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MERGES = ["t h", "th e", "▁ the", "▁ ▁", "a b", "b c", "ab c", "é é", "▁▁ ▁▁"]
LETTERS = [*"▁abcehté"]
TOKENS = [*SPECIAL, *BYTES, *LETTERS, *(m.replace(" ", "") for m in MERGES), "\n", "\n\n", "x\n"]
IDS = {text: i for i, text in enumerate(TOKENS)}
# Text -> llama.cpp's tokens (llama-cpp-python 0.3.36).
GOLDEN = {
    "the the": ["the", "▁the"],
    "abc bc": ["abc", "▁", "bc"],
    " the  the    the": ["▁the", "▁", "▁the", "▁▁", "▁", "▁the"],
    "a\nb\n\nc\n\n\n": ["a", "\n", "b", "\n\n", "c", "\n", "\n", "\n"],
    "éé é": ["éé", "▁", "é"],
    "日the": ["<0xE6>", "<0x97>", "<0xA5>", "the"],
    "\t<turn|>the<0x0A>": [
        "<0x09>", "<0x3C>", "t", "<0x75>", "<0x72>", "<0x6E>", "<0x7C>", "<0x3E>", "the", "<0x3C>",
        "<0x30>", "<0x78>", "<0x30>", "<0x41>", "<0x3E>",
    ],
    "▁the\r\nthe": ["▁the", "<0x0D>", "\n", "the"],
    "x\na": ["<0x78>", "\n", "a"],
    "cabab": ["c", "ab", "ab"],
}  # fmt: skip


def metadata(**changes: Any) -> dict[str, Any]:
    types = [3, 3, 3, 2, 4] + [6] * 256 + [1] * (len(TOKENS) - 261)
    fields = {
        "model": "gemma4",
        "tokens": TOKENS,
        "token_type": types,
        "merges": MERGES,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | changes).items()}


@pytest.mark.parametrize("model", [{}, {"model": "gpt2", "pre": "gemma4"}])
def test_ids_are_those_of_llama_cpp(model: dict[str, str]) -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(metadata(**model)))
    for text, expected in GOLDEN.items():
        ids = tokenizer.encode(text, add_special=False)
        assert [tokenizer.vocab.tokens[i] for i in ids] == expected, text
        assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_a_text_begins_with_bos_whatever_the_file_says() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(metadata()))
    assert tokenizer.encode("a") == [2, IDS["a"]]
    assert tokenizer.vocab.eog == {IDS["<eos>"], IDS["<turn|>"]}


def test_a_character_without_tokens_is_refused() -> None:
    tokens = [text for text in TOKENS if text != "<0xC3>"]
    types = [3, 3, 3, 2, 4] + [6] * 255 + [1] * (len(tokens) - 260)
    fields = metadata(tokens=tokens, token_type=types)
    tokenizer = Tokenizer(Vocabulary.from_metadata(fields))
    assert tokenizer.encode("é", add_special=False) == [tokens.index("é")]
    with pytest.raises(TokenizerError, match=re.escape("no tokens for the character 'ü'")):
        tokenizer.encode("ü")
