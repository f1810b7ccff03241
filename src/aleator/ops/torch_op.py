"""The operator as a torch custom op, ``torch.ops.aleator.top_k_top_p_sample``.

It always returns four tensors, those not asked for with no elements, because an op cannot return ``None``; so
``torch.compile`` and ``torch.export`` take it whole.  The random numbers are arguments, so it is a
function of its inputs.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from aleator.core.errors import ParameterError
from aleator.ops import arguments, host
from aleator.ops.arguments import Call, Sampled

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _made(call: Call) -> Four:
    """The outputs, those that were not asked for with no elements."""
    made = tuple(
        call.logits.new_empty((0,) if shape is None else shape, dtype=getattr(torch, dtype))
        for shape, dtype in call.outputs()
    )
    return cast(Four, made)


def _checked(call: Call) -> tuple[Call, Four]:
    """The call as the kernels take it, and its outputs."""
    arguments.check_tensors(call)
    q = None if call.q is None else _rows(call.q)
    return call._replace(logits=_rows(call.logits), q=q), _made(call)


def _asked(outputs: Four) -> list[Tensor | None]:
    return [None if o.numel() == 0 else o for o in outputs]


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(1) == 1 or tensor.shape[1] == 1 else tensor.contiguous()


SCHEMA = (
    "(Tensor logits, Tensor top_k, Tensor top_p, Tensor? q, Tensor? min_p, Tensor? seeds, Tensor? positions, "
    "float eps, bool is_need_logits, SymInt top_k_guess, SymInt limit, SymInt max_vocab, "
    "bool input_is_logits, bool is_need_sample_result) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op(
    "aleator::top_k_top_p_sample", mutates_args=(), device_types="cpu", schema=SCHEMA
)
def top_k_top_p_sample(*given: Any) -> Four:
    """CPU tensors: the native kernel."""
    call, outputs = _checked(Call(*given))
    plain: list[Any] = [given.detach() if isinstance(given, Tensor) else given for given in call]
    host.run(Call(*plain), _asked(outputs), torch.get_num_threads())
    return outputs


@top_k_top_p_sample.register_kernel("cuda")
def _(*given: Any) -> Four:
    """CUDA tensors: the Triton kernels."""
    call, outputs = _checked(Call(*given))
    try:
        from aleator.device.backends.triton import top_k_top_p_sample as device
    except ImportError:
        raise ParameterError(
            f"logits are on {call.logits.device}, which needs Triton: pip install triton, or move "
            "logits to the CPU"
        ) from None  # fmt: skip
    with torch.cuda.device(call.logits.device):
        device.run(call, _asked(outputs))
    return outputs


@top_k_top_p_sample.register_fake
def _(*given: Any) -> Four:
    call = Call(*given)
    arguments.check_tensors(call)
    return _made(call)


def sample(call: Call) -> Sampled:
    """Call the op; what is no tensor, and a device that has no kernel, is refused by name."""
    device = call.logits.device
    if device.type not in ("cpu", "cuda", "meta"):
        raise ParameterError(f"logits are on {device}: move them to the CPU or a CUDA device")
    for name in ("top_k", "top_p", "q", "min_p", "seeds", "positions"):
        given = getattr(call, name)
        if not isinstance(given, Tensor) and (given is not None or name in ("top_k", "top_p")):
            kind = f"is a {type(given).__name__}"
            raise arguments.refuse(name, kind, "give a tensor, as logits is one")
    outputs = zip(top_k_top_p_sample(*call), call.outputs(), strict=True)
    return Sampled(*(None if shape is None else output for output, (shape, _) in outputs))
