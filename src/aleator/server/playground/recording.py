"""Texts of the playground: how they came about, and the logits of their steps, within a bound."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import ParameterError
from aleator.engine.prompts import SAMPLING
from aleator.generate.generation import Generation, writing_of
from aleator.generate.request import Request
from aleator.samplers import SamplerChain
from aleator.server.errors import ApiError

MOST_TEXTS = 512
"""Texts that are kept; the one that was not used for the longest time is forgotten first."""
MOST_BRANCHES = 256
"""Texts of which each branches off the one before: a text keeps all those that it comes from."""


class Forgotten(ApiError):
    """The logits of a step were given up for those of later ones."""

    def __init__(self, step: int) -> None:
        super().__init__(
            410,
            f"the logits of step {step} are not kept any more: write the text again, or start the server "
            "with a larger --playground-memory",
            "step",
            code="logits_forgotten",
        )


class Row:
    """The logits of one step, float32 [V] (None once they are forgotten); texts that begin alike share it."""

    __slots__ = ("logits",)

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits: NDArray[np.float32] | None = logits


class LogitsMemory:
    """Keeps rows of logits, and forgets the oldest where they would take more bytes than a bound."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._rows: deque[Row] = deque()
        self._lock = threading.Lock()

    def keep(self, logits: Any) -> Row:
        """Copy a row."""
        kept = np.array(logits, np.float32)
        row = Row(kept)
        with self._lock:
            self._rows.append(row)
            self.used += kept.nbytes
            while self.used > self.limit:
                oldest = self._rows.popleft()
                if oldest.logits is not None:
                    self.used -= oldest.logits.nbytes
                    oldest.logits = None
        return row

    def release(self, rows: list[Row]) -> None:
        """Forget rows of a text that is given up."""
        gone = set(map(id, rows))
        with self._lock:
            for row in rows:
                if row.logits is not None:
                    self.used -= row.logits.nbytes
                    row.logits = None
            self._rows = deque(row for row in self._rows if id(row) not in gone)

    @property
    def rows(self) -> int:
        """Rows that are held now."""
        return len(self._rows)


class NoSuchText(ApiError):
    """A text that was never written, or is not kept any more."""

    def __init__(self, name: str) -> None:
        super().__init__(
            404,
            f"there is no text {name!r}: the server keeps the last {MOST_TEXTS} and forgets all when it ends; "
            "write it again",
            "id",
            code="no_such_text",
        )


class Recording:
    """One text: a prompt, what an earlier text contributed, and what was drawn after that.

    Attributes:
        id: its name.
        depth: how many texts it comes from.
        rows: for each drawn token the logits that it was drawn from; one more while the next is drawn.
        sampling: preset and sampling parameters as they were asked for.
    """

    def __init__(
        self,
        memory: LogitsMemory,
        parent: Recording | None = None,
        at: int = 0,
        inherited: tuple[int, ...] = (),
    ) -> None:
        self.id = secrets.token_urlsafe(9)
        self.parent, self.at, self.inherited = parent, at, inherited
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.rows: list[Row] = [] if parent is None else parent.rows[: len(inherited)]
        self.sampling: Mapping[str, Any] = {}
        self._memory = memory
        self._generation: Generation | None = None

    def look(self, chain: SamplerChain, logits: Any) -> None:
        """Keep the logits [V] from which the next token is drawn; called before each draw."""
        step = chain.position
        del self.rows[step:]
        self.rows.append(self._memory.keep(logits))

    def begin(self, generation: Generation, asked: Mapping[str, Any]) -> None:
        """Take in what writes the text."""
        self._generation = generation
        self.sampling = {
            name: value for name, value in asked.items() if name == "preset" or name in SAMPLING
        }

    @property
    def generation(self) -> Generation:
        """What writes the text."""
        assert self._generation is not None  # noqa: S101
        return self._generation

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.generation.request

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens that were not drawn."""
        return self.request.tokens[: len(self.request.tokens) - self.request.drawn]

    @property
    def drawn(self) -> list[int]:
        """The tokens after the prompt so far."""
        return [*self.inherited, *writing_of(self.generation).completion.tokens]

    def logits(self, step: int) -> Any:
        """The logits [V] of a step; 0 is the first token after the prompt."""
        if not 0 <= step < len(self.rows):
            raise ParameterError(
                "step", f"step={step} is out of range: the text has steps 0 to {len(self.rows) - 1}"
            )
        logits = self.rows[step].logits
        if logits is None:
            raise Forgotten(step)
        return logits


class Recordings:
    """The texts that are kept."""

    def __init__(self, limit: int) -> None:
        self.memory = LogitsMemory(limit)
        self._texts: OrderedDict[str, Recording] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, recording: Recording) -> None:
        """Keep a text."""
        with self._lock:
            self._texts[recording.id] = recording
            while len(self._texts) > MOST_TEXTS:
                self._texts.popitem(last=False)

    def __getitem__(self, name: str) -> Recording:
        with self._lock:
            if name not in self._texts:
                raise NoSuchText(name)
            self._texts.move_to_end(name)
            return self._texts[name]

    def forget(self, name: str) -> None:
        """Give up a text and the logits that only it has; its branches keep theirs."""
        recording = self[name]
        with self._lock:
            del self._texts[name]
            others = list(self._texts.values())
        shared = {id(row) for each in others for row in each.rows}
        own = recording.rows[len(recording.inherited) :]
        self.memory.release([row for row in own if id(row) not in shared])

    def __len__(self) -> int:
        return len(self._texts)
