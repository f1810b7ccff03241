"""Guesses of the next tokens, which are decoded together and kept where the chain draws the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import islice
from time import perf_counter
from typing import Protocol

from aleator.core.arrays import Floats
from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.records import dataclass
from aleator.generate.prompt_lookup import MEMORY as MEMORY
from aleator.generate.prompt_lookup import REMEMBERED as REMEMBERED
from aleator.generate.prompt_lookup import SIZES as SIZES
from aleator.generate.prompt_lookup import DraftHistory, HitRate, Repeats
from aleator.generate.prompt_lookup import PromptLookup as PromptLookup
from aleator.samplers import SamplerChain


class Drafts(ABC):
    """What guesses for the requests of a context together: a draft model or a draft head."""

    @abstractmethod
    def model(self, chain: SamplerChain) -> Guesser:
        """What guesses for a text that ``chain`` draws."""

    @abstractmethod
    def guess(self, drafts: Sequence[Draft]) -> None:
        """Guess for several texts."""


class Guesser:
    """Guesses what follows one text, as one of those that share :class:`Drafts`.

    Attributes:
        stops: whether it knows how probable its guesses are, and stops at :attr:`Draft.least`.
        most: how many tokens may be guessed at once.
    """

    stops, most = False, 2**16

    def __init__(self, shared: Drafts) -> None:
        self.shared = shared

    def add_hidden(self, pos: int, hidden: Floats) -> None:
        """Add the hidden states [n, layers, n_embd] of the text's tokens from ``pos`` on, for a draft head."""

    def learn(self, right: int) -> None:
        """Learn that the first ``right`` of the last guesses were drawn, and that the one after was not."""

    def end(self) -> None:
        """Give back what it has of what is shared."""


@dataclass
class Draft:
    """At most ``n`` guesses, at least 1, requested from a draft model."""

    model: Guesser
    tokens: Sequence[int]  # The prompt and all drawn tokens
    n: int
    least: float = 0.0  # How probable all guesses together must be, if that is known
    found: list[int] = field(default_factory=list)
    error: Exception | None = None  # An error of the chain, which ends guessing for this text alone


class SharedDrafts:
    """What a context's requests share for drafting: a draft model's context, if any, and earlier texts."""

    def __init__(self, drafts: Drafts | None) -> None:
        self.drafts, self.history = drafts, DraftHistory()


class Drafter(Protocol):
    """Guesses what follows a text; a wrong guess costs time and changes nothing.

    ``generate(..., drafter=...)`` and ``Engine.submit(..., drafter=...)`` accept a custom drafter.
    """

    def draft(self, tokens: Sequence[int], n: int) -> Iterable[int]:
        """Return token ids that may follow.

        Args:
            tokens: the prompt and all drawn tokens, as the model sees them.
            n: most tokens to return; at least 1.
        """
        ...


ROW_COST = 0.2
"""Assumed cost of a further row, as a fraction of a step of one sequence, before any was measured."""
LEAST_COST, MOST_COST = 0.01, 1.0
WEIGHT = 0.1
"""Weight of the newest measurement in running means, once there are enough."""
RETRY, LONGEST_RETRY = 32, 1024
"""Steps without guesses after which one token is tried; each failure doubles them up to the second number."""
PAUSE, LONGEST_PAUSE = 4, 128
"""Steps without questions after one that did not pay; each failure doubles them up to the second number."""
TRIED = 2
"""Most guesses at once while questions do not pay."""
SHOWN = 8
"""Steps at the end of a pause in which a draft head is shown hidden states again."""
RECENT, LASTING = 0.1, 0.05
"""Weight of the newest question in the means of what questions gained, in a text and over texts."""
MOST_LOST = 2.0
"""What a question loses counts up to this, in tokens, in these means: it may have waited for other programs."""
EXPECTED = 0.25
"""What a question is taken to gain before the first."""
SHARE = 0.01
"""Largest fraction of the time without guesses that guesses may lose."""
MOST_FIRST = 1.0
"""Most tokens' time that the first call of a drafter costs by the account."""
MOST_SURE = 0.9
"""Most that :meth:`Speculation.least_probability` asks."""
LEAST_SLOPE = 0.2
"""Least that one more guess is taken to cost, as a fraction of what one costs on average."""
LEAST_ALLOWANCE, ALLOWANCE, MOST_ALLOWANCE = 0.5, 2.0, 5.0
"""Time that guesses may lose before the first is made, in units of a token's time: the first where those in
other texts have not paid, otherwise from the second to the third, by what they gained."""


