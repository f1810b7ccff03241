"""A completion as its user sees it: an iterator over pieces of text, and a future of the whole."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from aleator.core.errors import ParameterError
from aleator.generate.completion import Completion, Stats, StopReason
from aleator.generate.logprobs import Logprobs
from aleator.generate.request import Request
from aleator.generate.writing import Stepper, Writing
from aleator.samplers import SamplerChain

SHOWN = 40
"""Characters of a text that a representation shows."""


INSTEAD = {"kept": "logprobs, whose entries have kept", "wait_async": "await generation"}
"""What names of earlier versions have become."""


class Generation(Iterator[str]):
    """One completion: an iterator over pieces of text, each made when it is asked for.

    It has what futures have.  :meth:`result` gives the whole text and :meth:`exception` the error that ended
    it; both wait.  ``await generation`` is :meth:`result` while other tasks run, and ``async for`` gives the
    pieces.  Unlike those of futures, ``done`` and ``cancelled`` are properties; and a cancelled generation has
    a result, the text so far.

    ``text``, ``tokens``, ``stop_reason``, ``stop_string`` and ``logprobs`` make whatever is still to be
    made before they answer; pieces not iterated over yet stay available.  ``print(generation)`` prints the
    text, so that it makes it too; ``repr(generation)`` makes nothing.  :meth:`cancel` ends it early.

    The text is the same whatever ``max_tokens`` is, up to where it ends: a character whose last bytes
    were not generated is left out.
    """

    def __init__(self, run: Stepper, completion: Completion) -> None:
        self._writing = Writing(run, completion)

    def __getattr__(self, name: str) -> Any:
        instead = f": take {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"a Generation has no {name!r}{instead}", name=name, obj=self)

    def __next__(self) -> str:
        piece = self._writing.next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> str:
        piece = await self._writing.next_piece_async()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __await__(self) -> Generator[Any, None, str]:
        return self._awaited().__await__()

    async def _awaited(self) -> str:
        self._completion.require_text("awaiting a generation")
        await self._writing.wait_async()
        return self.result()

    def result(self, timeout: float | None = None) -> str:
        """The whole text, without the stop string.

        Args:
            timeout: Seconds after which to give up waiting, 0 or more; what is made goes on.  None: no limit.

        Raises:
            TimeoutError: It had not ended by then.
            Exception: The error that ended it, each time.
            TokenizerError: The model has no vocabulary; take :attr:`tokens`.
        """
        self._completion.require_text("Generation.result()")
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.text

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that ended it; None: it ended without one.

        Args:
            timeout: As for :meth:`result`.

        Raises:
            TimeoutError: It had not ended by then.
        """
        if not self._writing.wait(checked_timeout(timeout)):
            raise TimeoutError(f"the generation has not ended within timeout={timeout} s")
        self._completion.error_raised = True
        return self._completion.error

    def wait(self, timeout: float | None = None) -> bool:
        """Make it to its end.

        Args:
            timeout: As for :meth:`result`.

        Returns:
            Whether it has ended.

        Raises:
            Exception: The error that ended it, unless a reader has it already.
        """
        ended = self._writing.wait(checked_timeout(timeout))
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
            TokenizerError: the model has no vocabulary; take :attr:`tokens`.
        """
        self._completion.require_text("Generation.text")
        return "".join(self._finished().pieces)

    @property
    def tokens(self) -> list[int]:
        """Every token drawn, also the end-of-generation token and those of the stop string."""
        return list(self._finished().tokens)

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
        """For every token what the model thought, before sampling; None when not asked for.

        With ``kept=True`` each has ``kept``: what the samplers had left when it was drawn.
        """
        return None if self.request.options.logprobs is None else list(self._finished().logprobs)

    @property
    def prompt_logprobs(self) -> list[Logprobs | None]:
        """What the model thinks of the prompt's tokens, as far as it is computed; [] where nobody asked."""
        return list(self._completion.prompt_logprobs or ())

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self._completion.request

    @property
    def chain(self) -> SamplerChain:
        """What draws the tokens; to look at."""
        return self._completion.chain

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
    def stats(self) -> Stats:
        """Counts and times of the batch it is made in, so far."""
        return self._writing.run.stats

    @property
    def done(self) -> bool:
        """Whether it has ended; makes nothing."""
        return self._completion.done

    @property
    def cancelled(self) -> bool:
        """Whether :meth:`cancel` has ended it; makes nothing."""
        made = self._completion
        return made.cancelled and made.stop_reason == "interrupted" and made.error is None

    @property
    def error(self) -> BaseException | None:
        """What ended it, if that was an error; makes nothing."""
        return self._completion.error

    def cancel(self) -> bool:
        """End it before the next token, with stop reason "interrupted".

        Text held back for a stop string is given out.  May be called from a signal handler or another
        thread.

        Returns:
            Whether it was still under way.
        """
        under_way = not self._completion.done
        self._completion.cancelled = True
        self._writing.run.wake()
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
        return self._writing.completion

    def _finished(self) -> Completion:
        self.wait()
        return self._completion


def writing_of(generation: Generation) -> Writing:
    """What the package itself reads a generation by."""
    return generation._writing


def checked_timeout(timeout: float | None) -> float | None:
    """Seconds to wait; ParameterError if they are below 0, or no number."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout >= 0):
        raise ParameterError(
            "timeout", f"timeout={timeout!r}: give seconds, 0 or more, or None for no limit"
        )
    return timeout
