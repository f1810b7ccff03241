"""Small random models with gated delta nets, of Qwen3-Next and Qwen3.5, for golden_models.py and tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from model_file import Array, Draws, Shape, add_tensors, write_file


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


def each_tensor(spec: Delta) -> Iterator[tuple[str, Array]]:
    """The tensors by their GGUF names, scaled so that nothing explodes."""
    draws = Draws(spec.seed)
    matrix, vector = draws.matrix, draws.vector
    e, dim = spec.n_embd, spec.head_dim
    q, kv = spec.n_heads * dim, spec.n_kv_heads * dim
    keys, values = spec.key_heads * spec.delta_dim, spec.value_heads * spec.delta_dim
    yield "token_embd.weight", matrix(spec.n_vocab, e, gain=math.sqrt(e))
    yield "output_norm.weight", vector(e)
    if not spec.tied:
        yield "output.weight", matrix(spec.n_vocab, e, gain=2.0)
    for layer in range(spec.n_layers + spec.further):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", vector(e)
        yield at + "post_attention_norm.weight", vector(e)
        if layer < spec.n_layers and keeps_state(spec, layer):
            if spec.joint:
                yield at + "ssm_in.weight", matrix(2 * keys + 2 * values, e, gain=1.5)
            else:
                yield at + "attn_qkv.weight", matrix(2 * keys + values, e, gain=1.5)
                yield at + "attn_gate.weight", matrix(values, e)
            if spec.arch == "qwen3next":
                yield at + "ssm_ba.weight", matrix(2 * spec.value_heads, e)
            else:
                yield at + "ssm_beta.weight", matrix(spec.value_heads, e)
                yield at + "ssm_alpha.weight", matrix(spec.value_heads, e)
            yield at + "ssm_conv1d.weight", matrix(2 * keys + values, spec.d_conv, gain=2.0)
            yield at + "ssm_dt.bias", vector(spec.value_heads, around=-1.0)
            yield at + "ssm_a", -np.exp(vector(spec.value_heads, around=-1.0))
            yield at + "ssm_norm.weight", vector(spec.delta_dim)
            yield at + "ssm_out.weight", matrix(e, values)
        else:
            yield at + "attn_q.weight", matrix(2 * q, e, gain=1.5)
            yield at + "attn_k.weight", matrix(kv, e, gain=1.5)
            yield at + "attn_v.weight", matrix(kv, e)
            yield at + "attn_q_norm.weight", vector(dim)
            yield at + "attn_k_norm.weight", vector(dim)
            yield at + "attn_output.weight", matrix(e, q)
        if spec.n_experts:
            n, ff, shared = spec.n_experts, spec.n_ff_expert, spec.n_ff_shared
            yield at + "ffn_gate_inp.weight", matrix(n, e, gain=2.0)
            yield at + "ffn_gate_exps.weight", matrix(n, ff, e)
            yield at + "ffn_up_exps.weight", matrix(n, ff, e)
            yield at + "ffn_down_exps.weight", matrix(n, e, ff)
            yield at + "ffn_gate_inp_shexp.weight", matrix(1, e)[0]
            yield at + "ffn_gate_shexp.weight", matrix(shared, e)
            yield at + "ffn_up_shexp.weight", matrix(shared, e)
            yield at + "ffn_down_shexp.weight", matrix(e, shared)
        else:
            yield at + "ffn_gate.weight", matrix(spec.n_ff, e)
            yield at + "ffn_up.weight", matrix(spec.n_ff, e)
            yield at + "ffn_down.weight", matrix(e, spec.n_ff)
        if layer >= spec.n_layers:
            yield at + "nextn.eh_proj.weight", matrix(e, 2 * e)
            yield at + "nextn.enorm.weight", vector(e)
            yield at + "nextn.hnorm.weight", vector(e)


def write_metadata(w: gguf.GGUFWriter, spec: Delta) -> None:
    """The fields of a model besides its tokenizer."""
    w.add_context_length(spec.context)
    w.add_embedding_length(spec.n_embd)
    w.add_block_count(spec.n_layers + spec.further)
    w.add_vocab_size(spec.n_vocab)
    w.add_feed_forward_length(spec.n_ff)
    w.add_head_count(spec.n_heads)
    w.add_head_count_kv(spec.n_kv_heads)
    w.add_key_length(spec.head_dim)
    w.add_value_length(spec.head_dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(spec.rope)
    w.add_ssm_conv_kernel(spec.d_conv)
    w.add_ssm_inner_size(spec.value_heads * spec.delta_dim)
    w.add_ssm_state_size(spec.delta_dim)
    w.add_ssm_time_step_rank(spec.value_heads)
    w.add_ssm_group_count(spec.key_heads)
    if spec.sections:
        w.add_rope_dimension_sections(list(spec.sections))
    if spec.listed:
        listed = [*spec.listed, *[False] * spec.further]
        w.add_array(f"{spec.arch}.attention.recurrent_layers", listed)
    w.add_uint32(f"{spec.arch}.full_attention_interval", spec.interval)
    if spec.further:
        w.add_uint32(f"{spec.arch}.nextn_predict_layers", spec.further)
    if spec.n_experts:
        w.add_expert_count(spec.n_experts)
        w.add_expert_used_count(spec.n_used)
        w.add_expert_feed_forward_length(spec.n_ff_expert)
        w.add_expert_shared_feed_forward_length(spec.n_ff_shared)


def write_delta(path: Path, spec: Delta, tensors: dict[str, Array] | None = None) -> Path:
    """Write the model, which has no tokenizer; ``tensors`` replaces its own (to make broken ones)."""
    made = each_tensor(spec) if tensors is None else tensors.items()
    return write_file(
        path,
        spec.arch,
        lambda w: write_metadata(w, spec),
        lambda w: add_tensors(w, made, spec.type),
    )
