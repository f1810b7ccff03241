"""Text: vocabularies, tokenizers, decoding as tokens come, chat templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.text.chat_template import ChatTemplate
    from aleator.text.special_tokens import SpecialTokens, TokenAttribute
    from aleator.text.stream import StreamDecoder
    from aleator.text.tokenizer import Tokenizer
    from aleator.text.vocabulary import Vocabulary

__all__ = [
    "ChatTemplate",
    "SpecialTokens",
    "StreamDecoder",
    "TokenAttribute",
    "Tokenizer",
    "Vocabulary",
]

__getattr__ = on_demand(
    __name__,
    {
        "ChatTemplate": "chat_template",
        "SpecialTokens": "special_tokens",
        "StreamDecoder": "stream",
        "TokenAttribute": "special_tokens",
        "Tokenizer": "tokenizer",
        "Vocabulary": "vocabulary",
    },
)
