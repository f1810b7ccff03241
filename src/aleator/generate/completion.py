"""A request, and the completion made of it so far: tokens, text, and stop reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import cached_property
from typing import AnyStr, Literal, Protocol

from aleator.core.arrays import Floats
from aleator.core.errors import ContextFull, ParameterError, without_frames
from aleator.core.records import dataclass
from aleator.generate.healing import NOTHING, TakenBack
from aleator.generate.logprobs import Logprobs, LogprobsOf, top_logprobs
from aleator.generate.loops import LoopWatch
from aleator.generate.options import GenerateOptions
from aleator.models.adapters import before_all
from aleator.samplers import SamplerChain, SamplingParams

OWN = "\0"
"""Prefix of prompt-cache namespaces that the package makes up, for texts of one process alone."""
ONCE = f"{OWN}once "
"""Prefix of those namespaces of which nothing is kept."""


def one_time_namespace() -> str:
    """A namespace for a request that neither uses cached prefixes nor leaves any."""
    return ONCE + os.urandom(16).hex()


Forgotten = tuple[tuple[int, int], ...]
"""What context shifts have removed from a text: (index, number of tokens) of each shift, in order."""


@dataclass(frozen=True)
class Request:
    """One completion to make.

    :class:`~aleator.generate.request_state.RequestState` has the state while it is made.
    """

    tokens: tuple[int, ...]  # the prompt, at least one token, including cached ones
    params: SamplingParams  # sampling parameters, with a seed
    # All other options of the request
    options: GenerateOptions = field(default_factory=GenerateOptions)
    # Index among the completions of one prompt, each with its own random stream
    completion: int = 0
    # How many of the prompt's last tokens were drawn by an earlier generation that this request continues
    drawn: int = 0
    # State of the chain that drew them; b"" if unknown
    chain_state: bytes = field(default=b"", repr=False)
    # What the earlier generation's context shifts removed; the model sees only ``remaining``
    forgotten: Forgotten = ()
    # Prompt-cache namespace with what those context shifts left; "" without them
    namespace: str = ""
    n_keep: int = 0  # positions at the beginning that a context shift always keeps
    echo: str = ""  # text that precedes the generated text in the output
    # Tokens of the prompt that ``tokens`` lacks because ``heal`` took them back to be generated anew
    taken_back: TakenBack = NOTHING

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens, including those that were taken back."""
        at, taken = self.taken_back
        return (*self.tokens[:at], *taken, *self.tokens[at:])

    @cached_property
    def remaining(self) -> tuple[int, ...]:
        """The tokens left by context shifts."""
        return remaining(self.tokens, self.forgotten)

    @property
    def remaining_drawn(self) -> tuple[int, ...]:
        """Those of ``remaining`` that an earlier generation drew."""
        start = len(self.tokens) - self.drawn
        places = remaining(range(len(self.tokens)), self.forgotten)
        return tuple(self.tokens[i] for i in places if i >= start)

    @property
    def cache_namespace(self) -> str:
        """The prompt-cache namespace to search for the prompt."""
        return self.namespace or self.options.namespace

    @cached_property
    def before_adapters(self) -> tuple[int, str]:
        """How many tokens of the prompt precede one of its adapters (aLoRA), and the namespace of these."""
        return before_all(self.options.adapters, self.options.namespace)


def remaining(tokens: Sequence[int], forgotten: Forgotten) -> tuple[int, ...]:
    """The tokens of a text that context shifts have left."""
    left = list(tokens)
    for at, n in forgotten:
        del left[at : at + n]
    return tuple(left)


def too_long(tokens: int, n_ctx: int) -> ContextFull:
    """The error for a prompt of ``tokens`` tokens, more than ``n_ctx``."""
    return ContextFull(
        f"the prompt has {tokens} tokens and the context {n_ctx} positions: shorten the prompt, or load the "
        "model with a larger n_ctx (command line: -c)"
    )


StopReason = Literal[
    "eog", "grammar", "stop", "stop_token", "loop", "length", "context", "deadline", "interrupted"
]


class TextStream(Protocol):
    """Turns token ids into text that never splits a character."""

    def push(self, token: int) -> str:
        """Text that became complete with ``token``."""

    def flush(self) -> str:
        """The remaining text; an incomplete character becomes U+FFFD."""


class Detokenizer(Protocol):
    """The text side of a vocabulary, as a generation needs it."""

    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""

    @property
    def has_text(self) -> bool:
        """Whether tokens have texts; if not, the model knows ids only."""

    def require_text(self, what: str) -> None:
        """Raise TokenizerError if tokens have no texts; ``what`` names the operation that needs them."""

    def __len__(self) -> int:
        """Number of tokens."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for."""


