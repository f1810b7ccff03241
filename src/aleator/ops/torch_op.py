"""The operator as a torch custom op, ``torch.ops.aleator.top_k_top_p_sample``.

It always returns four tensors, those not asked for with no elements, because an op cannot return ``None``; so
``torch.compile`` and ``torch.export`` take it whole.  The random numbers are arguments, so it is a
function of its inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aleator.core.errors import ParameterError
from aleator.ops import arguments, host

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _outputs(logits: Tensor, is_need_logits: bool, is_need_sample_result: bool) -> Four:
    rows, n_vocab = logits.shape
    shape = (rows, n_vocab)
    none, listed = (0,), is_need_sample_result
    return (
        logits.new_empty(none if listed else (rows,), dtype=torch.int64),
        logits.new_empty(shape if is_need_logits else none, dtype=torch.float32),
        logits.new_empty(shape if listed else none, dtype=torch.int64),
        logits.new_empty(shape if listed else none, dtype=torch.float32),
    )


@torch.library.custom_op("aleator::top_k_top_p_sample", mutates_args=(), device_types="cpu")
def top_k_top_p_sample(
    logits: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    q: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
    limit: int,
    max_vocab: int,
    input_is_logits: bool,
    is_need_sample_result: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """CPU tensors: the native kernel."""
    arguments.check_tensors(
        logits, top_k, top_p, q, min_p, seeds, positions, max_vocab, is_need_sample_result
    )
    outputs = _outputs(logits, is_need_logits, is_need_sample_result)
    logits, q = _rows(logits), None if q is None else _rows(q)
    host.run(
        logits.detach(), top_k, top_p.detach(), q, None if min_p is None else min_p.detach(), seeds,
        positions, eps, top_k_guess, limit, input_is_logits,
        *(None if o.numel() == 0 else o for o in outputs), n_threads=torch.get_num_threads(),
    )  # fmt: skip
    return outputs


@top_k_top_p_sample.register_kernel("cuda")
def _(
    logits: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    q: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
    limit: int,
    max_vocab: int,
    input_is_logits: bool,
    is_need_sample_result: bool,
) -> Four:
    """CUDA tensors: the Triton kernels."""
    arguments.check_tensors(
        logits, top_k, top_p, q, min_p, seeds, positions, max_vocab, is_need_sample_result
    )
    try:
        from aleator.kernels.device import top_k_top_p_sample as device
    except ImportError:
        raise ParameterError(
            "logits", f"logits are on {logits.device}, which needs Triton: pip install triton, or move "
            "logits to the CPU",
        ) from None  # fmt: skip
    outputs = _outputs(logits, is_need_logits, is_need_sample_result)
    with torch.cuda.device(logits.device):
        device.run(
            _rows(logits), top_k, top_p, None if q is None else _rows(q), min_p, seeds, positions, eps,
            top_k_guess, limit, input_is_logits, *(None if o.numel() == 0 else o for o in outputs),
        )  # fmt: skip
    return outputs


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(1) == 1 or tensor.shape[1] == 1 else tensor.contiguous()


@top_k_top_p_sample.register_fake
def _(
    logits: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    q: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
    limit: int,
    max_vocab: int,
    input_is_logits: bool,
    is_need_sample_result: bool,
) -> Four:
    arguments.check_tensors(
        logits, top_k, top_p, q, min_p, seeds, positions, max_vocab, is_need_sample_result
    )
    return _outputs(logits, is_need_logits, is_need_sample_result)


def sample(
    logits: Tensor,
    top_k: Any,
    top_p: Any,
    q: Any,
    min_p: Any,
    seeds: Any,
    positions: Any,
    *rest: Any,
) -> Four:
    """Call the op; what is no tensor, and a device that has no kernel, is refused by name."""
    if logits.device.type not in ("cpu", "cuda", "meta"):
        raise ParameterError(
            "logits", f"logits are on {logits.device}: move them to the CPU or a CUDA device"
        )
    named = {
        "top_k": top_k, "top_p": top_p, "q": q, "min_p": min_p, "seeds": seeds, "positions": positions
    }  # fmt: skip
    for name, given in named.items():
        if not isinstance(given, Tensor) and (given is not None or name in ("top_k", "top_p")):
            raise arguments.refuse(
                name, f"is a {type(given).__name__}", "give a tensor, as logits is one"
            )
    result: Four = top_k_top_p_sample(logits, top_k, top_p, q, min_p, seeds, positions, *rest)
    return result
