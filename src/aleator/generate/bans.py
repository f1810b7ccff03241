r"""Bans strings and matches of regular expressions from a text: their tokens are taken back and drawn anew.

Expressions are RE2's, as llguidance has no ``\b``, and Python's ``re`` is not linear.  An expression itself
must bound a match, so that nothing else says how long one may be.  A token that was given out is never taken
back, though exactness would ask for it: with ``aab`` banned, each ``a`` of ``aaaa...`` may have to go if a
later one does, without end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import accumulate

import numpy as np

from aleator.core.arrays import Floats
from aleator.core.errors import LogitsError
from aleator.core.records import dataclass
from aleator.generate.completion import open_length
from aleator.generate.expressions import Searcher
from aleator.generate.logprobs import LogprobsOf, TokenBytes

ONE_BY_ONE = 8
"""Tokens refused at a place one by one; after that, all tokens that contain something banned are refused."""
KEPT_ROWS = 4
r"""Last held tokens whose logits are kept; those after the prompt are kept as well.  All could be 512 rows;
with none each refused word of an expression with ``\b`` would cost a step."""
MOST_REFUSED = 1000
"""Most tokens refused one by one at a place; beyond that an error is raised."""


Row = tuple[Floats, LogprobsOf]
"""The logits [V] to draw from, and the model's log-probabilities."""


@dataclass
class HeldToken:
    """A token that may have to be taken back, and its row of logits, which may have been dropped."""

    token: int
    piece: bytes
    logprobs: LogprobsOf
    row: Row | None


class Strings:
    """Banned strings, with the methods of a :class:`~aleator.generate.expressions.Searcher`."""

    probability = 1.0

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [text.encode() for text in strings]
        self.longest = max(map(len, self._strings))

    def matches(self, text: bytes, at: int, since: int, over: bool) -> Iterator[tuple[int, int]]:
        """The first match, if there is one."""
        least = [(max(at, since - len(s) + 1), s) for s in self._strings]
        found = [(i, i + len(s)) for start, s in least if (i := text.find(s, start)) >= 0]
        if found:
            yield min(found)

    def open(self, text: bytes, at: int) -> int:
        """The first place where a string may begin."""
        return len(text) - open_length(text[at:], self._strings, self.longest)

    def before(self, last: bytes) -> bytes:
        """Return b""."""
        return b""

    def within(self, pieces: Sequence[bytes], last: bytes) -> list[int]:
        """Indices of the texts that contain a banned string."""
        return [i for i, piece in enumerate(pieces) if any(s in piece for s in self._strings)]


Ban = Strings | Searcher


@dataclass
class _RefusedTokens:
    """The tokens refused at a place, and how often tokens were refused there."""

    tokens: set[int] = field(default_factory=set)
    times: int = 0