@dataclass
class Stats:
    """Counts and wall-clock seconds of one run: all completions that were made in one batch.

    ``prompt`` is the prefill; ``decode`` is everything after the first token of each completion (model,
    sampling and detokenising, but not the caller's work between two pieces); ``sampler`` is the chains' part
    of both.  ``reused_tokens`` are prompt tokens that were cached; ``prompt_tokens`` counts only computed ones.
    ``forced_tokens`` are sampled tokens that were decoded together with the one before because a grammar forced
    their text.  Speculation guessed ``draft_n`` tokens in ``drafts`` steps; ``draft_n_accepted`` of them were
    drawn.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    sampled_tokens: int = 0
    sampler_seconds: float = 0.0
    context_shifts: int = 0
    forced_tokens: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    drafts: int = 0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Speed of the prefill; 0 when nothing was prefilled."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Speed of decoding, over all completions together; 0 when nothing was decoded."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def sampler_us_per_token(self) -> float:
        """Microseconds in the chain per token; 0 when nothing was sampled."""
        return 1e6 * self.sampler_seconds / self.sampled_tokens if self.sampled_tokens else 0.0

    def as_json(self) -> dict[str, float]:
        """The counts, seconds and rates as a dictionary."""
        return {
            **self.__dict__,
            "prompt_tokens_per_second": self.prompt_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "sampler_us_per_token": self.sampler_us_per_token,
        }


def loop_watch(request: Request, chain: SamplerChain) -> LoopWatch | None:
    """A watch for loops that has been given the tokens of an earlier generation; None if not requested."""
    if request.options.stop_loops is None:
        return None
    made = LoopWatch(request.options.stop_loops, chain, request.params.temperature)
    for token in request.tokens[len(request.tokens) - request.drawn :]:
        made.push(token)
    return made


class Completion:
    """The completion of a request so far; the run feeds it, and a :class:`Generation` shows it.

    The chain's constraints say whether the text is complete.
    """

    def __init__(
        self, request: Request, chain: SamplerChain, stream: TextStream, detokenizer: Detokenizer
    ) -> None:
        self.request, self.chain = request, chain
        self._stream = stream
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.pieces: list[str] = []
        self.piece_ends: list[int] = []  # number of tokens drawn when each piece was given out
        self.stop_reason: StopReason | None = None
        self.complete: bool | None = None
        self.cancelled = False
        # the error that ended it, if any; once it was raised to a reader, a copy
        self.error: BaseException | None = None
        self.error_raised = False  # whether a reader got the error, raised or returned
        self._abandoned = False  # whether a generation of it is gone
        self.forgotten, self.namespace = request.forgotten, request.namespace
        self.n_ctx = 0  # positions that it may use, prompt included; 0 before it starts
        # log-probabilities of the prompt's tokens so far, None for the first; None: not recorded
        self.prompt_logprobs: list[Logprobs | None] | None = None
        self._prompt_top = 0
        self._detokenizer = detokenizer
        if request.options.stop:
            self.require_text("stop")
        self._matcher = StopMatcher(request.options.stop)
        self._loops = loop_watch(request, chain)
        self._show(request.echo)
        if request.options.max_tokens == 0:
            self.end("length")

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.stop_reason is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found, if any."""
        return self._matcher.matched

    def feed(self, token: int, logprobs: LogprobsOf) -> None:
        """Take in a token, and end if it ends the text; ``logprobs`` gives the model's log-probabilities."""
        request = self.request
        self.tokens.append(token)
        looping = self._loops is not None and self._loops.push(token)
        if request.options.logprobs is not None:
            self.logprobs.append(logprobs(token, request.options.logprobs, self.token_bytes))
        if token in self._detokenizer.eog and not request.params.ignore_eos:
            self.end("eog")
            return
        if token in request.params.stop_token_ids:
            self.end("stop_token")
            return
        self._show(self._matcher.push(self._stream.push(token)))
        if self._matcher.matched is not None:
            self.end("stop")
        elif looping:
            self.end("loop")
        elif len(self.tokens) == request.options.max_tokens:
            self.end("length")

    def want_prompt(self, top: int) -> None:
        """Record the prompt's log-probabilities as it is computed, with the ``top`` most probable tokens.

        A completion of no tokens, which has already ended, is reopened until they are known.
        """
        self.prompt_logprobs, self._prompt_top = [None], top
        if self.request.options.max_tokens == 0 and len(self.request.tokens) > 1:
            self.stop_reason = None

    def feed_prompt(self, row: Floats) -> None:
        """Take in the logits [V] after the next prompt token; those after the last prompt token are ignored."""
        made, tokens = self.prompt_logprobs, self.request.tokens
        if made is not None and len(made) < len(tokens):
            token = tokens[len(made)]
            made.append(top_logprobs(row, token, self._prompt_top, self.token_bytes))
            if len(made) == len(tokens) and self.request.options.max_tokens == 0:
                self.end("length")

    def ends_with(self, token: int) -> bool:
        """Whether a token ends the text by its id alone."""
        params = self.request.params
        ends = token in self._detokenizer.eog and not params.ignore_eos
        return ends or token in params.stop_token_ids

    @property
    def has_text(self) -> bool:
        """Whether tokens have texts."""
        return self._detokenizer.has_text

    def require_text(self, what: str) -> None:
        """Raise TokenizerError if tokens have no texts; ``what`` names the operation that needs them."""
        self._detokenizer.require_text(what)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, names of control tokens included; b"" where tokens have no texts."""
        return self._detokenizer.token_bytes(token) if self._detokenizer.has_text else b""

    def forget(self, at: int, n: int, namespace: str) -> None:
        """Note that a context shift removed ``n`` tokens; the rest is kept in a namespace of its own."""
        *before, last = self.forgotten or ((at, 0),)
        self.forgotten = (
            (*before, (at, last[1] + n)) if last[0] == at else (*self.forgotten, (at, n))
        )
        self.namespace = namespace

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended already."""
        if not self.done:
            self.error = without_frames(error) if self._abandoned else error
            self.break_off("interrupted")

    def abandon(self) -> None:
        """Note that a generation of it is gone: an error's frames would keep it alive until a collection."""
        self._abandoned = True
        if self.error is not None:
            self.error = without_frames(self.error)

    def take_error(self) -> BaseException | None:
        """The error that ended it, if any, for a reader; a copy without frames, which hold this, is kept."""
        error = self.error
        if error is not None:
            self.error, self.error_raised = without_frames(error), True
        return error

    def check(self) -> None:
        """Raise the error that ended it, unless a reader already got the error."""
        if not self.error_raised:
            self.raise_error()

    def raise_error(self) -> None:
        """Raise the error that ended it, if any."""
        error = self.take_error()
        try:
            if error is not None:
                raise error
        finally:
            del error  # this frame is among the error's

    def break_off(self, reason: StopReason) -> None:
        """End it whatever its constraints say, unless it has ended already."""
        if self.done:
            return
        try:
            self.end(reason)
        except BaseException as error:  # an earlier failure may recur here
            self.stop_reason = reason
            if isinstance(error, KeyboardInterrupt):
                raise

    def _show(self, piece: str) -> None:
        if piece:
            # First, because other threads read as many ends as there are pieces.
            self.piece_ends.append(len(self.tokens))
            self.pieces.append(piece)

    def end(self, reason: StopReason) -> None:
        """End it, and give out the text that was held back."""
        if self._loops is not None:
            self._loops.end()
        if reason in ("eog", "grammar", "stop_token"):
            # Only here has the text ended for good: elsewhere the character's remaining bytes may still come.
            self._show(self._matcher.push(self._stream.flush()))
        if self._matcher.matched is None:
            self._show(self._matcher.flush())
        else:
            reason = "stop"
        self.stop_reason = reason
        states = [c.constraint for c in self.chain.constraints]
        if states:
            whole = reason != "stop" and all(c.complete for c in states)
            self.complete = reason == "eog" or whole


