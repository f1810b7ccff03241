"""Matchers of other packages as constraints: the methods they need, and the adapter around them."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np

from aleator.core.arrays import Int32s
from aleator.core.errors import ConstraintError, ParameterError


class Matcher(Protocol):
    """The methods of a matcher; names and meanings are those of xgrammar's ``GrammarMatcher``.

    It may also have ``find_jump_forward_string() -> str``, the text that is forced next, and ``fork()``, a copy
    with its own state.  Without ``fork`` it is copied with ``copy.deepcopy``; if that fails, it cannot be
    cloned.
    """

    def fill_next_token_bitmask(self, bitmask: Any, index: int = 0) -> Any:
        """Write row ``index`` of ``bitmask``, int32 [rows, ceil(V / 32)]: a bit per token allowed next."""

    def accept_token(self, token: int) -> bool:
        """Accept ``token``; return False and change nothing if it is not allowed."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""

    def reset(self) -> None:
        """Return to the initial state."""

    def is_terminated(self) -> bool:
        """Whether an end-of-generation token was accepted."""


class MatcherConstraint:
    """A :class:`Matcher`, with the methods that native/samplers/constrained.cpp calls."""

    def __init__(self, matcher: Any, n_vocab: int) -> None:
        self.matcher, self.n_vocab = matcher, n_vocab
        self._words: Int32s = np.zeros((1, -(-n_vocab // 32)), np.int32)
        self._current = False

    @staticmethod
    def check(matcher: Any) -> None:
        """Refuse an object that lacks a method."""
        wanted = ("fill_next_token_bitmask", "accept_token", "rollback", "reset", "is_terminated")
        missing = [name for name in wanted if not callable(getattr(matcher, name, None))]
        if missing:
            raise ParameterError(
                "matcher",
                f"{matcher!r} is not a matcher: it has no {', '.join(missing)} (see aleator.grammar.matcher)",
            )

    def mask(self) -> Int32s:
        if not self._current:
            self._words[:] = 0
            if not self.matcher.is_terminated():
                self.matcher.fill_next_token_bitmask(self._words, 0)
            self._current = True
        words: Int32s = self._words[0]
        return words

    def allows(self, token: int) -> bool:
        return 0 <= token < self.n_vocab and bool(self.mask()[token // 32] >> token % 32 & 1)

    def accept(self, token: int) -> None:
        if not self.allows(token) or not self.matcher.accept_token(token):
            raise ConstraintError(token, f"token {token} is not allowed by the grammar here")
        self._current = False

    def rollback(self, n: int) -> None:
        self.matcher.rollback(n)
        self._current = False

    def reset(self) -> None:
        self.matcher.reset()
        self._current = False

    def complete(self) -> bool:
        """Whether the text may end here, by xgrammar's own test, or else whether an end was accepted."""
        test = getattr(self.matcher, "is_completed", self.matcher.is_terminated)
        return bool(test())

    def jump_forward(self) -> bytes:
        find = getattr(self.matcher, "find_jump_forward_string", None)
        return b"" if find is None or self.matcher.is_terminated() else find().encode()

    def clone(self) -> MatcherConstraint:
        fork = getattr(self.matcher, "fork", None)
        return MatcherConstraint(
            copy.deepcopy(self.matcher) if fork is None else fork(), self.n_vocab
        )
