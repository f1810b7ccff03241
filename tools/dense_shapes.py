"""What a small random model of dense_models.py is described by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gemma4_models
import gguf
import numpy as np
from gemma4_models import Gemma4Shape
from model_file import Array, Draws, Shape, add_fields


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
    bare_bias: bool = False  # its name has no ".bias"


@dataclass(frozen=True)
class Dense(Shape):
    """A model: GGUF's dimensions, which tensors there are, further metadata, and the seed of the weights.

    Attributes:
        norms: a layer's norms, by GGUF's names.
        bare_norms: further ones, whose names have no ".weight".
        head_norm: shape of the weights of queries' and keys' norms: "", "head", "each" or "all".
        bias: tensors with a bias, by what their names end with; "norm" for norms.
        fused: "qkv" and "gate" for fused tensors.
        gated: whether feed-forward has a gate.
        gate: whether attention's outputs have a gate in a tensor of its own; "heads": one value a head.
        kv_heads: KV heads of each layer, 0: no attention; every second layer is then twice as wide.
        sinks: whether heads have scores without a value.
        learned: whether positions have vectors.
        embedding_norm: whether embeddings are normalised.
        factors: whether there are longrope's tables.
        halves: whether the file says twice the width of feed-forward parts.
        last_norm: the last norm's name; "": it has no weights.
        output_bias: whether the output matrix has a bias.
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
    bare_norms: tuple[str, ...] = ()
    head_norm: str = ""
    bias: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    gated: bool = True
    gate: bool | str = False
    kv_heads: tuple[int, ...] = ()
    sinks: bool = False
    learned: bool = False
    embedding_norm: bool = False
    factors: bool = False
    halves: bool = False
    last_norm: str = "output_norm"
    output_bias: bool = False
    divisors: bool = False
    rope: int = 16
    meta: Mapping[str, Any] = field(default_factory=dict)
    epsilon: str = "attention.layer_norm_rms_epsilon"
    gain: float = math.sqrt(64)  # scale of embeddings
    latent: LatentShape | None = None
    experts: MixtureShape | None = None
    gemma4: Gemma4Shape | None = None

    def each_tensor(self) -> Iterator[tuple[str, Array]]:
        """The tensors by their GGUF names, scaled so that attention is uneven and nothing explodes."""
        draws = Draws(self.seed)
        matrix, vector = draws.matrix, draws.vector

        def norm(name: str, *shape: int) -> Iterator[tuple[str, Array]]:
            yield f"{name}.weight", vector(*shape)
            if "norm" in self.bias:
                yield f"{name}.bias", vector(*shape, around=0.0)

        def linear(
            name: str, n_out: int, n_in: int, gain: float = 1.0
        ) -> Iterator[tuple[str, Array]]:
            yield f"{name}.weight", matrix(n_out, n_in, gain=gain)
            if name.rpartition("_")[2] in self.bias:
                yield f"{name}.bias", vector(n_out, around=0.0)

        def mixture(at: str, shape: MixtureShape) -> Iterator[tuple[str, Array]]:
            yield at + "ffn_gate_inp.weight", matrix(shape.n, e, gain=2.0)
            for name, n_out, n_in in (
                ("gate", shape.n_ff, e),
                ("up", shape.n_ff, e),
                ("down", e, shape.n_ff),
            ):
                each = [matrix(n_out, n_in) for _ in range(shape.n)]
                yield f"{at}ffn_{name}_exps.weight", np.stack(each)
                if not shape.n_shared:
                    continue
                shared = shape.n_ff * shape.n_shared
                sizes = (e, shared) if name == "down" else (shared, e)
                yield f"{at}ffn_{name}_shexp.weight", matrix(*sizes)
            if shape.choice_bias:
                end = "" if shape.bare_bias else ".bias"
                yield f"{at}exp_probs_b{end}", vector(shape.n, around=0.0)

        def dense(at: str, n_ff: int) -> Iterator[tuple[str, Array]]:
            if self.gated and "gate" not in self.fused:
                yield from linear(at + "ffn_gate", n_ff, e)
            yield from linear(at + "ffn_up", n_ff * (2 if "gate" in self.fused else 1), e)
            yield from linear(at + "ffn_down", e, n_ff)

        e, dim = self.n_embd, self.head_dim
        q, kv = self.n_heads * dim, self.n_kv_heads * dim
        yield "token_embd.weight", matrix(self.n_vocab, e, gain=self.gain)
        if self.embedding_norm:
            yield from norm("token_embd_norm", e)
        if self.learned:
            yield "position_embd.weight", matrix(self.context, e, gain=4.0)
        if self.last_norm:
            yield from norm(self.last_norm, e)
        if self.output_bias:
            yield "output.bias", vector(self.n_vocab, around=0.0)
        if not self.tied:
            yield "output.weight", matrix(self.n_vocab, e, gain=2.0)
        if self.factors:
            ramp = np.arange(self.rope // 2)
            yield "rope_factors_long.weight", (1.0 + ramp).astype(np.float32)
            yield "rope_factors_short.weight", (1.0 + 0.1 * ramp).astype(np.float32)
        if self.divisors:
            yield "rope_freqs.weight", np.linspace(1.0, 8.0, self.rope // 2).astype(np.float32)
        if self.gemma4 is not None:
            yield from gemma4_models.tensors(self.gemma4, self.n_vocab, e, self.n_heads, draws)
            return
        for layer in range(self.n_layers):
            at = f"blk.{layer}."
            n_ff = self.n_ff
            if self.kv_heads:
                kv, n_ff = self.kv_heads[layer] * dim, self.widths()[layer]
            if kv == 0:
                yield from norm(at + "ffn_norm", e)
                yield from dense(at, n_ff)
                continue
            for name in self.norms:
                yield from norm(at + name, e)
            for name in self.bare_norms:
                yield at + name, vector(e)
            if self.latent is not None:
                shape = self.latent
                heads, plain = self.n_heads, shape.head - self.rope
                if shape.q_rank:
                    yield from linear(at + "attn_q_a", shape.q_rank, e, 1.5)
                    yield from norm(at + "attn_q_a_norm", shape.q_rank)
                    yield from linear(at + "attn_q_b", heads * shape.head, shape.q_rank, 1.5)
                else:
                    yield from linear(at + "attn_q", heads * shape.head, e, 1.5)
                yield from linear(at + "attn_kv_a_mqa", shape.rank + self.rope, e, 1.5)
                yield from norm(at + "attn_kv_a_norm", shape.rank)
                if shape.compressed:
                    key = [matrix(shape.rank, plain) for _ in range(heads)]
                    value = [matrix(shape.head_v, shape.rank) for _ in range(heads)]
                    yield at + "attn_k_b.weight", np.stack(key)
                    yield at + "attn_v_b.weight", np.stack(value)
                else:
                    yield from linear(at + "attn_kv_b", heads * (plain + shape.head_v), shape.rank)
                q = heads * shape.head_v
            elif "qkv" in self.fused:
                yield from linear(at + "attn_qkv", q + 2 * kv, e, 1.5)
            else:
                for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                    yield from linear(at + name, n, e, 1.5)
            for name, heads in (("attn_q_norm", self.n_heads), ("attn_k_norm", self.n_kv_heads)):
                shapes = {"head": (dim,), "each": (heads, dim), "all": (heads * dim,)}
                if self.head_norm:
                    yield from norm(at + name, *shapes[self.head_norm])
            if self.gate:
                rows = self.n_heads if self.gate == "heads" else q
                yield from linear(at + "attn_gate", rows, e, 1.5)
            if self.sinks:
                yield at + "attn_sinks.weight", vector(self.n_heads)
            yield from linear(at + "attn_output", e, q)
            mixed = self.experts
            if mixed is not None and layer >= mixed.dense and (layer + 1) % mixed.step == 0:
                yield from mixture(at, mixed)
                continue
            yield from dense(at, n_ff)

    def widths(self) -> list[int]:
        """Widths of the layers of a model with :attr:`kv_heads`."""
        return [self.n_ff * (1 + layer % 2) for layer in range(self.n_layers)]

    def write_metadata(self, w: gguf.GGUFWriter) -> None:
        """The fields of a model besides its tokenizer."""
        w.add_context_length(self.context)
        w.add_embedding_length(self.n_embd)
        w.add_block_count(self.n_layers)
        w.add_vocab_size(self.n_vocab)
        own = self.gemma4
        kv_heads = list(self.kv_heads) if own is None else list(own.n_kv)
        widths = self.widths() if own is None else list(own.n_ff)
        w.add_feed_forward_length(widths if kv_heads else self.n_ff * (1 + self.halves))
        each = [self.n_heads if n else 0 for n in self.kv_heads]
        w.add_head_count(each or self.n_heads)
        w.add_head_count_kv(kv_heads or self.n_kv_heads)
        if own is not None:
            gemma4_models.write_metadata(w, own)
        shape, key, value = self.latent, self.head_dim, self.head_dim
        if shape is not None:
            key, value = shape.head, shape.head_v
            w.add_kv_lora_rank(shape.rank)
            if shape.q_rank:
                w.add_q_lora_rank(shape.q_rank)
            if shape.compressed:
                w.add_key_length_mla(shape.head)
                w.add_value_length_mla(shape.head_v)
                key, value = shape.rank + self.rope, shape.rank
        w.add_key_length(key)
        w.add_value_length(value)
        if self.experts is not None:
            w.add_expert_count(self.experts.n)
            w.add_expert_feed_forward_length(self.experts.n_ff)
            w.add_expert_shared_count(self.experts.n_shared)
            w.add_leading_dense_block_count(self.experts.dense)
        w.add_float32(f"{self.arch}.{self.epsilon}", 1e-5)
        if self.rope:
            w.add_rope_dimension_count(self.rope)
        add_fields(w, self.arch, self.meta)
