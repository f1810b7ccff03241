"""What the decoder with the CPU's bits needs on a GPU: said before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aleator.cache.devices import Device
from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.models.native_decoder import why_not_native
from aleator.models.placement import EXACT, Place

if TYPE_CHECKING:
    from aleator.models.files.tensor_types import StoredTensor
    from aleator.models.weights import Weights

LEAST = (8, 0)
"""The lowest compute capability whose kernels are compiled."""
SCRATCH = 256 * 2**20
"""Bytes that a step takes besides weights and cache, at most."""

_BESIDES = ("conv1d", "shortconv.conv", "position_embd", "ssm_a")
"""Parts of names of tensors with two axes that are no matrices of products: kept in float32."""


def exact_form(weights: Weights, places: Sequence[Place]) -> str:
    """The form that computes ``dtype="exact"``: "triton" on a GPU, "native" on the CPU.

    Raises:
        ParameterError: the GPU is too old, or the CPU's form does not compute the model.
        ImportError: PyTorch or Triton is needed and not installed.
    """
    if places[0].dtype == EXACT:
        check_device(places[0].device)
        return "triton"
    if why := why_not_native(weights):
        raise ParameterError(
            "dtype", f"dtype='exact' does not compute {why} on the CPU: leave dtype out"
        )
    return "native"


def check_device(device: Device) -> None:
    """See that kernels can run on a device; errors are those of :func:`exact_form`."""
    torch = required_torch("dtype='exact' on a GPU")
    if find_spec("triton") is None:
        raise ImportError(
            'dtype="exact" on a GPU needs Triton: pip install "aleator[torch]", or give device="cpu"',
            name="triton",
        )
    if device.type != "cuda" or torch.version.hip is not None:
        return
    found = torch.cuda.get_device_capability(str(device))
    if tuple(found) < LEAST:
        raise ParameterError(
            "dtype",
            f"dtype='exact' needs a GPU of compute capability {_dotted(LEAST)} or above, and {device} has "
            f"{_dotted(found)}: give device='cpu', or dtype='float16'",
        )


def check_memory(weights: Weights, device: Device, cache_bytes: int) -> None:
    """See that a model fits into what is free on a device; ParameterError says how much it takes."""
    torch = required_torch("dtype='exact' on a GPU")
    free, _ = torch.cuda.mem_get_info(str(device))
    of_weights = exact_bytes(weights)
    needed = of_weights + cache_bytes + SCRATCH
    if needed > free:
        raise ParameterError(
            "device",
            f"{weights.path} takes {_mib(needed)} on {device}: weights {_mib(of_weights)}, cache "
            f"{_mib(cache_bytes)}, {_mib(SCRATCH)} for steps; {_mib(free)} are free: give a smaller n_ctx, a "
            "file with fewer bits, or device='cpu'",
        )


def exact_bytes(weights: Weights) -> int:
    """The bytes of a model's weights on the device, without reading them.

    Matrices are kept in about their bits, laid out anew; all else is in float32.
    """
    return sum(_bytes_of(name, weights.stored(name)) for name in weights.names())


def _bytes_of(name: str, stored: StoredTensor) -> int:
    *outer, n_in = stored.shape
    if not outer or not name.endswith(".weight") or any(part in name for part in _BESIDES):
        return 4 * stored.n_elements
    rows = stored.n_elements // n_in
    return rows * _row_bytes(stored.type, n_in, stored.data.size // rows)


@cache
def _row_bytes(type: str, n_in: int, n_bytes: int) -> int:
    """The bytes on the device of one row of a matrix, which takes ``n_bytes`` in the file."""
    torch = required_torch("dtype='exact' on a GPU")
    from aleator.models.kernels.planes import planes  # PyTorch and Triton are optional

    return planes(torch.zeros(n_bytes, dtype=torch.uint8), type, 1, n_in).nbytes


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.0f} MiB"