class StopMatcher:
    """Passes text through until one of several strings appears in it.

    Text that could still become a stop string is held back, so :meth:`push` never returns text that has to be
    taken back.  The match that ends first wins, and the longest among those.  So the result does not depend on
    how the text was cut into pieces.  Everything from the match's first character on is dropped.

    Raises:
        ParameterError: an empty string, or something that is not a string.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        if isinstance(stops, str):
            stops = (stops,)
        self.stops = tuple(dict.fromkeys(stops))
        for stop in self.stops:
            if not isinstance(stop, str) or not stop:
                raise ParameterError(f"stop={stop!r}: a stop string has at least one character")
        self._longest = max(map(len, self.stops), default=0)
        self.matched: str | None = None
        self._held = ""

    def push(self, piece: str) -> str:
        """Take the next piece of text; return what can be shown now.

        Once :attr:`matched` is set to the stop string, "" is returned.
        """
        if self.matched is not None:
            return ""
        if not self.stops:
            return piece
        text = self._held + piece
        ends = [
            (at + len(stop), -len(stop), stop)
            for stop in self.stops
            if (at := text.find(stop)) >= 0
        ]
        if ends:
            end, _, self.matched = min(ends)
            self._held = ""
            return text[: end - len(self.matched)]
        shown = len(text) - open_length(text, self.stops, self._longest)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Return what was held back, when the text ends without a match."""
        held, self._held = self._held, ""
        return held


def open_length(text: AnyStr, strings: Sequence[AnyStr], longest: int) -> int:
    """Length of the longest suffix of ``text`` that begins a string; no string is longer than ``longest``."""
    for length in range(min(len(text), longest - 1), 0, -1):
        if any(string.startswith(text[-length:]) for string in strings):
            return length
    return 0
