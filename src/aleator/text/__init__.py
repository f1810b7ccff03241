"""Text: vocabularies, tokenizers, incremental decoding, chat templates."""

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.text.chat_template import ChatTemplate as ChatTemplate
    from aleator.text.special_tokens import SpecialTokens as SpecialTokens
    from aleator.text.special_tokens import TokenAttribute as TokenAttribute
    from aleator.text.tokenizer import StreamDecoder as StreamDecoder
    from aleator.text.tokenizer import Tokenizer as Tokenizer
    from aleator.text.vocabulary import Vocabulary as Vocabulary

__getattr__ = on_demand(
    __name__,
    {
        "chat_template": "ChatTemplate",
        "special_tokens": "SpecialTokens TokenAttribute",
        "tokenizer": "StreamDecoder Tokenizer",
        "vocabulary": "Vocabulary",
    },
)
