"""Checks what the decoder with the CPU's bits needs on a GPU, before anything is loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aleator.cache.devices import Device
from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.models.files.tensor_types import SCALED_TYPES
from aleator.models.native_decoder import why_not_native
from aleator.models.placement import EXACT, Place, tensor_places

if TYPE_CHECKING:
    from aleator.models.config import ModelConfig
    from aleator.models.files.tensor_types import StoredTensor
    from aleator.models.weights import Weights

LEAST = (8, 0)
"""The lowest compute capability that kernels are compiled for."""
LOGITS = 64
"""The most tokens of a captured step, whose logits stay in memory."""
_EXPERTS = r"ffn_\w+(_exps|\.\d+)\.weight$"
_BESIDES = ("conv1d", "shortconv.conv", "position_embd", "ssm_a")
"""Parts of names of two-axis tensors that are not used in matrix products: kept in float32."""


def exact_form(weights: Weights, places: Sequence[Place]) -> str:
    """The form that computes ``dtype="exact"``: "triton" with layers on a GPU, "native" on the CPU alone.

    Raises:
        ParameterError: the GPU is too old, native code does not compute the model, or its layers cannot be
            divided between CPU and GPU.
        ImportError: PyTorch or Triton is needed and not installed.
    """
    first, n = sum(place.dtype != EXACT for place in places), len(places)
    if first < n:
        check_device(places[-1].device)
    if first and (why := why_not_native(weights)):
        other = "give dtype='bfloat16'" if first < n else "leave dtype out"
        raise ParameterError(f"dtype='exact' does not compute {why} on the CPU: {other}")
    if 0 < first < n:
        _check_division(weights.config, first)
    return "triton" if first < n else "native"


def _check_division(config: ModelConfig, first: int) -> None:
    """Check that the layers from ``first`` on need only the output of the layers before."""
    n = config.n_layers
    shared = [config.keys_of(layer) for layer in range(first, n) if config.attends(layer)]
    if config.per_layer is not None:
        why, most = "every layer takes the tokens' embeddings", n
    elif min(shared, default=first) < first:
        why, most = f"later layers read the keys of layer {min(shared)}", n - min(shared)
    else:
        return
    few = "" if most == n else f"{most} or more, "
    raise ParameterError(
        f"n_gpu_layers={n - first} with dtype='exact', the default on a GPU: in {config.architecture} {why}: "
        f"give {few}{n} or 0, or dtype='bfloat16'"
    )


def check_device(device: Device) -> None:
    """Check that kernels can run on a device; errors are those of :func:`exact_form`."""
    torch = required_torch("dtype='exact' on a GPU")
    if find_spec("triton") is None:
        raise ImportError(
            'dtype="exact", the default on a GPU, needs Triton: pip install "aleator[torch]", or give '
            'device="cpu"',
            name="triton",
        )
    if device.type != "cuda" or torch.version.hip is not None:
        return
    found = torch.cuda.get_device_capability(str(device))
    if tuple(found) < LEAST:
        raise ParameterError(
            f"dtype='exact' needs a GPU of compute capability {_dotted(LEAST)} or above, and {device} has "
            f"{_dotted(found)}: give device='cpu', or dtype='float16' for PyTorch's operations"
        )


def check_memory(
    weights: Weights, places: Sequence[Place], cache_bytes: int, n_ubatch: int, n_ctx: int
) -> None:
    """Check that layers fit into the GPU's free memory; ParameterError says how much they take.

    ``n_ubatch`` are the most tokens of a step, ``n_ctx`` the most cells that one of them sees.
    """
    torch = required_torch("dtype='exact' on a GPU")
    device = places[-1].device
    free, _ = torch.cuda.mem_get_info(str(device))
    of_weights = exact_bytes(weights, places)
    of_steps = step_bytes(weights, places, n_ubatch, n_ctx)
    needed = of_weights + cache_bytes + of_steps
    if needed > free:
        raise ParameterError(
            "device",
            f"{weights.path} takes {_mib(needed)} on {device}: weights {_mib(of_weights)}, cache "
            f"{_mib(cache_bytes)}, steps of n_ubatch={n_ubatch} tokens {_mib(of_steps)}; {_mib(free)} are "
            "free: give a smaller n_ctx, n_ubatch or n_gpu_layers, a file with fewer bits, or device='cpu'",
        )


def step_bytes(weights: Weights, places: Sequence[Place], n_ubatch: int, n_ctx: int) -> int:
    """The most bytes that steps of ``n_ubatch`` tokens take besides weights and cache, by count.

    A token sees at most ``n_ctx`` cells.  Counted are the outputs of all matrices of the widest layer, half of
    them again for what is made of them, the layer's inputs, scores of attention, the highest of them, its
    queries, lists of the cells that are seen, and sums of blocks, or for a few tokens the memory of a product's
    programs: all of it twice, as captured steps and others have memory of their own; and the logits of captured
    steps.
    """
    # PyTorch and Triton are optional
    from aleator.models.kernels.attention import HIGHEST, QUERIES, ROOM
    from aleator.models.kernels.fused import PROGRAMS
    from aleator.models.kernels.product import FEW, SUMS, TILE

    config = weights.config
    experts, widths, n_in = config.experts, [0.0] * config.n_layers, 0
    for name, place in tensor_places(weights, places):
        shape = weights.stored(name).shape
        if place.dtype != EXACT or not name.startswith("blk.") or len(shape) < 2:
            continue
        wide = math.prod(shape[:-1]) * 1.0
        if experts is not None and re.search(_EXPERTS, name):
            wide *= experts.n_used / experts.n_experts
        widths[int(name.split(".")[1])] += wide
        n_in = max(n_in, shape[-1])
    inputs, sums = 4 * config.n_embd, 0
    if experts is not None:
        inputs, sums = inputs + experts.n_used * config.n_embd, SUMS
    if config.per_layer is not None:
        inputs += 2 * config.n_layers * config.per_layer.width
    of_token = inputs + 1.5 * max(widths)
    logits = 3 * min(n_ubatch, LOGITS) * config.n_vocab
    exact = (layer for layer, place in enumerate(places) if place.dtype == EXACT)
    layers = [layer for layer in exact if config.attends(layer)]
    heads = max((_score_heads(config, each) for each in layers), default=0)
    dim = max((config.stored_head_dims(each)[0] for each in layers), default=0)
    # Two kinds of layers have lists; a captured step of each power of two has its own.
    scores, lists = max(ROOM, heads * _power(n_ctx)), 2 * 2 * _power(n_ctx)
    scores += scores // HIGHEST + PROGRAMS * QUERIES * dim
    # Each program of a product with few rows has them rounded, with sums of blocks, or normalised.
    few = PROGRAMS * min(_power(n_ubatch), TILE) * n_in + min(n_ubatch, FEW) * of_token
    return int(4 * (2 * (max(scores + n_ubatch * of_token, few) + lists + sums) + logits))


def _score_heads(config: ModelConfig, layer: int) -> int:
    """Rows of scores that attention has for a token: those of a key-value head are a power of two."""
    compressed = config.latent is not None and config.latent.compressed
    kv_heads = 1 if compressed else config.n_kv_heads[layer]
    return kv_heads * _power(config.n_heads[layer] // kv_heads)


def _power(n: int) -> int:
    """The lowest power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class Stored:
    """The tensors of one type."""

    tensors: int  # how many there are
    in_file: int  # their bytes in the file
    on_device: int  # their bytes on the device


