"""The tensors of a layer with a state space as native code takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.models.layers.head_parts import HeadSpace, ShortConvolution
from aleator.models.layers.native_feed_forward import Gated, gated_matrices
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.recurrent_parts import DeltaNet, StateSpace

if TYPE_CHECKING:
    from aleator.models.layers.stored import Floats, StoredLayer, StoredWeight

Rows = npt.NDArray[np.float32]
FeedForwardArguments = tuple[Gated, Gated, Gated, Rows]
Part = FeedForward[list["StoredWeight"]] | Mixture[list["StoredWeight"], "Floats"]
Stateful = (
    StateSpace[list["StoredWeight"], "Floats"]
    | HeadSpace[list["StoredWeight"], "Floats"]
    | ShortConvolution[list["StoredWeight"], "Floats"]
    | DeltaNet[list["StoredWeight"], "Floats"]
)
"""A layer that keeps a state, as native code takes its tensors."""
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
    FeedForwardArguments | None,
]


def stateful(source: StoredLayer, index: int) -> Stateful:
    """Read the tensors of a layer that keeps a state, of the kind that its architecture has."""
    kind = source.architecture.recurrent
    if kind == "heads":
        return HeadSpace(source, index)
    if kind == "delta net":
        return DeltaNet(source, index)
    return (ShortConvolution if kind == "short convolution" else StateSpace)(source, index)


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
    return (
        project.matrix,
        select.matrix,
        time_step.matrix,
        output.matrix,
        layer.norm,
        np.ascontiguousarray(layer.conv_weight.T),
        _bias(layer.conv_bias, layer.conv_weight),
        layer.a,
        layer.d,
        conv,
        state,
        norms,
        feed_forward_arguments(layer.ffn, layer.ffn_norm),
    )


def feed_forward_arguments(part: Part | None, norm: Rows | None) -> FeedForwardArguments | None:
    """A feed-forward part and its norm, as native layers that keep a state take them."""
    if part is None or norm is None:
        return None
    return *gated_matrices(part), norm


def head_space(
    layer: HeadSpace[list[StoredWeight], Floats], conv: Rows, state: Rows
) -> _native.HeadSpace:
    """A layer whose heads have one decay each.

    Args:
        layer: the tensors.
        conv: the cache's rows of the convolution, float32 [rows, channels, width - 1].
        state: the cache's rows of states, float32 [rows, inner, N].
    """
    (project,), (output,) = layer.project, layer.output
    return _native.HeadSpace(
        project.matrix,
        output.matrix,
        layer.norm,
        np.ascontiguousarray(layer.conv_weight.T),
        _bias(layer.conv_bias, layer.conv_weight),
        layer.time_bias,
        layer.a,
        layer.d,
        layer.ssm.groups,
        layer.ssm.least_step,
        layer.gated_norm,
        layer.norm_groups,
        conv,
        state,
    )


def short_convolution(
    layer: ShortConvolution[list[StoredWeight], Floats], conv: Rows
) -> _native.ShortConvolution:
    """A layer with a short convolution; ``conv``: as for :func:`head_space`."""
    (project,), (output,) = layer.project, layer.output
    return _native.ShortConvolution(
        project.matrix,
        output.matrix,
        layer.norm,
        np.ascontiguousarray(layer.conv_weight.T),
        _bias(layer.conv_bias, layer.conv_weight),
        conv,
    )


def delta_net(
    layer: DeltaNet[list[StoredWeight], Floats], conv: Rows, state: Rows
) -> _native.DeltaNet:
    """A layer with a gated delta net.

    Args:
        layer: the tensors.
        conv: the cache's rows of the convolution, float32 [rows, channels, width - 1].
        state: the cache's rows of states, float32 [rows, heads * Dv, D].
    """
    (qkv,), (gate,), (output,) = layer.qkv, layer.gate, layer.output
    (beta,), (decay,) = layer.beta, layer.decay
    return _native.DeltaNet(
        qkv.matrix,
        gate.matrix,
        beta.matrix,
        decay.matrix,
        output.matrix,
        layer.norm,
        np.ascontiguousarray(layer.conv_weight.T),
        _bias(None, layer.conv_weight),
        layer.a,
        layer.time_bias,
        layer.head_norm,
        layer.net.n_key_heads,
        layer.net.tiled,
        layer.net.unit_eps,
        conv,
        state,
    )


def _bias(bias: Rows | None, weight: Rows) -> Rows:
    return np.zeros(len(weight), np.float32) if bias is None else bias
