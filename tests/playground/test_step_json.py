"""Tokens as JSON: hostile ones, halves of characters, and endless ones."""

from __future__ import annotations

import json

import numpy as np

from aleator.server.playground.as_json import MOST_TEXT, StepFormatter
from aleator.server.playground.recording import LogitsMemory
from aleator.text.special_tokens import BYTE_CHARACTERS, SpecialTokens, TokenAttribute
from aleator.text.vocabulary import Vocabulary

HOSTILE = [
    b"<script>alert(1)</script>",
    b"\xf0\x9f",  # half of an emoji
    b"\x00\x1b[2J",
    "\u202eabc".encode(),
    b"x" * 10_000,
    b"",
]


def vocabulary() -> Vocabulary:
    tokens = ["".join(BYTE_CHARACTERS[byte] for byte in piece) for piece in HOSTILE] + ["<|end|>"]
    attributes = np.full(len(tokens), TokenAttribute.NORMAL, np.uint8)
    attributes[-1] = TokenAttribute.CONTROL
    return Vocabulary(
        kind="bpe",
        tokens=tokens,
        ids={token: i for i, token in enumerate(tokens)},
        attributes=attributes,
        special=SpecialTokens(),
        eog=frozenset({len(tokens) - 1}),
        add_bos=False,
        add_eos=False,
        add_space_prefix=False,
    )


def test_tokens_are_told_as_they_are() -> None:
    told = StepFormatter(vocabulary()).tokens(range(7))
    assert json.loads(json.dumps(told)) == told
    assert told[0] == {"id": 0, "text": "<script>alert(1)</script>"}
    assert told[1] == {"id": 1, "text": None, "bytes": "f09f"}
    assert told[2]["text"] == "\x00\x1b[2J"
    assert told[3]["text"] == "\u202eabc"
    assert told[4] == {"id": 4, "text": "x" * MOST_TEXT, "length": 10_000}
    assert told[5] == {"id": 5, "text": ""}
    assert told[6] == {"id": 6, "text": "<|end|>", "special": True}


def test_without_a_vocabulary_tokens_are_numbers() -> None:
    nameless = StepFormatter(Vocabulary.without_text(9, "m.gguf"))
    assert nameless.token(7) == {"id": 7, "text": None}


def test_a_row_that_is_forgotten_is_counted_once() -> None:
    memory = LogitsMemory(2 * 4 * 5)
    rows = [memory.keep(np.full(5, i)) for i in range(3)]
    assert [row.logits is None for row in rows] == [True, False, False]
    assert (memory.used, memory.rows) == (40, 2)
    memory.release(rows[:2])
    assert (memory.used, memory.rows) == (20, 1)
    memory.release(rows)
    assert (memory.used, memory.rows) == (0, 0)