def exact_types(weights: Weights, places: Sequence[Place]) -> dict[str, Stored]:
    """The weights at places of type "exact" by their type in the file, without reading them.

    Matrices keep about their stored size in another layout; everything else, and FP8 and NF4, is float32.
    """
    made: dict[str, Stored] = {}
    for name, place in tensor_places(weights, places):
        if place.dtype == EXACT:
            stored = weights.stored(name)
            of = made.get(stored.type, Stored(0, 0, 0))
            made[stored.type] = Stored(
                of.tensors + 1,
                of.in_file + stored.data.nbytes,
                of.on_device + _bytes_of(name, stored),
            )
    return made


def exact_bytes(weights: Weights, places: Sequence[Place]) -> int:
    """Bytes of the weights at places of type "exact"."""
    return sum(each.on_device for each in exact_types(weights, places).values())


def _bytes_of(name: str, stored: StoredTensor) -> int:
    *outer, n_in = stored.shape
    if not outer or not name.endswith(".weight") or any(part in name for part in _BESIDES):
        return 4 * stored.n_elements
    rows = stored.n_elements // n_in
    if stored.type in SCALED_TYPES:  # widened there
        return rows * _row_bytes("F32", n_in, 4 * n_in)
    return rows * _row_bytes(stored.type, n_in, stored.data.size // rows)


@cache
def _row_bytes(type: str, n_in: int, n_bytes: int) -> int:
    """Bytes on the device of one row of a matrix, which takes ``n_bytes`` in the file."""
    torch = required_torch("dtype='exact' on a GPU")
    from aleator.models.kernels.planes import planes  # PyTorch and Triton are optional

    return planes(torch.zeros(n_bytes, dtype=torch.uint8), type, 1, n_in).nbytes


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.0f} MiB"
