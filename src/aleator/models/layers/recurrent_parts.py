"""The tensors of layers that keep a state or are only a feed-forward part, and the shape of the states.

``index`` is a layer's index among those that keep a state; ``ssm`` or ``net`` has its dimensions.
"""

from __future__ import annotations

from typing import Any, Generic

from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.models.config import ModelConfig, present
from aleator.models.layers.layer_source import LayerSource, M, V
from aleator.models.layers.parts import FeedForward, Mixture, feed_forward


class StateSpace(Generic[M, V]):
    """The tensors of a selective state space (Gu and Dao 2023, arXiv:2312.00752), and its dimensions.

    Attributes:
        conv_bias: bias of the convolution; None: there is none.
        norms: weights of the norms of time step, B and C, if there are any.
        ffn_norm: weight of the norm before the feed-forward part; None: there is no such part.
    """

    def __init__(self, source: LayerSource[M, V], index: int) -> None:
        config = source.config
        self.index, self.ssm = index, present(config.ssm)
        inner, rank, state = self.ssm.d_inner, self.ssm.dt_rank, self.ssm.d_state
        self.norm = source.norm("attn_norm")
        self.project = source.matrix(["ssm_in"], config.n_embd, [2 * inner])
        self.conv_weight = source.values("ssm_conv1d.weight", inner, self.ssm.d_conv, exact=True)
        self.conv_bias = source.found("ssm_conv1d.bias", inner)
        self.select = source.matrix(["ssm_x"], inner, [rank + 2 * state])
        self.time_step = source.matrix(["ssm_dt"], rank, [inner], bias=True)
        self.a = source.values("ssm_a", inner, state, exact=True)
        self.d = source.values("ssm_d", inner, exact=True)
        self.output = source.matrix(["ssm_out"], inner, [config.n_embd])
        sizes = {"dt": rank, "b": state, "c": state} if source.architecture.state_norm else {}
        norms = [source.norm(f"ssm_{name}_norm", n, exact=True) for name, n in sizes.items()]
        self.norms = norms or None
        self.ffn_norm, self.ffn = following(source)


class HeadSpace(Generic[M, V]):
    """A state space whose heads have one decay each (Dao and Gu 2024, arXiv:2405.21060).

    Attributes:
        norm: norm of the layer's input; None beside attention, which has the norm.
        project: computes the gate, the convolution's channels (values, B and C) and time steps.
        conv_bias: bias of the convolution; None: there is none.
        time_bias: bias of time steps, [heads].
        a: decays, [heads].
        d: factors of the inputs, [heads].
        gated_norm: weights [inner] of the norm after the gate; None: there is none.
        norm_groups: how many parts are normalised separately.
        ffn_norm: norm of the feed-forward part's input; None: there is no such part.
    """

    def __init__(self, source: LayerSource[M, V], index: int) -> None:
        config = source.config
        beside = config.attends(source.layer)
        self.index, self.ssm = index, present(config.ssm)
        inner, channels, heads = self.ssm.d_inner, self.ssm.conv_channels, self.ssm.heads
        self.norm: V | None = None if beside else source.norm("attn_norm")
        self.project = source.matrix(["ssm_in"], config.n_embd, [inner + channels + heads])
        self.conv_weight = source.values("ssm_conv1d.weight", channels, self.ssm.d_conv, exact=True)
        self.conv_bias = source.found("ssm_conv1d.bias", channels)
        self.time_bias = source.values("ssm_dt.bias", heads, exact=True)
        self.a = source.flat("ssm_a", heads)
        self.d = source.flat("ssm_d", heads)
        normed = not beside or "ssm_norm.weight" in source
        self.gated_norm = source.flat("ssm_norm.weight", inner) if normed else None
        self.norm_groups = self.ssm.groups
        self.output = source.matrix(["ssm_out"], inner, [config.n_embd])
        self.ffn_norm, self.ffn = (None, None) if beside else following(source)


class ShortConvolution(Generic[M, V]):
    """A convolution over the latest few values, multiplied by B before it and by C after it.

    Attributes:
        norm: norm of the layer's input.
        project: computes B, C and x.
    """

    def __init__(self, source: LayerSource[M, V], index: int) -> None:
        self.index, self.ssm = index, present(source.config.ssm)
        n, width = source.config.n_embd, self.ssm.d_conv
        self.norm = source.norm("attn_norm")
        self.project = source.matrix(["shortconv.in_proj"], n, [3 * n])
        self.conv_weight = source.values("shortconv.conv.weight", n, width, exact=True)
        self.conv_bias = source.found("shortconv.conv.bias", n)
        self.output = source.matrix(["shortconv.out_proj"], n, [n])
        self.ffn_norm, self.ffn = following(source)


