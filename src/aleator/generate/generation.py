"""A text being generated: the package's interface to it, and the user's, an iterator and a future."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

from aleator.core.errors import ParameterError, Uncopyable
from aleator.core.forwarded import forwarded
from aleator.core.records import dataclass
from aleator.generate.completion import Completion, Request, Stats, StopReason
from aleator.generate.logprobs import Logprobs
from aleator.samplers import SamplerChain

Until = Callable[[], bool]


class Stepper(Protocol):
    """What generates a text: an :class:`aleator.engine.run.Run`, or a request of an engine."""

    stats: Stats

    def make(self, until: Until, timeout: float | None = None) -> None:
        """Generate tokens until a condition holds, or for ``timeout`` seconds."""

    async def make_async(self, until: Until) -> None:
        """Generate tokens until a condition holds, while other tasks of the event loop run."""

    def wake(self) -> None:
        """React to a cancelled completion; may be called from a signal handler."""


class Piece(NamedTuple):
    """A piece of a text; ``end`` tokens had been drawn when it was given out."""

    text: str
    end: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Progress of a prefill."""

    total: int  # Tokens of the prompt
    cached: int  # Those that were not computed because a cached prefix has them
    computed: int  # Those computed so far
    seconds: float  # Since the prefill began


class GenerationReader:
    """A text being generated: what there is of it, and how to wait for more.

    ``run`` generates it; ``completion`` is the state so far, and reading it generates nothing.
    """

    def __init__(self, run: Stepper, completion: Completion) -> None:
        self.run, self.completion = run, completion
        self._given = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Generate to the end, for at most ``timeout`` seconds; return whether it has ended."""
        self.run.make(lambda: self.completion.done, timeout)
        return self.completion.done

    async def wait_async(self) -> None:
        """Let other tasks run until it has ended."""
        await self.run.make_async(lambda: self.completion.done)

    def next_piece(self) -> str | None:
        """Generate the next piece; None at the end, unless an error ended the text, which is raised."""
        self._require_text()
        if not self._has_more():
            self.run.make(self._has_more_or_done)
        return self._take()

    async def next_piece_async(self) -> str | None:
        """The next piece, as from :meth:`next_piece`, while other tasks run."""
        await self._wait_for_more()
        return self._take()

    async def next_pieces(self) -> list[Piece]:
        """Wait for new text, and return all pieces not returned before; [] at the end.

        How many pieces come at once depends on time; the pieces do not.
        """
        await self._wait_for_more()
        if not self._has_more():
            self.completion.check()
        return self._rest()

    async def pass_on(self, take: Callable[[list[Piece]], bool]) -> None:
        """Let the thread that makes the pieces hand them to ``take`` as soon as they are made.

        Returns at the end, or when ``take`` has returned False and takes no more; :meth:`next_pieces` has the
        rest.  ``take`` is called in any thread, one call at a time, and must be quick.  Its errors are raised
        here, and the text goes on.
        """
        self._require_text()
        takes, made = True, self.completion
        raised: BaseException | None = None

        def over() -> bool:
            nonlocal takes, raised
            if takes and self._given < len(made.pieces):
                try:
                    takes = take(self._rest())
                except BaseException as error:
                    takes, raised = False, error
            return not takes or made.done

        await self.run.make_async(over)
        if raised is not None:
            raise raised

    async def wait_for_prompt(self) -> None:
        """Let other tasks run until the prompt is computed, or the text has ended."""
        made = self.completion
        await self.run.make_async(lambda: made.done or bool(made.tokens))

    async def prompt_progress(self) -> AsyncIterator[PromptProgress]:
        """Yield the progress of the prefill: once at its beginning, and after each chunk."""
        made, stats = self.completion, self.run.stats
        total = len(made.request.tokens)
        seen: list[tuple[int, float]] = [(0, 0.0)]
        reported = 0

        def further() -> bool:
            if stats.prompt_tokens > seen[-1][0]:
                seen.append((stats.prompt_tokens, stats.prompt_seconds))
            return len(seen) > max(1, reported) or made.done or bool(made.tokens)

        over = False
        while not over:
            await self.run.make_async(further)
            over = further() and (made.done or bool(made.tokens))
            for computed, seconds in seen[reported:]:
                reported += 1
                yield PromptProgress(total, stats.reused_tokens, computed, seconds)

    async def _wait_for_more(self) -> None:
        self._require_text()
        if not self._has_more():
            await self.run.make_async(self._has_more_or_done)

    def _require_text(self) -> None:
        self.completion.require_text("iterating over a generation")

    def _has_more(self) -> bool:
        return self._given < len(self.completion.pieces)

    def _has_more_or_done(self) -> bool:
        return self._has_more() or self.completion.done

    def _take(self) -> str | None:
        """The next piece, if there is one."""
        if not self._has_more():
            self.completion.check()
            return None
        self._given += 1
        return self.completion.pieces[self._given - 1]

    def _rest(self) -> list[Piece]:
        """The pieces so far that have not been returned."""
        first, made = self._given, self.completion
        self._given = len(made.pieces)
        return [Piece(made.pieces[i], made.piece_ends[i]) for i in range(first, self._given)]


SHOWN = 40
"""Most characters of a text that its representation shows."""


INSTEAD = {"kept": "logprobs, whose entries have kept", "wait_async": "await generation"}
"""Replacements of names from earlier versions."""


class Generation(Uncopyable, Iterator[str]):
    """One completion: an iterator over pieces of text, each generated on demand.

    It has the methods of futures.  :meth:`result` gives the whole text and :meth:`exception` the error that
    ended it; both wait.  ``await generation`` is :meth:`result` while other tasks run, and ``async for`` gives
    the pieces.  Unlike in futures, ``done`` and ``cancelled`` are properties, and a cancelled generation has a
    result: the text so far.

    ``text``, ``tokens``, ``stop_reason``, ``stop_string`` and ``logprobs`` first generate the rest of the
    text; pieces not iterated over yet stay available.  So does ``print(generation)``, which prints the text,
    but ``repr(generation)`` generates nothing.  :meth:`cancel` ends it early.

    A smaller ``max_tokens`` gives a beginning of the same text: a character whose last bytes were not generated
    is left out.
    """

    _instead = "take its text or tokens, which can be"

    def __init__(self, run: Stepper, completion: Completion) -> None:
        self._reader = GenerationReader(run, completion)

    def __getattr__(self, name: str) -> Any:
        instead = f": take {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"a Generation has no {name!r}{instead}", name=name, obj=self)

    def __next__(self) -> str:
        piece = self._reader.next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> str:
        piece = await self._reader.next_piece_async()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __await__(self) -> Generator[Any, None, str]:
        return self._awaited().__await__()

    async def _awaited(self) -> str:
        self._completion.require_text("awaiting a generation")
        await self._reader.wait_async()
        return self.result()

    def result(self, timeout: float | None = None) -> str:
        """The whole text, without the stop string.

        Args:
            timeout: Seconds to wait, 0 or more; generation continues after a timeout.  None: no limit.

        Raises:
            TimeoutError: It had not ended by then.
            Exception: The error that ended it, each time; from the second time on a copy.
            TokenizerError: The model has no vocabulary; use :attr:`tokens`.
        """
        self._completion.require_text("Generation.result()")
        self._wait(timeout)
        self._completion.raise_error()
        return self.text

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that ended it; None: it ended without one.  From the second time on it is a copy.

        Args:
            timeout: As for :meth:`result`.

        Raises:
            TimeoutError: It had not ended by then.
        """
        self._wait(timeout)
        return self._completion.take_error()

    def _wait(self, timeout: float | None) -> None:
        if not self._reader.wait(checked_timeout(timeout)):
            raise TimeoutError(f"the generation has not ended within timeout={timeout} s")

    def wait(self, timeout: float | None = None) -> bool:
        """Generate to the end.

        Args:
            timeout: As for :meth:`result`.

        Returns:
            Whether it has ended.

        Raises:
            Exception: The error that ended it, unless a reader already got it.
        """
        ended = self._reader.wait(checked_timeout(timeout))
        if ended:
            self._completion.check()
        return ended

    def __repr__(self) -> str:
        made = self._completion
        n, about = len(made.tokens), f"seed {self.seed}"
        if not made.done:
            state = f"{n} tokens so far" if n else "nothing made yet"
            return f"<Generation: {state}, {about}; iterate over it, or take .text for all of it>"
        if made.error is not None:
            about = f"{type(made.error).__name__}, {about}"
        text = "".join(made.pieces)
        shown = repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")
        return f"<Generation: {shown}, {n} tokens, {made.stop_reason}, {about}>"

    def __str__(self) -> str:
        return self.text if self._completion.has_text else repr(self)

    @property
    def text(self) -> str:
        """The whole text, without the stop string.

        Raises:
            TokenizerError: the model has no vocabulary; use :attr:`tokens`.
        """
        self._completion.require_text("Generation.text")
        return "".join(self._finished().pieces)

    @property
    def tokens(self) -> list[int]:
        """Every token drawn, including the end-of-generation token and those of the stop string."""
        return list(self._finished().tokens)

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended.

        "eog": an end-of-generation token; "grammar": the constrained text is complete, and nothing can follow;
        "stop": a stop string; "stop_token": one of ``stop_token_ids``, whose text is left out; "loop": the text
        repeats itself as ``stop_loops`` says; "length": ``max_tokens``; "context": no room for another token;
        "deadline": its time was over (:meth:`aleator.Engine.submit`); "interrupted": :meth:`cancel`, or an
        error while generating.
        """
        return self._finished().stop_reason or "interrupted"

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, if any."""
        return self._finished().stop_string

    @property
    def complete(self) -> bool | None:
        """Whether the text is complete by its grammar; None without a grammar."""
        return self._finished().complete

    @property
    def logprobs(self) -> list[Logprobs] | None:
        """The model's log-probabilities for each token, before sampling; None if not requested.

        With ``kept=True`` each entry has ``kept``: the tokens that the samplers had kept when it was drawn.
        """
        return None if self.request.options.logprobs is None else list(self._finished().logprobs)

    @property
    def prompt_logprobs(self) -> list[Logprobs | None]:
        """The model's log-probabilities of the prompt's tokens computed so far; [] if not requested."""
        return list(self._completion.prompt_logprobs or ())

    request: Request = forwarded("_completion.request", "The request that it completes.")
    chain: SamplerChain = forwarded(
        "_completion.chain", "The chain that draws the tokens; read-only."
    )
    seed: int = forwarded("_completion.chain.seed", "The seed in effect.")
    n_ctx: int = forwarded("_completion.n_ctx", "Positions that it may use, prompt included.")
    stats: Stats = forwarded(
        "_reader.run.stats",
        "Counts and times of its batch so far; reading them generates nothing: take the text first.",
    )
    done: bool = forwarded("_completion.done", "Whether it has ended; generates nothing.")
    error: BaseException | None = forwarded(
        "_completion.error",
        "The error that ended it, if any; a copy without traceback once a reader got it; generates nothing.",
    )

    @property
    def namespace(self) -> str:
        """The prompt-cache namespace that has the text once it has ended."""
        return self._completion.namespace or self.request.options.namespace

    @property
    def cancelled(self) -> bool:
        """Whether :meth:`cancel` has ended it; generates nothing."""
        made = self._completion
        return made.cancelled and made.stop_reason == "interrupted" and made.error is None

    def cancel(self) -> bool:
        """End it before the next token, with stop reason "interrupted".

        Text held back for a stop string is given out.  May be called from a signal handler or another thread.

        Returns:
            Whether it was still being generated.
        """
        under_way = not self._completion.done
        self._completion.cancelled = True
        self._reader.run.wake()
        return under_way

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
    def _completion(self) -> Completion:
        return self._reader.completion

    def _finished(self) -> Completion:
        self.wait()
        return self._completion


def reader_of(generation: Generation) -> GenerationReader:
    """The package's own interface to a generation."""
    return generation._reader


def checked_timeout(timeout: float | None) -> float | None:
    """Check a time in seconds; raise ParameterError if it is negative or not a number."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout >= 0):
        raise ParameterError(f"timeout={timeout!r}: give seconds, 0 or more, or None for no limit")
    return timeout