class Bans:
    """Holds tokens back for as long as something banned may begin in them.

    A match is taken back from the token in which it begins.  If that token has been given out already, because
    there was no match at first, only the tokens still held are taken back.
    """

    def __init__(
        self,
        bans: Sequence[Ban],  # The bans
        token_bytes: TokenBytes,  # Bytes of a token; b"" for tokens without text
        n_tokens: int,  # Size of the vocabulary
        # Number in [0, 1) for a place in the text: a match that begins in the token there is banned if the
        # number is below the ban's probability
        coin: Callable[[int], float],
        begun: Sequence[int] = (),  # Tokens of the text that were drawn earlier
        skip: int = 0,  # Bytes at the beginning that are not part of the text
        strip: bool = False,  # Whether a space at the beginning is not part of the text
    ) -> None:
        self._bans, self._token_bytes, self._n_tokens = bans, token_bytes, n_tokens
        self._coin, self._skip, self._strip = coin, skip, strip
        # Bytes of the longest match, and so the most tokens that may have to be taken back
        self.longest = max(ban.longest for ban in bans)
        self._may_stay = any(ban.probability < 1 for ban in bans)
        self.held: list[HeldToken] = []  # The tokens held back
        self._refused = [_RefusedTokens()]  # at the places of the held tokens and of the next one
        self._begun = self._n = len(begun)  # tokens of the text that are no longer held
        self._given = [token_bytes(token) for token in begun]  # bytes of the last of these
        # Per ban, bytes of these in which a match may begin
        self._kept = [len(b"".join(self._given))] * len(bans)
        self._within: dict[tuple[Ban, bytes], list[int]] = {}

    @property
    def refuses(self) -> bool:
        """Whether a token is refused at the next place."""
        return bool(self._refused[-1].tokens)

    def masked(self, row: Floats) -> Floats:
        """The logits [V] to draw the next token from, without the tokens refused at its place."""
        if not self.refuses:
            return row
        left = row.copy()
        left[list(self._refused[-1].tokens)] = -np.inf
        return left

    def take(self, token: int, logprobs: LogprobsOf, over: bool, row: Row | None = None) -> int:
        """Take in a token that was drawn from a row; ``over``: the text ends with it.

        Returns:
            How many of the last held tokens must be taken back; 0 for none.
        """
        self.held.append(HeldToken(token, self._token_bytes(token), logprobs, row))
        at = len(self.held) - 1 - KEPT_ROWS
        if at > 0 or (at == 0 and self._n > self._begun):
            self.held[at].row = None
        self._refused.append(_RefusedTokens())
        found = ((ban, self._place(start)) for ban, start, _ in self._matches(over))
        places = [place for ban, place in found if self._holds(ban, place)]
        return len(self.held) - max(0, min(places, default=len(self.held)))

    def back(self, n: int) -> HeldToken:
        """Take back the last ``n`` tokens; return the first of them, which is refused at its place.

        Raises:
            LogitsError: too many tokens were refused there.
        """
        place = len(self.held) - n
        gone, refused = self.held[place], self._refused[place]
        del self.held[place:], self._refused[place + 1 :]
        refused.tokens.add(gone.token)
        refused.times += 1
        if refused.times == ONE_BY_ONE:
            for ban in self._bans:
                refused.tokens.update(self._all_with(ban) if self._holds(ban, place) else ())
        elif refused.times > MOST_REFUSED:
            raise LogitsError(
                f"something banned is in each of {refused.times} texts that were drawn from one place on: ban "
                "less"
            )
        return gone

    def ready(self, everything: bool) -> list[HeldToken]:
        """Release and return the held tokens in which nothing banned can begin; all at the end of the text."""
        stayed = [*self._matches(False)] if self._may_stay else []
        n = len(self.held) if everything else self._closed()
        made, pieces = self.held[:n], self._pieces()[:n]
        since = len(b"".join(self._given))
        end = since + len(b"".join(pieces))
        for i, ban in enumerate(self._bans):
            passed = [after for each, _, after in stayed if each is ban and after <= end]
            begin = max(passed, default=since - self._kept[i])
            self._kept[i] = min(end - begin, ban.longest - 1)
        self._given += pieces
        left, gone = sum(map(len, self._given)), 0
        while gone < len(self._given) and left - len(self._given[gone]) >= self.longest:
            left -= len(self._given[gone])
            gone += 1
        del self._given[:gone]
        for each in made:
            self._strip = self._strip and not each.piece
            self._skip = max(0, self._skip - len(each.piece))
        self._n += n
        del self.held[:n], self._refused[:n]
        return made

    def _closed(self) -> int:
        """Number of first held tokens that can be given out."""
        text, since = self._text()
        end = min(ban.open(text, since - n) for ban, n in zip(self._bans, self._kept, strict=True))
        end -= since
        for n, piece in enumerate(self._pieces()):
            end -= len(piece)
            if end < 0:
                return n
        return len(self.held)

    def _pieces(self) -> list[bytes]:
        """The bytes of each held token that are part of the text."""
        made, skip, strip = [], self._skip, self._strip
        for each in self.held:
            piece = each.piece.removeprefix(b" ") if strip else each.piece
            made.append(piece[skip:])
            skip, strip = max(0, skip - len(piece)), strip and not each.piece
        return made

    def _text(self) -> tuple[bytes, int]:
        """The text to search, and where the held tokens begin in it."""
        given = b"".join(self._given)
        return given + b"".join(self._pieces()), len(given)

    def _matches(self, over: bool) -> Iterator[tuple[Ban, int, int]]:
        """Each match, with its beginning and end in the text that is searched."""
        text, since = self._text()
        for ban, n in zip(self._bans, self._kept, strict=True):
            for start, end in ban.matches(text, since - n, since, over):
                yield ban, start, end

    def _place(self, at: int) -> int:
        """Index of the held token that has a byte of the text; negative for a token that was given out."""
        ends = list(accumulate(map(len, [*self._given, *self._pieces()])))
        return bisect_right(ends, at) - len(self._given)

    def _holds(self, ban: Ban, place: int) -> bool:
        """Whether a match that begins in a token is banned."""
        return ban.probability == 1 or self._coin(self._n + place) < ban.probability

    def _all_with(self, ban: Ban) -> list[int]:
        """The tokens that would contain something banned if they came next."""
        last = ban.before(self._text()[0][-1:])
        if (ban, last) not in self._within:
            pieces = [self._token_bytes(token) for token in range(self._n_tokens)]
            self._within[ban, last] = ban.within(pieces, last)
        return self._within[ban, last]
