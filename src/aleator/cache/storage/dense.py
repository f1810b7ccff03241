"""Keys or values of every layer as plain tensors, one row per cell."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aleator.core.errors import ParameterError

TYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


def dense_type(parameter: str, name: str) -> torch.dtype:
    """The torch type that ``name`` ("f32", "f16", "bf16") stands for."""
    if name not in TYPES:
        later = " (quantised caches come in a later release)" if name in ("q8_0", "q4_0") else ""
        raise ParameterError(
            parameter, f"{parameter} must be one of {', '.join(TYPES)}, not {name!r}{later}"
        )
    return TYPES[name]


def dense_bytes(widths: Sequence[int], n_cells: int, type_name: str) -> int:
    """Bytes that ``n_cells`` rows of these widths (elements per cell and layer) take."""
    return sum(widths) * n_cells * dense_type("type", type_name).itemsize


class DenseStorage:
    """One side (K or V): per layer a tensor [n_cells, n_kv_heads, head_dim].

    Allocated once, zeroed, never moved.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        n_cells: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.dtype = dtype
        self.layers = [
            torch.zeros(n_cells, heads, dim, dtype=dtype, device=device) for heads, dim in shapes
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(t.nbytes for t in self.layers)

    def zero(self) -> None:
        """Set every row to 0."""
        for t in self.layers:
            t.zero_()
