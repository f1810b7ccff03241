"""The tensors of a layer with a state space as native code takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aleator import _native
from aleator.models.layers.native_feed_forward import Gated, gated_matrices

if TYPE_CHECKING:
    from aleator.models.layers.parts import StateSpace
    from aleator.models.layers.stored import Floats, StoredWeight

Rows = npt.NDArray[np.float32]
SpaceArguments = tuple[
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
    tuple[Rows, Rows, Rows] | None,
    tuple[Gated, Gated, Gated, Rows] | None,
]


def same_rows(known: tuple[Rows, Rows] | None, convs: list[Rows], states: list[Rows]) -> bool:
    """Whether a step was made for these rows of the cache, which gets new ones where it needs more."""
    return known is not None and known[0] is convs[0] and known[1] is states[0]


def space_arguments(
    layer: StateSpace[list[StoredWeight], Floats], conv: Rows, state: Rows
) -> SpaceArguments:
    """The arguments of ``_native.DecoderStep.add_recurrent_layer``.

    Args:
        layer: the tensors.
        conv: the cache's rows of the convolution, float32 [rows, channels, width - 1].
        state: the cache's rows of states, float32 [rows, channels, N].
    """
    (project,), (select,) = layer.project, layer.select
    (time_step,), (output,) = layer.time_step, layer.output
    norms = None
    if layer.norms is not None:
        step_norm, b_norm, c_norm = layer.norms
        norms = step_norm, b_norm, c_norm
    feed_forward = None
    if layer.ffn is not None and layer.ffn_norm is not None:
        feed_forward = *gated_matrices(layer.ffn), layer.ffn_norm
    return (
        project.matrix,
        select.matrix,
        time_step.matrix,
        output.matrix,
        layer.norm,
        np.ascontiguousarray(layer.conv_weight.T),
        np.zeros_like(layer.d) if layer.conv_bias is None else layer.conv_bias,
        layer.a,
        layer.d,
        conv,
        state,
        norms,
        feed_forward,
    )
