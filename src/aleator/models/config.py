"""A model's configuration: its dimensions, rotary embedding, windows and states.

:mod:`aleator.models.gguf_config` reads them from GGUF metadata, :mod:`aleator.models.json_config` from
config.json.  Fields mean what they mean in ggml's docs/gguf.md, llama.cpp's ``llama_hparams`` and
transformers' configuration classes.

Architectures import from here what all their readers need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal, TypeVar

from aleator.core.errors import UnsupportedModel
from aleator.core.records import dataclass
from aleator.models.delta_net import DeltaNetConfig
from aleator.models.files.fields import Fields as Fields
from aleator.models.files.gguf import GGUFFile as GGUFFile
from aleator.models.files.tensor_types import StoredTensor as StoredTensor

# Limits against hostile files, as in files/fields.py.
MAX_HEAD_DIM = 1 << 16
MAX_CONV = 64
MAX_STATE = 1 << 12
MAX_THETA = 1e30

P = TypeVar("P")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding."""

    theta: float = 10000.0  # base of the frequencies theta^(-2i/dim), i < dim/2
    dim: int = 0  # rotated channels of a head, even
    # Which channels form pair i: "norm" 2i and 2i + 1, "neox" i and i + dim/2; "none": nothing is rotated
    style: str = "norm"
    # How the context is stretched.  "none"; "linear": positions are divided by ``factor``; "yarn" (Peng et
    # al. 2023, arXiv:2309.00071): a ramp from unscaled to divided between ``beta_fast`` and ``beta_slow``
    # rotations over ``original_context``, and cos and sin multiplied by another 1 + 0.1 ln(factor); "llama3":
    # low frequencies are divided by ``factor``, those between the two ``*_freq_factor`` partly; "longrope"
    # (Ding et al. 2024, arXiv:2402.13753): divided by one of two tables, the second in contexts longer than
    # ``original_context``; "dynamic": the base grows with a context that is longer than ``original_context``;
    # "proportional": only the first pairs rotate, by the file's divisors or as ``n_rotated`` says, and
    # positions are divided by ``factor``.
    scaling: str = "none"
    factor: float = 1.0  # see ``scaling``
    # Positions that the model was trained with before the context was stretched
    original_context: int = 0
    attn_factor: float = 1.0  # factor of cos and sin
    beta_fast: float = 32.0  # see ``scaling``
    beta_slow: float = 1.0  # see ``scaling``
    low_freq_factor: float = 1.0  # see ``scaling``
    high_freq_factor: float = 4.0  # see ``scaling``
    truncate: bool = True  # YaRN's ramp begins and ends at whole pairs
    # Longrope's table for contexts up to ``original_context``, one number per pair; empty: the file has a
    # tensor
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()  # the table for longer contexts
    offset: int = 0  # channels of a head that come before the rotated ones
    n_rotated: int = 0  # pairs that rotate where ``scaling`` is "proportional"


def unscaled(rope: RopeConfig) -> RopeConfig:
    """The rotary embedding without a stretched context."""
    return replace(rope, scaling="none", factor=1.0, attn_factor=1.0)


@dataclass(frozen=True)
class WindowConfig:
    """Layers whose tokens see only the latest positions."""

    size: int  # positions in a window, including the token's own; or the length of a chunk
    layers: tuple[bool, ...]  # whether a layer has a window, one entry per layer
    rope: RopeConfig  # rotary embedding of these layers
    # The sequence is divided into chunks of ``size`` positions; a token sees only its own chunk
    chunked: bool = False
    head_dim: int = 0  # size of these layers' heads; 0: as in the other layers


@dataclass(frozen=True)
class QueryGrowth:
    """Queries that grow with their position.

    A query at position p is multiplied by 1 + rate * ln(1 + floor((p + ahead) / context)), after the rotation.
    """

    rate: float  # see above
    context: int  # see above
    ahead: int = 0  # see above
    unrotated: bool = False  # only in layers that do not rotate queries and keys


