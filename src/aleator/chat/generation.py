"""An answer as it is generated: pieces of its content, or all its deltas."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Literal

from aleator.chat.message import Delta, Message
from aleator.chat.reply import Reply
from aleator.core.errors import Uncopyable
from aleator.core.forwarded import forwarded
from aleator.generate.completion import Stats, StopReason
from aleator.generate.generation import Generation

ChatStop = Literal["stop", "tool_calls", "loop", "length", "deadline", "interrupted"]


def chat_stop(message: Message, reason: StopReason) -> ChatStop:
    """Why an answer ended, derived from why its text did; see :attr:`ChatGeneration.stop_reason`."""
    if reason == "interrupted" or reason == "deadline":
        return reason
    if message.tool_calls and all(call.complete for call in message.tool_calls):
        return "tool_calls"
    if reason == "loop":
        return "loop"
    return "length" if reason in ("length", "context") else "stop"


class ChatGeneration(Uncopyable, Iterator[str]):
    """An answer being generated: an iterator over pieces of its content, generated on demand.

    These pieces exclude reasoning and tool calls; :meth:`deltas` gives everything.  ``message``, ``text`` and
    ``stop_reason`` first generate the rest of the answer, and so does ``print(generation)``, which prints the
    text.  ``async for`` gives the pieces too, and lets other tasks run meanwhile.

    It has the methods of futures, as :class:`~aleator.Generation` does; :meth:`result`, and ``await
    generation``, give the message.

    Attributes:
        generation: The underlying generation, with its tokens and log-probabilities.
    """

    _instead = "take its message, which can be"

    def __init__(self, generation: Generation, reply: Reply) -> None:
        self.generation, self._reply = generation, reply
        self._deltas: list[Delta] = []
        self._given = 0
        self._ended = False

    def __next__(self) -> str:
        while (piece := self._next_content()) is None:
            if self._ended:
                raise StopIteration
            self._step()
        return piece

    def __aiter__(self) -> ChatGeneration:
        return self

    async def __anext__(self) -> str:
        while (piece := self._next_content()) is None:
            if self._ended:
                raise StopAsyncIteration
            self._take(await anext(self.generation, None))
        return piece

    def _next_content(self) -> str | None:
        """The next piece of content among the deltas so far; None if there is none."""
        while self._given < len(self._deltas):
            self._given += 1
            delta = self._deltas[self._given - 1]
            if delta.kind == "content":
                return delta.text
        return None

    def __await__(self) -> Generator[Any, None, Message]:
        return self._awaited().__await__()

    async def _awaited(self) -> Message:
        await self.generation
        return self.message

    def result(self, timeout: float | None = None) -> Message:
        """The whole answer; arguments and errors are those of :meth:`aleator.Generation.result`."""
        self.generation.result(timeout)
        return self.message

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that ended it; see :meth:`aleator.Generation.exception`."""
        return self.generation.exception(timeout)

    def __repr__(self) -> str:
        return f"<Chat{repr(self.generation)[1:]}"

    def __str__(self) -> str:
        return self.text

    def deltas(self) -> Iterator[Delta]:
        """All deltas of the answer, from its beginning, as they are generated."""
        i = 0
        while True:
            while i < len(self._deltas):
                yield self._deltas[i]
                i += 1
            if self._ended:
                return
            self._step()

    @property
    def message(self) -> Message:
        """The whole answer: content, reasoning and tool calls.

        Raises:
            TokenizerError: The model has no vocabulary.
        """
        while not self._ended:
            self._step()
        return self._reply.message

    so_far: Message = forwarded(
        "_reply.message", "The answer as far as it was read; generates nothing."
    )
    text: str = forwarded("message.content", "The content of the whole answer.")
    seed: int = forwarded("generation.seed", "The seed in effect.")
    tokens: list[int] = forwarded("generation.tokens", "Every token drawn.")
    stats: Stats = forwarded("generation.stats", "Counts and times so far.")
    done: bool = forwarded("generation.done", "Whether it has ended.")
    cancelled: bool = forwarded("generation.cancelled", "Whether :meth:`cancel` has ended it.")
    error: BaseException | None = forwarded("generation.error", "The error that ended it, if any.")

    @property
    def stop_reason(self) -> ChatStop:
        """Why it ended.

        "stop": the model ended it, a stop string occurred, or it is complete by its schema;
        "tool_calls": it calls tools, and waits for their results; "loop": it repeats itself as ``stop_loops``
        says; "length": ``max_tokens``, or no room in the context; "deadline": its time was over;
        "interrupted": :meth:`cancel`, or an error.  ``generation.stop_reason`` has more detail.
        """
        return chat_stop(self.message, self.generation.stop_reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Generate to the end, as :meth:`aleator.Generation.wait`; its pieces can still be read afterwards."""
        return self.generation.wait(timeout)

    def cancel(self) -> bool:
        """End it before the next token; see :meth:`aleator.Generation.cancel`, also for the result."""
        return self.generation.cancel()

    def _step(self) -> None:
        self._take(next(self.generation, None))

    def _take(self, piece: str | None) -> None:
        """Read a piece of the text; None at its end."""
        if piece is not None:
            self._deltas += self._reply.push(piece)
        else:
            self._ended = True
            self._deltas += self._reply.finish()
