"""Small random models with gated delta nets, of Qwen3-Next and Qwen3.5, for golden_models.py and tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np
from model_file import Array, Draws, Shape


@dataclass(frozen=True)
class Delta(Shape):
    """A model: GGUF's dimensions, and the seed of its weights.

    Attributes:
        interval: one of this many layers attends.
        listed: the layers that keep a state, as a list in the file; (): by ``interval``.
        rope: rotated channels of a head.
        key_heads: key heads of a delta net.
        value_heads: value heads of a delta net.
        delta_dim: size of a delta net's heads.
        joint: the projections are joint, as in the first files of Qwen3-Next.
        further: blocks that predict further tokens.
        n_experts: 0: feed-forward parts are plain.
    """

    n_layers: int = 4
    interval: int = 2
    listed: tuple[bool, ...] = ()
    rope: int = 8
    sections: tuple[int, ...] = ()
    key_heads: int = 2
    value_heads: int = 4
    delta_dim: int = 16
    d_conv: int = 4
    joint: bool = False
    further: int = 0
    n_experts: int = 0
    n_used: int = 2
    n_ff_expert: int = 32
    n_ff_shared: int = 48

    def each_tensor(self) -> Iterator[tuple[str, Array]]:
        """The tensors by their GGUF names, scaled so that nothing explodes."""
        draws = Draws(self.seed)
        matrix, vector = draws.matrix, draws.vector
        e, dim = self.n_embd, self.head_dim
        q, kv = self.n_heads * dim, self.n_kv_heads * dim
        keys, values = self.key_heads * self.delta_dim, self.value_heads * self.delta_dim
        yield "token_embd.weight", matrix(self.n_vocab, e, gain=math.sqrt(e))
        yield "output_norm.weight", vector(e)
        if not self.tied:
            yield "output.weight", matrix(self.n_vocab, e, gain=2.0)
        for layer in range(self.n_layers + self.further):
            at = f"blk.{layer}."
            yield at + "attn_norm.weight", vector(e)
            yield at + "post_attention_norm.weight", vector(e)
            if layer < self.n_layers and keeps_state(self, layer):
                if self.joint:
                    yield at + "ssm_in.weight", matrix(2 * keys + 2 * values, e, gain=1.5)
                else:
                    yield at + "attn_qkv.weight", matrix(2 * keys + values, e, gain=1.5)
                    yield at + "attn_gate.weight", matrix(values, e)
                if self.arch == "qwen3next":
                    yield at + "ssm_ba.weight", matrix(2 * self.value_heads, e)
                else:
                    yield at + "ssm_beta.weight", matrix(self.value_heads, e)
                    yield at + "ssm_alpha.weight", matrix(self.value_heads, e)
                yield at + "ssm_conv1d.weight", matrix(2 * keys + values, self.d_conv, gain=2.0)
                yield at + "ssm_dt.bias", vector(self.value_heads, around=-1.0)
                yield at + "ssm_a", -np.exp(vector(self.value_heads, around=-1.0))
                yield at + "ssm_norm.weight", vector(self.delta_dim)
                yield at + "ssm_out.weight", matrix(e, values)
            else:
                yield at + "attn_q.weight", matrix(2 * q, e, gain=1.5)
                yield at + "attn_k.weight", matrix(kv, e, gain=1.5)
                yield at + "attn_v.weight", matrix(kv, e)
                yield at + "attn_q_norm.weight", vector(dim)
                yield at + "attn_k_norm.weight", vector(dim)
                yield at + "attn_output.weight", matrix(e, q)
            if self.n_experts:
                n, ff, shared = self.n_experts, self.n_ff_expert, self.n_ff_shared
                yield at + "ffn_gate_inp.weight", matrix(n, e, gain=2.0)
                yield at + "ffn_gate_exps.weight", matrix(n, ff, e)
                yield at + "ffn_up_exps.weight", matrix(n, ff, e)
                yield at + "ffn_down_exps.weight", matrix(n, e, ff)
                yield at + "ffn_gate_inp_shexp.weight", matrix(1, e)[0]
                yield at + "ffn_gate_shexp.weight", matrix(shared, e)
                yield at + "ffn_up_shexp.weight", matrix(shared, e)
                yield at + "ffn_down_shexp.weight", matrix(e, shared)
            else:
                yield at + "ffn_gate.weight", matrix(self.n_ff, e)
                yield at + "ffn_up.weight", matrix(self.n_ff, e)
                yield at + "ffn_down.weight", matrix(e, self.n_ff)
            if layer >= self.n_layers:
                yield at + "nextn.eh_proj.weight", matrix(e, 2 * e)
                yield at + "nextn.enorm.weight", vector(e)
                yield at + "nextn.hnorm.weight", vector(e)

    def write_metadata(self, w: gguf.GGUFWriter) -> None:
        """The fields of a model besides its tokenizer."""
        w.add_context_length(self.context)
        w.add_embedding_length(self.n_embd)
        w.add_block_count(self.n_layers + self.further)
        w.add_vocab_size(self.n_vocab)
        w.add_feed_forward_length(self.n_ff)
        w.add_head_count(self.n_heads)
        w.add_head_count_kv(self.n_kv_heads)
        w.add_key_length(self.head_dim)
        w.add_value_length(self.head_dim)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_rope_dimension_count(self.rope)
        w.add_ssm_conv_kernel(self.d_conv)
        w.add_ssm_inner_size(self.value_heads * self.delta_dim)
        w.add_ssm_state_size(self.delta_dim)
        w.add_ssm_time_step_rank(self.value_heads)
        w.add_ssm_group_count(self.key_heads)
        if self.sections:
            w.add_rope_dimension_sections(list(self.sections))
        if self.listed:
            listed = [*self.listed, *[False] * self.further]
            w.add_array(f"{self.arch}.attention.recurrent_layers", listed)
        w.add_uint32(f"{self.arch}.full_attention_interval", self.interval)
        if self.further:
            w.add_uint32(f"{self.arch}.nextn_predict_layers", self.further)
        if self.n_experts:
            w.add_expert_count(self.n_experts)
            w.add_expert_used_count(self.n_used)
            w.add_expert_feed_forward_length(self.n_ff_expert)
            w.add_expert_shared_feed_forward_length(self.n_ff_shared)


DELTAS: dict[str, Delta] = {
    "qwen3next": Delta("qwen3next", n_experts=6, seed=61),
    "qwen3next-joint": Delta(
        "qwen3next", n_layers=3, n_experts=4, listed=(False, True, True), key_heads=1, value_heads=3,
        d_conv=3, joint=True, tied=True, seed=62,
    ),
    "qwen35": Delta("qwen35", sections=(2, 1, 1, 0), value_heads=6, seed=63),
    "qwen35-further": Delta(
        "qwen35", sections=(3, 3, 2, 0), rope=16, n_layers=3, interval=3, key_heads=4, tied=True,
        further=1, seed=64,
    ),
    "qwen35moe": Delta("qwen35moe", sections=(2, 1, 1, 0), n_experts=6, n_used=3, seed=65),
}  # fmt: skip


def keeps_state(spec: Delta, layer: int) -> bool:
    """Whether a layer has a delta net."""
    return spec.listed[layer] if spec.listed else (layer + 1) % spec.interval != 0
