"""Cached prefixes of a run: its own cache's, or those of another context, whose rows are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aleator.core.errors import CacheError
from aleator.generate.context import Context

SPARE = 1
"""The sequence of a lending context that is empty but while rows are copied."""

LEAST = 16
"""Tokens from which on copying is worth its while."""


class Prefixes(Protocol):
    """What a run needs of the prompt cache; a cache that keeps prefixes is one."""

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """Give an empty sequence the longest cached beginning of ``tokens``; returns its length."""

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the beginning that a sequence holds; returns whether it is kept."""


class LentPrefixes:
    """The prefixes that one context keeps, for a run in another one of the same model.

    One context for all would reserve the most that a batch may ever need.  Rows are copied bit for bit,
    both ways.  Where there is no room for them, nothing is found or kept.  What a run computes is kept
    where at least a quarter of it is new, since a copy shares no cells; and of one run at most as many
    tokens as the owner has cells, prompts first.  The owner's sequence ``SPARE`` is empty.
    """

    def __init__(self, owner: Context, borrower: Context) -> None:
        self._owner, self._borrower = owner.cache, borrower.cache
        self._left = owner.n_ctx

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """See :class:`Prefixes`."""
        if self._owner.match(tokens, namespace).length < LEAST:
            return 0
        try:
            held = self._owner.reuse(SPARE, tokens, namespace)
            self._borrower.state_read(self._owner.state_write(SPARE), seq)
        except CacheError:
            return 0
        finally:
            self._owner.seq_rm(SPARE, -1, -1)
        return held

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """See :class:`Prefixes`."""
        missing = len(tokens) - self._owner.match([*tokens, 0], namespace).length
        if missing < max(LEAST, len(tokens) // 4) or len(tokens) > self._left:
            return False
        self._left -= len(tokens)
        try:
            self._owner.state_read(self._borrower.state_write(seq), SPARE)
            return self._owner.keep(SPARE, tokens, namespace)
        except CacheError:
            return False
        finally:
            self._owner.seq_rm(SPARE, -1, -1)
