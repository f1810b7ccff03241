"""The tensors of attention and of feed-forward parts, read from a model file."""

from __future__ import annotations

import math
from typing import Generic

from aleator.core.records import dataclass
from aleator.models.config import ExpertsConfig, LatentConfig, present, unsupported
from aleator.models.layers.layer_source import LayerSource, M, V


@dataclass(frozen=True)
class FeedForward(Generic[M]):
    """The feed-forward part of a layer, or one expert of a mixture."""

    gate_up: M  # gate and up; only up if there is no gate
    down: M
    n_ff: int  # width of gate and up
    gate: str  # the activation, see gate_of()
    gated: bool = True  # whether there is a gate


@dataclass(frozen=True)
class BesideNorms(Generic[V]):
    """The norms of experts beside a dense part; the dense part's input norm is the layer's."""

    router: V  # of the router's input
    expert: V  # of the experts' input
    dense_post: V  # of the dense part's output
    expert_post: V  # of the experts' output


class Mixture(Generic[M, V]):
    """A feed-forward part in which a router chooses a few experts for each token.

    Attributes:
        config: the numbers of experts, and how they are chosen.
        router: computes the experts' scores.
        choice_bias: added to the scores only for the choice; None: nothing.
        experts: feed-forward parts.
        shared: the expert that every token goes through; None: there is none.
        shared_router: the shared expert's weight is the sigmoid of the product with this vector; None: it is 1.
        gate: the activation of every expert, see :func:`gate_of`.
        gated: whether the experts have gates.
        scales: factors of the chosen experts' weights; None: there are none.
        dense: the part beside the experts; None: there is none.
        norms: the norms of both.
    """

    def __init__(self, source: LayerSource[M, V], config: ExpertsConfig) -> None:
        n_embd, n_ff, gate = source.config.n_embd, config.n_ff, gate_of(source)
        gated = source.architecture.gated
        parts = ["ffn_gate", "ffn_up"] if gated else ["ffn_up"]
        self.config, self.gate, self.gated = config, gate, gated
        self.router = source.matrix(
            ["ffn_gate_inp"], n_embd, [config.n_experts], bias=config.biases
        )
        self.choice_bias: V | None = None
        if config.choice_bias:
            added = "exp_probs_b" if "exp_probs_b" in source else "exp_probs_b.bias"
            self.choice_bias = source.values(added, config.n_experts, exact=True)
        both = source.experts(parts, n_embd, [n_ff] * len(parts), bias=config.biases)
        downs = source.experts(["ffn_down"], n_ff, [n_embd], bias=config.biases)
        self.experts = [
            FeedForward(gate_up, down, n_ff, gate, gated)
            for gate_up, down in zip(both, downs, strict=True)
        ]
        self.shared: FeedForward[M] | None = None
        self.shared_router: V | None = None
        if config.n_ff_shared:
            self.shared = dense_part(source, config.n_ff_shared, "_shexp")
            if config.shared_router:
                self.shared_router = source.values("ffn_gate_inp_shexp.weight", n_embd, exact=True)
            elif config.shared_halved:  # the sigmoid of 0
                self.shared_router = source.scaled(source.ones(n_embd), 0.0)
        elif "ffn_out.bias" in source:
            up, down = source.constant("ffn_out")
            self.shared = FeedForward(up, down, 1, gate, gated=False)
        self.scales: V | None = None
        self.dense: FeedForward[M] | None = None
        self.norms: BesideNorms[V] | None = None
        if config.beside:
            self.scales = source.found("ffn_down_exps.scale", config.n_experts)
            own = source.values("ffn_gate_inp.scale", n_embd)
            self.dense = dense_part(source, source.config.n_ff[source.layer])
            self.norms = BesideNorms(
                source.scaled(own, 1.0 / math.sqrt(n_embd)),
                source.norm("pre_ffw_norm_2"),
                source.norm("post_ffw_norm_1"),
                source.norm("post_ffw_norm_2"),
            )


def gate_of(source: LayerSource[M, V]) -> str:
    """The activation of a layer's gate.

    Returns:
        "silu", "silu_clamped", "gelu", "gelu_exact", "relu_squared", or for GGUF files "gelu_rounded", rounded
        as in llama.cpp.
    """
    gate = source.config.activation or source.architecture.activation
    rounded = gate in ("gelu", "gelu_exact") and source.kind == "gguf"
    return "gelu_rounded" if rounded else gate


def feed_forward(source: LayerSource[M, V]) -> FeedForward[M] | Mixture[M, V]:
    """The tensors of a layer's feed-forward part."""
    config = source.config
    if config.experts is not None and config.has_experts(source.layer):
        return Mixture(source, config.experts)
    return dense_part(source, config.n_ff[source.layer])


