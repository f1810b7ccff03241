"""What a model is made of: its dimensions, rotary embedding, windows and states.

:mod:`aleator.models.gguf_config` reads them from GGUF metadata, :mod:`aleator.models.json_config` from
config.json.  The meaning of the fields is that of ggml's docs/gguf.md, of llama.cpp's ``llama_hparams`` and of
transformers' configuration classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any

from aleator.core.errors import UnsupportedModel
from aleator.core.records import dataclass
from aleator.models.delta_net import DeltaNetConfig
from aleator.models.experts import ExpertsConfig
from aleator.models.files.fields import Fields

# Limits against hostile files; no known model comes near them.
MAX_LAYERS = 4096
MAX_WIDTH = 1 << 24
MAX_HEAD_DIM = 1 << 16
MAX_CONV = 64
MAX_STATE = 1 << 12
MAX_LENGTH = (1 << 31) - 1
MAX_THETA = 1e30


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies theta^(-2i/dim), i < dim/2.
        dim: rotated channels of a head, even.
        style: which channels form pair i: "norm" 2i and 2i + 1, "neox" i and i + dim/2; "none": nothing is
            rotated.
        scaling: how the context is stretched.  "none"; "linear": positions are divided by ``factor``; "yarn"
            (Peng et al. 2023, arXiv:2309.00071): a ramp from unscaled to divided between ``beta_fast`` and
            ``beta_slow`` rotations over ``original_context``, and cos and sin multiplied by another
            1 + 0.1 ln(factor); "llama3": low frequencies are divided by ``factor``, those between the two
            ``*_freq_factor`` partly; "longrope" (Ding et al. 2024, arXiv:2402.13753): divided by one of two
            tables, the second in contexts longer than ``original_context``; "dynamic": the base grows with a
            context that is longer than ``original_context``; "proportional": only the first pairs rotate, by
            the file's divisors or as ``n_rotated`` says, and positions are divided by ``factor``.
        factor: see ``scaling``.
        original_context: positions that the model was trained with before the context was stretched.
        attn_factor: cos and sin are multiplied by it.
        beta_fast: see ``scaling``.
        beta_slow: see ``scaling``.
        low_freq_factor: see ``scaling``.
        high_freq_factor: see ``scaling``.
        truncate: the ends of YaRN's ramp are whole pairs.
        short_factors: longrope's table of contexts up to ``original_context``, one number per pair; empty: a
            tensor of the file.
        long_factors: that of longer ones.
        offset: channels of a head that come before the rotated ones.
        n_rotated: pairs that rotate where ``scaling`` is "proportional".
    """

    theta: float = 10000.0
    dim: int = 0
    style: str = "norm"
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    offset: int = 0
    n_rotated: int = 0


@dataclass(frozen=True)
class WindowConfig:
    """Layers whose tokens see only the latest positions.

    Attributes:
        size: how many positions, the token's own included; of chunks the length.
        layers: whether a layer is one of them, one entry per layer.
        rope: their rotary embedding.
        chunked: the text is in chunks of ``size`` positions, and a token sees those of its own chunk.
        head_dim: size of their heads; 0: that of the other layers.
    """

    size: int
    layers: tuple[bool, ...]
    rope: RopeConfig
    chunked: bool = False
    head_dim: int = 0


@dataclass(frozen=True)
class QueryGrowth:
    """Queries that are longer the later they stand.

    Those at position p are multiplied by 1 + rate * ln(1 + floor((p + ahead) / context)), after the rotation.

    Attributes:
        rate: see above.
        context: see above.
        ahead: see above.
        unrotated: of layers alone that do not rotate queries and keys.
    """

    rate: float
    context: int
    ahead: int = 0
    unrotated: bool = False


