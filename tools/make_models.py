"""Write small models with random weights as GGUF: for tests, golden values and trying things out.

    python tools/make_models.py --list
    python tools/make_models.py qwen3 --out qwen3.gguf

The weights depend only on the seed, so a file can be made again anywhere.  The models have no
tokenizer (``no_vocab``) unless ``--tokenizer-from`` names a GGUF file to copy one from.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from model_file import Array, Draws, Shape
from model_file import write_model as write_model
from quantise import quantise_tensor


@dataclass(frozen=True)
class Spec(Shape):
    """A model: GGUF's dimensions, and the seed of its weights."""

    arch: str = "llama"
    n_layers: int = 2
    rope_theta: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 64
    rope_freqs: bool = False
    bias: bool = False
    window: int = 0  # gemma3
    # One of this many layers sees everything (jamba: has attention); None: not in the file.
    pattern: int | None = None
    softcap: float = 0.0
    d_conv: int = 4  # mamba; its d_inner is 2 * n_embd
    d_state: int = 16
    dt_rank: int = 0
    dt_b_c_norm: bool = False
    sections: tuple[int, ...] = ()  # of M-RoPE, qwen2vl
    n_experts: int = 0
    n_used: int = 2
    n_ff_expert: int = 32
    n_ff_shared: int = 0
    dense_layers: int = 0  # the first layers, which have no experts
    choice_bias: bool = False
    factors: tuple[float, ...] = ()  # granite's factors of embeddings, scores, outputs, logits
    n_distinct: int = 0  # layers with weights of their own, which later ones repeat; 0: all

    def each_tensor(self) -> Iterator[tuple[str, Array]]:
        """The tensors one by one, so that a large model's need not all be in memory."""
        draws = Draws(self.seed)
        rng, matrix, vector = draws.rng, draws.matrix, draws.vector
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        inner, n_dt = 2 * self.n_embd, self.dt_rank + 2 * self.d_state
        gain = 2.0 if self.arch == "gemma3" else math.sqrt(self.n_embd)
        yield "token_embd.weight", matrix(self.n_vocab, self.n_embd, gain=gain)
        yield "output_norm.weight", vector(self.n_embd)
        if not self.tied:
            yield "output.weight", matrix(self.n_vocab, self.n_embd, gain=2.0)
        if self.rope_freqs:
            ramp = np.clip(np.arange(self.head_dim // 2) - 2.0, 0.0, None)
            yield "rope_freqs.weight", (1.0 + ramp).astype(np.float32)
        for layer in range(self.n_distinct or self.n_layers):
            at = f"blk.{layer}."
            yield at + "attn_norm.weight", vector(self.n_embd)
            if is_recurrent(self, layer):
                yield at + "ssm_in.weight", matrix(2 * inner, self.n_embd)
                yield at + "ssm_conv1d.weight", matrix(inner, self.d_conv, gain=2.0)
                yield at + "ssm_conv1d.bias", vector(inner, around=0.0)
                yield at + "ssm_x.weight", matrix(n_dt, inner, gain=2.0)
                yield at + "ssm_dt.weight", matrix(inner, self.dt_rank)
                yield at + "ssm_dt.bias", vector(inner, around=-2.0)
                rates = np.arange(1, self.d_state + 1) * np.exp(
                    0.3 * rng.standard_normal((inner, 1))
                )
                yield at + "ssm_a", -rates.astype(np.float32)
                yield at + "ssm_d", vector(inner)
                yield at + "ssm_out.weight", matrix(self.n_embd, inner)
                if self.arch == "mamba":
                    continue
                for name, n in (("dt", self.dt_rank), ("b", self.d_state), ("c", self.d_state)):
                    yield f"{at}ssm_{name}_norm.weight", vector(n)
            for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                if is_recurrent(self, layer):
                    break
                yield f"{at}{name}.weight", matrix(n, self.n_embd, gain=1.5)
                if self.bias:
                    yield f"{at}{name}.bias", vector(n, around=0.0)
            if self.arch == "gemma3":
                yield at + "post_attention_norm.weight", vector(self.n_embd)
                yield at + "post_ffw_norm.weight", vector(self.n_embd)
            if self.arch in ("qwen3", "gemma3", "qwen3moe", "hunyuan-moe"):
                yield at + "attn_q_norm.weight", vector(self.head_dim)
                yield at + "attn_k_norm.weight", vector(self.head_dim)
            if not is_recurrent(self, layer):
                yield at + "attn_output.weight", matrix(self.n_embd, q)
            if self.arch == "gpt-oss":
                yield at + "attn_output.bias", vector(self.n_embd, around=0.0)
                yield at + "attn_sinks.weight", vector(self.n_heads)
                yield at + "post_attention_norm.weight", vector(self.n_embd)
            else:
                yield at + "ffn_norm.weight", vector(self.n_embd)
            if has_experts(self, layer):
                yield from _experts(self, at, rng)
                continue
            yield at + "ffn_gate.weight", matrix(self.n_ff, self.n_embd)
            yield at + "ffn_up.weight", matrix(self.n_ff, self.n_embd)
            yield at + "ffn_down.weight", matrix(self.n_embd, self.n_ff)

    def write_metadata(self, w: gguf.GGUFWriter) -> None:
        """The fields of a model besides its tokenizer."""
        w.add_context_length(self.context)
        w.add_embedding_length(self.n_embd)
        w.add_block_count(self.n_layers)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_vocab_size(self.n_vocab)
        if self.arch != "mamba":
            _add_transformer(w, self)
        if self.arch in ("mamba", "jamba"):
            _add_mamba(w, self)
        if self.factors:
            embedding, scores, residual, logits = self.factors
            w.add_embedding_scale(embedding)
            w.add_attention_scale(scores)
            w.add_residual_scale(residual)
            w.add_logit_scale(logits)
        if self.n_experts:
            w.add_expert_count(self.n_experts)
            w.add_expert_used_count(self.n_used)
            w.add_expert_feed_forward_length(self.n_ff_expert)
            if self.arch == "ernie4_5-moe":
                w.add_leading_dense_block_count(self.dense_layers)
                w.add_interleave_moe_layer_step(1)
            if self.n_ff_shared:
                w.add_expert_shared_feed_forward_length(self.n_ff_shared)

    def add_tensors(self, w: gguf.GGUFWriter, tensors: Iterable[tuple[str, Array]]) -> None:
        stored: list[tuple[str, str, npt.NDArray[np.generic]]] = []
        for name, tensor in tensors:
            by_type: dict[str, npt.NDArray[np.generic]] = {}
            for repeated in _names(self, name):
                kind = type_of(self, repeated, tensor)
                if kind not in by_type:
                    by_type[kind] = tensor if kind == "F32" else quantise_tensor(kind, tensor)
                stored.append((repeated, kind, by_type[kind]))
        for name, kind, made in sorted(stored, key=lambda each: _layer(each[0])):
            blocks = None if kind == "F32" else gguf.GGMLQuantizationType[kind]
            w.add_tensor(name, made, raw_dtype=blocks)


SPECS: dict[str, Spec] = {
    "llama": Spec(),
    "llama-one-layer": Spec(n_layers=1, seed=2),
    "llama-tied-mha": Spec(n_kv_heads=4, tied=True, seed=3),
    "llama-linear": Spec(scaling="linear", factor=4.0, seed=4),
    "llama-yarn": Spec(scaling="yarn", factor=4.0, seed=5),
    "llama-freqs": Spec(rope_freqs=True, rope_theta=500000.0, seed=6),
    "llama-bias": Spec(bias=True, seed=8),
    "mixtral": Spec(n_ff=48, n_ff_expert=48, n_experts=6, n_used=2, seed=61),
    "mixtral-all": Spec(
        n_ff=32, n_experts=5, n_used=5, n_kv_heads=4, tied=True, rope_freqs=True, seed=62
    ),
    "qwen2": Spec(arch="qwen2", bias=True, head_dim=32, n_heads=2, n_kv_heads=1, seed=9),
    "qwen2-tied-yarn": Spec(
        arch="qwen2", bias=True, tied=True, scaling="yarn", factor=2.0, seed=10
    ),
    "qwen3": Spec(arch="qwen3", head_dim=24, n_heads=6, n_kv_heads=2, seed=11),
    "qwen3-tied-yarn": Spec(arch="qwen3", tied=True, scaling="yarn", factor=4.0, seed=12),
    "gemma3": Spec(
        arch="gemma3", n_layers=7, tied=True, window=8, rope_theta=1e6, scaling="linear", factor=8.0, seed=13,
    ),
    "gemma3-pattern-2": Spec(
        arch="gemma3", n_layers=3, tied=True, window=5, pattern=2, head_dim=24, n_kv_heads=1, seed=14,
    ),
    "gemma3-full": Spec(arch="gemma3", tied=True, rope_theta=1e6, n_embd=48, seed=15),
    "gemma3-softcap": Spec(arch="gemma3", tied=True, window=6, pattern=2, softcap=5.0, seed=16),
    "gemma3-full-softcap": Spec(arch="gemma3", tied=True, softcap=5.0, seed=16),
    "mamba": Spec(arch="mamba", dt_rank=4, tied=True, seed=17),
    "mamba-untied": Spec(
        arch="mamba", n_embd=40, d_state=8, d_conv=3, dt_rank=5, n_layers=3, seed=18
    ),
    "mamba-norms": Spec(arch="mamba", dt_rank=4, dt_b_c_norm=True, seed=19),
    "jamba": Spec(arch="jamba", n_layers=5, pattern=2, dt_rank=4, seed=20),
    "jamba-tied": Spec(
        arch="jamba", n_layers=3, pattern=3, n_heads=2, n_kv_heads=1, head_dim=32, dt_rank=3, d_state=8,
        tied=True, seed=21,
    ),
    "qwen3moe": Spec(arch="qwen3moe", n_experts=8, head_dim=24, n_heads=6, n_kv_heads=2, seed=22),
    "qwen3moe-all": Spec(
        arch="qwen3moe", n_experts=5, n_used=5, tied=True, scaling="yarn", factor=4.0, seed=23
    ),
    "qwen2moe": Spec(
        arch="qwen2moe", n_experts=6, n_used=3, n_ff_shared=48, bias=True, seed=24
    ),
    "gpt-oss": Spec(
        arch="gpt-oss", n_layers=4, n_experts=6, n_used=3, bias=True, window=8, scaling="yarn",
        factor=4.0, seed=26,
    ),
    "gpt-oss-mxfp4": Spec(
        arch="gpt-oss", n_experts=4, n_used=2, bias=True, window=8, n_heads=6, type="MXFP4", seed=27
    ),
    "granitemoe": Spec(
        arch="granitemoe", n_ff=48, n_ff_expert=48, n_experts=6, n_used=3, tied=True,
        factors=(3.0, 0.2, 0.5, 2.0), seed=28,
    ),
    "granitemoe-shared": Spec(
        arch="granitemoe", n_ff=32, n_experts=5, n_ff_shared=40, factors=(1.5, 0.3, 0.7, 4.0), seed=29
    ),
    "ernie4_5-moe": Spec(
        arch="ernie4_5-moe", n_layers=3, n_experts=6, n_used=3, n_ff_shared=40, dense_layers=1,
        choice_bias=True, seed=30,
    ),
    "hunyuan-moe": Spec(
        arch="hunyuan-moe", n_ff=32, n_experts=5, n_ff_shared=48, tied=True, seed=31
    ),
    "jamba-experts": Spec(
        arch="jamba", n_layers=5, pattern=2, dt_rank=4, n_experts=6, n_ff_expert=96, seed=25
    ),
    # A mixture of 4.0 B parameters of which a token takes 1.2 B: for benchmarks.
    "qwen3moe-1b-active": Spec(
        arch="qwen3moe", n_vocab=32000, n_layers=24, n_embd=2048, n_heads=32, n_kv_heads=4,
        head_dim=64, n_ff=6144, context=16384, n_experts=32, n_used=8, n_ff_expert=768, seed=127,
    ),
    # For benchmarks too: 121 M, 114 M, 134 M, 943 M, 3.0 B and 6.7 B parameters; layers of the last two repeat.
    "gemma3-121m": Spec(
        arch="gemma3", n_vocab=32000, n_layers=18, n_embd=640, n_heads=4, n_kv_heads=1, head_dim=256,
        n_ff=2048, context=4096, tied=True, window=512, rope_theta=1e6, seed=125,
    ),
    "mamba-114m": Spec(
        arch="mamba", n_vocab=32000, n_layers=24, n_embd=768, context=4096, dt_rank=48, tied=True, seed=125,
    ),
    "llama-134m": Spec(
        n_vocab=32000, n_layers=12, n_embd=768, n_heads=12, n_kv_heads=12, head_dim=64, n_ff=2048,
        context=16384, seed=125,
    ),
    "llama-1b": Spec(
        n_vocab=32000, n_layers=18, n_embd=2048, n_heads=32, n_kv_heads=8, head_dim=64, n_ff=5632,
        context=16384, seed=126,
    ),
    "llama-3b": Spec(
        n_vocab=32000, n_layers=28, n_embd=3072, n_heads=24, n_kv_heads=8, head_dim=128, n_ff=8192,
        context=16384, n_distinct=4, seed=127,
    ),
    "llama-7b": Spec(
        n_vocab=32000, n_layers=32, n_embd=4096, n_heads=32, n_kv_heads=32, head_dim=128, n_ff=11008,
        context=16384, n_distinct=4, seed=128,
    ),
}  # fmt: skip


def is_recurrent(spec: Spec, layer: int) -> bool:
    """Whether a layer keeps a state."""
    attention = spec.arch == "jamba" and spec.pattern and layer % spec.pattern == spec.pattern - 1
    return spec.arch in ("mamba", "jamba") and not attention


def has_experts(spec: Spec, layer: int) -> bool:
    """Whether a layer's feed-forward part is a mixture; in jamba every other one is."""
    sparse = layer % 2 == 1 if spec.arch == "jamba" else layer >= spec.dense_layers
    return spec.n_experts > 0 and sparse


def _experts(spec: Spec, at: str, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """A layer's router and experts, and the shared expert if there is one."""

    def stacked(n: int, n_out: int, n_in: int) -> Array:
        made = rng.standard_normal((n, n_out, n_in), np.float32)
        made /= np.float32(math.sqrt(n_in))
        return made if n > 1 else made[0]

    n, ff, shared = spec.n_experts, spec.n_ff_expert, spec.n_ff_shared
    yield at + "ffn_gate_inp.weight", stacked(1, n, spec.n_embd) * np.float32(2)
    yield at + "ffn_gate_exps.weight", stacked(n, ff, spec.n_embd)
    yield at + "ffn_up_exps.weight", stacked(n, ff, spec.n_embd)
    yield at + "ffn_down_exps.weight", stacked(n, spec.n_embd, ff)
    if spec.arch == "gpt-oss":
        widths = {"gate_inp": 1, "gate_exps": ff, "up_exps": ff, "down_exps": spec.n_embd}
        for name, width in widths.items():
            bias = (0.3 * rng.standard_normal((n, width))).astype(np.float32)
            yield f"{at}ffn_{name}.bias", bias[:, 0] if width == 1 else bias
    if spec.choice_bias:
        yield at + "exp_probs_b.bias", (0.1 * rng.standard_normal(n)).astype(np.float32)
    if not shared:
        return
    yield at + "ffn_gate_shexp.weight", stacked(1, shared, spec.n_embd)
    yield at + "ffn_up_shexp.weight", stacked(1, shared, spec.n_embd)
    yield at + "ffn_down_shexp.weight", stacked(1, spec.n_embd, shared)
    if spec.arch == "qwen2moe":
        yield at + "ffn_gate_inp_shexp.weight", stacked(1, 1, spec.n_embd)[0]


def type_of(spec: Spec, name: str, tensor: Array) -> str:
    """The type that a tensor is stored in.

    Vectors and matrices without whole blocks are F32; a matrix without whole blocks of 256 is Q8_0 instead of a
    type with such blocks.  Q4_K_M is llama.cpp's mixture: Q6_K for the output and for some layers' values and
    second feed-forward matrices, Q4_K for the rest.
    """
    n = tensor.shape[-1]
    kept = tensor.ndim == 1 or name.endswith(
        ("ssm_a", "ssm_conv1d.weight", "ffn_gate_inp.weight", ".bias")
    )
    if spec.type == "MXFP4" and spec.n_experts and "_exps" not in name:  # as in gpt-oss's own files
        return "F32"
    if kept or spec.type == "F32":
        return "F32"
    kind = spec.type
    if kind == "Q4_K_M":
        kind = "Q6_K" if _gets_more_bits(spec, name) else "Q4_K"
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    return next((k for k, b in ((kind, block), ("Q8_0", 32)) if n % b == 0), "F32")


def _gets_more_bits(spec: Spec, name: str) -> bool:
    if name == ("token_embd.weight" if spec.tied else "output.weight"):
        return True
    if not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return False
    layer, eighth = _layer(name), spec.n_layers // 8
    return layer < eighth or layer >= 7 * spec.n_layers // 8 or (layer - eighth) % 3 == 2


def _layer(name: str) -> int:
    """The layer of a tensor, -1 for those outside."""
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


def _names(spec: Spec, name: str) -> list[str]:
    """The name, and those in the layers that repeat its layer."""
    layer, (_, _, rest) = _layer(name), name[4:].partition(".")
    if layer < 0 or not spec.n_distinct:
        return [name]
    return [f"blk.{each}.{rest}" for each in range(layer, spec.n_layers, spec.n_distinct)]


def _add_transformer(w: gguf.GGUFWriter, spec: Spec) -> None:
    w.add_feed_forward_length(spec.n_ff)
    w.add_head_count(spec.n_heads)
    w.add_key_length(spec.head_dim)
    w.add_value_length(spec.head_dim)
    if spec.arch == "jamba":
        kv_heads = [0 if is_recurrent(spec, i) else spec.n_kv_heads for i in range(spec.n_layers)]
        w.add_head_count_kv(kv_heads)
        return
    w.add_head_count_kv(spec.n_kv_heads)
    w.add_rope_dimension_count(spec.head_dim)
    if spec.sections:
        w.add_rope_dimension_sections(spec.sections)
    w.add_rope_freq_base(spec.rope_theta)
    if spec.scaling != "none":
        w.add_rope_scaling_type(gguf.RopeScalingType(spec.scaling))
        w.add_rope_scaling_factor(spec.factor)
        w.add_rope_scaling_orig_ctx_len(spec.original_context)
    if spec.window:
        w.add_sliding_window(spec.window)
    if spec.pattern:
        w.add_sliding_window_pattern(spec.pattern)
    if spec.softcap:
        w.add_final_logit_softcapping(spec.softcap)


def _add_mamba(w: gguf.GGUFWriter, spec: Spec) -> None:
    if spec.arch == "mamba":
        w.add_feed_forward_length(0)
        w.add_head_count(0)
        w.add_ssm_dt_b_c_rms(spec.dt_b_c_norm)
    w.add_ssm_conv_kernel(spec.d_conv)
    w.add_ssm_inner_size(2 * spec.n_embd)
    w.add_ssm_state_size(spec.d_state)
    w.add_ssm_time_step_rank(spec.dt_rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", choices=list(SPECS), default="llama")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true", help="print the models and stop")
    parser.add_argument("--type", default="F32", help="of the matrices (F16, Q8_0, Q4_K_M, ...)")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--embd", type=int, help="also sets heads of 64 and n_ff = 8/3 of it")
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--context", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--tokenizer-from", type=Path)
    args = parser.parse_args()
    if args.list:
        for name, spec in SPECS.items():
            print(f"{name:18} {spec}")
        return
    spec = replace(SPECS[args.name], type=args.type)
    if args.embd:
        heads = args.embd // 64
        ff = (args.embd * 8 // 3 + 63) // 64 * 64
        spec = replace(
            spec, n_embd=args.embd, head_dim=64, n_heads=heads, n_kv_heads=heads, n_ff=ff
        )
    if args.tokenizer_from:
        tokens = gguf.GGUFReader(args.tokenizer_from).fields["tokenizer.ggml.tokens"]
        spec = replace(spec, n_vocab=len(tokens.data))
    for key, value in (
        ("n_layers", args.layers),
        ("n_vocab", args.vocab),
        ("context", args.context),
        ("seed", args.seed),
    ):
        if value is not None:
            spec = replace(spec, **{key: value})
    out = args.out or Path(f"{args.name}.gguf")
    write_model(out, spec, tokenizer_from=args.tokenizer_from)
    print(f"{out}: {out.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
