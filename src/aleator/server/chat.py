"""Chats as all dialects see them: the request, and the events of its answers.

A dialect turns its request into a :class:`ChatRequest`, gives it to :meth:`Service.chat`, and writes the events
of the :class:`ChatAnswer` in its own form.  No dialect generates text by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aleator.chat.generation import ChatStop as ChatStop
from aleator.chat.generation import chat_stop
from aleator.chat.message import Delta, Message
from aleator.chat.prompt import ChatPrompt
from aleator.chat.reply import Reply
from aleator.generate.generation import Generation, Piece, reader_of
from aleator.generate.logprobs import Logprobs
from aleator.server.streaming import Line, merged


@dataclass(frozen=True, kw_only=True)
class ChatRequest(ChatPrompt):
    """A chat request, in OpenAI's terms."""

    # Whether the answer may contain several tool calls; otherwise it ends with the first
    parallel_tool_calls: bool = True
    # Options of ``generate`` and sampling parameters by their names here; ``json_schema`` forces the content
    options: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1  # Number of answers, each with a random stream of its own
    # Options of the beam search that finds the answers; None: they are drawn
    beams: Mapping[str, Any] | None = None
    deadline: float | None = None  # Seconds from now after which the answer ends; None: no limit
    namespace: str = ""  # Prompt-cache namespace; "": the caller's own


