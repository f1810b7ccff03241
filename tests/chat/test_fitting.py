"""How far known tokens fit a prompt's text."""

from __future__ import annotations

from typing import Any

import aleator
from aleator.chat.prompt import ChatFormat

ROUNDS = 100


class Counted(bytes):
    """Bytes that count their slices."""

    slices = 0

    def __getitem__(self, key: Any) -> Any:
        Counted.slices += isinstance(key, slice)
        return super().__getitem__(key)


def test_a_long_text_is_not_copied_for_each_token(model: aleator.LanguageModel) -> None:
    form = ChatFormat(model.tokenizer, "{{ messages[0].content }}")
    tokens = model.tokenizer.encode("some light " * ROUNDS, add_special=False)
    data = b"".join(map(model.vocab.token_bytes, tokens))
    assert form._fitting(Counted(data + b"rest"), tokens) == (len(tokens), b"rest")
    assert Counted.slices == 1
