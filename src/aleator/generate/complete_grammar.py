"""Completes constrained texts before their tokens run out, so that JSON is closed instead of cut off."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aleator.core import host
from aleator.core.arrays import Floats, UInt32s
from aleator.grammar.spelling import Spelling
from aleator.samplers import SamplerChain

if TYPE_CHECKING:
    import random

GROWTH = 64
"""A token is assumed to lengthen the ending by at most this many tokens, or by the first ending's length.

So the tokens left beyond an ending tell for how many tokens no new search is needed.
"""
TRIALS = 12000
"""Most tokens that a search tries."""

THOROUGH = 25 * TRIALS
"""The same limit after a shorter search found no ending: deep in a recursion a search needs more."""

BREADTH = 3000
"""Most tokens that a search for the end of a string or number tries."""

ATTEMPTS = 12
"""Most searches for one ending.  From the fourth search on, choices between at most ``FEW`` branches are
random."""
FEW = 16

R = TypeVar("R")
Work = Generator[None, None, R]
"""Work done in parts.  It pauses after each part, so that other requests can continue."""


def finish(work: Work[R]) -> R:
    """Run work to its end; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            made: R = end.value
            return made


def _random(seed: int) -> random.Random:
    from random import Random  # few texts need it

    return Random(seed)


_DIGITS = (b"1098765432", b"0198765432", b"9876543210")
"""Orders in which digits are tried: one of them soon meets a lower bound, an upper bound, or a multiple."""


class EndingSearch:
    """Searches for a short ending: few tokens, none of them banned, after which a constrained text is complete.

    It does not always find the fewest tokens.  It closes what is open and takes what is required.  Where that
    leads nowhere, it prefers tokens that change what is allowed next.
    """

    def __init__(self, spelling: Spelling, banned: Iterable[int] = ()) -> None:
        self._spelling, self._banned = spelling, tuple(banned)
        self.ends = spelling.ends  # tokens that end a generation
        self._ready = False
        self._trials = 0
        self._met_digit = self._met_branch = False  # whether a choice depended on digits, or chance

    def _prepare(self) -> None:
        if self._ready:
            return
        self._ready = True
        spelling = self._spelling
        self._usable = np.ones(len(spelling.pieces), np.bool_)
        self._usable[[*self._banned, *spelling.ends]] = False
        self._usable[[i for i, piece in enumerate(spelling.pieces) if not piece]] = False
        self._lengths = np.array([len(piece) for piece in spelling.pieces])
        single = {
            piece: i
            for i, piece in enumerate(spelling.pieces)
            if len(piece) == 1 and self._usable[i]
        }

        def tokens(characters: bytes) -> list[int]:
            return [t for c in characters if (t := single.get(bytes([c]))) is not None]

        self._brackets, self._quotes, self._openers = tokens(b"}]"), tokens(b'"'), tokens(b"[{")
        self._commas = tokens(b",")
        self._values, self._letters = tokens(b"ntf"), tokens(b"ax")
        self._digits = [tokens(order) for order in _DIGITS]
        self._printable = tokens(bytes([*b"1aAfTzZ", *range(0x20, 0x5C), *range(0x5D, 0x7F)]))

    @property
    def out_of_trials(self) -> bool:
        """Whether the last search ran out of trials, so that more trials may find an ending."""
        return self._trials <= 0

    def search(
        self, constraint: host.Constraint, limit: int, trials: int = TRIALS
    ) -> Work[list[int] | None]:
        """Search, in parts, for at most ``limit`` tokens that complete the text; None: none were found.

        Only one search may run at a time.  It leaves the constraint unchanged, and so must everything else
        meanwhile.
        """
        self._prepare()
        best: list[int] | None = None
        self._trials, self._met_digit, self._met_branch = trials, False, False
        for attempt in range(ATTEMPTS):
            rng = _random(attempt) if attempt >= len(self._digits) else None
            if attempt and best is None and not (self._met_branch if rng else self._met_digit):
                continue  # it would take the same path again
            digits = self._digits[attempt % len(self._digits)]
            found = yield from self._descend(constraint.clone(), limit, digits, rng)
            if found is not None and (best is None or len(found) < len(best)):
                best, limit = found, len(found) - 1
            if best is not None and (rng is not None or not set(best) & set(digits)):
                break  # another order of digits makes no difference
        return best

    def _descend(
        self, at: host.Constraint, limit: int, digits: list[int], rng: random.Random | None
    ) -> Work[list[int] | None]:
        tokens: list[int] = []
        lost: set[bytes] = set()  # masks from which no ending was found
        while not at.complete:
            forced = self._spelling.tokens(at.jump_forward())
            taken = self._take(at, forced[: limit - len(tokens) + 1])
            tokens += taken
            if not taken:
                token = yield from self._next(at, at.mask(), lost, digits, rng)
                if token is None:
                    return None
                self._met_digit |= token in digits
                at.accept(token)
                tokens.append(token)
            if len(tokens) > limit or self._trials <= 0:
                return None
            yield
        return tokens

    def _take(self, at: host.Constraint, tokens: list[int]) -> list[int]:
        taken = []
        for token in tokens:
            if not self._usable[token] or not at.allows(token):
                break
            at.accept(token)
            taken.append(token)
        self._trials -= len(taken)
        return taken

    def _next(
        self,
        at: host.Constraint,
        words: UInt32s,
        lost: set[bytes],
        digits: list[int],
        rng: random.Random | None,
    ) -> Work[int | None]:
        def allowed(tokens: Iterable[int]) -> list[int]:
            return [token for token in tokens if _allows(words, token)]

        self._trials -= 1
        brackets, letters = allowed(self._brackets), allowed(self._letters)
        if brackets and not letters:
            return brackets[0]
        if not brackets and not letters and (commas := allowed(self._commas)):
            return commas[0]  # of an array or object that needs more
        key = words.tobytes()
        for token in allowed(self._quotes):
            if self._opens_way(at, token, key):
                return token
        numbers, openers = allowed(digits), allowed(self._openers)
        if openers and not letters:  # where a JSON value begins
            return (allowed(self._values) or numbers or openers)[0]
        branches = allowed(self._printable)
        if 1 < len(branches) <= FEW:  # such as names of properties
            self._met_branch = True
            if rng is not None:
                return rng.choice(branches)
        if key not in lost:
            steps = yield from self._way_out(at)
            if steps:
                return steps[0]
            lost.add(key)
        if numbers:
            return numbers[0]
        octets = words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        bits = np.unpackbits(octets, bitorder="little")[: len(self._usable)]
        ids = np.flatnonzero(bits.astype(np.bool_) & self._usable)
        return int(ids[np.argmax(self._lengths[ids])]) if len(ids) else None

    def _opens_way(self, at: host.Constraint, token: int, before: bytes) -> bool:
        """Whether after the token the text is complete, or something else than before is allowed."""
        self._trials -= 1
        at.accept(token)
        new = at.complete or at.mask().tobytes() != before
        at.rollback(1)
        return new

    def _over(self, words: UInt32s) -> bool:
        """Whether a string can end, or a number can end or has ended."""
        inside = any(_allows(words, token) for token in self._letters)
        ends = self._quotes if inside else (*self._quotes, *self._brackets, *self._commas)
        return any(_allows(words, token) for token in ends)

    def _way_out(self, at: host.Constraint) -> Work[list[int]]:
        """The fewest single bytes that complete the text, or end a string or a number; [] if there are none.

        States that allow the same tokens count as one, so it cannot find an end that requires counting bytes.
        """
        seen = {at.mask().tobytes()}
        paths: list[list[int]] = [[]]
        budget = start = max(0, min(self._trials, BREADTH))
        for path in paths:
            for token in path:
                at.accept(token)
            words = at.mask()
            found: list[int] = []
            for token in self._printable:
                if not _allows(words, token):
                    continue
                budget -= 1
                at.accept(token)
                new = at.mask()
                key = new.tobytes()
                if at.complete or self._over(new):
                    found = [*path, token]
                elif key not in seen:
                    seen.add(key)
                    paths.append([*path, token])
                at.rollback(1)
                if found or budget <= 0:
                    break
                yield
            at.rollback(len(path))
            if found or budget <= 0:
                self._trials -= start - budget
                return found
        self._trials -= start - budget
        return []


