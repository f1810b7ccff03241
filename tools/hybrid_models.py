"""Small random models whose layers keep states with one decay for each head, or short convolutions.

A model is a :class:`Hybrid`: dimensions, what each layer is, and metadata besides the usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import gguf
import kimi_models
import numpy as np
from kimi_models import KimiShape
from model_file import Array, Draws, Shape, add_fields


@dataclass(frozen=True)
class Hybrid(Shape):
    """A model: GGUF's dimensions, the kinds of its layers, further metadata, and the seed of the weights.

    Attributes:
        layers: a letter for each: "s" keeps a state, "a" attends, "b" does both, "f" is a feed-forward part.
        heads: heads of states, each with one decay.
        groups: groups of heads with the same B and C.
        single: a layer has one part, and no feed-forward part after it.
        short: states are a short convolution's inputs.
        gated: whether feed-forward has a gate.
        gated_norm: whether a scan's output is normalised.
        bias: tensors with a bias, by what their names end with.
        kimi: kimi-linear's layers, if these are some; states have heads of ``head_dim``.
        n_experts: experts of every feed-forward part; 0: there is no mixture.
        meta: further fields, without the architecture's prefix.
    """

    layers: str
    _: KW_ONLY
    n_embd: int = 32
    head_dim: int = 8
    n_ff: int = 48
    heads: int = 4
    groups: int = 2
    d_state: int = 8
    d_conv: int = 4
    single: bool = False
    short: bool = False
    gated: bool = True
    gated_norm: bool = True
    bias: tuple[str, ...] = ()
    head_norm: bool = False
    output_norm: str = "output_norm"
    n_experts: int = 0
    n_used: int = 2
    n_ff_expert: int = 48
    n_ff_shared: int = 0
    choice_bias: bool = False
    dense_layers: int = 0
    rope: bool = True
    kimi: KimiShape | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_attention(self) -> bool:
        """Whether any layer attends."""
        return any(kind in "ab" for kind in self.layers)

    def each_tensor(self) -> Iterator[tuple[str, Array]]:
        """The tensors one by one, scaled so that attention is uneven and nothing explodes."""
        draws = Draws(self.seed)
        matrix, vector = draws.matrix, draws.vector
        e, inner = self.n_embd, 2 * self.n_embd

        def linear(
            name: str, n_out: int, n_in: int, gain: float = 1.0
        ) -> Iterator[tuple[str, Array]]:
            yield f"{name}.weight", matrix(n_out, n_in, gain=gain)
            if name.endswith(self.bias) if self.bias else False:
                yield f"{name}.bias", vector(n_out, around=0.0)

        yield "token_embd.weight", matrix(self.n_vocab, e, gain=math.sqrt(e))
        yield f"{self.output_norm}.weight", vector(e)
        if not self.tied:
            yield "output.weight", matrix(self.n_vocab, e, gain=2.0)
        for layer, kind in enumerate(self.layers):
            at = f"blk.{layer}."
            yield at + "attn_norm.weight", vector(e)
            if self.kimi is not None:
                sizes = e, self.n_heads, self.head_dim, self.d_conv
                yield from kimi_models.tensors(self.kimi, kind, at, sizes, draws)
            elif kind in "sb" and self.short:
                yield at + "shortconv.in_proj.weight", matrix(3 * e, e, gain=1.5)
                yield at + "shortconv.conv.weight", matrix(e, self.d_conv, gain=2.0)
                yield at + "shortconv.out_proj.weight", matrix(e, e)
            elif kind in "sb":
                channels = inner + 2 * self.groups * self.d_state
                yield at + "ssm_in.weight", matrix(inner + channels + self.heads, e)
                yield at + "ssm_conv1d.weight", matrix(channels, self.d_conv, gain=2.0)
                yield at + "ssm_conv1d.bias", vector(channels, around=0.0)
                yield at + "ssm_dt.bias", vector(self.heads, around=-1.0)
                yield at + "ssm_a", -np.exp(vector(self.heads, around=0.0))[:, None]
                yield at + "ssm_d", vector(self.heads)[:, None]
                if self.gated_norm:
                    yield (
                        at + "ssm_norm.weight",
                        vector(inner).reshape(self.groups, inner // self.groups),
                    )
                yield from linear(at + "ssm_out", e, inner)
            if kind in "ab" and self.kimi is None:
                q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
                for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                    yield from linear(at + name, n, e, 1.5)
                if self.head_norm:
                    yield at + "attn_q_norm.weight", vector(self.head_dim)
                    yield at + "attn_k_norm.weight", vector(self.head_dim)
                yield from linear(at + "attn_output", e, q)
            if not (kind == "f" if self.single else self.arch != "mamba2"):
                continue
            if not self.single:
                # llama.cpp's falcon-h1 has no ".weight" here.
                suffix = "" if self.arch == "falcon-h1" else ".weight"
                yield f"{at}ffn_norm{suffix}", vector(e)
            if not self.n_experts or layer < self.dense_layers:
                if self.gated:
                    yield from linear(at + "ffn_gate", self.n_ff, e)
                yield from linear(at + "ffn_up", self.n_ff, e)
                yield from linear(at + "ffn_down", e, self.n_ff)
                continue
            n, ff, shared = self.n_experts, self.n_ff_expert, self.n_ff_shared
            yield at + "ffn_gate_inp.weight", matrix(n, e, gain=2.0)
            if self.gated:
                yield at + "ffn_gate_exps.weight", matrix(n, ff, e)
            yield at + "ffn_up_exps.weight", matrix(n, ff, e)
            yield at + "ffn_down_exps.weight", matrix(n, e, ff)
            if self.choice_bias:
                yield at + "exp_probs_b.bias", vector(n, around=0.0)
            if shared:
                if self.gated:
                    yield at + "ffn_gate_shexp.weight", matrix(shared, e)
                yield at + "ffn_up_shexp.weight", matrix(shared, e)
                yield at + "ffn_down_shexp.weight", matrix(e, shared)

    def write_metadata(self, w: gguf.GGUFWriter) -> None:
        """The fields of a model besides its tokenizer."""
        w.add_context_length(self.context)
        w.add_embedding_length(self.n_embd)
        w.add_block_count(len(self.layers))
        w.add_vocab_size(self.n_vocab)
        w.add_layer_norm_rms_eps(1e-5)
        if self.has_attention:
            kv = [self.n_kv_heads if kind in "ab" else 0 for kind in self.layers]
            ff = [self.n_ff if kind == "f" else 0 for kind in self.layers]
            w.add_feed_forward_length(ff if self.single else self.n_ff)
            w.add_head_count(self.n_heads)
            w.add_head_count_kv(kv)
            if self.kimi is not None:
                kimi_models.write_metadata(w, self.kimi, self.head_dim)
            else:
                w.add_key_length(self.head_dim)
                w.add_value_length(self.head_dim)
            if self.rope and self.kimi is None:
                w.add_rope_dimension_count(self.head_dim)
        else:
            w.add_feed_forward_length(0)
            w.add_head_count(0)
        if self.short:
            w.add_shortconv_l_cache(self.d_conv)
        else:
            w.add_ssm_conv_kernel(self.d_conv)
        if not self.short and self.kimi is None:
            w.add_ssm_inner_size(2 * self.n_embd)
            w.add_ssm_state_size(self.d_state)
            w.add_ssm_time_step_rank(self.heads)
            w.add_ssm_group_count(self.groups)
        if self.n_experts:
            w.add_expert_count(self.n_experts)
            w.add_expert_used_count(self.n_used)
            w.add_expert_feed_forward_length(self.n_ff_expert)
            if self.n_ff_shared:
                w.add_expert_shared_feed_forward_length(self.n_ff_shared)
            if self.dense_layers:
                w.add_leading_dense_block_count(self.dense_layers)
        add_fields(w, self.arch, self.meta)


_GRANITE = {
    "embedding_scale": 3.0,
    "attention.scale": 0.2,
    "residual_scale": 0.5,
    "logit_scale": 2.0,
}
_EPS = {"attention.layer_norm_epsilon": 1e-5}
_LFM2: dict[str, Any] = {"head_norm": True, "output_norm": "token_embd_norm", "tied": True}

HYBRID: dict[str, Hybrid] = {
    "mamba2": Hybrid("mamba2", "ss", seed=61),
    "mamba2-tied": Hybrid(
        "mamba2", "sss", heads=8, groups=1, d_state=20, d_conv=3, tied=True, seed=62
    ),
    "granitehybrid": Hybrid(
        "granitehybrid", "sas", rope=False, meta=_GRANITE | {"rope.scaling.finetuned": False}, seed=63
    ),
    "granitehybrid-experts": Hybrid(
        "granitehybrid", "sa", heads=8, groups=1, tied=True, n_ff_expert=48, n_experts=5,
        n_ff_shared=40, meta=_GRANITE, seed=64,
    ),
    "nemotron_h": Hybrid(
        "nemotron_h", "sfaf", rope=False, single=True, gated=False, heads=8, groups=4, meta=_EPS, seed=65
    ),
    "nemotron_h-bias": Hybrid(
        "nemotron_h", "asf", rope=False, single=True, gated=False, tied=True,
        bias=("ffn_up", "ffn_down", "attn_q", "attn_output"), meta=_EPS, seed=66,
    ),
    "nemotron_h_moe": Hybrid(
        "nemotron_h_moe", "sfaf", rope=False, single=True, gated=False, heads=8, groups=4, n_experts=5,
        n_ff_expert=24, n_ff_shared=40, choice_bias=True, seed=72,
        meta=_EPS | {"expert_weights_norm": True, "expert_weights_scale": 2.5},
    ),
    "kimi-linear": Hybrid(
        "kimi-linear", "ssas", n_embd=64, head_dim=16, n_kv_heads=1, n_experts=6, n_used=3, n_ff_expert=24,
        n_ff_shared=24, choice_bias=True, dense_layers=1, kimi=KimiShape(32, 8, 24, 16), seed=73,
        meta={"expert_gating_func": 2, "expert_weights_scale": 2.446, "expert_shared_count": 1},
    ),
    "falcon-h1": Hybrid("falcon-h1", "bb", gated_norm=False, seed=67),
    "falcon-h1-norm": Hybrid("falcon-h1", "bbb", groups=1, tied=True, seed=68),
    "lfm2": Hybrid("lfm2", "ssa", short=True, d_conv=3, **_LFM2, seed=69),
    "lfm2-untied": Hybrid("lfm2", "as", short=True, d_conv=5, **_LFM2 | {"tied": False}, seed=70),
    "lfm2moe": Hybrid(
        "lfm2moe", "ssa", short=True, d_conv=3, n_experts=5, n_ff_expert=24, choice_bias=True,
        dense_layers=1, **_LFM2, meta={"expert_gating_func": 2}, seed=71,
    ),
}  # fmt: skip
