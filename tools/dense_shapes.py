"""What a small random model of dense_models.py is described by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemma4_models import Gemma4Shape
from model_file import Shape


@dataclass(frozen=True)
class LatentShape:
    """Compressed keys, see GGUF's fields; ``head`` and ``head_v`` are sizes of heads, not of the cache."""

    rank: int
    head: int
    head_v: int
    q_rank: int = 0
    compressed: bool = True


@dataclass(frozen=True)
class MixtureShape:
    """Mixtures of experts after the first ``dense`` layers, with a shared one."""

    n: int
    n_ff: int
    n_shared: int = 1
    dense: int = 0
    step: int = 1
    choice_bias: bool = False


@dataclass(frozen=True)
class Dense(Shape):
    """A model: GGUF's dimensions, which tensors there are, further metadata, and the seed of the weights.

    Attributes:
        norms: a layer's norms, by GGUF's names.
        head_norm: shape of the weights of queries' and keys' norms: "", "head", "each" or "all".
        bias: tensors with a bias, by what their names end with; "norm" for norms.
        fused: "qkv" and "gate" for fused tensors.
        gated: whether feed-forward has a gate.
        learned: whether positions have vectors.
        embedding_norm: whether embeddings are normalised.
        factors: whether there are longrope's tables.
        divisors: whether there are divisors of the rotary frequencies, as for llama3's scaling.
        rope: dimensions that are rotated; 0: the field is left out.
        meta: further fields, without the architecture's prefix.
        epsilon: the field with the norms' epsilon.
        latent: compressed keys, if there are any.
        experts: mixtures of experts, if there are any.
        gemma4: gemma4's layers, if these are some.
    """

    n_layers: int = 2
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    head_norm: str = ""
    bias: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    gated: bool = True
    learned: bool = False
    embedding_norm: bool = False
    factors: bool = False
    divisors: bool = False
    rope: int = 16
    meta: Mapping[str, Any] = field(default_factory=dict)
    epsilon: str = "attention.layer_norm_rms_epsilon"
    gain: float = math.sqrt(64)  # scale of embeddings
    latent: LatentShape | None = None
    experts: MixtureShape | None = None
    gemma4: Gemma4Shape | None = None
