"""What is asked of a generation and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from aleator.generate.drawing import LogprobsOf
from aleator.generate.ending import Ending
from aleator.generate.logprobs import Logprobs
from aleator.generate.stop import StopMatcher
from aleator.samplers import SamplerChain, SamplingParams

StopReason = Literal["eog", "grammar", "stop", "length", "context", "interrupted"]


class TextStream(Protocol):
    """Turns token ids into text that never splits a character."""

    def push(self, token: int) -> str:
        """Text that became complete with ``token``."""

    def flush(self) -> str:
        """What is left, an unfinished character as U+FFFD."""


class Detokenizer(Protocol):
    """The text side of a vocabulary, as a generation needs it."""

    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""

    @property
    def has_text(self) -> bool:
        """Whether tokens have texts; without, the model knows ids only."""

    def require_text(self, what: str) -> None:
        """Raise TokenizerError where ``what`` cannot be done because tokens have no texts."""

    def __len__(self) -> int:
        """How many tokens there are."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for."""


Forgotten = tuple[tuple[int, int], ...]
"""What context shifts have forgotten of a text: (where, how many tokens) one after the other."""


class Stepper(Protocol):
    """What moves a generation forward; see :class:`aleator.generate.loop.Run`."""

    stats: Stats

    def step(self) -> None:
        """Advance by one token, or prefill."""


@dataclass(frozen=True)
class Request:
    """One completion to make.

    Attributes:
        tokens: the prompt, at least one token, those in the cache included.
        chain: draws the tokens, and has accepted the prompt; nothing else may use it meanwhile.
        params: what the chain was made of.
        stream: turns the tokens into text.
        max_tokens: tokens to generate at most; None: until something else ends it.
        drawn: how many of the prompt's last tokens an earlier generation drew, which this one goes on with.
        forgotten: what that one's context shifts have forgotten: the model sees ``remaining`` only.
        namespace: of the kept texts, where the rows that its context shifts left are.
        stop: stop strings.
        logprobs: how many most probable tokens to report with every token; None: no log-probabilities.
        context_shift: with a full context, forget the older half of what follows the first ``n_keep``
            positions and go on, instead of stopping.
        n_keep: positions that a context shift never forgets.
        echo: text to give before the generated text.
        observe: called with the chain and the logits [V] before each token is drawn; must change neither.
        spell: cuts text that a constraint forces into tokens, which are decoded together; None: they are
            decoded one by one.
        ending: draws the tokens in such a way that a constrained text is complete at its end.
    """

    tokens: tuple[int, ...]
    chain: SamplerChain
    params: SamplingParams
    stream: TextStream
    max_tokens: int | None = None
    drawn: int = 0
    forgotten: Forgotten = ()
    namespace: str = ""
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    context_shift: bool = False
    n_keep: int = 0
    echo: str = ""
    observe: Callable[[SamplerChain, Any], None] | None = None
    spell: Callable[[bytes], list[int]] | None = None
    ending: Ending | None = None

    @cached_property
    def remaining(self) -> tuple[int, ...]:
        """The tokens without what is forgotten."""
        return remaining(self.tokens, self.forgotten)


def remaining(tokens: Sequence[int], forgotten: Forgotten) -> tuple[int, ...]:
    """What context shifts have left of a text."""
    left = list(tokens)
    for at, n in forgotten:
        del left[at : at + n]
    return tuple(left)


