"""The tensors of a layer with a gated delta net as native code takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aleator import _native
from aleator.models.layers.native_feed_forward import Gated, gated_matrices

if TYPE_CHECKING:
    from aleator.models.layers.parts import DeltaNet
    from aleator.models.layers.stored import Floats, StoredWeight

Rows = npt.NDArray[np.float32]
DeltaNetArguments = tuple[
    _native.StoredMatrix,
    _native.StoredMatrix,
    _native.StoredMatrix,
    _native.StoredMatrix,
    _native.StoredMatrix,
    Rows,
    Rows,
    Rows,
    Rows,
    Rows,
    Rows,
    Rows,
    int,
    bool,
    float,
    tuple[Gated, Gated, Gated, Rows],
]


def delta_net_arguments(
    layer: DeltaNet[list[StoredWeight], Floats], conv: Rows, state: Rows
) -> DeltaNetArguments:
    """The arguments of ``_native.DecoderStep.add_delta_layer``.

    Args:
        layer: the tensors.
        conv: the cache's rows of the convolution, float32 [rows, channels, width - 1].
        state: the cache's rows of states, float32 [rows, heads * Dv, D].
    """
    (qkv,), (gate,), (output,) = layer.qkv, layer.gate, layer.output
    (beta,), (decay,) = layer.beta, layer.decay
    return (
        qkv.matrix,
        gate.matrix,
        beta.matrix,
        decay.matrix,
        output.matrix,
        layer.norm,
        np.ascontiguousarray(layer.conv_weight.T),
        layer.a,
        layer.time_bias,
        layer.head_norm,
        conv,
        state,
        layer.net.n_key_heads,
        layer.net.tiled,
        layer.net.unit_eps,
        (*gated_matrices(layer.ffn), layer.ffn_norm),
    )
