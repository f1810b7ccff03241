"""Small random models of the dense architectures, for make_models.py: how they differ from a plain transformer.

A model is a :class:`Dense`: dimensions, which tensors its layers have, and metadata besides the usual.
"""

from __future__ import annotations

from typing import Any

from dense_shapes import Dense, LatentShape, MixtureShape
from gemma4_models import Gemma4Shape

_LAYER_NORM: dict[str, Any] = {"epsilon": "attention.layer_norm_epsilon"}
_ALL = ("norm", "qkv", "output", "up", "down", "q", "k", "v")
_GEMMA = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_POST = ("post_attention_norm", "post_ffw_norm")
_GPT: dict[str, Any] = {
    "bias": _ALL,
    "gated": False,
    "rope": 0,
    "n_kv_heads": 4,
    "tied": True,
    **_LAYER_NORM,
}

DENSE: dict[str, Dense] = {
    "gemma2": Dense(
        "gemma2", n_layers=4, tied=True, norms=_GEMMA, gain=2.0, seed=31,
        meta={
            "attention.sliding_window": 6,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma2-wide-heads": Dense(
        "gemma2", n_layers=2, tied=True, norms=_GEMMA, head_dim=24, rope=24, gain=2.0, seed=32,
        meta={"attention.sliding_window": 5, "rope.freq_base": 1e5},
    ),
    "granite": Dense(
        "granite", seed=33,
        meta={
            "attention.scale": 0.1, "embedding_scale": 1.5, "residual_scale": 0.4, "logit_scale": 3.0,
        },
    ),
    "granite-tied": Dense(
        "granite", tied=True, n_kv_heads=1, seed=34, meta={"logit_scale": 8.0}, bias=("output", "down"),
    ),
    "phi3": Dense("phi3", fused=("qkv", "gate"), n_kv_heads=4, seed=35),
    "phi3-longrope": Dense(
        "phi3", fused=("qkv", "gate"), rope=12, factors=True, seed=36,
        meta={
            "rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.25,
        },
    ),
    "phi3-longrope-short": Dense(
        "phi3", fused=("qkv", "gate"), factors=True, seed=37,
        meta={
            "rope.scaling.type": "longrope", "rope.scaling.original_context_length": 512,
            "rope.scaling.attn_factor": 1.1,
        },
    ),
    "olmo2": Dense("olmo2", norms=_POST, head_norm="all", seed=38),
    "olmo2-windows": Dense(
        "olmo2", n_layers=4, norms=_POST, head_norm="all", n_kv_heads=4, seed=39,
        meta={
            "attention.sliding_window": 6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "smollm3": Dense("smollm3", n_layers=4, tied=True, seed=40),
    "seed_oss": Dense(
        "seed_oss", norms=("attn_norm", "post_attention_norm"), bias=("q", "k", "v"), head_dim=24,
        rope=24, seed=41,
    ),
    "exaone4": Dense("exaone4", norms=_POST, head_norm="head", n_layers=2, seed=42),
    "mistral3": Dense(
        "mistral3", seed=43, head_dim=24, rope=24,
        meta={
            "attention.temperature_scale": 0.7, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16, "rope.scaling.yarn_log_multiplier": 1.0,
        },
    ),
    "glm4": Dense(
        "glm4", norms=_GEMMA, fused=("gate",), bias=("q", "k", "v"), rope=8, seed=44,
    ),
    "command-r": Dense(
        "command-r", norms=("attn_norm",), tied=True, seed=45, meta={"logit_scale": 0.25}, **_LAYER_NORM,
    ),
    "gpt2": Dense("gpt2", fused=("qkv",), learned=True, context=128, seed=46, **_GPT),
    "starcoder": Dense(
        "starcoder", fused=("qkv",), learned=True, context=128, seed=301, **_GPT | {"n_kv_heads": 1},
    ),
    "chatglm": Dense("chatglm", fused=("qkv", "gate"), bias=("qkv",), rope=8, seed=302),
    "gptneox": Dense(
        "gptneox", fused=("qkv",), bias=_ALL, gated=False, rope=4, n_kv_heads=4, seed=303, **_LAYER_NORM,
        meta={"use_parallel_residual": True},
    ),
    "gptneox-in-turn": Dense(
        "gptneox", fused=("qkv",), bias=_ALL, gated=False, rope=8, n_kv_heads=4, seed=304, context=128,
        **_LAYER_NORM, meta={"use_parallel_residual": False},
    ),
    "falcon": Dense(
        "falcon", norms=("attn_norm",), fused=("qkv",), bias=("norm",), gated=False, n_kv_heads=1, seed=305,
        context=128, **_LAYER_NORM,
    ),
    "falcon-two-norms": Dense(
        "falcon", norms=("attn_norm", "attn_norm_2"), fused=("qkv",), bias=("norm",), gated=False, tied=True,
        seed=306, **_LAYER_NORM,
    ),
    "phi2": Dense(
        "phi2", norms=("attn_norm",), bias=_ALL, gated=False, rope=8, seed=307, output_bias=True,
        **_LAYER_NORM,
    ),
    "olmo": Dense(
        "olmo", norms=(), last_norm="", n_kv_heads=4, seed=308, meta={"attention.clamp_kqv": 1.5},
        **_LAYER_NORM,
    ),
    "qwen": Dense("qwen", fused=("qkv",), bias=("qkv",), n_kv_heads=4, seed=309, halves=True),
    "refact": Dense("refact", n_kv_heads=1, rope=0, seed=310),
    "codeshell": Dense("codeshell", bias=_ALL, gated=False, seed=311, **_LAYER_NORM),
    "jais": Dense(
        "jais", fused=("qkv",), bias=(*_ALL, "gate"), rope=0, n_kv_heads=4, seed=312,
        meta={"attention.max_alibi_bias": 8.0}, **_LAYER_NORM,
    ),
    "plamo": Dense("plamo", norms=("attn_norm",), n_kv_heads=4, seed=313),
    "pangu-embedded": Dense("pangu-embedded", bias=("q", "k", "v", "output"), tied=True, seed=314),
    "dbrx": Dense(
        "dbrx", norms=("attn_norm", "attn_output_norm"), fused=("qkv",), seed=315, n_ff=48,
        experts=MixtureShape(6, 48, n_shared=0), meta={"expert_used_count": 2, "attention.clamp_kqv": 1.5},
        **_LAYER_NORM,
    ),
    "granite_swa": Dense(
        "granite_swa", n_layers=4, tied=True, sinks=True, seed=316,
        meta={
            "attention.scale": 0.1, "embedding_scale": 1.5, "residual_scale": 0.4, "logit_scale": 3.0,
            "attention.sliding_window": 6, "attention.sliding_window_pattern": [False, True, True, True],
            "attention.rope_pattern": [True, True, False, True],
        },
    ),
    "afmoe": Dense(
        "afmoe", n_layers=4, norms=_GEMMA, head_norm="head", gate=True, gain=1.0, seed=317,
        experts=MixtureShape(6, 24, dense=1, choice_bias=True),
        meta={
            "expert_used_count": 3, "expert_weights_norm": True, "expert_weights_scale": 1.5,
            "attention.sliding_window": 6,
        },
    ),
    "openelm": Dense(
        "openelm", fused=("qkv",), head_norm="head", tied=True, seed=318, context=128,
    ),
    "plamo3": Dense(
        "plamo3", n_layers=3, norms=("attn_norm", "ffn_norm"), bare_norms=_POST, head_norm="head", rope=16,
        fused=("qkv", "gate"), tied=True, seed=319,
        meta={
            "attention.sliding_window": 6, "attention.sliding_window_pattern": 3, "rope.freq_base": 1e5,
        },
    ),
    "baichuan": Dense("baichuan", n_kv_heads=4, seed=320, context=128),
    "baichuan-rotated": Dense(
        "baichuan", n_layers=32, n_embd=32, n_heads=2, n_kv_heads=2, n_ff=48, seed=321, context=128, gain=8.0,
    ),
    "baichuan-alibi": Dense(
        "baichuan", n_layers=40, n_embd=32, n_heads=2, n_kv_heads=2, n_ff=48, seed=322, context=128, gain=8.0,
    ),
    "stablelm-parallel": Dense(
        "stablelm", norms=("attn_norm",), bias=("norm",), rope=8, seed=323, context=128, **_LAYER_NORM,
    ),
    "deci": Dense(
        "deci", n_layers=4, kv_heads=(2, 0, 4, 1), divisors=True, seed=324, context=128,
    ),
    "spark2_5": Dense(
        "spark2_5", n_layers=3, fused=("qkv",), gate="heads", tied=True, rope=8, seed=325,
        meta={
            "attention.sliding_window": 6, "attention.sliding_window_pattern": [True, False, True],
            "rope.dimension_count_swa": 16, "rope.freq_base": 1e5, "rope.freq_base_swa": 1e4,
        },
    ),
    "hunyuan_vl": Dense(
        "hunyuan_vl", head_norm="head", tied=True, seed=326,
        meta={"rope.dimension_sections": [3, 3, 2, 0], "rope.scaling.alpha": 20.0},
    ),
    "paddleocr": Dense(
        "paddleocr", seed=327, meta={"rope.dimension_sections": [2, 3, 3, 0], "rope.freq_base": 5e5},
    ),
    "deepseek2-ocr": Dense(
        "deepseek2-ocr", n_layers=3, n_kv_heads=4, experts=MixtureShape(6, 24, n_shared=2, dense=1),
        seed=328, meta={"expert_used_count": 3, "expert_weights_scale": 1.5},
    ),
    "starcoder2": Dense(
        "starcoder2", bias=_ALL, gated=False, tied=True, seed=47, **_LAYER_NORM,
    ),
    "bloom": Dense("bloom", fused=("qkv",), embedding_norm=True, seed=48, **_GPT),
    "bloom-six-heads": Dense(
        "bloom", fused=("qkv",), embedding_norm=True, seed=49,
        **_GPT | {"n_heads": 6, "n_kv_heads": 6, "n_embd": 96},
    ),
    "mpt": Dense(
        "mpt", fused=("qkv",), seed=50, **_GPT | {"bias": ()},
        meta={"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.5},
    ),
    "qwen2vl": Dense(
        "qwen2vl", bias=("q", "k", "v"), seed=51, meta={"rope.dimension_sections": [2, 3, 3, 0]},
    ),
    "ernie4_5": Dense("ernie4_5", tied=True, head_dim=24, rope=24, seed=52),
    "minicpm3": Dense(
        "minicpm3", n_kv_heads=4, rope=8, seed=63, gain=0.7,
        latent=LatentShape(32, 24, 16, q_rank=40, compressed=False),
    ),
    "minicpm3-longrope": Dense(
        "minicpm3", n_kv_heads=4, rope=12, seed=64, gain=0.7, factors=True, tied=True,
        latent=LatentShape(24, 20, 12, q_rank=16, compressed=False),
        meta={
            "rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.25,
        },
    ),
    "deepseek2-lite": Dense(
        "deepseek2", n_kv_heads=1, rope=8, seed=65, latent=LatentShape(32, 24, 16),
        experts=MixtureShape(6, 24, n_shared=2, dense=24), meta={"expert_used_count": 3},
        n_layers=26, n_embd=32, n_ff=48,
    ),
    "deepseek2": Dense(
        "deepseek2", n_kv_heads=1, rope=8, seed=66, latent=LatentShape(32, 24, 20, q_rank=40), n_layers=3,
        experts=MixtureShape(8, 24, dense=1, choice_bias=True),
        meta={
            "expert_used_count": 3, "expert_gating_func": 2, "expert_weights_norm": True,
            "expert_weights_scale": 2.5, "expert_group_count": 4, "expert_group_used_count": 2,
        },
    ),
    "deepseek2-yarn": Dense(
        "deepseek2", n_kv_heads=1, rope=8, seed=67, latent=LatentShape(24, 20, 16, q_rank=32), tied=True,
        experts=MixtureShape(4, 24, dense=1),
        meta={
            "expert_used_count": 2, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64, "rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
    "deepseek2-heads": Dense(
        "deepseek2", n_kv_heads=4, rope=8, seed=68,
        latent=LatentShape(32, 24, 16, q_rank=40, compressed=False),
        experts=MixtureShape(5, 24, dense=1), meta={"expert_used_count": 2, "expert_weights_scale": 1.5},
    ),
    "gemma": Dense("gemma", tied=True, gain=2.0, seed=201),
    "arcee": Dense("arcee", gated=False, divisors=True, seed=202),
    "nemotron": Dense(
        "nemotron", bias=("norm", "output", "up", "down"), gated=False, rope=8, seed=203, **_LAYER_NORM,
    ),
    "jais2": Dense("jais2", bias=_ALL, gated=False, seed=204, **_LAYER_NORM),
    "internlm2": Dense("internlm2", seed=205),
    "exaone": Dense("exaone", divisors=True, tied=True, seed=206),
    "maincoder": Dense("maincoder", head_norm="head", seed=207),
    "minicpm": Dense(
        "minicpm", seed=208, meta={"embedding_scale": 1.5, "residual_scale": 0.4, "logit_scale": 3.0},
    ),
    "minicpm-defaults": Dense("minicpm", tied=True, gain=1.0, seed=209),
    "plm": Dense(
        "plm", n_kv_heads=4, rope=8, gated=False, tied=True, seed=210,
        latent=LatentShape(32, 24, 16, compressed=False),
    ),
    "mistral4": Dense(
        "mistral4", n_kv_heads=1, rope=8, seed=211, latent=LatentShape(32, 24, 20, q_rank=40),
        experts=MixtureShape(6, 24, dense=1),
        meta={"expert_used_count": 2, "expert_gating_func": 1, "expert_weights_norm": True},
    ),
    "cohere2": Dense(
        "cohere2", n_layers=4, norms=("attn_norm",), tied=True, seed=212,
        meta={"logit_scale": 0.25, "attention.sliding_window": 6}, **_LAYER_NORM,
    ),
    "olmoe": Dense(
        "olmoe", n_kv_heads=4, head_norm="all", experts=MixtureShape(6, 96, n_shared=0), seed=213,
        meta={"expert_used_count": 2},
    ),
    "minimax-m2": Dense(
        "minimax-m2", rope=8, head_norm="all", seed=214,
        experts=MixtureShape(6, 96, n_shared=0, choice_bias=True),
        meta={"expert_used_count": 2, "expert_gating_func": 2},
    ),
    "glm4moe": Dense(
        "glm4moe", n_layers=3, norms=("attn_norm", "post_attention_norm"), bias=("q", "k", "v"),
        head_norm="head", rope=8, seed=215, experts=MixtureShape(6, 24, dense=1, choice_bias=True),
        meta={"expert_used_count": 3, "expert_weights_norm": True, "expert_weights_scale": 1.5},
    ),
    "dots1": Dense(
        "dots1", n_layers=3, n_kv_heads=4, head_norm="head", seed=216,
        experts=MixtureShape(6, 24, n_shared=2, dense=1, choice_bias=True),
        meta={
            "expert_used_count": 3, "expert_gating_func": 2, "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        },
    ),
    "deepseek": Dense(
        "deepseek", n_layers=3, experts=MixtureShape(6, 24, n_shared=2, dense=1), seed=217,
        meta={"expert_used_count": 3},
    ),
    "bailingmoe": Dense(
        "bailingmoe", experts=MixtureShape(6, 24, n_shared=2), seed=218,
        meta={"expert_used_count": 3, "expert_weights_norm": True},
    ),
    "bailingmoe2": Dense(
        "bailingmoe2", n_layers=3, fused=("qkv",), head_norm="head", rope=8, seed=219,
        experts=MixtureShape(8, 24, dense=1, choice_bias=True),
        meta={
            "expert_used_count": 3, "expert_gating_func": 2, "expert_weights_norm": True,
            "expert_weights_scale": 2.5, "expert_group_count": 4, "expert_group_used_count": 2,
        },
    ),
    "exaone-moe": Dense(
        "exaone-moe", n_layers=4, head_norm="head", seed=220,
        experts=MixtureShape(6, 24, dense=1, choice_bias=True),
        meta={
            "expert_used_count": 3, "expert_gating_func": 2, "expert_weights_norm": True,
            "expert_weights_scale": 2.5, "attention.sliding_window": 6,
        },
    ),
    "hy_v3": Dense(
        "hy_v3", n_layers=3, head_norm="head", tied=True, seed=330,
        experts=MixtureShape(6, 24, n_shared=2, dense=1, choice_bias=True, bare_bias=True),
        meta={
            "expert_used_count": 3, "expert_weights_norm": True, "expert_weights_scale": 2.5,
            "expert_shared_feed_forward_length": 48, "leading_dense_block_count": 0,
        },
    ),
    "cohere2moe": Dense(
        "cohere2moe", n_layers=5, norms=("attn_norm",), tied=True, seed=331,
        experts=MixtureShape(6, 24, n_shared=2, dense=1), meta={
            "logit_scale": 0.25, "expert_used_count": 3, "expert_weights_norm": True,
            "expert_weights_scale": 1.5, "attention.sliding_window": 6,
            "attention.sliding_window_pattern": [False, True, True, False, True],
        }, **_LAYER_NORM,
    ),
    "cohere2moe-rms": Dense(
        "cohere2moe", n_layers=3, norms=("attn_norm",), seed=332, experts=MixtureShape(6, 24, n_shared=0),
        meta={
            "logit_scale": 0.0, "expert_used_count": 2, "expert_gating_func": 1,
            "attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False],
        },
    ),
    "qwen3vl": Dense(
        "qwen3vl", head_norm="head", tied=True, seed=221, meta={"rope.dimension_sections": [3, 3, 2, 0]},
    ),
    "qwen3vlmoe": Dense(
        "qwen3vlmoe", head_norm="head", experts=MixtureShape(6, 24, n_shared=0), seed=222,
        meta={"expert_used_count": 2, "rope.dimension_sections": [3, 3, 2, 0]},
    ),
    "xverse": Dense("xverse", seed=223),
    "orion": Dense("orion", bias=("norm",), seed=224, **_LAYER_NORM),
    "stablelm": Dense("stablelm", bias=("norm", "q", "k", "v"), rope=8, seed=225, **_LAYER_NORM),
    "mellum": Dense(
        "mellum", n_layers=4, head_norm="head", experts=MixtureShape(6, 24, n_shared=0), seed=226,
        meta={
            "expert_used_count": 2, "attention.sliding_window": 6, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
        },
    ),
    "hunyuan-dense": Dense("hunyuan-dense", head_norm="head", head_dim=24, rope=24, seed=53),
    "llama4": Dense(
        "llama4", n_layers=4, n_embd=32, n_ff=48, divisors=True, seed=69, experts=MixtureShape(6, 24, step=2),
        meta={"expert_used_count": 1, "interleave_moe_layer_step": 2},
    ),
    "gemma4": Dense(
        "gemma4", n_layers=4, tied=True, head_dim=32, rope=32, gain=2.0, seed=170,
        gemma4=Gemma4Shape(
            (True, True, False, False), (2, 2, 1, 1), (96,) * 4, 16, 32, 4, keys_as_values=True,
        ),
        meta={
            "attention.sliding_window": 6, "final_logit_softcapping": 5.0,
            "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma4-own-values": Dense(
        "gemma4", n_layers=3, head_dim=24, rope=24, gain=2.0, seed=71,
        gemma4=Gemma4Shape((True, True, False), (1, 2, 4), (64, 96, 32), 32, 24, 12, scales=False),
        meta={
            "attention.sliding_window": 5, "rope.freq_base": 500.0, "rope.freq_base_swa": 500.0,
            "final_logit_softcapping": 0.0,
        },
    ),
    "gemma4-experts": Dense(
        "gemma4", n_layers=3, tied=True, head_dim=32, rope=32, gain=2.0, seed=72,
        gemma4=Gemma4Shape(
            (True, True, False), (2, 2, 1), (96,) * 3, 16, 32, 4, keys_as_values=True, experts=(6, 32),
        ),
        meta={
            "attention.sliding_window": 6, "expert_used_count": 2, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma4-plain-experts": Dense(
        "gemma4", n_layers=2, tied=True, n_embd=32, gain=2.0, seed=73,
        gemma4=Gemma4Shape(
            (True, False), (2, 2), (48, 64), 16, 16, 8, experts=(4, 32), joint=False,
        ),
        meta={
            "attention.sliding_window": 6, "expert_used_count": 3, "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma4-layer-embeddings": Dense(
        "gemma4", n_layers=2, tied=True, head_dim=32, rope=32, gain=2.0, seed=74,
        gemma4=Gemma4Shape(
            (True, False), (1, 1), (96, 96), 16, 32, 4, per_layer=32,
        ),
        meta={
            "attention.sliding_window": 6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma4-shared-keys": Dense(
        "gemma4", n_layers=6, n_embd=32, tied=True, head_dim=32, rope=32, gain=2.0, seed=76,
        gemma4=Gemma4Shape(
            (True, True, False) * 2, (1,) * 6, (48,) * 3 + (96,) * 3, 16, 32, 4, per_layer=16,
            shared=3,
        ),
        meta={
            "attention.sliding_window": 6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
        },
    ),
}  # fmt: skip