class Line:
    """A running line through measurements y = fixed + slope * n, the newest of most weight."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of 1, n, y, n * n, n * y

    def observe(self, n: int, y: float) -> None:
        """Add a measurement."""
        new = 1.0, n, y, n * n, n * y
        self._sums = [(1 - WEIGHT) * old + each for old, each in zip(self._sums, new, strict=True)]

    @property
    def slope(self) -> float:
        """What one more costs, at most what one costs on average; 0 before the first measurement.

        Measurements with n = 0 count for the line, but not for the average, which they would raise without end.
        """
        weight, n, y, squares, products = self._sums
        if not squares:
            return 0.0
        average = products / squares
        spread = weight * squares - n * n
        slope = (weight * products - n * y) / spread if spread > 0.01 * n * n else average
        return min(max(slope, LEAST_SLOPE * average), average)


class Costs:
    """Step times: without guesses by the number of sequences, and the cost of a guessed row."""

    def __init__(self) -> None:
        self._usual: dict[int, float] = {}
        self._row = 0.0  # seconds
        self._measured = 0

    def observe(self, n_sequences: int, guessed: int, seconds: float) -> None:
        """Learn from a step of ``n_sequences`` sequences in which ``guessed`` rows were guesses."""
        usual = self._usual.get(n_sequences)
        if guessed == 0:
            new = seconds if usual is None else usual + WEIGHT * (seconds - usual)
            self._usual[n_sequences] = new
        elif usual:
            row = self.row(n_sequences)
            measured = min(MOST_COST, max(LEAST_COST, (seconds / usual - 1) / guessed))
            self._measured += 1
            # At first each measurement counts as much as each earlier one and the assumed value.
            row += max(WEIGHT, 1 / (1 + self._measured)) * (measured - row)
            self._row = row * usual

    def row(self, n_sequences: int) -> float:
        """Cost of a guessed row, relative to a step of ``n_sequences`` sequences without guesses."""
        usual = self._usual.get(n_sequences)
        if not self._measured or not usual:
            return ROW_COST / (1 + ROW_COST * (n_sequences - 1))
        return min(MOST_COST, max(LEAST_COST, self._row / usual))

    def is_measured(self, n_sequences: int) -> bool:
        """Whether a step of ``n_sequences`` sequences without guesses was measured."""
        return n_sequences in self._usual

    def steps(self, n_sequences: int, seconds: float) -> float:
        """Number of such steps without guesses that take ``seconds`` seconds; 0 if none was measured."""
        usual = self._usual.get(n_sequences)
        return seconds / usual if usual else 0.0


class Experience:
    """What a question to a drafter gained lately, in tokens, in all texts that are drawn alike."""

    def __init__(self, gain: float = EXPECTED) -> None:
        self.gain = gain

    def learn(self, gain: float) -> None:
        """Learn what a question gained."""
        self.gain += LASTING * (gain - self.gain)

    def forget(self) -> None:
        """Forget a part of the losses after a text that asked nothing, so that one like it will ask again."""
        self.gain -= LASTING * min(0.0, self.gain)


class Speculation:
    """Asks a drafter for as many tokens as are worth their rows, at most ``n_max``.

    It keeps an account, counted in tokens.  Each right guess adds one; rows and the drafter's time are
    subtracted, in units of a token's time without guesses.  The loss stays below :data:`MOST_ALLOWANCE` plus
    :data:`SHARE` of the steps, however bad the guesses and whatever their rows cost, besides what the first
    call takes above :data:`MOST_FIRST`.

    Where questions do not pay, pauses follow in which nothing is asked and nothing done.  ``experience`` says
    whether that was so in other texts, and learns from this one.
    """

    def __init__(
        self,
        drafter: Drafter | Guesser,
        n_max: int,
        n_tokens: int,
        experience: Experience | None = None,
    ) -> None:
        self._drafter, self._n_tokens = drafter, n_tokens
        # Guesses for several texts at once; None: `asked` calls another drafter.
        self.model = drafter if isinstance(drafter, Guesser) else None
        self._n_max = n_max if self.model is None else min(n_max, self.model.most)
        self._rate = HitRate(1.0, 2.0)
        self._draft_seconds = 0.0  # per token
        self._further = Line()  # seconds of the drafter, by the number of guesses
        # Also guesses without a draft head where that pays more
        stops = self.model is not None and self.model.stops
        self._repeats = Repeats() if stops else None
        self._repeating = False  # whether the last guesses were these
        self._off, self._retry = 0, RETRY
        self._experience = experience or Experience()
        self._gain = self._experience.gain  # of a question, on average
        self._pause = 0 if self._pays else LONGEST_PAUSE // 2
        self._rest = self._pause  # steps left of this pause
        gained = min(MOST_ALLOWANCE, ALLOWANCE * (1 + self._gain))
        self._account = gained if self._pays else LEAST_ALLOWANCE
        self._begun = False
        # Costs not yet subtracted: rows, and seconds of the drafter.
        self._unpaid_rows, self._unpaid = 0, 0.0
        # What a row and a second cost in tokens, as of the last question
        self._row, self._second = 0.0, 0.0

    @property
    def likely(self) -> float:
        """See :class:`HitRate`."""
        return self._rate.likely

    @property
    def _pays(self) -> bool:
        """Whether questions lose no more than a step's share, which asking in each step may cost."""
        return self._gain >= -SHARE

    @property
    def looks_for_repeats(self) -> bool:
        """Whether :meth:`repeated` may find any; if not, no text need be made for it."""
        return self._repeats is not None

    def rests(self) -> bool:
        """Whether this step is one of a pause, in which nothing is asked."""
        if self._rest < 1:
            return False
        self._rest -= 1
        self._off += 1
        self._account += SHARE
        return True

    def n_guesses(self, room: int, n_sequences: int, costs: Costs) -> int:
        """Number of tokens to guess, at most ``room``, in a step of ``n_sequences``; 0: none."""
        if not costs.is_measured(n_sequences):
            return 0  # measure a step without guesses first
        row = self._pay(n_sequences, costs)
        stops = self.model is not None and self.model.stops
        n = min(room, self._n_max if stops else self._worth_of(n_sequences, costs)[0])
        if n <= 0:
            self._off += 1
            n = int(self._off >= self._retry and room >= 1)
        if not self._pays:
            n = min(n, TRIED)
        n = min(n, int(self._account / row))
        if n < 1:
            self._rest = max(PAUSE, self._pause)
            return 0
        self._off = 0
        return n

    def repeated(
        self, tokens: Sequence[int], room: int, n_sequences: int, costs: Costs
    ) -> Sequence[int]:
        """Guesses that the text repeats itself, at most ``room``, where they pay more than a draft head's."""
        self._repeating = False
        if self._repeats is None:
            return ()
        found = self._repeats.draft(tokens, self._n_max)
        if not found or not costs.is_measured(n_sequences):
            return ()
        likely, row = self._repeats.likely, costs.row(n_sequences)
        n, value = self._worth(likely, row, n_sequences)
        if n < 1 or value < self._worth_of(n_sequences, costs)[1]:
            return ()
        row = self._pay(n_sequences, costs)
        found = found[: max(0, min(n, room, int(self._account / row)))]
        self._repeating = bool(found)
        if not found:  # n_guesses is asked, which adds it again
            self._account -= SHARE
        return found

    def _pay(self, n_sequences: int, costs: Costs) -> float:
        """Add a step's share to the account, subtract what guesses cost; returns a row's cost in tokens."""
        self._row = n_sequences * costs.row(n_sequences)
        self._second = n_sequences * costs.steps(n_sequences, 1.0)
        self._account += SHARE - self._row * self._unpaid_rows - self._second * self._unpaid
        self._unpaid_rows, self._unpaid = 0, 0.0
        return self._row

    def _settle(self, gain: float) -> None:
        """Learn what a question gained, in tokens: where questions do not pay, the next has to wait."""
        gain = max(-MOST_LOST, gain)
        self._experience.learn(gain)
        self._gain += RECENT * (gain - self._gain)
        if self._pays:
            self._pause = 0
        elif gain >= -SHARE:
            self._pause //= 2
        else:  # ask nothing for a while, the longer, the more often that was so
            self._pause = min(LONGEST_PAUSE, max(PAUSE, 2 * self._pause))
            self._rest = self._pause

    def _worth_of(self, n_sequences: int, costs: Costs) -> tuple[int, float]:
        """See :meth:`_worth`, of the drafter's guesses."""
        cost = costs.row(n_sequences) + costs.steps(n_sequences, self._draft_seconds)
        return self._worth(self.likely, cost, n_sequences)

    def least_probability(self, n_sequences: int, costs: Costs) -> float:
        """How probable a further guess must be to be worth itself and its row, in a step of ``n_sequences``.

        Their time is worth as many tokens as are made in it on average.
        """
        further = costs.steps(n_sequences, self._further.slope)
        _, made = self._worth_of(n_sequences, costs)
        return min(MOST_SURE, made * (costs.row(n_sequences) + further))

    def guesses(self, tokens: Sequence[int], n: int) -> list[int]:
        """Ask a drafter other than a draft model for at most ``n`` guesses after ``tokens``.

        Raises:
            ParameterError: the drafter returned something that is not a token.
        """
        if isinstance(self._drafter, Guesser):
            raise TypeError("a draft model is asked for several texts at once")
        started = perf_counter()
        found = [self._checked(each) for each in islice(self._drafter.draft(tokens, n), n)]
        self.observe(len(found), perf_counter() - started)
        return found

    def observe(self, n: int, seconds: float) -> None:
        """Learn how long ``n`` guesses took; 0: the drafter had none."""
        first, self._begun = not self._begun, True
        if first and self._second:  # it reads the prompt, too, which a text cannot pay back at once
            seconds = min(seconds, MOST_FIRST / self._second)
        self._unpaid += seconds
        if n == 0:
            self._settle(-self._second * seconds)
        if first:
            return
        self._further.observe(n, seconds)
        if n:
            self._draft_seconds += WEIGHT * (seconds / n - self._draft_seconds)

    def add_hidden(self, pos: int, hidden: Floats) -> None:
        """See :meth:`Guesser.add_hidden`; those of a pause are left out, except at its end."""
        if self.model is not None and self._rest < SHOWN:
            self.model.add_hidden(pos, hidden)

    def end(self) -> None:
        """Stop guessing."""
        if not self._begun:
            self._experience.forget()
        if self.model is not None:
            self.model.end()

    def _worth(self, likely: float, cost: float, n_sequences: int) -> tuple[int, float]:
        """The number of guesses that gives the most tokens in the time of a step, and that many tokens."""
        p = min(0.99, likely)
        best, most, right, sure = 0, float(n_sequences), 0.0, 1.0
        for n in range(1, self._n_max + 1):
            sure *= p
            right += sure
            value = (n_sequences + right) / (1 + n * cost)
            if value <= most:
                break
            best, most = n, value
        return best, most

    def learn(self, guessed: int, right: int) -> None:
        """Learn that of ``guessed`` decoded guesses, the first ``right`` were drawn."""
        self._account += right
        self._unpaid_rows += guessed
        self._settle(right - self._row * guessed - self._second * self._unpaid)
        if self._repeating:  # of which the account alone learns
            return
        if self.model is not None:
            self.model.learn(right)
        self._rate.learn(guessed, right)
        self._retry = RETRY if right else min(LONGEST_RETRY, 2 * self._retry)

    def _checked(self, token: object) -> int:
        number = exact(token)
        if number is None or not 0 <= number < self._n_tokens:
            raise ParameterError(
                "drafter",
                f"the drafter gave {token!r:.80}: give token ids, 0 to {self._n_tokens - 1}",
            )
        return number