def _allows(words: UInt32s, token: int) -> bool:
    return bool(words[token // 32] >> np.uint32(token % 32) & 1)


class GrammarCompleter:
    """Samples the tokens of a constrained text, and completes the text before its tokens run out.

    It samples as long as an ending still fits after the token, then gives the tokens of that ending.
    Its chain has one constraint and can roll back.  ``closing``: the ending has begun, and nothing is sampled.
    """

    def __init__(self, chain: SamplerChain, search: EndingSearch) -> None:
        self._chain, self._search = chain, search
        self._plan: list[int] | None = None  # an ending of the current text, if known
        self.closing = False
        self._growth = 0
        self._wait = 0  # number of tokens for which it certainly fits
        self._off = False

    def sample(self, row: Floats, left: int) -> Work[int | None]:
        """Find the next of ``left`` tokens, in parts; None: the text is complete and ends here.

        The chain accepts it.  The logits [V] are read before the first part ends.
        """
        if self.closing:
            return self.close()
        return (yield from self.check(self._chain.sample(row), left))

    def check(self, token: int, left: int) -> Work[int | None]:
        """Check, in parts, whether an ending still fits after a token that the chain has just accepted.

        If this generator is closed early, it takes the token back.  Nothing else may change the chain
        meanwhile.

        Returns:
            The token, or the first token of the ending in its place, accepted by the chain; None: the text is
            complete without the token.
        """
        chain, search = self._chain, self._search
        self._wait -= 1
        if self._plan and token == self._plan[0]:
            del self._plan[0]
            return token
        if self._off or self._wait > 0 or token in search.ends:
            self._plan = None
            return token
        try:
            found = yield from search.search(self._constraint, left - 1)
            if found is None and self._plan is None and search.out_of_trials:
                found = yield from search.search(self._constraint, left - 1, THOROUGH)
        except GeneratorExit:
            chain.rollback(1)
            raise
        if found is not None:
            self._growth = self._growth or max(GROWTH, len(found))
            self._plan, self._wait = found, (left - len(found)) // self._growth
            return token
        chain.rollback(1)
        if self._plan is None:
            self._plan = yield from search.search(self._constraint, left, THOROUGH)
        if self._plan is None:  # no ending has fitted yet
            chain.accept(token, generated=True)
            self._off = True
            return token
        self.closing = True
        return self.close()

    @property
    def _constraint(self) -> host.Constraint:
        return self._chain.constraints[0].constraint

    def close(self) -> int | None:
        """Give the next token of the ending, and let the chain accept it; None: the ending is complete."""
        if not self._plan:
            return None
        token = self._plan.pop(0)
        self._chain.accept(token, generated=True)
        return token
