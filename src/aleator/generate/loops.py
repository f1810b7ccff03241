"""Finds the token at which a text has begun to repeat the same few tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.json_text import loads
from aleator.samplers import SamplerChain
from aleator.samplers.temperature import Temperature

Limits = tuple[int, int] | tuple[int, int, float, int]
"""Type of ``stop_loops``: repeats, min_tokens; and to continue instead of ending, temperature and for."""
RANGES = {
    "repeats": (2, 1000),
    "min_tokens": (1, 4096),
    "temperature": (0.0, 100.0),
    "for": (1, 4096),
}
SHORT = 8
"""Periods below this are checked at each token; a power of two."""
USUAL = {"repeats": 4, "min_tokens": 64}
"""Defaults for when only the other one is given."""
STRETCH = 64
"""Tokens drawn at another temperature if only the temperature is given."""


def loop_limits(value: Any) -> Limits:
    """Read ``stop_loops`` from a mapping, two or four numbers, or either as JSON; "4,64" too."""
    given: Any = value
    if isinstance(value, str):
        try:
            given = loads(value if value[:1] in ("{", "[") else f"[{value}]")
        except ValueError:
            given = None
    if isinstance(given, Mapping):
        usual = {**USUAL, "temperature": None, "for": STRETCH} if "temperature" in given else USUAL
        unknown = [key for key in given if key not in usual]
        numbers = [] if unknown else [{**usual, **given}[name] for name in usual]
    else:
        numbers = list(given) if isinstance(given, Iterable) else []
    if len(numbers) not in (2, 4):
        raise ParameterError(
            f"stop_loops={value!r:.80}: give repeats and min_tokens, as in {USUAL} (command line: 4,64), and "
            "to go on at another temperature also temperature and for (4,64,1.5,32)"
        )
    made = [_checked(*pair) for pair in zip(RANGES, numbers, strict=False)]
    return made[0], made[1], *made[2:]


def _checked(name: str, value: Any) -> Any:
    low, high = RANGES[name]
    whole = name != "temperature"
    number = exact(value) if whole and not isinstance(value, float) else value
    kinds = int if whole else (int, float)
    if isinstance(number, kinds) and not isinstance(value, bool) and low <= number <= high:
        return number if whole else float(number)
    raise ParameterError(
        f"stop_loops: {name}={value!r:.40} is out of range: give {'an integer' if whole else 'a number'}, "
        f"{low:g} to {high:g}{f' (default: {USUAL[name]})' if name in USUAL else ''}"
    )


def check_stretch(limits: Limits | None, temperature: float, numerics: str, phases: bool) -> None:
    """Check that a request's temperature can rise as ``limits`` says."""
    raised = limits[2] if limits is not None and len(limits) == 4 else None
    why = ""
    if raised is not None and raised <= temperature:
        why = f"is not above the request's, {temperature:g}: give more"
    elif raised is not None and numerics != "portable":
        why = "cannot change in llama.cpp's chain: leave it out, or give numerics='portable'"
    elif raised is not None and phases:
        why = "cannot change in the chains of phases: leave it out, or phases"
    if why:
        raise ParameterError(f"stop_loops: temperature={raised:g} {why}")