def dense_part(source: LayerSource[M, V], n_ff: int, end: str = "") -> FeedForward[M]:
    """The tensors of a part that every token goes through; ``end``: of their names."""
    n_embd, gated = source.config.n_embd, source.architecture.gated
    _refuse_whole(source, "ffn_gate_up_shexp.bias", 2 * n_ff)
    names = [f"ffn_gate{end}", f"ffn_up{end}"] if gated else [f"ffn_up{end}"]
    gate_up = source.matrix(names, n_embd, [n_ff] * len(names))
    down = source.matrix([f"ffn_down{end}"], n_ff, [n_embd])
    return FeedForward(gate_up, down, n_ff, gate_of(source), gated)


def _refuse_whole(source: LayerSource[M, V], name: str, n: int) -> None:
    """Raise FileFormatError for biases of several matrices that are not ``n``, or they would be divided."""
    if name in source:
        source.values(name, n)


class Latent(Generic[M, V]):
    """The tensors of compressed queries, keys and values.

    Attributes:
        rotated: how many channels of a head are rotated, the last ones.
        query: computes queries, or their compressed numbers.
        query_norm: norm of the compressed numbers; None: there are none.
        query_up: computes queries from them; None: there are none.
        compress: computes a token's compressed keys and values, and the rotated channels of its keys.
        norm: norm of the compressed keys and values.
        expand: computes from them each head's keys, without the rotated channels, and values; None if the cache
            holds the compressed ones.
        key_up: for each head, maps a query's other channels to the compressed keys; [] if there is ``expand``.
        value_up: for each head, maps its sum of compressed values to its output.
    """

    def __init__(self, source: LayerSource[M, V], config: LatentConfig, heads: int) -> None:
        n_embd, self.rotated = source.config.n_embd, source.config.rope.dim
        self.config, q_width = config, heads * config.head_dim
        plain = config.head_dim - self.rotated
        self.query_norm: V | None = None
        self.query_up: M | None = None
        if config.q_rank:
            self.query = source.matrix(["attn_q_a"], n_embd, [config.q_rank])
            self.query_norm = source.norm("attn_q_a_norm", config.q_rank)
            self.query_up = source.matrix(["attn_q_b"], config.q_rank, [q_width])
        else:
            self.query = source.matrix(["attn_q"], n_embd, [q_width])
        self.compress = source.matrix(["attn_kv_a_mqa"], n_embd, [config.rank + self.rotated])
        self.norm = source.norm("attn_kv_a_norm", config.rank)
        self.expand: M | None = None
        self.key_up: list[M] = []
        self.value_up: list[M] = []
        if config.compressed:
            self.key_up = source.stacked("attn_k_b", heads, plain, config.rank)
            self.value_up = source.stacked("attn_v_b", heads, config.rank, config.head_dim_v)
        else:
            wide = heads * (plain + config.head_dim_v)
            self.expand = source.matrix(["attn_kv_b"], config.rank, [wide])


