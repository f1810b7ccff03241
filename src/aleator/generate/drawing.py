"""Who draws the tokens of a run: every request's chain on the host, or one device chain for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, Union

import numpy as np
import numpy.typing as npt

from aleator.core.errors import LogitsError
from aleator.core.records import dataclass
from aleator.generate.complete_grammar import Work
from aleator.generate.logprobs import LogprobsOf, top_logprobs, with_kept
from aleator.generate.request_state import RequestState
from aleator.samplers import sample_batch
from aleator.samplers.kept import KeptRow

if TYPE_CHECKING:
    import torch

    from aleator.device.chain import DeviceChain

Logits = Union[npt.NDArray[np.float32], "torch.Tensor"]
"""Rows of logits [n, V] as a context gives them: NumPy's on the CPU, PyTorch's on a device."""


LEAST_TOGETHER = 4
"""Requests for which drawing at the same time is worth the threads' waking."""


def host_rows(logits: Logits) -> npt.NDArray[np.float32]:
    """Rows of logits in the host's memory."""
    if isinstance(logits, np.ndarray):
        return logits
    rows: npt.NDArray[np.float32] = logits.cpu().numpy()
    return rows


@dataclass(frozen=True)
class Turn:
    """A token to draw.

    Attributes:
        state: Whose chain draws.
        row: Of the logits that it is drawn from.
        left: Tokens that may still come, this one included; None: any number.
        beside: Row after the request's second prompt; -1: that is :attr:`Guidance.first`, or there is none.
        sampled: The token, where the request's chain has drawn it already.
    """

    state: RequestState
    row: int
    left: int | None
    beside: int = -1
    sampled: int | None = None


@dataclass(frozen=True)
class Drawn:
    """What came of a turn.

    Attributes:
        token: Accepted by the request's chain; None: the text is complete without, or ``choosing`` finds it.
        logprobs: What the model thought of the tokens.
        row: The logits [V] that it was drawn from, where the host has them.
        choosing: Work that gives the token, and may take long; None: it is done.
        kept: What the chain keeps of the row, where that is wanted.
    """

    token: int | None
    logprobs: LogprobsOf
    row: npt.NDArray[np.float32] | None = None
    choosing: Work[int | None] | None = None
    kept: KeptRow | None = None

    def with_own_row(self) -> Drawn:
        """What it is with a copy of the row: the next batch may write over the row itself."""
        if self.row is None:
            return self
        row = self.row.copy()
        return replace(self, row=row, logprobs=_told(row, self.kept))


def _told(row: npt.NDArray[np.float32], kept: KeptRow | None) -> LogprobsOf:
    """What the model thought of tokens, by the logits [V], and what the chain kept, where that is wanted."""
    found = partial(top_logprobs, row)
    return found if kept is None else with_kept(found, kept)


class Drawing(Protocol):
    """Draws tokens for requests, from logits [n, V]."""

    @property
    def together(self) -> bool:
        """Whether all turns must be given at once: an error of one is then all of theirs."""
        ...

    def rows(self, logits: Logits) -> Logits:
        """Logits as :meth:`draw` takes them several times."""
        ...

    def sampled(self, turns: Sequence[Turn], logits: Logits) -> Sequence[Turn]:
        """Turns, some with the tokens that were drawn together just now."""
        ...

    @property
    def chain(self) -> DeviceChain | None:
        """The chain on the device; None: every request's own draws, on the host."""
        ...

    def draw(self, turns: Sequence[Turn], logits: Logits) -> list[Drawn]:
        """One token each; a request has one turn at most."""
        ...


class HostDrawing:
    """Every request's own chain, on the CPU.

    Args:
        n_threads: Draw for several requests at the same time, with so many threads; 0: one after the other.
    """

    chain, together = None, False

    def __init__(self, n_threads: int | None = 0) -> None:
        self._n_threads = n_threads

    def sampled(self, turns: Sequence[Turn], logits: Logits) -> Sequence[Turn]:
        """See :class:`Drawing`: those whose chains alone decide, in one native call.

        Where one of them fails, none has drawn: each draws by itself then, and has its error to itself.
        """
        if self._n_threads == 0 or len(turns) < LEAST_TOGETHER:
            return turns
        rows, made = host_rows(logits), list(turns)
        alike = [i for i, turn in enumerate(turns) if turn.state.draws_alone]
        # Rows that follow one another are given as they are.
        for _, run in groupby(enumerate(alike), lambda each: turns[each[1]].row - each[0]):
            places = [i for _, i in run]
            if len(places) < LEAST_TOGETHER:
                continue
            first = turns[places[0]].row
            chains = [turns[i].state.chain for i in places]
            try:
                tokens = sample_batch(chains, rows[first : first + len(places)], self._n_threads)
            except LogitsError:
                continue
            for i, token in zip(places, tokens, strict=True):
                made[i] = replace(turns[i], sampled=token)
        return made

    def rows(self, logits: Logits) -> Logits:
        """See :class:`Drawing`: in the host's memory."""
        return host_rows(logits)

    def draw(self, turns: Sequence[Turn], logits: Logits) -> list[Drawn]:
        """See :class:`Drawing`."""
        rows, drawn = host_rows(logits), []
        for turn in turns:
            state, row = turn.state, rows[turn.row]
            if state.guidance is not None:
                first = state.guidance.first
                row = state.guidance.guided(row, rows[turn.beside] if turn.beside >= 0 else first)
            if state.on_logits is not None:
                state.on_logits(state.chain, row)
            kept = KeptRow.of(state.chain, row) if state.request.options.kept else None
            token, choosing = turn.sampled, None
            if token is None:
                token, choosing = self._drawn(turn, row)
            drawn.append(Drawn(token, _told(row, kept), row, choosing, kept))
        return drawn

    @staticmethod
    def _drawn(
        turn: Turn, row: npt.NDArray[np.float32]
    ) -> tuple[int | None, Work[int | None] | None]:
        """The token of a turn, or the work that finds it."""
        state = turn.state
        token = None if state.budget is None else state.budget.next()
        if token is not None:
            state.chain.accept(token, generated=True)
            return token, None
        if state.completer is None or turn.left is None:
            return state.chain.sample(row), None
        return None, state.completer.sample_piecewise(row, turn.left)
