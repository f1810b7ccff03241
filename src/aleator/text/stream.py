"""Token ids to text as they come, never half a character."""

from __future__ import annotations

import codecs
from typing import SupportsIndex

from aleator.text.vocabulary import Vocabulary


class StreamDecoder:
    """Turns ids into text one at a time; a character is given once its last byte is there.

    The pieces join to the text of the whole: bytes that are not UTF-8 become U+FFFD where
    ``bytes.decode(errors="replace")`` would put it.
    """

    def __init__(self, vocab: Vocabulary, skip_special: bool = True, at_start: bool = True) -> None:
        """A decoder at the start of a text, or, without ``at_start``, in the midst of one."""
        self.vocab, self.skip_special = vocab, skip_special
        self._strip_space = at_start and vocab.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: SupportsIndex) -> str:
        """The text that ``token`` completes, perhaps none.

        Raises TokenizerError, changing nothing, for an id outside the vocabulary.
        """
        piece = self.vocab.token_bytes(token)
        if not piece or (self.skip_special and self.vocab.is_special(token)):
            return ""
        if self._strip_space:
            self._strip_space = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End the text: U+FFFD for a character whose last bytes never came, else nothing."""
        return self._decoder.decode(b"", final=True)
