"""Aleator's chains in SGLang: a custom logit processor, and a sampling backend.

Neither was run, as the wheel of SGLang 0.5.23 needs CUDA; both are tested against the shapes of that wheel.
"""

from __future__ import annotations

from aleator.integrations.versions import require

require("sglang", at_least="0.5.23", install="sglang>=0.5.23")

import json
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from sglang.srt.layers.sampler import Sampler, register_sampler_backend
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from aleator.core.errors import AleatorError, LogitsError, ParameterError
from aleator.integrations.follower import Follower, leave_drawn
from aleator.integrations.settings import Settings, read_settings, sampling_params
from aleator.samplers import Dist, MinP, SamplerChain, Temperature, TopK, TopP

log = logging.getLogger(__name__)

NAME, STATE = "aleator", "__aleator__"
BACKEND = "aleator"


class AleatorLogitProcessor(CustomLogitProcessor):  # type: ignore[misc]  # SGLang is not typed here
    """Leaves only the chain's token in rows of requests that ask for a chain; see :func:`request_fields`.

    The server needs ``--enable-custom-logit-processor``, and Aleator.  A request's chain is kept with its
    parameters, and ends with the request.
    """

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Any] | None = None
    ) -> torch.Tensor:
        """Draw for each row of logits [rows, V], and set them to 0 at the token and -inf elsewhere.

        Rows without a chain do not change.  ``custom_param_list`` has the parameters of each row's request;
        ``__req__`` is the request.
        """
        asked = list(custom_param_list or ())
        if len({id(each) for each in asked}) < len(asked):
            log.error(
                "aleator does not work with SGLang's speculative decoding: SGLang chooses the tokens"
            )
            return logits
        rows, texts = [], []
        for row, params in enumerate(asked):
            text = _text(params)
            if text is not None:
                rows.append(row)
                texts.append(text)
        if not rows:
            return logits
        try:
            leave_drawn(texts, rows, logits)
        except LogitsError as error:
            log.error("a row cannot be drawn from, so SGLang chooses this step's tokens: %s", error)
        return logits


def _text(params: Any) -> Follower | None:
    """A request's chain, brought to its text; None if it wants none, or its prompt is not yet computed."""
    if not isinstance(params, MutableMapping) or params.get(NAME) is None:
        return None
    request = params["__req__"]
    if getattr(request, "inflight_middle_chunks", 0):
        return None
    text: Follower | None = params.get(STATE)
    output = list(request.output_ids)
    try:
        if text is None:
            chain = sampling_params(read_settings(params[NAME], NAME, NAME), "SGLang").chain()
            text = params[STATE] = Follower(chain, list(request.origin_input_ids))
        # With its overlapping schedule SGLang may not know the last token yet.
        if text.tokens[:-1] != output:
            text.follow(output)
    except AleatorError as error:
        log.error("a request's chain cannot go on, so SGLang chooses its tokens: %s", error)
        params[NAME] = None
        return None
    return text


def request_fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of a request to ``/generate`` besides its text; checked here, as SGLang does not.

    Args:
        settings: the sampling parameters of the chain, without those that need a tokenizer.

    Returns:
        ``custom_logit_processor``, and ``sampling_params`` to complete (``max_new_tokens`` and the like).

    Raises:
        ParameterError: a name or value is wrong, which the server could only log.
    """
    sampling_params(settings, "SGLang").chain()
    if not isinstance(settings, Mapping):
        raise ParameterError(
            "settings", "give a mapping of sampling parameters: they are sent as JSON"
        )
    return {
        "custom_logit_processor": AleatorLogitProcessor.to_str(),
        "sampling_params": {"temperature": 0, "custom_params": {NAME: json.dumps(dict(settings))}},
    }


class AleatorSampler(Sampler):  # type: ignore[misc]
    """Draws from SGLang's own parameters: temperature, top-k, top-p, min-p, in this order.

    For ``--sampling-backend aleator --enable-deterministic-inference``: a draw's key is the request's
    ``sampling_seed`` and its position in the text, so neither the batch nor the machine changes it.
    """

    def forward(self, logits_output: Any, sampling_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep the logits for :meth:`_sample_from_probs`, and do what SGLang does."""
        self._logits = logits_output.next_token_logits.clone()
        return super().forward(logits_output, sampling_info, *args, **kwargs)

    def _sample_from_probs(
        self, probs: torch.Tensor, sampling_info: Any, positions: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, None]:
        """Draw tokens, int64 [rows], from the logits instead of ``probs``."""
        seeds = sampling_info.sampling_seed
        if seeds is None:
            raise ParameterError(
                "sampling_seed",
                "--sampling-backend aleator needs --enable-deterministic-inference: without it requests "
                "have no seeds",
            )
        columns = (
            sampling_info.temperatures.reshape(-1), sampling_info.top_ks, sampling_info.top_ps,
            sampling_info.min_ps, seeds, positions,
        )  # fmt: skip
        logits = self._logits.detach().float().cpu()
        of_rows = zip(*map(torch.Tensor.tolist, columns), strict=True)
        drawn = []
        for row, (temperature, top_k, top_p, min_p, seed, at) in zip(logits, of_rows, strict=True):
            samplers = [Temperature(temperature), TopK(top_k), TopP(top_p), MinP(min_p), Dist()]
            chain = SamplerChain(samplers, seed=seed)
            chain.position = at
            drawn.append(chain.sample(row))
        return torch.tensor(drawn, device=probs.device), None


def register() -> None:
    """Register ``--sampling-backend aleator`` in SGLang; call this in the process that samples."""
    register_sampler_backend(BACKEND, AleatorSampler)