@dataclass
class Stats:
    """Counts and wall-clock seconds of one run: all completions that were made in one batch.

    ``prompt`` is the prefill, ``decode`` everything after the first token of each completion (model,
    sampling and detokenising; not what the caller does between two pieces), ``sampler`` the calls of the
    chains within both.  ``reused_tokens`` are prompt tokens that the cache held already: they are not
    among the ``prompt_tokens``, which were computed.  ``forced_tokens`` are those of the sampled tokens that
    were decoded together with the one before, because a grammar forced their text.
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


class Completion:
    """What has been made of a request so far; the run feeds it, a :class:`Generation` shows it."""

    def __init__(self, request: Request, detokenizer: Detokenizer) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.pieces: list[str] = []
        self.stop_reason: StopReason | None = None
        self.complete: bool | None = None
        self.cancelled = False
        self.forgotten, self.namespace = request.forgotten, request.namespace
        self._detokenizer = detokenizer
        if request.stop:
            self.require_text("stop")
        self._matcher = StopMatcher(request.stop)
        self._show(request.echo)
        if request.max_tokens == 0:
            self._end("length")

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.stop_reason is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._matcher.matched

    def feed(self, token: int, logprobs: LogprobsOf) -> None:
        """Take in a token, and end where it ends things; ``logprobs`` says what the model thought of it."""
        request = self.request
        self.tokens.append(token)
        if request.logprobs is not None:
            self.logprobs.append(logprobs(token, request.logprobs, self._token_bytes))
        if token in self._detokenizer.eog and not request.params.ignore_eos:
            self._end("eog")
            return
        self._show(self._matcher.push(request.stream.push(token)))
        if self._matcher.matched is not None:
            self._end("stop")
        elif len(self.tokens) == request.max_tokens:
            self._end("length")

    def require_text(self, what: str) -> None:
        """Raise TokenizerError where ``what`` cannot be done because tokens have no texts."""
        self._detokenizer.require_text(what)

    def _token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing where tokens have no texts."""
        return self._detokenizer.token_bytes(token) if self._detokenizer.has_text else b""

    def grammar_over(self, reason: StopReason) -> None:
        """The constrained text is complete and ends here."""
        self._end(reason)

    def out_of_context(self) -> None:
        """There is no position left for another token."""
        self._end("context")

    def forget(self, at: int, n: int, namespace: str) -> None:
        """A context shift has removed ``n`` tokens; what is left is kept in a namespace of its own."""
        *before, last = self.forgotten or ((at, 0),)
        self.forgotten = (
            (*before, (at, last[1] + n)) if last[0] == at else (*self.forgotten, (at, n))
        )
        self.namespace = namespace

    def interrupt(self) -> None:
        """No more tokens will be drawn."""
        if not self.done:
            self._end("interrupted")

    def _show(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)

    def _end(self, reason: StopReason) -> None:
        if reason in ("eog", "grammar"):
            # Only here is the text over for good: elsewhere more bytes of the character would follow.
            self._show(self._matcher.push(self.request.stream.flush()))
        if self._matcher.matched is None:
            self._show(self._matcher.flush())
        else:
            reason = "stop"
        self.stop_reason = reason
        states = [c.constraint for c in self.request.chain.constraints]
        if states:
            whole = reason != "stop" and all(c.complete for c in states)
            self.complete = reason == "eog" or whole


class Generation(Iterator[str]):
    """One completion: an iterator over pieces of text, each made when it is asked for.

    ``text``, ``tokens``, ``stop_reason``, ``stop_string`` and ``logprobs`` make whatever is still to be
    made before they answer; pieces not iterated over yet stay available.  :meth:`cancel` ends it early.

    The text is the same whatever ``max_tokens`` is, up to where it ends: a character whose last bytes
    were not generated is left out.
    """

    def __init__(self, run: Stepper, completion: Completion) -> None:
        self._run, self._completion = run, completion
        self._given = 0

    def __next__(self) -> str:
        completion = self._completion
        completion.require_text("iterating over a generation")
        while self._given == len(completion.pieces):
            if completion.done:
                raise StopIteration
            self._run.step()
        self._given += 1
        return completion.pieces[self._given - 1]

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
    def stop_reason(self) -> StopReason:
        """Why it ended.

        "eog": an end-of-generation token; "grammar": the constrained text is complete, and nothing can
        follow; "stop": a stop string; "length": ``max_tokens``;
        "context": no room for another token; "interrupted": :meth:`cancel`, or an error while generating.
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
        return None if self.request.logprobs is None else list(self._finished().logprobs)

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self._completion.request

    @property
    def forgotten(self) -> Forgotten:
        """What context shifts have forgotten of the prompt and the tokens so far."""
        return self._completion.forgotten

    @property
    def namespace(self) -> str:
        """Of the kept texts, where the text is once it has ended; "" without context shifts."""
        return self._completion.namespace

    @property
    def seed(self) -> int:
        """The seed in effect."""
        return self.request.chain.seed

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

    def _finished(self) -> Completion:
        while not self._completion.done:
            self._run.step()
        return self._completion