@dataclass(frozen=True)
class SSMConfig:
    """What layers that keep a state keep.

    A selective state space (Gu and Dao 2023, arXiv:2312.00752), one whose heads have one decay each (Dao and Gu
    2024, arXiv:2405.21060), or the inputs of a short convolution alone.

    Attributes:
        d_inner: channels that have a state; of a short convolution its channels.
        d_conv: latest values that the convolution of a channel reads.
        d_state: numbers in the state of a channel.
        dt_rank: numbers that the time step is computed from; with heads there is none.
        norm_eps: time step, B and C are RMS-normalised with it, without weights; None: they are not.
        heads: heads with one decay each; 0: every channel has decays of its own.
        groups: groups of heads with the same B and C.
        least_step: no time step is shorter.
    """

    d_inner: int
    d_conv: int
    d_state: int
    dt_rank: int = 0
    norm_eps: float | None = None
    heads: int = 0
    groups: int = 1
    least_step: float = 0.0

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: with heads the values, B and C."""
        return self.d_inner + (2 * self.groups * self.d_state if self.heads else 0)


@dataclass(frozen=True)
class LatentConfig:
    """Attention whose keys and values are computed from a few numbers a token (arXiv:2405.04434).

    Attributes:
        q_rank: numbers that a token's queries are computed from; 0: from what the layer takes.
        rank: numbers that keys and values of all heads are computed from.
        head_dim: size of a query and key head; its last ``ModelConfig.rope.dim`` channels are rotated, and are
            the same in the keys of all heads.
        head_dim_v: size of a value head.
        compressed: the cache holds those numbers and the rotated channels, one key for all heads and no values.
            Otherwise it holds every head's key and value.
    """

    q_rank: int
    rank: int
    head_dim: int
    head_dim_v: int
    compressed: bool


@dataclass(frozen=True)
class PerLayerConfig:
    """Embeddings of tokens for each layer.

    Attributes:
        width: numbers that a token has for a layer.
        n_vocab: tokens that have them.
    """

    width: int
    n_vocab: int


@dataclass(frozen=True)
class ModelConfig:
    """A model's dimensions.

    Tuples have one entry per layer; in a model without attention they are empty.

    Attributes:
        architecture: name of the :class:`~aleator.models.architecture.Architecture`.
        name: what the file calls the model, or "".
        n_vocab: token ids that the model has logits for.
        n_layers: layers.
        n_embd: width of a layer's input and output.
        n_heads: query heads.
        n_kv_heads: key-value heads; 0 in layers that keep a state.
        n_ff: width of the feed-forward part.
        head_dim: size of a key head as the cache holds it, and of a query head; layers with a window may have
            another, see :meth:`head_dims`.
        head_dim_v: size of a value head; with compressed keys the first channels of those are the values.
        rms_eps: what normalisation adds to the mean square, or to the variance.
        context_length: positions that the model was trained with.
        tied: the token embedding is the output matrix too; there is no ``output.weight``.
        rope: rotary embedding of the layers without a window.
        window: layers with a window, if there are any.
        attention_scale: what scores are multiplied by; None: 1 / sqrt(head_dim).
        attention_softcap: scores are c tanh(scores / c) with this c; 0: as they are.
        logit_softcap: logits are c tanh(logits / c) with this c; 0: as they are.
        embedding_scale: embeddings of tokens are multiplied by it.
        residual_scale: what attention and feed-forward give is multiplied by it before it is added.
        logit_scale: logits are multiplied by it.
        unrotated: whether a layer's queries and keys are not rotated, one entry per layer; empty: all are.
        alibi: the largest slope's exponent in ALiBi (Press et al. 2022, arXiv:2108.12409); 0: scores do not
            depend on distances.
        qkv_clamp: queries, keys and values are kept within it; 0: as they are.
        query_growth: how queries grow with their position; None: they do not.
        normalised_heads: query and key heads of layers that rotate them are RMS-normalised without weights.
        normalised_values: value heads are RMS-normalised without weights.
        keys_as_values: whether a layer's values are its keys before their norm, one entry per layer; empty:
            none are.
        key_layers: the layer whose keys and values a layer attends to, one entry per layer; empty: its own.
        per_layer: embeddings of tokens for each layer, if there are any.
        ssm: layers that keep a state, if there are any.
        delta: layers with a gated delta net, if there are any.
        stateful: whether a layer keeps a state, one entry per layer; empty: those without KV heads do.
        experts: mixtures of experts, if there are any.
        latent: how keys and values are compressed, if they are.
    """

    architecture: str
    name: str
    n_vocab: int
    n_layers: int
    n_embd: int
    n_heads: tuple[int, ...]
    n_kv_heads: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_dim: int
    head_dim_v: int
    rms_eps: float
    context_length: int
    tied: bool = False
    rope: RopeConfig = field(default_factory=RopeConfig)
    window: WindowConfig | None = None
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    unrotated: tuple[bool, ...] = ()
    alibi: float = 0.0
    qkv_clamp: float = 0.0
    query_growth: QueryGrowth | None = None
    normalised_heads: bool = False
    normalised_values: bool = False
    keys_as_values: tuple[bool, ...] = ()
    key_layers: tuple[int, ...] = ()
    per_layer: PerLayerConfig | None = None
    ssm: SSMConfig | None = None
    delta: DeltaNetConfig | None = None
    stateful: tuple[bool, ...] = ()
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None

    def head_dims(self, layer: int) -> tuple[int, int]:
        """Sizes of a layer's key and value heads."""
        if self.window is not None and self.window.head_dim and self.window.layers[layer]:
            return self.window.head_dim, self.window.head_dim
        return self.head_dim, self.head_dim_v

    def stored_head_dims(self, layer: int) -> tuple[int, int]:
        """Sizes of a layer's key and value heads in the cache; 0: values are part of the keys."""
        key, value = self.head_dims(layer)
        return key, 0 if self.latent is not None and self.latent.compressed else value

    def takes_keys_as_values(self, layer: int) -> bool:
        """Whether a layer's values are its keys before their norm."""
        return bool(self.keys_as_values) and self.keys_as_values[layer]

    def keys_of(self, layer: int) -> int:
        """The layer whose keys and values a layer attends to."""
        return self.key_layers[layer] if self.key_layers else layer

    def stores_keys(self, layer: int) -> bool:
        """Whether a layer stores keys and values."""
        return self.attends(layer) and self.keys_of(layer) == layer

    def rotated(self, layer: int) -> bool:
        """Whether a layer's queries and keys are rotated by their positions."""
        return not (self.unrotated and self.unrotated[layer])

    def grows(self, layer: int) -> bool:
        """Whether a layer's queries grow with their position."""
        growth = self.query_growth
        return growth is not None and not (growth.unrotated and self.rotated(layer))

    def keeps_state(self, layer: int) -> bool:
        """Whether a layer keeps a state."""
        if self.stateful:
            return self.stateful[layer]
        states = self.ssm is not None or self.delta is not None
        return states and not self.attends(layer)

    def attends(self, layer: int) -> bool:
        """Whether a layer attends to the tokens before."""
        return bool(self.n_kv_heads and self.n_kv_heads[layer])

    def kv_heads_beside(self, states: Iterable[bool]) -> tuple[int, ...]:
        """KV heads of every layer, none where ``states`` says that it keeps a state."""
        pairs = zip(self.n_kv_heads, states, strict=True)
        return tuple(0 if state else heads for heads, state in pairs)

    def beginning(self, n: int) -> ModelConfig:
        """The model of the first ``n`` layers, but for what is read later."""
        heads, kv_heads = self.n_heads[:n], self.n_kv_heads[:n]
        return replace(self, n_layers=n, n_heads=heads, n_kv_heads=kv_heads, n_ff=self.n_ff[:n])

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward part is a mixture of experts."""
        return self.experts is not None and self.experts.layers[layer]


def without_attention(architecture: str, **values: Any) -> ModelConfig:
    """The dimensions of a model without attention and feed-forward layers."""
    none: tuple[int, ...] = ()
    return ModelConfig(
        architecture=architecture,
        n_heads=none,
        n_kv_heads=none,
        n_ff=none,
        head_dim=0,
        head_dim_v=0,
        rope=RopeConfig(style="none"),
        **values,
    )


def checked_heads(fields: Fields, key: str, ssm: SSMConfig) -> SSMConfig:
    """A state space with heads whose sizes do not contradict each other; ``key`` is named where they do."""
    if ssm.d_inner % ssm.heads or ssm.heads % ssm.groups:
        raise fields.error(
            key,
            f"{ssm.d_inner} channels must divide into {ssm.heads} heads, and those into {ssm.groups} groups",
        )
    return ssm


def checked_rope(fields: Fields, rope: RopeConfig) -> RopeConfig:
    """A rotary embedding whose fields do not contradict each other."""
    yarn, slow, fast = rope.scaling == "yarn", rope.beta_slow, rope.beta_fast
    low, high = rope.low_freq_factor, rope.high_freq_factor
    for wrong, key, message in (
        (
            yarn and rope.factor < 1,
            "factor",
            f"the factor {rope.factor} of yarn must be at least 1",
        ),
        (yarn and fast <= slow, "beta_fast", f"beta_fast {fast} must exceed beta_slow {slow}"),
        (yarn and slow < 1e-6, "beta_slow", f"beta_slow {slow} of yarn must be at least 1e-06"),
        (
            yarn and rope.theta <= 1,
            "theta",
            f"the base {rope.theta} of yarn's frequencies must exceed 1",
        ),
        (
            rope.scaling == "llama3" and high <= low,
            "high_freq_factor",
            f"high_freq_factor {high} must exceed low_freq_factor {low}",
        ),
    ):
        if wrong:
            raise fields.error(key, message)
    return rope


def check_rope_dim(fields: Fields, key: str, dim: int, head_dim: int) -> None:
    """Raise FileFormatError about the field ``key`` unless ``dim`` channels of a head can be rotated."""
    if dim < 2 or dim % 2:
        raise fields.error(key, f"{dim} rotated channels per head of {head_dim}; must be even")


def check_groups(
    fields: Fields, key: str, n_heads: tuple[int, ...], n_kv_heads: tuple[int, ...]
) -> None:
    """Raise FileFormatError about the field ``key`` unless each KV head serves as many query heads."""
    for layer, (heads, kv_heads) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        if kv_heads and (heads == 0 or heads % kv_heads):
            raise fields.error(
                key, f"layer {layer}: {heads} heads are not a multiple of {kv_heads} KV heads"
            )


def read_head_dim(
    fields: Fields, key: str, n_embd: int, n_heads: int, default: int | None = None
) -> int:
    """The size of a head: the field ``key``, or else the default, or else the width divided by the heads."""
    if default is None and fields.get(key) is None:
        if n_heads == 0 or n_embd % n_heads:
            raise fields.error(
                key, f"{key} is missing, and the width {n_embd} not a multiple of {n_heads} heads"
            )
        default = n_embd // n_heads
    return fields.integer(key, 1, MAX_HEAD_DIM, default)


def unsupported(path: object, what: str) -> UnsupportedModel:
    """The error for a model that needs ``what``."""
    return UnsupportedModel(f"{path}: the model needs {what}, which is not supported")


def refuse(fields: Fields, what: str, *keys: str) -> None:
    """Raise UnsupportedModel where one of the fields ``keys`` is true: the model needs ``what``."""
    for key in keys:
        if fields.get(key, False):
            raise unsupported(fields.path, f"{what} ({key})")