class DeltaNet(Generic[M, V]):
    """The tensors of a gated delta net (Yang et al. 2024, arXiv:2412.06464), and its dimensions.

    Attributes:
        norm: norm of the layer's input.
        qkv: queries, keys and values, which are convolved.
        gate: gate of the heads' outputs, or what ``gate_up`` computes it from.
        beta: how much of a value is written.
        decay: how much of the state stays, or what ``decay_up`` computes it from.
        conv_bias: bias of the convolution; None: there is none.
        head_norm: norm of a head's output.
        ffn_norm: norm before the feed-forward part.
    """

    def __init__(self, source: LayerSource[M, V], index: int) -> None:
        config = source.config
        self.index, self.net = index, present(config.delta)
        net = self.net
        self.norm = source.norm("attn_norm")
        n, decays, out = config.n_embd, net.n_heads, "ssm_out"
        self.gate_up: M | None = None
        self.decay_up: M | None = None
        if net.channel_decays:
            decays, out, few = net.keys, "attn_output", net.head_dim
            parts = ["attn_q", "attn_k", "attn_v"]
            self.qkv = source.matrix(parts, n, [net.keys, net.keys, net.values])
            self.gate = source.matrix(["ssm_g_a"], n, [few])
            self.gate_up = source.matrix(["ssm_g_b"], few, [net.values])
            self.decay = source.matrix(["ssm_f_a"], n, [few])
            self.decay_up = source.matrix(["ssm_f_b"], few, [decays])
        else:
            self.qkv = source.matrix(["attn_qkv"], n, [net.channels])
            self.gate = source.matrix(["attn_gate"], n, [net.values])
            self.decay = source.matrix(["ssm_alpha"], n, [decays])
        self.beta = source.matrix(["ssm_beta"], n, [net.n_heads])
        self.conv_weight = source.values("ssm_conv1d.weight", net.channels, net.d_conv, exact=True)
        self.conv_bias: V | None = None
        self.a = source.flat("ssm_a", net.n_heads)
        self.time_bias = source.values("ssm_dt.bias", decays, exact=True)
        self.head_norm = source.values("ssm_norm.weight", net.head_dim_v, exact=True)
        self.output = source.matrix([out], net.values, [n])
        self.ffn_norm, self.ffn = following(source)


Stateful = StateSpace[M, V] | HeadSpace[M, V] | ShortConvolution[M, V] | DeltaNet[M, V]
"""A layer that keeps a state."""
_KINDS: dict[str | None, Any] = {
    "state space": StateSpace,
    "heads": HeadSpace,
    "short convolution": ShortConvolution,
    "delta net": DeltaNet,
}


def stateful(source: LayerSource[M, V], index: int) -> Stateful[M, V]:
    """The tensors of the ``index``-th layer that keeps a state, of its architecture's kind."""
    made: Stateful[M, V] = _KINDS[source.architecture.recurrent](source, index)
    return made


class FeedForwardAlone(Generic[M, V]):
    """A layer that is only a feed-forward part.

    Attributes:
        norm: norm of its input.
        ffn: the part.
    """

    def __init__(self, source: LayerSource[M, V]) -> None:
        alone = source.architecture.single_parts
        self.norm = source.norm("attn_norm" if alone else source.architecture.ffn_norm)
        self.ffn = feed_forward(source)


def following(
    source: LayerSource[M, V],
) -> tuple[V | None, FeedForward[M] | Mixture[M, V] | None]:
    """The norm and the feed-forward part after a layer's state, if the architecture has one."""
    if not source.config.n_ff or source.architecture.single_parts:
        return None, None
    return source.norm(source.architecture.ffn_norm), feed_forward(source)


def state_shape(config: ModelConfig) -> RecurrentShape:
    """The shape of a layer's state of one sequence."""
    if config.delta is not None:
        net = config.delta
        return RecurrentShape(net.channels, net.d_conv - 1, net.head_dim, inner=net.values)
    ssm = present(config.ssm)
    return RecurrentShape(ssm.conv_channels, ssm.d_conv - 1, ssm.d_state, ssm.d_inner)
