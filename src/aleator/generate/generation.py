"""A completion as its user sees it: an iterator over pieces of text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

from aleator.core.records import dataclass
from aleator.generate.completion import Completion, Stats, StopReason
from aleator.generate.logprobs import Logprobs
from aleator.generate.request import Forgotten, Request
from aleator.samplers import SamplerChain
from aleator.samplers.kept import Kept

Until = Callable[[], bool]


class Stepper(Protocol):
    """What moves a generation forward: an :class:`aleator.engine.run.Run`, or a request of an engine."""

    @property
    def stats(self) -> Stats:
        """Counts and times so far."""

    def make(self, until: Until, timeout: float | None = None) -> None:
        """Have tokens made until something holds, or so many seconds are over."""

    async def make_async(self, until: Until) -> None:
        """Have tokens made until something holds, while other tasks of the event loop go on."""

    def wake(self) -> None:
        """Notice that a completion was cancelled; may be called from a signal handler."""

    def check(self, completion: Completion) -> None:
        """Raise the error that ended a completion, if nobody was told of it yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text under way.

    Attributes:
        text: What it adds.
        end: How many tokens had been drawn when it was given out.
    """

    text: str
    end: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the computing of a prompt is.

    Attributes:
        total: Tokens of the prompt.
        cached: Those of them that were not computed, since a cached prefix has them.
        computed: Those that were computed so far.
        seconds: Since the computing began.
    """

    total: int
    cached: int
    computed: int
    seconds: float


