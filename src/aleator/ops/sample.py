"""Top-k, top-p, min-p and a draw over a batch of rows in one call: docs/operator.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from aleator.core import host as native
from aleator.core.contract import MAX_VOCAB
from aleator.ops import arguments, host
from aleator.ops.arguments import Call, Sampled


def top_k_top_p_sample(
    logits: Any,
    top_k: Any,
    top_p: Any,
    q: Any = None,
    min_p: Any = None,
    *,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> Sampled:
    """Filter each row by top-k, then top-p, then min-p, and select a token.

    This is the Ascend operator TopKTopPSampleV2 on NumPy arrays, CPU tensors and CUDA tensors.
    docs/operator.md has its scenarios, and says exactly what is kept.

    Args:
        logits: ``[B, V]``, float16, bfloat16 or float32, ``B >= 1``, ``1 <= V <= 2**20``; not copied if rows
            are contiguous.
        top_k: int32, ``[B]`` or ``[B, 1]``.  A row with ``1 <= k <= min(V, ks_max rounded up to a multiple of
            8)`` keeps exactly k tokens; any other k skips top-k.
        top_p: float16, bfloat16 or float32, ``[B]`` or ``[B, 1]``.  In (0, 1): the shortest prefix that
            reaches p stays; 1 or more skips; 0 or less keeps the most likely token alone.
        q: float32 ``[B, V]`` or ``None``: the token maximises ``prob / (|q| + eps)``, where column j of
            ``q`` belongs to position j of the row's list, not to token j.
        min_p: Like ``top_p``, or ``None``.  In (0, 1): tokens at least that fraction as likely as the most
            likely stay; 0 or less skips; 1 or more keeps one token.
        eps: At least 0; rounded to float32.
        is_need_logits: Return ``logits_top_kp_select``: the logits of the kept tokens, -inf
            (0 for probabilities) elsewhere.
        top_k_guess: Where the search for top-p begins if top-k is skipped; it changes no result.
            0 or less gives no guess.
        ks_max: 1 to 1,024.
        input_is_logits: False if ``logits`` holds probabilities, in [0, 1] and not normalised again.
        is_need_sample_result: Return ``logits_idx`` and ``logits_sort_masked`` (ids and probabilities of the
            kept tokens, then zeros) instead of ``logits_select_idx``; ``q`` must be ``None``.

    Raises:
        ParameterError: Names the argument, what was given, and what is allowed.
        LogitsError: On the CPU, a row has nothing to select, or a value that is not a probability; names the
            row.  On a device such a row, and one with a NaN among its parameters, selects -1.
    """
    return _sample(
        Call(
            logits, top_k, top_p, q, min_p, None, None, eps, is_need_logits, top_k_guess,
            arguments.aligned(ks_max), MAX_VOCAB, input_is_logits, is_need_sample_result,
        )
    )  # fmt: skip


def top_k_top_p_sample_wide(
    logits: Any,
    top_k: Any,
    top_p: Any,
    q: Any = None,
    min_p: Any = None,
    *,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> Sampled:
    """:func:`top_k_top_p_sample` for vocabularies up to ``2**22`` and any k up to V."""
    return _sample(
        Call(
            logits, top_k, top_p, q, min_p, eps=eps, is_need_logits=is_need_logits, top_k_guess=top_k_guess,
            input_is_logits=input_is_logits, is_need_sample_result=is_need_sample_result,
        )
    )  # fmt: skip


def top_k_top_p_draw(
    logits: Any,
    top_k: Any,
    top_p: Any,
    min_p: Any = None,
    *,
    seeds: Any,
    positions: Any,
    input_is_logits: bool = True,
) -> Any:
    """Filter as :func:`top_k_top_p_sample_wide` and draw by keyed random numbers, without ``q``.

    A row's token is the one that ``SamplerChain([TopK, TopP, MinP, Dist(seed)])`` draws at that position,
    whatever the other rows hold (docs/numerics.md, "Random numbers").

    Args:
        logits: As in :func:`top_k_top_p_sample_wide`.
        top_k: As there.
        top_p: As there.
        min_p: As there.
        input_is_logits: As there.
        seeds: int64, ``[B]`` or ``[B, 1]``; all 64 bits count, so every value is allowed.
        positions: int64, ``[B]`` or ``[B, 1]``; every value is allowed.

    Returns:
        Tokens, int64 ``[B]``.
    """
    call = Call(
        logits, top_k, top_p, None, min_p, seeds, positions, input_is_logits=input_is_logits
    )
    return _sample(call).logits_select_idx


def paths(device: Any = "cpu", *, reset: bool = False) -> dict[str, int]:
    """Count the rows that took each path on a device since the start or the last reset.

    On the CPU ``argmax`` read only maxima, ``top_k`` and ``min_p`` a few tiles, ``nucleus`` weighed the row for
    top-p without top-k, ``all`` wrote or weighed the whole row.  On a CUDA device ``window`` is a nucleus found
    within the largest tiles, ``bisection`` the fallback for flat rows and large sets, and ``refused`` counts
    rows that selected -1.
    """
    if str(device) != "cpu":
        from aleator.device.backends.triton import top_k_top_p_sample as kernels

        return kernels.paths(device, reset)
    return dict(zip(host.PATHS, native.top_k_top_p_sample_paths(reset), strict=True))


def _sample(call: Call) -> Sampled:
    arguments.check_options(
        call.eps, call.top_k_guess, is_need_logits=call.is_need_logits,
        input_is_logits=call.input_is_logits, is_need_sample_result=call.is_need_sample_result,
    )  # fmt: skip
    call = call._replace(eps=float(call.eps), top_k_guess=int(call.top_k_guess))
    if not isinstance(call.logits, np.ndarray) and type(call.logits).__module__.startswith("torch"):
        from aleator.ops import torch_op

        return torch_op.sample(call)
    arguments.check_tensors(call)
    outputs = Sampled(
        *(None if shape is None else np.empty(shape, dtype) for shape, dtype in call.outputs())
    )
    q = None if call.q is None else _rows(call.q)
    host.run(call._replace(logits=_rows(call.logits), q=q), outputs)
    return outputs


def _rows(array: Any) -> Any:
    """Return the array with contiguous rows and native byte order; copy only if necessary."""
    whole = array.strides[1] == array.itemsize and array.strides[0] % array.itemsize == 0
    if whole and array.dtype.isnative:
        return array
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))