class LoopWatch:
    """Watches for loops as ``limits`` says: ends the text, or raises the chain's temperature for a stretch.

    ``temperature`` is the request's own.  After a loop that does not end the text, only later tokens count.

    Raises:
        ParameterError: the temperature would not rise, or the chain's cannot change.
    """

    def __init__(self, limits: Limits, chain: SamplerChain, temperature: float) -> None:
        self._limits, self._chain = limits, chain
        self._detector = LoopDetector(*limits[:2])
        self._raised: float | None = limits[2] if len(limits) == 4 else None
        self._stretch = limits[3] if len(limits) == 4 else 0
        self._left = 0
        self._usual: list[tuple[int, Temperature | None]] = []
        """The chain's original samplers at the places that the stretch has changed; None: none there."""
        check_stretch(limits, temperature, chain.numerics, bool(chain.phase))

    def push(self, token: int) -> bool:
        """Take in a token; return whether the text ends with it."""
        looping = self._detector.push(token) > 0
        if looping and self._raised is not None:
            self._detector = LoopDetector(*self._limits[:2])
            self._raise(self._raised)
            self._left = self._stretch
        elif self._left:
            self._left -= 1
            if not self._left:
                self.end()
        return looping and self._raised is None

    def _raise(self, temperature: float) -> None:
        if self._left:
            return
        chain = self._chain
        usual = [(i, each) for i, each in enumerate(chain) if isinstance(each, Temperature)]
        for i, each in usual:
            chain.insert(i, replace(each, temperature=temperature))
            chain.remove(i + 1)
        if not usual:
            chain.insert(len(chain) - 1, Temperature(temperature))
        self._usual = [*usual] or [(len(chain) - 2, None)]

    def end(self) -> None:
        """Restore the chain's own temperature."""
        for i, each in self._usual:
            if each is None:
                self._chain.remove(i)
            else:
                self._chain.insert(i, each)
                self._chain.remove(i + 1)
        self._usual, self._left = [], 0


class LoopDetector:
    """Says after each token whether the text ends with a cycle of tokens, repeated often enough.

    It is exact: it reports the first token after which the last k * p tokens are k repeats of p tokens, for any
    p, with k >= ``repeats`` and k * p >= ``min_tokens``.

    A period p is followed from when it may matter.  Below SHORT that is the first token that equals the one p
    tokens before.  A run with a longer period, of at least two repeats, has p such tokens or more.  Let b be
    the power of two with 2b <= p < 4b.  Any 2b - 1 such tokens include b that end at a multiple of b in the
    text. So it is enough to look there for all places where the last b tokens occur 2b to 4b - 1 tokens
    earlier. This reads about 5b tokens every b tokens, some n log n bytes for n tokens, in :meth:`bytes.find`.
    Two places less than b/2 apart mean that these b tokens are a run themselves.  So there are a few periods to
    follow for each power of two, and more only during a run that is shorter than ``min_tokens``.
    """

    def __init__(self, repeats: int, min_tokens: int) -> None:
        self._repeats, self._min_tokens = repeats, min_tokens
        self._tokens = array("i")
        self._since: dict[int, int] = {}
        """For each followed period, the index from which on tokens equal those one period before."""

    def push(self, token: int) -> int:
        """Take in a token; return the length of the cycle that it completes often enough, 0 for none."""
        tokens, since = self._tokens, self._since
        tokens.append(token)
        last = len(tokens) - 1
        for period in [p for p in since if tokens[last - p] != token]:
            del since[period]
        if token in tokens[max(0, last - SHORT + 1) : last]:  # most tokens are new
            for period in range(1, min(SHORT, last + 1)):
                if tokens[last - period] == token:
                    since.setdefault(period, last)
        block = SHORT // 2
        while len(tokens) % block == 0 and len(tokens) >= 3 * block:
            self._find(block)
            block *= 2
        return min((p for p in since if len(tokens) - since[p] >= self._needed(p)), default=0)

    def _needed(self, period: int) -> int:
        """Number of tokens that must equal those one period before to make a loop."""
        repeats = max(self._repeats, -(-self._min_tokens // period))
        return (repeats - 1) * period

    def _find(self, block: int) -> None:
        """Follow the periods 2 * ``block`` to 4 * ``block`` - 1 with which the last ``block`` tokens repeat."""
        tokens, since = self._tokens, self._since
        n, width = len(tokens), tokens.itemsize
        first = max(0, n - 5 * block + 1)
        text, end = tokens[first : n - 2 * block].tobytes(), tokens[n - block :].tobytes()
        at = text.find(end)
        while at >= 0:
            period = n - block - first - at // width
            if at % width == 0 and period not in since and not self._is_multiple(period):
                start = n - block
                while start > period and tokens[start - 1] == tokens[start - 1 - period]:
                    start -= 1
                since[period] = start
            at = text.find(end, at + 1)

    def _is_multiple(self, period: int) -> bool:
        """Whether a shorter cycle makes up the last ``period`` tokens, so that this period is redundant."""
        n = len(self._tokens)
        return any(
            period % short == 0 and n - start + short >= period
            for short, start in self._since.items()
        )
