"""The feed-forward part of a layer in PyTorch, as its architecture has it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from aleator.models.layers.experts import Experts
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import norm
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.recurrent_parts import FeedForwardAlone


def activation(kind: str, x: torch.Tensor) -> torch.Tensor:
    """An activation of every number, by its name of :func:`~aleator.models.layers.parts.gate_of`.

    "gelu_rounded" is GELU as llama.cpp computes it, from a table of float16 values (ggml_vec_gelu_f32):
    arguments and results are rounded to float16, except beyond -10 and 10, where it is 0 or the identity.
    """
    if kind == "silu":
        return F.silu(x)
    if kind == "gelu_rounded":
        inside = F.gelu(x.half().float(), approximate="tanh").half().to(x)
        return torch.where(x.abs() < 10.0, inside, x.clamp_min(0.0))
    if kind == "relu_squared":
        return F.relu(x).square()
    return F.gelu(x, approximate="none" if kind == "gelu_exact" else "tanh")


Parts = FeedForward[Linear] | Mixture[Linear, torch.Tensor]

CLAMPED_LIMIT = 7.0
CLAMPED_SLOPE = 1.702


def feed_forward(parts: Parts) -> Callable[[torch.Tensor], torch.Tensor]:
    """What takes [T, n_embd] to [T, n_embd]: one part, or a mixture of several."""
    return single(parts) if isinstance(parts, FeedForward) else mixture(parts)


def mixture(parts: Mixture[Linear, torch.Tensor]) -> Experts:
    """The experts of a mixture."""
    return Experts(
        parts,
        [single(each) for each in parts.experts],
        single(parts.shared) if parts.shared else None,
    )


class Ungated:
    """``down(f(up(x)))``.

    Attributes:
        up: to the inner width.
        kind: the activation, see :func:`~aleator.models.layers.feed_forward.activation`.
    """

    __slots__ = ("down", "kind", "up")

    def __init__(self, up: Linear, down: Linear, kind: str) -> None:
        self.up, self.down, self.kind = up, down, kind

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return self.down(activation(self.kind, self.up(x)))


class Gated:
    """``down(f(gate(x)) * up(x))`` (Shazeer 2020, arXiv:2002.05202).

    Attributes:
        gate_up: gives gate and up side by side, [T, 2 * n_ff], so that both are one product.
        n_ff: width of gate and up.
        kind: the activation, or "silu_clamped": gpt-oss's, which clamps gate and up, has a steeper gate and
            adds 1 to up (https://openai.com/index/introducing-gpt-oss).
    """

    __slots__ = ("down", "gate_up", "kind", "n_ff")

    def __init__(self, gate_up: Linear, down: Linear, n_ff: int, kind: str) -> None:
        self.gate_up, self.down, self.n_ff, self.kind = gate_up, down, n_ff, kind

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        both = self.gate_up(x)
        gate, up = both[:, : self.n_ff], both[:, self.n_ff :]
        if self.kind != "silu_clamped":
            return self.down(activation(self.kind, gate).mul_(up))
        gate = gate.clamp(max=CLAMPED_LIMIT)
        up = up.clamp(-CLAMPED_LIMIT, CLAMPED_LIMIT)
        return self.down(gate * torch.sigmoid(CLAMPED_SLOPE * gate) * (up + 1.0))


class Following:
    """The feed-forward part after a layer's state, on the normalised running sum and added to it."""

    def __init__(
        self, weights: LayerWeights, weight: torch.Tensor | None, parts: Parts | None
    ) -> None:
        config = weights.config
        self.norm = norm("rms", weight, config.rms_eps)
        self.ffn = None if parts is None else feed_forward(parts)
        self.residual_scale = config.residual_scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return x if self.ffn is None else x + self.ffn(self.norm(x)) * self.residual_scale


class FeedForwardLayer:
    """A layer of nothing but a feed-forward part."""

    def __init__(self, weights: LayerWeights) -> None:
        parts = FeedForwardAlone(weights)
        self.part = Following(weights, parts.norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`."""
        return self.part(x if rows is None else x.index_select(0, rows))


def single(parts: FeedForward[Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A feed-forward part."""
    if parts.gated:
        return Gated(parts.gate_up, parts.down, parts.n_ff, parts.gate)
    return Ungated(parts.gate_up, parts.down, parts.gate)
