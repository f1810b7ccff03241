"""Records of generated texts: what is needed to generate each again.

A text is a function of the model, the prompt's tokens, the parameters of the chain and the seed
(docs/reproducibility.md).  A :class:`Record` has all of these and the result, as JSON with a version.
The server sends one with a response, ``aleator generate --replay FILE`` writes one, and ``aleator replay``
generates the text again, offline, and compares.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from aleator.core.arithmetic import FIRST_VERSION
from aleator.core.contract import NUMERICS_VERSION
from aleator.core.errors import FileFormatError, ParameterError
from aleator.core.integers import shared
from aleator.core.options import declarations
from aleator.core.records import dataclass
from aleator.core.version import __version__
from aleator.engine.engine import Served
from aleator.engine.run import Run
from aleator.engine.scheduled_request import cells_needed, sequences_needed
from aleator.generate.completion import Request
from aleator.generate.context import Context
from aleator.generate.generation import Generation, reader_of
from aleator.generate.healing import NOTHING, take_back
from aleator.generate.options import GenerateOptions
from aleator.generate.request_state import OnLogits, RequestState
from aleator.models.fingerprint import ModelIdentity
from aleator.samplers.as_json import params_as_json, params_from_json
from aleator.samplers.sampling_params import SamplingParams

VERSION = 1
"""Version of the record format."""

KEY = "aleator_replay"
"""Field of a record that holds its version, and of a response that holds its records."""

CUT_OFF = ("deadline", "interrupted")
"""Stop reasons that depend on time or the user: only the text up to there can be compared."""

LONG = 2048
"""Parameters of this many bytes or more are left out of a header, which has their hash instead."""

TEXT_OPTIONS = {name: each for name, each in declarations(GenerateOptions).items() if each.portable}


class Replayable(Served, Protocol):
    """A model for which records can be made, such as an :class:`aleator.LanguageModel`."""

    @property
    def identity(self) -> ModelIdentity:
        """The model's name, path and fingerprint."""

    @property
    def loading(self) -> Mapping[str, object]:
        """The options with which it was loaded that can change logits, JSON-ready."""


