"""Random models of every kind: all small ones by name, and wide ones of every architecture of the index.

The small models of make_models.py and its siblings are as narrow as an architecture allows; their matrices
cannot be stored in blocks of 256.  Matrices of the wide ones can, in every storage type.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from delta_models import DELTAS, Delta
from dense_models import DENSE
from dense_shapes import Dense, LatentShape
from hybrid_models import HYBRID, Hybrid
from kimi_models import KimiShape
from make_models import SPECS, Spec
from model_file import write_model as write_model

AnySpec = Spec | Dense | Hybrid | Delta
SMALL: dict[str, AnySpec] = {
    **{name: spec for name, spec in SPECS.items() if spec.n_vocab < 1000},
    **DENSE,
    **HYBRID,
    **DELTAS,
}
"""Small models by name, without make_models.py's models for benchmarks, whose vocabularies are larger."""

# The vocabulary is small because every row of logits is compared.
_SIZES: dict[str, Any] = {"n_vocab": 96, "n_embd": 256, "n_ff": 512}
_HEADS: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
_TWO: dict[str, Any] = {**_SIZES, "n_layers": 2}
_THREE: dict[str, Any] = {**_SIZES, "n_layers": 3}
_MIXTURE: dict[str, Any] = {**_TWO, **_HEADS, "n_ff": 256, "n_ff_expert": 256}


def _dense(name: str, **changes: Any) -> Dense:
    """A dense model with heads of 64; the rotated share of a head is as before."""
    spec = DENSE[name]
    rope = spec.rope * 64 // spec.head_dim
    return replace(spec, **{**_TWO, "n_heads": 4, "head_dim": 64, "rope": rope, **changes})


def _mixed(name: str, **changes: Any) -> Dense:
    """A model with a layer of each kind; experts are 256 wide, and feed-forward parts as those without."""
    spec = DENSE[name]
    if spec.experts is None:
        raise AssertionError(f"{name} has experts")
    wide = spec.n_ff == spec.experts.n_ff
    changes = {"n_ff": 256 if wide else 512, "n_layers": spec.n_layers, **changes}
    return _dense(name, experts=replace(spec.experts, n_ff=256), **changes)


def _gemma4(name: str, **changes: Any) -> Dense:
    spec = DENSE[name]
    if spec.gemma4 is None:
        raise AssertionError(f"{name} has layers of its own")
    n_ff = (512,) * len(spec.gemma4.windows)
    shape = replace(spec.gemma4, n_ff=n_ff, window_dim=64, dim=128, n_rotated=16, **changes)
    return replace(spec, **_SIZES, head_dim=128, rope=128, gemma4=shape)


def _latent(name: str, shape: LatentShape, **changes: Any) -> Dense:
    spec = DENSE[name]
    mixture = spec.experts and replace(spec.experts, n_ff=256)
    changes = {"n_layers": 2, "rope": 32, "latent": shape, "experts": mixture, **changes}
    return replace(spec, **{**_SIZES, **changes})


def _hybrid(name: str) -> Hybrid:
    spec = HYBRID[name]
    shared = 256 if spec.n_ff_shared else 0
    sizes = {**_SIZES, **_HEADS, "n_ff": 256, "n_ff_expert": 256, "n_ff_shared": shared}
    return replace(spec, **sizes, d_state=16)


def _delta(name: str, **changes: Any) -> Delta:
    return replace(
        DELTAS[name], **_TWO, **_HEADS, value_heads=4, delta_dim=64, rope=32, n_ff_expert=256,
        n_ff_shared=256, **changes,
    )  # fmt: skip


def _kimi() -> Hybrid:
    spec = replace(_hybrid("kimi-linear"), head_dim=64)
    return replace(spec, kimi=KimiShape(256, 32, 64, 64))