class Attention(Generic[M, V]):
    """The tensors of a layer with attention, and its dimensions.

    Attributes:
        windowed: its tokens see only a window of the latest positions.
        index: the index of its keys among the layers of its kind, with or without a window: each kind has its
            own cache.
        wide: width of an input of its own for queries, keys and values; 0: they are computed from the running
            sum.
        stores: it stores keys and values; otherwise it shares the ``index`` of an earlier layer.
        rotated: its queries and keys are rotated by their positions.
        grows: its queries grow with their position.
        scale: factor of the scores.
        qkv: computes queries, keys and values; None if there is ``latent``.
        keys_as_values: values are the keys before their norm; ``qkv`` computes no values.
        v_norm: norm of values; None: there is none.
        output_scale: factor of the layer's output.
        latent: tensors of compressed keys and values; None: they are not compressed.
        attn_norm: norm of attention's input; None: there is none.
        ffn_norm: norm of feed-forward's input; None: there is none, or it has attention's input.
        q_norm: norm of queries; None: there is none.
        k_norm: norm of keys.
        head_norm_kind: how queries and keys are normalised, see
            :class:`~aleator.models.architecture.Architecture`; "": nothing.
        gated: queries come with a gate for their head's output, see
            :class:`~aleator.models.architecture.Architecture`.
        sinks: scores of the heads without a value, if there are any.
        post_norms: norms of the outputs of attention and feed-forward, or of the sums with these, if there are
            any.
        ffn: the feed-forward part; None: there is none.
    """

    def __init__(self, source: LayerSource[M, V], windowed: bool, index: int) -> None:
        config, architecture, layer = source.config, source.architecture, source.layer
        self.windowed, self.index, self.wide = windowed, index, config.wide
        self.rotated, self.grows = config.rotated(layer), config.grows(layer)
        self.n_heads, self.n_kv_heads = config.n_heads[layer], config.n_kv_heads[layer]
        self.head_dim, self.head_dim_v = config.head_dims(layer)
        self.scale = config.attention_scale or 1.0 / math.sqrt(self.head_dim)
        bare = architecture.bare_start and layer == 0 and "attn_norm.weight" not in source
        normed = architecture.pre_norm and not bare
        first, second = architecture.attn_norm, architecture.ffn_norm
        first = first if f"{first}.weight" in source else "attn_norm"
        self.attn_norm = source.norm(first) if normed else None
        self.gated = architecture.attention_gate
        self.qkv: M | None = None
        self.latent: Latent[M, V] | None = None
        self.stores = config.stores_keys(layer)
        self.keys_as_values = self.stores and config.takes_keys_as_values(layer)
        if config.latent is not None:
            self.latent = Latent(source, config.latent, self.n_heads)
        else:
            widths = {
                "attn_q": self.n_heads * self.head_dim * (2 if self.gated else 1),
                "attn_k": self.n_kv_heads * self.head_dim,
                "attn_v": self.n_kv_heads * self.head_dim_v,
            }
            if self.keys_as_values or not self.stores:
                del widths["attn_v"]
            if not self.stores:
                del widths["attn_k"]
            sizes = list(widths.values())
            _refuse_whole(source, "attn_qkv.bias", sum(sizes))
            _refuse_whole(source, "attn_kv.bias", sum(sizes) - sizes[0])
            if self.gated and "attn_gate.bias" in source:
                raise unsupported(source.weights.path, "biases of attention's gates")
            self.qkv = source.matrix(
                list(widths),
                self.wide or config.n_embd,
                list(widths.values()),
                bias=architecture.qkv_bias,
            )
        normalised = config.normalised_values and self.stores
        self.v_norm = source.ones(self.head_dim_v) if normalised else None
        self.q_norm: V | None = None
        self.k_norm: V | None = None
        self.head_norm_kind = ""
        if architecture.head_norm or "attn_q_norm.weight" in source:
            self.head_norm_kind = architecture.head_norm_kind
            self.q_norm = source.norm("attn_q_norm", *self._normalised(self.n_heads))
            if self.stores:
                self.k_norm = source.norm("attn_k_norm", *self._normalised(self.n_kv_heads))
        elif config.normalised_heads and self.rotated:
            self.head_norm_kind = "head"
            self.q_norm = self.k_norm = source.ones(self.head_dim)
        self.sinks: V | None = None
        if architecture.sinks:
            self.sinks = source.values("attn_sinks.weight", self.n_heads, exact=True)
        dim_v = self.head_dim_v if config.latent is None else config.latent.head_dim_v
        width = self.n_heads * dim_v
        self.output = source.matrix(["attn_output"], width, [config.n_embd])
        alone = architecture.single_parts
        # Beside attention, feed-forward takes attention's normalised input, or has a norm of its own.
        shared = config.parallel and (second in ("", first) or not architecture.parallel)
        normed = architecture.pre_norm and not shared and not alone
        self.ffn_norm = source.norm(second) if normed else None
        self.post_norms: tuple[V, V] | None = None
        if architecture.post_norm:
            self.post_norms = source.norm("post_attention_norm"), source.norm("post_ffw_norm")
        elif architecture.sum_norm:
            self.post_norms = source.norm("attn_output_norm"), source.norm("layer_output_norm")
        self.ffn = None if alone else feed_forward(source)
        self.output_scale: V | None = None
        if architecture.output_scale:
            self.output_scale = source.found("layer_output_scale.weight", 1)

    def _normalised(self, heads: int) -> tuple[int, ...]:
        """The shape of a head norm's weights."""
        kind = self.head_norm_kind
        if kind == "all":
            return (heads * self.head_dim,)
        return (heads, self.head_dim) if kind == "each" else (self.head_dim,)


TABLE = "per_layer_token_embd"
"""GGUF's name of the embeddings, [n_vocab, layers * width]."""


class LayerEmbeddings(Generic[M, V]):
    """The embeddings' tensors that all layers share, besides the table.

    Attributes:
        width: numbers per token and layer.
        projection: projection of the usual embeddings, [layers * width, n_embd].
        norm: norm of each layer's part of the projection's output, [width].
    """

    def __init__(self, source: LayerSource[M, V]) -> None:
        config = source.config
        self.width = present(config.per_layer).width
        n = config.n_layers * self.width
        self.projection = source.matrix(["per_layer_model_proj"], config.n_embd, [n])
        self.norm = source.norm("per_layer_proj_norm", self.width)


class LayerEmbedding(Generic[M, V]):
    """A layer's part, which adds norm(output(gate(project(x)) * embeddings)) to the layer's output.

    Attributes:
        project: projection to the embeddings' width.
        output: projection back to the model's width.
        norm: norm of the result of ``output``.
        gate: the activation, see :func:`~aleator.models.layers.parts.gate_of`.
    """

    def __init__(self, source: LayerSource[M, V]) -> None:
        config = source.config
        width = present(config.per_layer).width
        self.layer, self.gate = source.layer, gate_of(source)
        self.project = source.matrix(["inp_gate"], config.n_embd, [width])
        self.output = source.matrix(["proj"], width, [config.n_embd])
        self.norm = source.norm("post_norm")
