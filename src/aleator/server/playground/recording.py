"""Recorded texts of the playground, their logits within a memory bound, chains over these, and branches.

A chain needs no decoding: it works on the kept logits.  So watching does not slow a text down, and any other
chain can be tried on the same rows.  A branch is a request to the engine, not a cache sequence: if the prompt
cache has dropped its prefix, its prompt is computed again.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import ConstraintError, ParameterError
from aleator.engine.prompts import SAMPLING
from aleator.generate.completion import Request, loop_watch
from aleator.generate.generation import Generation, reader_of
from aleator.generate.loops import LoopWatch
from aleator.generate.request_state import go_on
from aleator.generate.session import Session
from aleator.samplers import Candidates, SamplerChain, SamplingParams
from aleator.samplers.explain import Explanation
from aleator.server.errors import ApiError
from aleator.text.tokenizer import Tokenizer

MOST_TEXTS = 512
"""Most texts that are kept; the least recently used one is forgotten first."""
MOST_BRANCHES = 256
"""Longest chain of branches, since a text keeps all its ancestors."""


class Forgotten(ApiError):
    """The logits of a step were dropped for those of later ones."""

    def __init__(self, step: int) -> None:
        super().__init__(
            410,
            f"the logits of step {step} are not kept any more: write the text again, or start the server "
            "with a larger --playground-memory",
            "step",
            code="logits_forgotten",
        )


class Row:
    """The logits of one step, float32 [V] (None once forgotten), shared by texts with the same prefix."""

    __slots__ = ("logits",)

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits: NDArray[np.float32] | None = logits

    def forget(self) -> int:
        """Free the logits; return their bytes, 0 if they were free already."""
        n = 0 if self.logits is None else self.logits.nbytes
        self.logits = None
        return n


class LogitsMemory:
    """Keeps rows of logits, and forgets the oldest when they would exceed a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._rows: deque[Row] = deque()
        self._lock = threading.Lock()

    def keep(self, logits: Any) -> Row:
        """Copy a row, and keep the copy."""
        kept = np.array(logits, np.float32)
        row = Row(kept)
        with self._lock:
            self._rows.append(row)
            self.used += kept.nbytes
            while self.used > self.limit:
                self.used -= self._rows.popleft().forget()
        return row

    def release(self, rows: list[Row]) -> None:
        """Forget rows of a dropped text."""
        gone = set(map(id, rows))
        with self._lock:
            self.used -= sum(row.forget() for row in rows)
            self._rows = deque(row for row in self._rows if id(row) not in gone)

    @property
    def rows(self) -> int:
        """Number of rows held now."""
        return len(self._rows)


