"""Decides where the tokens of a run are sampled: on the host, or on the device that has the logits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aleator.cache.devices import Device
from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.generate.request_state import RequestState
from aleator.generate.token_sampler import HostTokenSampler, TokenSampler

log = logging.getLogger(__name__)


def why_not_on_device(state: RequestState) -> str:
    """Why a request's tokens must be sampled on the host; "" if they need not."""
    chain, request = state.chain, state.request
    if chain.numerics != "portable":
        return "numerics='llama.cpp' are made on the host only"
    if state.on_logits is not None:
        return "on_logits looks at the host's chain"
    if request.options.kept:
        return (
            "kept is reported by the host's chains (a DeviceChain of your own has it in its report)"
        )
    if state.budget is not None or state.banned is not None or state.guidance is not None:
        return "reasoning_budget, banned_strings and guidance_scale are the host's"
    if request.options.context_shift and request.options.max_tokens is None:
        return (
            "without max_tokens and with context_shift there is no end to what a device must hold"
        )
    if chain.history != list(request.tokens):
        return "its chain has accepted another text than the prompt"
    return ""


def make_token_sampler(
    states: Sequence[RequestState], where: str, device: Device, n_vocab: int, n_ctx: int
) -> TokenSampler:
    """Make the sampler of some requests; the log says which samplers run where, and why.

    Args:
        states: the requests.
        where: "host"; "device": by PyTorch's operations, also on the CPU; "auto": on the device if that is not
            the CPU and all requests allow it, else on the host.
        device: the device that has the logits.
        n_vocab: tokens of a row of logits.
        n_ctx: positions of a sequence.

    Raises:
        ParameterError: "device" where the requests do not allow it.
        ImportError: it needs PyTorch, which is not installed.

    """
    if where == "host":
        why = "sampling_device='host'"
    elif where == "auto" and device.type == "cpu":
        why = "the model is on the CPU"
    else:
        why = next((why for state in states if (why := why_not_on_device(state))), "")
    if not why:
        required_torch(f"sampling_device={where!r}")
        from aleator.generate.device_token_sampler import DeviceTokenSampler  # PyTorch is optional

        try:
            return DeviceTokenSampler(states, device, n_vocab, n_ctx)
        except ParameterError as error:
            why = str(error)
    if where == "device":
        raise ParameterError(
            "sampling_device",
            f"sampling_device='device' cannot be here: {why}; give 'auto' or 'host'",
        )
    log.info("samplers: all run on the host, because %s", why)
    return HostTokenSampler()
