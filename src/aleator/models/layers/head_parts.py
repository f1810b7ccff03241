"""The tensors of layers with a state space whose heads have one decay each, and of short convolutions."""

from __future__ import annotations

from typing import Generic

from aleator.models.layers.layer_source import LayerSource, M, V
from aleator.models.layers.parts import FeedForward, Mixture, feed_forward
from aleator.models.layers.recurrent_parts import state_space


class HeadSpace(Generic[M, V]):
    """A state space whose heads have one decay each (Dao and Gu 2024, arXiv:2405.21060).

    Attributes:
        index: its number among the layers that keep a state.
        ssm: the dimensions.
        norm: of what the layer takes; None beside attention, whose norm it is.
        project: gives the gate, the convolution's channels (values, B and C) and time steps.
        conv_bias: None: there is none.
        time_bias: of time steps, [heads].
        a: decays, [heads].
        d: [heads].
        gated_norm: weights [inner] of the normalisation after the gate; None: there is none.
        norm_groups: parts that it normalises by themselves.
        ffn_norm: of what the feed-forward part takes; None: there is no such part.
        ffn: the feed-forward part.
    """

    def __init__(self, source: LayerSource[M, V], index: int) -> None:
        config = source.config
        beside = config.attends(source.layer)
        self.index, self.ssm = index, state_space(config)
        inner, channels, heads = self.ssm.d_inner, self.ssm.conv_channels, self.ssm.heads
        self.norm: V | None = None if beside else source.norm("attn_norm")
        self.project = source.matrix(["ssm_in"], config.n_embd, [inner + channels + heads])
        self.conv_weight = source.values("ssm_conv1d.weight", channels, self.ssm.d_conv, exact=True)
        self.conv_bias: V | None = None
        if "ssm_conv1d.bias" in source:
            self.conv_bias = source.values("ssm_conv1d.bias", channels, exact=True)
        self.time_bias = source.values("ssm_dt.bias", heads, exact=True)
        self.a = source.flat("ssm_a", heads)
        self.d = source.flat("ssm_d", heads)
        self.gated_norm: V | None = None
        if not beside or "ssm_norm.weight" in source:
            self.gated_norm = source.flat("ssm_norm.weight", inner)
        self.norm_groups = self.ssm.groups
        self.output = source.matrix(["ssm_out"], inner, [config.n_embd])
        self.ffn_norm: V | None = None
        self.ffn: FeedForward[M] | Mixture[M, V] | None = None
        if not beside:
            self.ffn_norm, self.ffn = following(source)


class ShortConvolution(Generic[M, V]):
    """A convolution over the latest few values, multiplied before and after by what else is projected.

    Attributes:
        index: its number among the layers that keep a state.
        ssm: the dimensions.
        norm: of what the layer takes.
        project: gives B, C and x.
        ffn_norm: of what the feed-forward part takes.
        ffn: the feed-forward part.
    """

    def __init__(self, source: LayerSource[M, V], index: int) -> None:
        self.index, self.ssm = index, state_space(source.config)
        n, width = source.config.n_embd, self.ssm.d_conv
        self.norm = source.norm("attn_norm")
        self.project = source.matrix(["shortconv.in_proj"], n, [3 * n])
        self.conv_weight = source.values("shortconv.conv.weight", n, width, exact=True)
        self.conv_bias: V | None = None
        if "shortconv.conv.bias" in source:
            self.conv_bias = source.values("shortconv.conv.bias", n, exact=True)
        self.output = source.matrix(["shortconv.out_proj"], n, [n])
        self.ffn_norm: V | None
        self.ffn: FeedForward[M] | Mixture[M, V] | None
        self.ffn_norm, self.ffn = following(source)


class FeedForwardAlone(Generic[M, V]):
    """A layer of nothing but a feed-forward part.

    Attributes:
        norm: of what it takes.
        ffn: the part.
    """

    def __init__(self, source: LayerSource[M, V]) -> None:
        self.norm = source.norm("attn_norm")
        self.ffn = feed_forward(source)


def following(
    source: LayerSource[M, V],
) -> tuple[V, FeedForward[M] | Mixture[M, V]] | tuple[None, None]:
    """The norm and the feed-forward part after a layer's state, where the architecture has one."""
    if not source.config.n_ff or source.architecture.single_parts:
        return None, None
    return source.norm(source.architecture.ffn_norm), feed_forward(source)