class Recording:
    """One text: its prompt, tokens inherited from an earlier text, and tokens drawn after them."""

    def __init__(
        self,
        memory: LogitsMemory,
        parent: Recording | None = None,
        at: int = 0,
        inherited: tuple[int, ...] = (),
    ) -> None:
        self.id = secrets.token_urlsafe(9)
        self.parent, self.at, self.inherited = parent, at, inherited
        self.depth: int = 0 if parent is None else parent.depth + 1  # number of ancestors
        # The logits from which each token was drawn, and those of the next token while it is drawn.
        self.rows: list[Row] = [] if parent is None else parent.rows[: len(inherited)]
        self.sampling: Mapping[str, Any] = {}  # preset and parameters as requested
        self.memory = memory
        self.generation: Generation  # of the text, once it has begun

    def look(self, chain: SamplerChain, logits: Any) -> None:
        """Keep the logits [V] from which the next token is drawn; called before each draw."""
        step = chain.position
        del self.rows[step:]
        self.rows.append(self.memory.keep(logits))

    def begin(self, generation: Generation, asked: Mapping[str, Any]) -> None:
        """Attach the generation of the text."""
        self.generation = generation
        self.sampling = {k: v for k, v in asked.items() if k == "preset" or k in SAMPLING}

    @property
    def request(self) -> Request:
        """The request."""
        return self.generation.request

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens that were not drawn."""
        return self.request.tokens[: len(self.request.tokens) - self.request.drawn]

    @property
    def drawn(self) -> list[int]:
        """The tokens after the prompt so far."""
        return [*self.inherited, *reader_of(self.generation).completion.tokens]

    def logits(self, step: int) -> Any:
        """The logits [V] of a step; step 0 is the first token after the prompt."""
        if not 0 <= step < len(self.rows):
            raise ParameterError(
                f"step={step} is out of range: the text has steps 0 to {len(self.rows) - 1}"
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
                raise ApiError(
                    404,
                    f"there is no text {name!r}: the server keeps the last {MOST_TEXTS} and forgets all when "
                    "it ends; write it again",
                    "id",
                    "no_such_text",
                )
            self._texts.move_to_end(name)
            return self._texts[name]

    def forget(self, name: str) -> None:
        """Drop a text and the logits that only it has; its branches keep theirs."""
        recording = self[name]
        with self._lock:
            del self._texts[name]
            others = list(self._texts.values())
        shared = {id(row) for each in others for row in each.rows}
        own = recording.rows[len(recording.inherited) :]
        self.memory.release([row for row in own if id(row) not in shared])

    def __len__(self) -> int:
        return len(self._texts)


class Replay:
    """Steps through a text with a chain, which accepts the text's tokens.

    With the text's own parameters it reaches the states of the original chain, even where draws change them
    (mirostat) or generators count draws (llama.cpp's numerics).
    """

    def __init__(
        self, recording: Recording, tokenizer: Tokenizer, params: SamplingParams | None = None
    ) -> None:
        self._recording, request = recording, recording.request
        self.chain = (params or request.params).chain(tokenizer, completion=request.completion)
        # A chain that adapts to its draws must draw at every step.
        self._draws = bool(self.chain.adapts) or self.chain.numerics != "portable"
        self._loops: LoopWatch | None = None
        if params is None:
            go_on(self.chain, request)
            if request.options.raises_temperature:  # to end at a loop changes no draw before it
                self._loops = loop_watch(request, self.chain)
        else:
            self.chain.accept_many(recording.prompt)

    def draw(self, step: int) -> int:
        """The token that the chain draws at its current step; it then accepts the text's token."""
        written = self._recording.drawn[step]
        token = self.chain.sample(self._recording.logits(step))
        if token != written:
            self.chain.rollback(1)
            self.chain.accept(written, generated=True)
        return token

    def go_to(self, step: int) -> None:
        """Accept the tokens up to a step, which must not be earlier than the current one."""
        self._recording.logits(step)  # raises if there is no such step
        at = self.chain.position
        drawn = self._recording.drawn[at:step]
        if not (self._draws or self._loops):
            self.chain.accept_many(drawn, generated=True)
            return
        for each, token in enumerate(drawn, at):
            if self._draws:
                self.draw(each)
            else:
                self.chain.accept(token, generated=True)
            if self._loops is not None:
                self._loops.push(token)

    def state(self) -> bytes:
        """The chain's state, with its own temperature."""
        if self._loops is not None:
            self._loops.end()
        return self.chain.state_write()

    def explain(self, step: int, top: int) -> Explanation:
        """Explain what the chain does at a step; see :meth:`aleator.SamplerChain.explain`."""
        self.go_to(step)
        return self.chain.explain(self._recording.logits(step), top=top)


def chain_at(
    recording: Recording, tokenizer: Tokenizer, step: int, params: SamplingParams | None
) -> Replay:
    """A chain at a step; with the text's own parameters, in the state in which it drew."""
    owner = recording
    while params is None and owner.parent is not None and step < len(owner.inherited):
        owner = owner.parent
    replay = Replay(owner, tokenizer, params)
    replay.go_to(step)
    return replay


@dataclass(frozen=True)
class Resampled:
    """Another chain's draws at every step of a text, up to the first that its grammar refuses."""

    steps: int
    changed: dict[int, int]
    forgotten: int
    refused: int | None


def resample(recording: Recording, tokenizer: Tokenizer, params: SamplingParams) -> Resampled:
    """Draw every token of a text again with another chain, each after the text's own tokens."""
    drawn = recording.drawn
    replay = Replay(recording, tokenizer, params)
    changed: dict[int, int] = {}
    forgotten, refused = 0, None
    for step, written in enumerate(drawn):
        try:
            if recording.rows[step].logits is None:
                forgotten += 1
                replay.chain.accept(written, generated=True)
                continue
            token = replay.draw(step)
            if token != written:
                changed[step] = token
        except ConstraintError:
            refused = step
            break
    return Resampled(len(drawn), changed, forgotten, refused)


def draws(chain: SamplerChain, logits: object, n: int) -> Counter[int]:
    """Draw at one step with a copy of a chain, at the positions 0 to n - 1 of its random stream."""
    copy = chain.clone()
    counts: Counter[int] = Counter()
    for position in range(n):
        if copy.numerics == "portable":
            copy.position = position
        candidates = Candidates(logits)
        copy.apply(candidates)
        if candidates.selected is not None:
            counts[candidates.selected] += 1
    return counts


def branch(
    parent: Recording, at: int | None, pick: int | None, tokenizer: Tokenizer, memory: LogitsMemory
) -> tuple[Recording, Session]:
    """Create a branch without generating; return it, and what is to be continued for it."""
    if parent.depth >= MOST_BRANCHES:
        raise ParameterError(
            f"parent={parent.id!r} comes from {parent.depth} texts that branch off one another: begin a "
            "new one with its tokens as prompt"
        )
    drawn = parent.drawn
    at = len(drawn) if at is None else at
    most = len(drawn) if pick is None else len(drawn) - 1
    if not 0 <= at <= most:
        raise ParameterError(
            f"at={at} is out of range: the text has drawn {len(drawn)} tokens, give 0 to {most}"
        )
    if pick is not None and not 0 <= pick < len(tokenizer.vocab):
        raise ParameterError(f"token={pick} is not in the vocabulary")
    inherited = (*drawn[:at], *(() if pick is None else (pick,)))
    prompt = parent.prompt
    replay = None
    if parent.request.params.chain(tokenizer).adapts and at < len(drawn):
        replay = chain_at(parent, tokenizer, at, None)
        if pick is not None:
            replay.chain.accept(pick, generated=True)
    session = Session(
        tokens=(*prompt, *inherited),
        n_prompt=len(prompt),
        seed=parent.request.params.values()["seed"],
        chain=b"" if replay is None else replay.state(),
    )
    return Recording(memory, parent, at, inherited), session
