"""Token ids to text as they come, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import SupportsIndex

from aleator.text.vocabulary import Vocabulary


class StreamDecoder:
    """Turns ids into text one at a time; a character is given once its last byte is there.

    The pieces join to the text of the whole: bytes that are not UTF-8 become U+FFFD where
    ``bytes.decode(errors="replace")`` would put it.  Of a vocabulary without texts all pieces are empty.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        skip_special: bool = True,
        at_start: bool = True,
        shown: Collection[int] = (),
        skip: int = 0,
    ) -> None:
        """Start to decode.

        Args:
            vocab: of the ids.
            skip_special: leave out control tokens and the unknown token.
            at_start: at the start of a text; False: in the midst of one, where a SentencePiece vocabulary
                keeps the space before the first word.
            shown: control tokens that are not left out.
            skip: bytes at the beginning to leave out, which belong to the text before.
        """
        self.vocab, self.skip_special, self._shown = vocab, skip_special, frozenset(shown)
        self._skip = skip
        self._strip_space = at_start and vocab.add_space_prefix and not skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: SupportsIndex) -> str:
        """The text that ``token`` completes, perhaps none.

        Raises:
            TokenizerError: an id outside the vocabulary; nothing has changed.
        """
        if not self.vocab.has_text:
            self.vocab.check_id(token)
            return ""
        piece = self.vocab.token_bytes(token)
        if not piece or (
            self.skip_special and self.vocab.is_special(token) and int(token) not in self._shown
        ):
            return ""
        if self._strip_space:
            self._strip_space = False
            piece = piece.removeprefix(b" ")
        if self._skip:
            n, piece = len(piece), piece[self._skip :]
            self._skip = max(0, self._skip - n)
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End the text: U+FFFD for a character whose last bytes never came, else nothing."""
        return self._decoder.decode(b"", final=True)