@dataclass(frozen=True)
class Usage:
    """Token counts of a request."""

    prompt: int  # Of the prompt, cached ones included
    completion: int  # Drawn tokens of all answers together
    cached: int = 0  # Prompt tokens that were not computed because they were cached
    reasoning: int = 0  # Drawn tokens of reasoning
    draft_n: int = 0  # Tokens that speculation guessed
    draft_n_accepted: int = 0  # Guesses that were drawn

    @property
    def total(self) -> int:
        """Prompt and completion together."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class ChatEvent:
    """A piece of one of the answers: a :class:`~aleator.chat.message.Delta`, or its "end"."""

    kind: Literal["content", "reasoning", "call", "arguments", "call_end", "end"]
    choice: int = 0  # Index of the answer
    text: str = ""
    index: int = 0
    id: str = ""
    # Of the tokens since the event before, if requested
    logprobs: Sequence[Logprobs] = ()
    tokens: Sequence[int] = ()  # The tokens since the event before
    stop: ChatStop | None = None  # For "end": why it ended


class ChatChoice:
    """One answer of a chat."""

    def __init__(
        self, index: int, generation: Generation, reply: Reply, one_call: bool = False
    ) -> None:
        self.index, self.generation = index, generation
        self.completion_tokens = self.reasoning_tokens = 0  # drawn, as far as they were read
        self.stop: ChatStop | None = None  # why it ended
        self._reply, self._one_call = reply, one_call
        self._made = reader_of(generation).completion
        self._reported = 0  # tokens that events have reported
        self._counted = 0  # tokens already classified as reasoning or not

    @property
    def message(self) -> Message:
        """The answer as far as it was read."""
        return self._reply.message

    @property
    def tokens(self) -> list[int]:
        """The tokens as far as they were read."""
        return self._made.tokens[: self.completion_tokens]

    @property
    def logprobs(self) -> list[Logprobs] | None:
        """Log-probabilities of the tokens so far; None if not requested."""
        if self.generation.request.options.logprobs is None:
            return None
        return self._made.logprobs[: self.completion_tokens]

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, once it has ended."""
        return self.generation.stop_string if self.stop == "stop" else None

    async def events(self, line: Line[ChatEvent] | None = None) -> AsyncIterator[list[ChatEvent]]:
        """Yield its events as they are made, in batches of those available; ``line`` sends some itself."""
        while self.stop is None:
            if line is not None and not self._one_call:
                await line.follow(reader_of(self.generation), self._read_all)
            pieces = await reader_of(self.generation).next_pieces()
            made: list[ChatEvent] = []
            for piece in pieces:
                made += self._read(piece)
                if self._one_call and made and made[-1].kind == "call_end":
                    self.generation.cancel()  # tokens drawn after the call do not count
                    made.append(self._end_event("tool_calls"))
                    break
            if not pieces:
                made = self._end()
            if made:
                yield made

    def _read_all(self, pieces: Sequence[Piece]) -> list[ChatEvent]:
        return [event for piece in pieces for event in self._read(piece)]

    def _read(self, piece: Piece) -> list[ChatEvent]:
        deltas = self._reply.push(piece.text)
        if deltas:  # tokens without deltas belong to the next event
            if deltas[0].kind == "reasoning":
                self.reasoning_tokens += piece.end - self._counted
            self._counted = piece.end
        self.completion_tokens = piece.end
        return self._events_of(self._kept(deltas))

    def _kept(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        """The deltas up to the end of the first call, if only one call is wanted."""
        ends = [i for i, delta in enumerate(deltas) if delta.kind == "call_end"]
        return deltas[: ends[0] + 1] if self._one_call and ends else deltas

    def _events_of(self, deltas: Sequence[Delta]) -> list[ChatEvent]:
        """Events of deltas; the first has all tokens since the event before, with their log-probabilities."""
        if not deltas:
            return []
        first, *others = deltas
        made = [
            ChatEvent(
                first.kind, self.index, first.text, first.index, first.id, *self._new_tokens()
            )
        ]
        made += [ChatEvent(d.kind, self.index, d.text, d.index, d.id) for d in others]
        return made

    def _new_tokens(self) -> tuple[Sequence[Logprobs], Sequence[int]]:
        since, self._reported = self._reported, max(self._reported, self.completion_tokens)
        new = slice(since, self._reported)
        return self._made.logprobs[new], self._made.tokens[new]

    def _end_event(self, stop: ChatStop) -> ChatEvent:
        self.stop = stop
        logprobs, tokens = self._new_tokens()
        return ChatEvent("end", self.index, logprobs=logprobs, tokens=tokens, stop=stop)

    def _end(self) -> list[ChatEvent]:
        self.completion_tokens = len(self._made.tokens)
        made = self._events_of(self._kept(self._reply.finish()))
        message = self.message
        if message.reasoning_content and not (message.content or message.tool_calls):
            self.reasoning_tokens = self.completion_tokens
        return [*made, self._end_event(chat_stop(message, self.generation.stop_reason))]


class ChatAnswer:
    """The answers to a chat."""

    def __init__(
        self, made: Sequence[Generation], choice: Callable[[int, Generation], ChatChoice]
    ) -> None:
        self.choices, self._choice = [choice(i, each) for i, each in enumerate(made)], choice

    def of(self, made: Sequence[Generation]) -> ChatAnswer:
        """The answers to the same chat by other generations."""
        return ChatAnswer(made, self._choice)

    @property
    def generations(self) -> list[Generation]:
        """The generations of the answers."""
        return [choice.generation for choice in self.choices]

    @property
    def seed(self) -> int:
        """The seed in effect, drawn from the system if none was given."""
        return self.choices[0].generation.seed

    @property
    def usage(self) -> Usage:
        """Token counts, as far as the answers were read."""
        stats = [each.stats for each in self.generations]
        return Usage(
            prompt=len(self.choices[0].generation.request.tokens),
            completion=sum(choice.completion_tokens for choice in self.choices),
            cached=stats[0].reused_tokens,
            reasoning=sum(choice.reasoning_tokens for choice in self.choices),
            draft_n=sum(each.draft_n for each in stats),
            draft_n_accepted=sum(each.draft_n_accepted for each in stats),
        )

    def cancel(self) -> None:
        """End all answers before their next token."""
        for each in self.generations:
            each.cancel()

    def events(self, line: Line[ChatEvent] | None = None) -> AsyncIterator[list[ChatEvent]]:
        """Yield events of all answers in batches of one answer; ``line`` sends some of a single answer."""
        only = line if len(self.choices) == 1 else None
        return merged([choice.events(only) for choice in self.choices])

    async def collected(self) -> list[ChatEvent]:
        """Wait until all answers have ended; return all their events, grouped by answer."""
        made: list[ChatEvent] = []
        for choice in self.choices:
            if not choice._one_call:
                await choice.generation
            async for events in choice.events():
                made += events
        return made
