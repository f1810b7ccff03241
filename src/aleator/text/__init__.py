"""Text: vocabularies, tokenizers, decoding as tokens come, chat templates."""

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