class Generation(Iterator[str]):
    """One completion: an iterator over pieces of text, each made when it is asked for.

    ``text``, ``tokens``, ``stop_reason``, ``stop_string`` and ``logprobs`` make whatever is still to be
    made before they answer; pieces not iterated over yet stay available.  :meth:`cancel` ends it early.
    ``async for`` gives the pieces too, and lets other tasks run meanwhile.

    The text is the same whatever ``max_tokens`` is, up to where it ends: a character whose last bytes
    were not generated is left out.
    """

    def __init__(self, run: Stepper, completion: Completion) -> None:
        self._run, self._completion = run, completion
        self._given = 0

    def __next__(self) -> str:
        self._completion.require_text("iterating over a generation")
        if not self._has_more():
            self._run.make(self._has_more_or_done)
        piece = self._next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> str:
        self._completion.require_text("iterating over a generation")
        if not self._has_more():
            await self._run.make_async(self._has_more_or_done)
        piece = self._next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def next_pieces(self) -> list[Piece]:
        """Wait for text that was not given yet, and give all of it that there is.

        Returns:
            One or more pieces; [] at the end.  How many come at once depends on time; the pieces do not.
        """
        self._completion.require_text("iterating over a generation")
        if not self._has_more():
            await self._run.make_async(self._has_more_or_done)
        if not self._has_more():
            self._run.check(self._completion)
        return self._rest()

    def _rest(self) -> list[Piece]:
        """The pieces so far that were not given."""
        first, made = self._given, self._completion
        self._given = len(made.pieces)
        return [Piece(made.pieces[i], made.piece_ends[i]) for i in range(first, self._given)]

    async def pass_on(self, ready: Callable[[], bool], take: Callable[[list[Piece]], None]) -> None:
        """Have pieces taken by the thread that makes them, as soon as they are made.

        Returns at the end, or where they cannot be taken; :meth:`next_pieces` has what was not.

        Args:
            ready: Whether pieces can be taken now.
            take: Takes them.  Both are called in any thread, one call at a time, and must be quick.

        Raises:
            Exception: What ``ready`` or ``take`` raised; the text goes on.
        """
        self._completion.require_text("iterating over a generation")
        over = False
        raised: BaseException | None = None

        def passed() -> bool:
            nonlocal over, raised
            if not over and self._has_more():
                try:
                    over = not ready()
                    if not over:
                        take(self._rest())
                except BaseException as error:
                    over, raised = True, error
            return over

        await self._run.make_async(lambda: passed() or self._completion.done)
        if raised is not None:
            raise raised

    async def wait_async(self) -> None:
        """Let other tasks run until it has ended; raises the error that ended it."""
        await self._run.make_async(lambda: self._completion.done)
        self._run.check(self._completion)

    async def wait_for_prompt(self) -> None:
        """Let other tasks run until the prompt is computed, or it has ended."""
        made = self._completion
        await self._run.make_async(lambda: made.done or bool(made.tokens))

    async def prompt_progress(self) -> AsyncIterator[PromptProgress]:
        """How far the computing of the prompt is: once at its beginning, and after each piece of it."""
        made, stats, total = self._completion, self._run.stats, len(self.request.tokens)
        seen: list[tuple[int, float]] = [(0, 0.0)]
        told = 0

        def further() -> bool:
            if stats.prompt_tokens > seen[-1][0]:
                seen.append((stats.prompt_tokens, stats.prompt_seconds))
            return len(seen) > max(1, told) or made.done or bool(made.tokens)

        over = False
        while not over:
            await self._run.make_async(further)
            over = further() and (made.done or bool(made.tokens))
            for computed, seconds in seen[told:]:
                told += 1
                yield PromptProgress(total, stats.reused_tokens, computed, seconds)

    @property
    def prompt_logprobs(self) -> list[Logprobs | None]:
        """What the model thinks of the prompt's tokens, as far as it is computed; [] where nobody asked."""
        return list(self._completion.prompt_logprobs or ())

    def logprobs_between(self, first: int, end: int) -> list[Logprobs]:
        """Log-probabilities of tokens drawn already, from ``first`` to ``end``; [] when not asked for."""
        return self._completion.logprobs[first:end]

    def drawn_between(self, first: int, end: int | None = None) -> list[int]:
        """Tokens drawn already, from ``first`` to ``end`` or the last one so far."""
        return self._completion.tokens[first:end]

    def _has_more(self) -> bool:
        return self._given < len(self._completion.pieces)

    def _has_more_or_done(self) -> bool:
        return self._has_more() or self._completion.done

    def _next_piece(self) -> str | None:
        """The next piece, if there is one; with the last one comes the error that ended it."""
        if not self._has_more():
            self._run.check(self._completion)
            return None
        self._given += 1
        return self._completion.pieces[self._given - 1]

    def wait(self, timeout: float | None = None) -> bool:
        """Make it to its end.

        Args:
            timeout: seconds after which to give up waiting; what is made goes on.

        Returns:
            Whether it has ended.
        """
        self._run.make(lambda: self._completion.done, timeout)
        if self._completion.done:
            self._run.check(self._completion)
        return self._completion.done

    def __repr__(self) -> str:
        state = self._completion.stop_reason or "under way"
        return f"<Generation: {len(self._completion.tokens)} tokens, {state}, seed {self.seed}>"

    @property
    def text(self) -> str:
        """The whole text, without the stop string.

        Raises:
            TokenizerError: the model has no vocabulary; take :attr:`tokens`.
        """
        self._completion.require_text("Generation.text")
        return "".join(self._finished().pieces)

    @property
    def tokens(self) -> list[int]:
        """Every token drawn, also the end-of-generation token and those of the stop string."""
        return list(self._finished().tokens)

    @property
    def drawn(self) -> list[int]:
        """The tokens drawn so far; makes nothing."""
        return list(self._completion.tokens)

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended.

        "eog": an end-of-generation token; "grammar": the constrained text is complete, and nothing can
        follow; "stop": a stop string; "stop_token": one of
        ``stop_token_ids``, whose text is left out; "length": ``max_tokens``;
        "context": no room for another token; "deadline": its time was over (:meth:`aleator.Engine.submit`);
        "interrupted": :meth:`cancel`, or an error while generating.
        """
        return self._finished().stop_reason or "interrupted"

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it."""
        return self._finished().stop_string

    @property
    def complete(self) -> bool | None:
        """Whether the text is all that its grammar asks for; None without a grammar."""
        return self._finished().complete

    @property
    def logprobs(self) -> list[Logprobs] | None:
        """For every token what the model thought, before sampling; None when not asked for."""
        return None if self.request.options.logprobs is None else list(self._finished().logprobs)

    @property
    def kept(self) -> list[Kept] | None:
        """For every token what the samplers had left when it was drawn; None when not asked for."""
        found = [each.kept for each in self.logprobs or []]
        return [each for each in found if each is not None] if self.request.options.kept else None

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self._completion.request

    @property
    def chain(self) -> SamplerChain:
        """What draws the tokens; to look at."""
        return self._completion.chain

    @property
    def forgotten(self) -> Forgotten:
        """What context shifts have forgotten of the prompt and the tokens so far."""
        return self._completion.forgotten

    @property
    def namespace(self) -> str:
        """Where the prompt cache has the text once it has ended."""
        return self._completion.namespace or self.request.options.namespace

    @property
    def seed(self) -> int:
        """The seed in effect."""
        return self._completion.chain.seed

    @property
    def n_ctx(self) -> int:
        """Positions that it may use, the prompt's included."""
        return self._completion.n_ctx

    @property
    def has_text(self) -> bool:
        """Whether its tokens have texts."""
        return self._completion.has_text

    @property
    def stats(self) -> Stats:
        """Counts and times of the batch it is made in, so far."""
        return self._run.stats

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._completion.done

    def cancel(self) -> None:
        """End it before the next token, with stop reason "interrupted".

        Text held back for a stop string is given out.  May be called from a signal handler or another
        thread.
        """
        self._completion.cancelled = True
        self._run.wake()

    def as_json(self) -> dict[str, Any]:
        """Text, tokens, stop reason, stop string and log-probabilities as a JSON-ready dictionary."""
        result: dict[str, Any] = {
            "text": self.text,
            "tokens": self.tokens,
            "stop_reason": self.stop_reason,
            "stop_string": self.stop_string,
        }
        if self.complete is not None:
            result["complete"] = self.complete
        if self.logprobs is not None:
            result["logprobs"] = [entry.as_json() for entry in self.logprobs]
        return result

    @property
    def error(self) -> BaseException | None:
        """What ended it, if that was an error."""
        return self._completion.error

    def _finished(self) -> Completion:
        self.wait()
        return self._completion