@dataclass(frozen=True)
class Made:
    """The result of a request."""

    tokens: tuple[int, ...]  # All tokens drawn
    text_hash: str  # Hash of the text, "" where tokens have no text
    stop_reason: str  # Why generation ended
    # Natural-log probability of each token; None if not requested
    logprobs: tuple[float, ...] | None = None

    @classmethod
    def of(cls, generation: Generation) -> Made:
        """Return the result of a generation; wait for its end."""
        logprobs, has_text = generation.logprobs, reader_of(generation).completion.has_text
        return cls(
            tokens=tuple(generation.tokens),
            text_hash=hash_of_text(generation.text) if has_text else "",
            stop_reason=generation.stop_reason,
            logprobs=None if logprobs is None else tuple(e.chosen.logprob for e in logprobs),
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that a text is a function of, and the result."""

    model: str  # Fingerprint of the model's files
    name: str  # Name that the model gives itself, for display
    loading: Mapping[str, object]  # Options with which it was loaded that can change logits
    seed: int  # Seed of the draws
    n_ctx: int  # Positions that the request could use
    # Sampling parameters in effect that are not neutral, JSON-ready; None: only their hash is known
    params: Mapping[str, object] | None
    options: Mapping[str, object]  # Other options that differ from their defaults, JSON-ready
    prompt_hash: str  # Hash of the prompt's tokens
    prompt: tuple[int, ...] | None = None  # The prompt's tokens; None: not stored here
    # What the client sent, JSON-ready; None: unknown
    given: Mapping[str, object] | None = None
    completion: int = 0  # Index among the completions of one prompt
    position: int = 0  # How many of the prompt's last tokens an earlier request drew
    n_keep: int = 0  # Positions that a context shift keeps
    echo: str = ""  # Text before the text
    chain_state: bytes = b""  # State of the chain that drew these tokens; b"" if unknown
    made: Made | None = None  # The result; None: unknown
    package: str = ""  # Version of the package
    numerics: int = NUMERICS_VERSION  # Version of the rules of draws (docs/numerics.md, part 1)
    # Version of the rules of logits on CPUs (docs/numerics.md, part 2)
    arithmetic: int = FIRST_VERSION

    @classmethod
    def of(
        cls,
        generation: Generation,  # Made by an engine or by ``generate``
        model: Replayable,  # Model that generates it
        package: str = __version__,  # Version of the package
        given: Mapping[str, object] | None = None,  # What the client sent, JSON-ready
    ) -> Record:
        """The record of a generation, with the result if it has ended without an error.

        Raises:
            ParameterError: The text cannot be generated again from a record: an earlier generation shifted its
                context, or it uses a grammar that is the user's own code.
        """
        request = generation.request
        if request.forgotten:
            raise ParameterError(
                "replay",
                "a text whose context an earlier generation has shifted cannot be made again from a record: "
                "its keys and values depend on what was forgotten",
            )
        return cls(
            model=model.identity.fingerprint,
            name=model.identity.name,
            loading=dict(model.loading),
            seed=generation.seed,
            n_ctx=generation.n_ctx,
            params=params_as_json(request.params),
            options={
                name: value
                for name, value in request.options.values().items()
                if name in TEXT_OPTIONS and value != TEXT_OPTIONS[name].neutral
            },
            prompt_hash=hash_of_tokens(request.prompt),
            prompt=request.prompt,
            given=given,
            completion=request.completion,
            position=request.drawn,
            n_keep=request.n_keep,
            echo=request.echo,
            chain_state=request.chain_state,
            made=Made.of(generation) if generation.done and generation.error is None else None,
            package=package,
            arithmetic=model.identity.arithmetic,
        )

    def as_json(self) -> dict[str, Any]:
        """The record as a dictionary that :meth:`from_json` reads."""
        made: dict[str, Any] = {KEY: VERSION}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value != each.default or each.name in ("numerics", "arithmetic"):
                made[each.name] = value
        if self.chain_state:
            made["chain_state"] = base64.b64encode(self.chain_state).decode()
        if self.made is not None:
            made["made"] = {k: v for k, v in vars(self.made).items() if v is not None}
            # JSON has no number for the -inf of impossible tokens
            if self.made.logprobs is not None:
                made["made"]["logprobs"] = [
                    each if math.isfinite(each) else str(each) for each in self.made.logprobs
                ]
        return made

    def header(self) -> str:
        """The record as one line of ASCII JSON for a header: without prompt, text and what the client sent.

        Long parameters are replaced by their hash.
        """
        left_out = ("name", "prompt", "given", "made", "chain_state", "echo")
        made = {name: value for name, value in self.as_json().items() if name not in left_out}
        text = json.dumps(made, separators=(",", ":"))
        if len(text) > LONG:
            chosen = json.dumps([self.params, self.options], sort_keys=True)
            text = json.dumps(
                {**made, "params": None, "options": {}, "params_hash": hash_of_text(chosen)},
                separators=(",", ":"),
            )
        return text

    @classmethod
    def from_json(cls, value: object, path: str = "record") -> Record:
        """Read what :meth:`as_json` or :meth:`header` returned; errors name ``path``.

        Raises:
            FileFormatError: It is not a record, or has a newer format.
        """
        if not isinstance(value, dict) or KEY not in value:
            raise FileFormatError(path, f"this is no record: it has no field {KEY!r}")
        if value[KEY] != VERSION:
            raise FileFormatError(
                path,
                f"the record has form {value[KEY]!r:.40}, and this version of the package reads form {VERSION}",
                field=KEY,
            )
        given: dict[str, Any] = {"name": "", **value}
        made: dict[str, Any] = {}
        try:
            for each in dataclasses.fields(cls):
                if each.name in given:
                    made[each.name] = _read(each.name, given[each.name])
            return cls(**made)
        except (TypeError, ValueError, KeyError) as error:
            raise FileFormatError(path, f"the record is damaged: {error}") from None

    def request(self, prompt: Sequence[int] | None = None, vocab: Any = None) -> Request:
        """The request to run again; ``vocab`` is the model's, as for :meth:`SamplingParams.chain`.

        The prompt's tokens are needed if the record has only their hash.

        Raises:
            ParameterError: Tokens or parameters are missing; the tokens differ from the record's; or its
                samplers draw otherwise in this version of the numerics.
        """
        tokens = self.prompt if prompt is None else tuple(prompt)
        if tokens is None:
            raise ParameterError(
                "prompt_file", "the record has only the hash of the prompt: give --prompt-file FILE"
            )
        if hash_of_tokens(tokens) != self.prompt_hash:
            raise ParameterError(
                "prompt_file",
                f"the prompt is another one: the hash of its {len(tokens)} tokens is {hash_of_tokens(tokens)}, "
                f"and that of the record {self.prompt_hash}",
            )
        if self.params is None:
            raise ParameterError(
                "record",
                "the record has only the hash of its parameters, which were too long for a header: use the "
                "record of the response's body",
            )
        params = params_from_json(self.params, self.seed)
        if params.numerics == "portable":
            self._check_numerics(params, vocab)
        # What names no adapters had none, whatever holds for all texts of the model that makes it again.
        options, taken = GenerateOptions.of({"adapters": {}, **self.options}), NOTHING
        if options.heal and not self.position:
            tokens, taken = take_back(tokens, vocab, params.values()["phases"])
        return Request(
            tokens=tokens,
            params=params,
            options=options,
            completion=self.completion,
            drawn=self.position,
            chain_state=self.chain_state,
            n_keep=self.n_keep,
            echo=self.echo,
            taken_back=taken,
        )

    def _check_numerics(self, params: SamplingParams, vocab: Any) -> None:
        changed = [s.name for s in params.list(vocab) if not s.neutral and s.since > self.numerics]
        if self.numerics <= NUMERICS_VERSION and not changed:
            return
        what = f", since when {' and '.join(changed)} draw otherwise" if changed else ""
        raise ParameterError(
            f"numerics={self.numerics}: the record was made under another version of the numerics than this "
            f"package's, {NUMERICS_VERSION}{what}: make it again with aleator {self.package or 'of that time'}"
        )


def _read(name: str, value: Any) -> Any:
    """Read a field of a record from JSON; raise TypeError, ValueError or KeyError if it is invalid."""
    if name == "chain_state":
        return base64.b64decode(value, validate=True)
    if name == "prompt":
        tokens = None if value is None else tuple(int(token) for token in value)
        if tokens and not 0 <= min(tokens) <= max(tokens) < 2**31:
            raise ValueError("a token of the prompt is out of range")
        return tokens
    kinds: dict[str, tuple[type, ...]] = {
        "loading": (dict,), "params": (dict, type(None)), "options": (dict,), "given": (dict, type(None)),
        "made": (dict, type(None)),
    }  # fmt: skip
    if name in kinds and not isinstance(value, kinds[name]):
        raise TypeError(f"{name} is {value!r:.40}")
    if name == "made" and value is not None:
        logprobs = value.get("logprobs")
        return Made(
            tokens=tuple(int(token) for token in value["tokens"]),
            text_hash=str(value["text_hash"]),
            stop_reason=str(value["stop_reason"]),
            logprobs=None if logprobs is None else tuple(float(each) for each in logprobs),
        )
    whole = name in ("seed", "n_ctx", "completion", "position", "n_keep", "numerics", "arithmetic")
    if whole and type(value) is not int:
        raise TypeError(f"{name} is {value!r:.40}")
    return value


def hash_of_tokens(tokens: Sequence[int]) -> str:
    """SHA-256 of the tokens as little-endian int32, its first 32 hexadecimal digits."""
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()[:32]


def hash_of_text(text: str) -> str:
    """SHA-256 of a text in UTF-8, its first 32 hexadecimal digits; lone surrogates are encoded as such."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def make_again(record: Record, model: Served, prompt: Sequence[int] | None = None) -> Made:
    """Generate a record's text again, by itself.

    The prompt's tokens are needed if the record has only their hash.

    Raises:
        ParameterError: As for :meth:`Record.request`; or the model was loaded with too small an ``n_ctx``.
    """
    generation = begin_again(record, model, record.request(prompt, model.tokenizer))
    if record.made is not None and record.made.stop_reason in CUT_OFF:
        wanted = len(record.made.tokens)
        for _ in generation:
            if len(reader_of(generation).completion.tokens) >= wanted:
                generation.cancel()
    return Made.of(generation)


def begin_again(
    record: Record,
    model: Served,
    request: Request,
    prepare: Callable[[RequestState, Context], None] | None = None,
    on_logits: OnLogits | None = None,
) -> Generation:
    """Start a record's request again, by itself, with the same number of positions.

    ``prepare`` is called first, with the request's state and its context.  Errors are those of
    :func:`make_again`.
    """
    if record.n_ctx > model.n_ctx:
        raise ParameterError(
            "n_ctx",
            f"the text might use {record.n_ctx} positions, and the model was loaded with {model.n_ctx}: load "
            f"it with n_ctx={record.n_ctx}",
        )
    (state,) = model.request_states.make([request], on_logits)
    n_ctx = max(record.n_ctx, len(request.remaining) + 1)
    if state.guidance is not None:  # a longer second prompt uses positions of both sequences
        n_ctx += max(0, len(state.guidance.prompt) - len(request.remaining))
    n_seqs, n_cells = sequences_needed([state]), cells_needed([state], n_ctx)
    context = model.context(n_cells, n_seqs, prompt_cache=False, device=None)
    if prepare is not None:
        prepare(state, context)
    (generation,) = Run(context, [state], model.vocab, n_ctx).generations
    return generation


def differences(then: Made, now: Made) -> list[str]:
    """Where two results differ, in words; empty if they are equal to the bit."""
    n = len(then.tokens)
    cut_off = then.stop_reason in CUT_OFF
    tokens = now.tokens[:n] if cut_off else now.tokens
    found = []
    if tokens != then.tokens:
        at = shared(then.tokens, tokens)
        was, is_now = (each[at] if at < len(each) else "the end" for each in (then.tokens, tokens))
        found.append(f"token {at} of the text: {was} then, {is_now} now")
    if then.logprobs is not None and now.logprobs is not None:
        for i, (a, b) in enumerate(zip(then.logprobs, now.logprobs, strict=False)):
            if a != b:
                found.append(f"log-probability of token {i}: {a!r} then, {b!r} now")
                break
        else:
            if len(then.logprobs) != len(now.logprobs[:n] if cut_off else now.logprobs):
                found.append(
                    f"{len(then.logprobs)} log-probabilities then, {len(now.logprobs)} now"
                )
    if cut_off:
        return found
    if now.stop_reason != then.stop_reason:
        found.append(f"why it ended: {then.stop_reason!r} then, {now.stop_reason!r} now")
    if not found and now.text_hash != then.text_hash:
        found.append("the tokens are equal, and their text is not: the tokenizer is another one")
    return found
