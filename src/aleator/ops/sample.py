"""Top-k, top-p, min-p and a draw over a batch of rows in one call: docs/operator.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aleator.ops import arguments, host


class Sampled(NamedTuple):
    """What the operator returns; what was not asked for is ``None``.

    Arrays or tensors, like the logits: indices int64 [B], logits float32 [B, V], ids int64 [B, V],
    probabilities float32 [B, V].
    """

    logits_select_idx: Any
    logits_top_kp_select: Any
    logits_idx: Any
    logits_sort_masked: Any


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

    The Ascend operator TopKTopPSampleV2, on NumPy arrays, CPU tensors and CUDA tensors: docs/operator.md
    has its scenarios, and what is kept, to the last bit.

    Parameters
    ----------
    logits
        ``[B, V]``, float16, bfloat16 or float32, ``B >= 1``, ``1 <= V <= 2**20``.  With contiguous rows
        it is not copied.
    top_k
        int32, ``[B]`` or ``[B, 1]``.  A row with ``1 <= k <= min(V, ks_max rounded up to a multiple of
        8)`` keeps exactly k tokens; any other k skips top-k.
    top_p
        float16, bfloat16 or float32, ``[B]`` or ``[B, 1]``.  In (0, 1): the shortest prefix that reaches p
        stays; 1 or more skips; 0 or less keeps the most likely token alone.
    q
        float32 ``[B, V]`` or ``None``: the token maximises ``prob / (|q| + eps)``, where column j of
        ``q`` belongs to position j of the row's list, not to token j.
    min_p
        Like ``top_p``, or ``None``.  In (0, 1): tokens at least that fraction as likely as the most
        likely stay; 0 or less skips; 1 or more keeps one token.
    eps
        At least 0; rounded to float32.
    is_need_logits
        Return ``logits_top_kp_select``: the logits of the tokens kept, -inf (0 for probabilities) elsewhere.
    top_k_guess
        Where the search for top-p begins if top-k is skipped; it changes no result.  0 or less: none.
    ks_max
        1 to 1,024.
    input_is_logits
        False: ``logits`` holds probabilities, in [0, 1] and not normalised again.
    is_need_sample_result
        Return ``logits_idx`` and ``logits_sort_masked`` (ids and probabilities of the tokens kept, then
        zeros) in place of ``logits_select_idx``; ``q`` must be ``None``.

    Raises
    ------
    ParameterError
        Names the argument, what was given, and what is allowed.
    LogitsError
        On the CPU, a row without anything to select, or a value that is no probability; the message names
        the row.  On a device such a row, and one with a NaN among its parameters, selects -1.

    """
    return _sample(
        logits, top_k, top_p, q, min_p, None, None, eps=eps, is_need_logits=is_need_logits,
        top_k_guess=top_k_guess, limit=arguments.aligned(ks_max), max_vocab=arguments.MAX_VOCAB,
        input_is_logits=input_is_logits, is_need_sample_result=is_need_sample_result,
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
        logits, top_k, top_p, q, min_p, None, None, eps=eps, is_need_logits=is_need_logits,
        top_k_guess=top_k_guess, limit=arguments.MAX_VOCAB_WIDE,
        max_vocab=arguments.MAX_VOCAB_WIDE, input_is_logits=input_is_logits,
        is_need_sample_result=is_need_sample_result,
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
    """Filter as :func:`top_k_top_p_sample_wide` does and draw by keyed random numbers; needs no ``q``.

    A row's token is the one that ``SamplerChain([TopK, TopP, MinP, Dist(seed)])`` draws at that position,
    whatever stands in the other rows (docs/numerics.md, "Random numbers").

    Parameters
    ----------
    logits, top_k, top_p, min_p, input_is_logits
        As in :func:`top_k_top_p_sample_wide`.
    seeds, positions
        int64, ``[B]`` or ``[B, 1]``; their 64 bits count, so every value is allowed.

    Returns
    -------
    Tokens, int64 ``[B]``.

    """
    return _sample(
        logits, top_k, top_p, None, min_p, seeds, positions, eps=0.0, is_need_logits=False,
        top_k_guess=32, limit=arguments.MAX_VOCAB_WIDE, max_vocab=arguments.MAX_VOCAB_WIDE,
        input_is_logits=input_is_logits, is_need_sample_result=False,
    ).logits_select_idx  # fmt: skip


def paths(device: Any = "cpu", *, reset: bool = False) -> dict[str, int]:
    """How many rows took which path on a device since the start or the last reset.

    On the CPU ``argmax`` looked at maxima only, ``top_k`` and ``min_p`` at a few tiles, ``guess`` found the
    nucleus within the first ``top_k_guess`` tiles and ``nucleus`` further down, ``all`` wrote or weighed
    the whole row.  On a CUDA device ``window`` is a nucleus found within the largest tiles, ``bisection`` the
    fallback for flat rows and large sets, and ``refused`` counts rows that selected -1.
    """
    if str(device) != "cpu":
        from aleator.kernels.device import top_k_top_p_sample as kernels

        return kernels.paths(device, reset)
    from aleator.kernels import host as native

    return dict(zip(host.PATHS, native.top_k_top_p_sample_paths(reset), strict=True))


def _sample(
    logits: Any,
    top_k: Any,
    top_p: Any,
    q: Any,
    min_p: Any,
    seeds: Any,
    positions: Any,
    *,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
    limit: int,
    max_vocab: int,
    input_is_logits: bool,
    is_need_sample_result: bool,
) -> Sampled:
    arguments.check_options(
        eps, top_k_guess, is_need_logits=is_need_logits, input_is_logits=input_is_logits,
        is_need_sample_result=is_need_sample_result,
    )  # fmt: skip
    if not isinstance(logits, np.ndarray) and type(logits).__module__.startswith("torch"):
        from aleator.ops import torch_op

        outputs = torch_op.sample(
            logits, top_k, top_p, q, min_p, seeds, positions, float(eps), is_need_logits,
            int(top_k_guess), limit, max_vocab, input_is_logits, is_need_sample_result,
        )  # fmt: skip
    else:
        outputs = _sample_arrays(
            logits, top_k, top_p, q, min_p, seeds, positions, float(eps), is_need_logits,
            int(top_k_guess), limit, max_vocab, input_is_logits, is_need_sample_result,
        )  # fmt: skip
    return Sampled(
        None if is_need_sample_result else outputs[0],
        outputs[1] if is_need_logits else None,
        outputs[2] if is_need_sample_result else None,
        outputs[3] if is_need_sample_result else None,
    )


def _sample_arrays(
    logits: Any,
    top_k: Any,
    top_p: Any,
    q: Any,
    min_p: Any,
    seeds: Any,
    positions: Any,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
    limit: int,
    max_vocab: int,
    input_is_logits: bool,
    is_need_sample_result: bool,
) -> tuple[Any, Any, Any, Any]:
    arguments.check_tensors(
        logits, top_k, top_p, q, min_p, seeds, positions, max_vocab, is_need_sample_result
    )
    shape = logits.shape
    listed = is_need_sample_result
    outputs = (
        None if listed else np.empty(shape[0], np.int64),
        np.empty(shape, np.float32) if is_need_logits else None,
        np.empty(shape, np.int64) if listed else None,
        np.empty(shape, np.float32) if listed else None,
    )
    host.run(
        _rows(logits), top_k, top_p, None if q is None else _rows(q), min_p, seeds, positions, eps,
        top_k_guess, limit, input_is_logits, *outputs,
    )  # fmt: skip
    return outputs


def _rows(array: Any) -> Any:
    """The array with contiguous rows and native byte order; copied only if it has others."""
    whole = array.strides[1] == array.itemsize and array.strides[0] % array.itemsize == 0
    return (
        array
        if whole and array.dtype.isnative
        else np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    )