MODELS: dict[str, AnySpec] = {
    "llama": replace(SPECS["llama"], **_TWO, **_HEADS),
    "mixtral": replace(SPECS["mixtral"], **_MIXTURE),
    "qwen2": replace(SPECS["qwen2"], **_TWO, **_HEADS),
    "qwen3": replace(SPECS["qwen3"], **_TWO, n_heads=4, n_kv_heads=1, head_dim=32),
    **{
        name: _dense(name)
        for name in (
            "smollm3", "granite", "phi3", "olmo2", "olmo2-windows", "seed_oss", "ernie4_5", "exaone4",
            "mistral3", "glm4", "hunyuan-dense", "command-r", "starcoder2", "gpt2", "bloom", "mpt", "gemma2",
            "gemma", "arcee", "nemotron", "jais2", "internlm2", "exaone", "maincoder", "minicpm", "cohere2",
            "xverse", "orion", "stablelm", "starcoder", "chatglm", "gptneox", "gptneox-in-turn", "falcon",
            "falcon-two-norms", "phi2", "olmo", "qwen", "refact", "codeshell", "jais", "plamo",
            "pangu-embedded", "openelm", "baichuan", "plamo3", "stablelm-parallel",
        )
    },
    **{
        name: _mixed(name)
        for name in (
            "olmoe", "minimax-m2", "glm4moe", "dots1", "deepseek", "bailingmoe", "bailingmoe2", "exaone-moe",
            "mellum", "dbrx", "afmoe", "deepseek2-ocr", "cohere2moe",
        )
    },
    "granite_swa": _dense("granite_swa", n_layers=4),
    "hy_v3": _mixed(
        "hy_v3", meta={**DENSE["hy_v3"].meta, "expert_shared_feed_forward_length": 512},
    ),
    "deci": _dense("deci", n_layers=4),
    "spark2_5": _dense(
        "spark2_5", n_layers=3,
        meta={**DENSE["spark2_5"].meta, "rope.dimension_count_swa": 64},
    ),
    "hunyuan_vl": _dense(
        "hunyuan_vl", meta={"rope.dimension_sections": [12, 12, 8, 0], "rope.scaling.alpha": 20.0},
    ),
    "paddleocr": _dense("paddleocr", meta={"rope.dimension_sections": [8, 12, 12, 0]}),
    "qwen3vl": _dense("qwen3vl", meta={"rope.dimension_sections": [12, 12, 8, 0]}),
    "qwen3vlmoe": _mixed(
        "qwen3vlmoe", meta={"expert_used_count": 2, "rope.dimension_sections": [12, 12, 8, 0]},
    ),
    "plm": _latent("plm", LatentShape(256, 64, 64, compressed=False)),
    "mistral4": _latent("mistral4", LatentShape(256, 64, 64, q_rank=256)),
    # Texts are longer than the length that it was trained for, whatever the context.
    "phi3-longrope": _dense(
        "phi3-longrope",
        meta={**DENSE["phi3-longrope"].meta, "rope.scaling.original_context_length": 32},
    ),
    "qwen2vl": _dense("qwen2vl", meta={"rope.dimension_sections": [8, 12, 12, 0]}),
    "qwen2moe": replace(SPECS["qwen2moe"], **_MIXTURE, n_ff_shared=256),
    "qwen3moe": replace(SPECS["qwen3moe"], **_MIXTURE),
    "ernie4_5-moe": replace(SPECS["ernie4_5-moe"], **_MIXTURE, n_ff_shared=256),
    "hunyuan-moe": replace(SPECS["hunyuan-moe"], **_MIXTURE, n_ff_shared=256),
    "granitemoe": replace(SPECS["granitemoe"], **_MIXTURE),
    "gpt-oss": replace(SPECS["gpt-oss"], **_MIXTURE),
    "minicpm3": _latent("minicpm3", LatentShape(256, 64, 64, q_rank=256, compressed=False)),
    "deepseek2": _latent("deepseek2", LatentShape(256, 64, 64, q_rank=256)),
    "deepseek2-yarn": _latent("deepseek2-yarn", LatentShape(256, 96, 64, q_rank=256)),
    "deepseek2-heads": _latent(
        "deepseek2-heads", LatentShape(256, 64, 64, q_rank=256, compressed=False)
    ),
    "llama4": _dense("llama4", n_layers=4),
    "gemma4": _gemma4("gemma4"),
    "gemma4-experts": _gemma4("gemma4-experts", experts=(6, 256)),
    "gemma4-layer-embeddings": _gemma4("gemma4-layer-embeddings"),
    "gemma3": replace(SPECS["gemma3-pattern-2"], **_THREE, **_HEADS),
    "mamba": replace(SPECS["mamba"], **_TWO),
    "jamba": replace(SPECS["jamba"], **_THREE, **_HEADS),
    "jamba-experts": replace(SPECS["jamba-experts"], **_THREE, **_HEADS, n_ff_expert=512),
    "kimi-linear": _kimi(),
    "qwen3next": _delta("qwen3next"),
    "qwen35": _delta("qwen35", sections=(6, 5, 5, 0)),
    "qwen35moe": _delta("qwen35moe", sections=(6, 5, 5, 0)),
    **{
        name: _hybrid(name)
        for name in (
            "mamba2", "granitehybrid", "granitehybrid-experts", "nemotron_h", "nemotron_h_moe", "falcon-h1",
            "lfm2", "lfm2moe",
        )
    },
}  # fmt: skip
"""Wide models by name; every architecture of the index has at least one."""


def write_wide(path: Path, spec: AnySpec, kind: str) -> Path:
    """Write a model with its matrices in a storage type, such as "Q4_K"; returns the path."""
    return write_model(path, replace(spec, type=kind))
