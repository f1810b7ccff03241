"""The tensors of feed-forward parts as native code takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aleator._native as _native
from aleator.models.layers.parts import FeedForward, Mixture

if TYPE_CHECKING:
    from aleator.models.layers.stored import Floats, StoredWeight

Gated = _native.StoredMatrix | None
Matrices = tuple[_native.StoredMatrix, _native.StoredMatrix, _native.StoredMatrix]
MixtureArguments = tuple[
    _native.StoredMatrix,
    list[Matrices],
    Matrices | None,
    "Floats | None",
    "Floats | None",
    int,
    str,
    bool,
    float,
    int,
    int,
    int,
    bool,
    str,
    "Floats | None",
    "list[Floats]",
]


def gated_matrices(
    part: FeedForward[list[StoredWeight]] | Mixture[list[StoredWeight], Floats],
) -> tuple[Gated, Gated, Gated]:
    """Gate, up and down of a layer, the only matrix in place of a gate that there is not.

    Of a mixture, which ``_native.DecoderStep.add_mixture`` takes, those of the part beside it; None where
    there is no such part.
    """
    if isinstance(part, Mixture):
        return (None, None, None) if part.dense is None else _matrices(part.dense)
    if part.gated:
        return _matrices(part)
    (up,), (down,) = part.gate_up, part.down
    return up.matrix, None, down.matrix


def _matrices(part: FeedForward[list[StoredWeight]]) -> Matrices:
    gate, up = part.gate_up
    (down,) = part.down
    return gate.matrix, up.matrix, down.matrix


def mixture_arguments(part: Mixture[list[StoredWeight], Floats]) -> MixtureArguments:
    """The arguments of ``_native.DecoderStep.add_mixture``."""
    config = part.config
    (router,) = part.router
    norms = part.norms
    beside = (
        [] if norms is None else [norms.router, norms.expert, norms.dense_post, norms.expert_post]
    )
    return (
        router.matrix,
        [_matrices(expert) for expert in part.experts],
        None if part.shared is None else _matrices(part.shared),
        part.choice_bias,
        part.shared_router,
        config.n_used,
        config.scores,
        config.normalised,
        config.scale,
        config.n_groups,
        config.n_groups_used,
        config.n_group_best,
        config.weighs_input,
        part.gate,
        part.scales,
        beside,
    )
