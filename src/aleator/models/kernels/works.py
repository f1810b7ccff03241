"""What may be done beside another launch, alone or two side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from aleator.models.kernels.floats import EXACT, Constants, Work
from aleator.models.kernels.heads import finish_heads
from aleator.models.kernels.recurrent import scanned
from aleator.models.kernels.recurrent_parts import convolved
from aleator.models.kernels.routing import routed, routing

if TYPE_CHECKING:
    from aleator.models.config import ExpertsConfig


def launch(work: Work | None, beside: Work | None = None) -> None:
    """Do two works side by side in one launch; None: there is nothing to do."""
    works = [of for of in (work, beside) if of is not None and of.programs]
    if not works:
        return
    first, second = works[0], works[-1]
    alone = len(works) == 1
    _worked[(sum(of.programs for of in works),)](
        first.arguments, first.count, None if alone else (first.programs, second.arguments),
        0 if alone else second.count,
        KINDS=Constants(tuple((of.kind,) for of in works)), FORMS=first.forms, SHAPE=first.shape,
        BESIDE=second.forms, BESIDE_SHAPE=second.shape, num_warps=max(of.warps for of in works), **EXACT,
    )  # fmt: skip


def route(
    logits: torch.Tensor,
    config: ExpertsConfig,
    choice_bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The results of :func:`~aleator.models.kernels.routing.routing`, in one launch."""
    made = routing(logits, config, choice_bias, scales, shared)
    launch(made[3])
    return made[:3]


@triton.jit
def worked(arguments, count, number, KIND: tl.constexpr, FORMS: tl.constexpr, SHAPE: tl.constexpr):
    """Program ``number`` of a :class:`~aleator.models.kernels.floats.Work`; more programs do nothing."""
    if KIND == "heads":
        finish_heads(arguments, count, number, FORMS, SHAPE)
    elif KIND == "convolution":
        convolved(arguments, count, number, SHAPE)
    elif KIND == "scan":
        scanned(arguments, count, number, FORMS, SHAPE)
    else:
        routed(arguments, count, number, True, SHAPE)


@triton.jit(do_not_specialize=["count", "n_beside"])
def _worked(
    arguments, count, beside, n_beside, KINDS: tl.constexpr, FORMS: tl.constexpr, SHAPE: tl.constexpr,
    BESIDE: tl.constexpr, BESIDE_SHAPE: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    begin = tl.num_programs(0) if beside is None else beside[0]
    if number < begin:
        worked(arguments, count, number, KINDS[0], FORMS, SHAPE)
    if beside is not None:
        if number >= begin:
            worked(beside[1], n_beside, number - begin, KINDS[1], BESIDE, BESIDE_SHAPE)