@dataclass(frozen=True)
class SSMConfig:
    """The states of layers that keep one.

    Either a selective state space (Gu and Dao 2023, arXiv:2312.00752), one with a decay per head (Dao and Gu
    2024, arXiv:2405.21060), or only the inputs of a short convolution.
    """

    d_inner: int  # channels that have a state, or channels of a short convolution
    d_conv: int  # latest values that the convolution of a channel reads
    d_state: int  # numbers in the state of a channel
    dt_rank: int = 0  # numbers that the time step is computed from; unused with heads
    # Epsilon of the RMS norm of time step, B and C, without weights; None: no norm
    norm_eps: float | None = None
    heads: int = 0  # heads with one decay each; 0: every channel has decays of its own
    groups: int = 1  # groups of heads with the same B and C
    least_step: float = 0.0  # lower bound of the time step

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution; with heads these are the values, B and C."""
        return self.d_inner + (2 * self.groups * self.d_state if self.heads else 0)


@dataclass(frozen=True)
class LatentConfig:
    """Attention whose keys and values are computed from a few numbers a token (arXiv:2405.04434)."""

    q_rank: int  # numbers that a token's queries are computed from; 0: from the layer's input
    rank: int  # numbers that the keys and values of all heads are computed from
    # Size of a query and key head; its last ``ModelConfig.rope.dim`` channels are rotated, and all heads' keys
    # share them
    head_dim: int
    head_dim_v: int  # size of a value head
    # The cache holds these ``rank`` numbers and the rotated channels: one key for all heads, no values.
    # Otherwise it holds every head's key and value.
    compressed: bool


Scores = Literal["softmax", "sigmoid", "chosen softmax", "chosen sigmoid"]
"""The function from a router's logits to weights.  "chosen": experts are chosen by their logits, and the
function is applied only to the chosen ones."""


@dataclass(frozen=True)
class ExpertsConfig:
    """The mixtures of experts of a model.

    A token goes through the ``n_used`` experts with the largest scores; the first of equal ones wins.  Their
    outputs are summed with their scores as weights (docs/numerics.md, part 2).
    """

    n_experts: int  # experts of a layer
    n_used: int  # experts that a token goes through
    n_ff: int  # width of an expert
    # Whether a layer's feed-forward part is a mixture, one entry per layer
    layers: tuple[bool, ...]
    scores: Scores = "softmax"  # function from the router's logits to weights
    normalised: bool = False  # the weights of a token's experts are divided by their sum
    scale: float = 1.0  # weights are multiplied by it
    # Groups of neighbouring experts; a token's experts are chosen from the ``n_groups_used`` groups whose
    # ``n_group_best`` best scores have the largest sums
    n_groups: int = 1
    n_groups_used: int = 1  # see ``n_groups``
    # 2, or 1 if groups are ranked by their best expert (DeepSeek-V2)
    n_group_best: int = 2
    choice_bias: bool = False  # a tensor is added to the scores only for the choice
    biases: bool = False  # router and experts have biases
    n_ff_shared: int = 0  # width of an expert that every token goes through; 0: there is none
    # That expert's weight is the sigmoid of a product; otherwise it is 1
    shared_router: bool = False
    shared_halved: bool = False  # its weight is a half
    weighs_input: bool = False  # weights multiply the experts' input, not their output
    # Experts stand beside a dense part; both and the router have norms of their own
    beside: bool = False


@dataclass(frozen=True)
class PerLayerConfig:
    """Embeddings of tokens for each layer."""

    width: int  # numbers per token and layer
    n_vocab: int  # tokens that have such embeddings


@dataclass(frozen=True)
class DenseConfig:
    """A dense layer behind the pooling of hidden states."""

    n_in: int  # width of its input
    n_out: int  # width of its output
    activation: str = "identity"  # or "tanh"


@dataclass(frozen=True)
class ModelConfig:
    """A model's dimensions.

    Tuples have one entry per layer; in a model without attention they are empty.
    """

    architecture: str  # name of the Architecture
    name: str  # the model's name in the file, or ""
    n_vocab: int  # token ids that the model has logits for
    n_layers: int  # layers
    n_embd: int  # width of a layer's input and output
    n_heads: tuple[int, ...]  # query heads
    n_kv_heads: tuple[int, ...]  # key-value heads; 0 in layers that keep a state
    n_ff: tuple[int, ...]  # width of the feed-forward part
    # Size of a key head in the cache, and of a query head; layers with a window may differ, see
    # head_dims()
    head_dim: int
    # Size of a value head; with compressed keys the values are their first channels
    head_dim_v: int
    rms_eps: float  # what norms add to the mean square, or to the variance
    context_length: int  # positions that the model was trained with
    # The token embedding is the output matrix too; there is no ``output.weight``
    tied: bool = False
    # Rotary embedding of the layers without a window
    rope: RopeConfig = field(default_factory=RopeConfig)
    window: WindowConfig | None = None  # layers with a window, if there are any
    attention_scale: float | None = None  # factor of the scores; None: 1 / sqrt(head_dim)
    attention_softcap: float = 0.0  # c: scores become c tanh(scores / c); 0: unchanged
    logit_softcap: float = 0.0  # c: logits become c tanh(logits / c); 0: unchanged
    embedding_scale: float = 1.0  # factor of token embeddings
    # Factor of the outputs of attention and feed-forward before they are added
    residual_scale: float = 1.0
    logit_scale: float = 1.0  # factor of the logits
    # Whether a layer's queries and keys are not rotated, one entry per layer; empty: all are
    unrotated: tuple[bool, ...] = ()
    # The largest slope's exponent in ALiBi (Press et al. 2022, arXiv:2108.12409); 0: scores do not depend on
    # distances.
    alibi: float = 0.0
    qkv_clamp: float = 0.0  # queries, keys and values are clamped to +- this; 0: unchanged
    # How queries grow with their position; None: they do not
    query_growth: QueryGrowth | None = None
    # Query and key heads of layers that rotate them are RMS-normalised without weights
    normalised_heads: bool = False
    normalised_values: bool = False  # value heads are RMS-normalised without weights
    # Whether a layer's values are its keys before their norm, one entry per layer; empty: none are
    keys_as_values: tuple[bool, ...] = ()
    # The layer whose keys and values a layer attends to, one entry per layer; empty: its own
    key_layers: tuple[int, ...] = ()
    per_layer: PerLayerConfig | None = None  # embeddings of tokens for each layer, if there are any
    ssm: SSMConfig | None = None  # states of layers that keep one, if there are any
    delta: DeltaNetConfig | None = None  # layers with a gated delta net, if there are any
    # Whether a layer keeps a state, one entry per layer; empty: layers without KV heads do
    stateful: tuple[bool, ...] = ()
    experts: ExpertsConfig | None = None  # mixtures of experts, if there are any
    latent: LatentConfig | None = None  # how keys and values are compressed; None: they are not
    # Numbers that a draft head's queries, keys and values are made of, which follow its input; 0: of its input
    wide: int = 0
    # How the hidden states of a text become its vector: "none", or as aleator.generate.vectors says; "rank":
    # they become a score; "other": in a way that is not here; "": the files do not say
    pooling: str = ""
    dense: tuple[DenseConfig, ...] = ()  # layers that make the vector of the pooled hidden states
    # Tokens of the longest text whose vector the files ask for; 0: they do not say
    longest_text: int = 0
    # Which hidden state is scored: "cls", "mean" or "last"; "": the last one of a decoder, else the first
    score_pooling: str = ""
    # Activation of feed-forward parts; "": the architecture's
    activation: str = ""
    parallel: bool = False  # see Architecture; files of some architectures say it
    norm: Literal["", "rms", "layer"] = ""  # likewise; "": the architecture's

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
        """KV heads of every layer; 0 if ``states`` says that the layer keeps a state."""
        pairs = zip(self.n_kv_heads, states, strict=True)
        return tuple(0 if state else heads for heads, state in pairs)

    def beginning(self, n: int) -> ModelConfig:
        """The configuration of the first ``n`` layers, without what is read later."""
        heads, kv_heads, experts = self.n_heads[:n], self.n_kv_heads[:n], self.experts
        if experts is not None:
            experts = replace(experts, layers=experts.layers[:n])
        made = replace(self, n_layers=n, n_heads=heads, n_kv_heads=kv_heads, experts=experts)
        return replace(made, n_ff=self.n_ff[:n])

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
    """Check that the sizes of a state space with heads agree; the error names ``key``."""
    if ssm.d_inner % ssm.heads or ssm.heads % ssm.groups:
        raise fields.error(
            key,
            f"{ssm.d_inner} channels must divide into {ssm.heads} heads, and those into {ssm.groups} groups",
        )
    return ssm


def checked_rope(fields: Fields, rope: RopeConfig) -> RopeConfig:
    """Check that the fields of a rotary embedding agree."""
    yarn, factor, theta = rope.scaling == "yarn", rope.factor, rope.theta
    slow, fast = rope.beta_slow, rope.beta_fast
    low, high = rope.low_freq_factor, rope.high_freq_factor

    def refuse_if(wrong: bool, key: str, message: str) -> None:
        if wrong:
            raise fields.error(key, message)

    refuse_if(yarn and factor < 1, "factor", f"the factor {factor} of yarn must be at least 1")
    refuse_if(yarn and fast <= slow, "beta_fast", f"beta_fast {fast} must exceed beta_slow {slow}")
    refuse_if(yarn and slow < 1e-6, "beta_slow", f"beta_slow {slow} of yarn must be at least 1e-06")
    refuse_if(yarn and theta <= 1, "theta", f"the base {theta} of yarn's frequencies must exceed 1")
    flat = rope.scaling == "llama3" and high <= low
    refuse_if(
        flat, "high_freq_factor", f"high_freq_factor {high} must exceed low_freq_factor {low}"
    )
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


def present(part: P | None) -> P:
    """Return ``part``, which the architecture's layers need the configuration to have."""
    if part is None:
        raise UnsupportedModel("a layer that the model's configuration has no dimensions for")
    return part


def unsupported(path: object, what: str) -> UnsupportedModel:
    """The error for a model that needs ``what``."""
    return UnsupportedModel(f"{path}: the model needs {what}, which is not supported")


def refuse_others(fields: Fields, computed: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel unless each field is absent, null, or has the one value that is ``computed``."""
    for key, value in computed.items():
        if fields.get(key) not in (None, value):
            raise unsupported(fields.path, f"{key} = {fields.get(key)!r:.40}")


def refuse(fields: Fields, what: str, *keys: str) -> None:
    """Raise UnsupportedModel if one of the fields ``keys`` is true: the model needs ``what``."""
    for key in keys:
        if fields.get(key, False):
            raise unsupported(fields.path, f"{what} ({key})")
