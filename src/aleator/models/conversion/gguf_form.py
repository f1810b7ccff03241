"""What a GGUF file says about a model of a Hugging Face directory: dimensions, and fields of the metadata.

The fields are those that :mod:`aleator.models.gguf_config` and the architectures' modules read, and llama.cpp.
An architecture's module adds its own (``HuggingFace.gguf_fields``), and says which of its dimensions GGUF holds
in another way (``HuggingFace.config_in_gguf``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any

from aleator.models.architecture import Architecture
from aleator.models.config import ExpertsConfig, ModelConfig, RopeConfig, SSMConfig, present
from aleator.models.delta_net import DeltaNetConfig
from aleator.models.files.fields import Fields, Value
from aleator.models.gguf_config import POOLINGS

DIVISORS = (
    "arcee", "deci", "exaone", "exaone4", "falcon-h1", "gemma4", "granite", "granite_swa", "granitehybrid",
    "granitemoe", "llama", "llama-embed", "llama4", "mistral3", "pangu-embedded",
)  # fmt: skip
"""The architectures whose rotary frequencies llama.cpp divides by the numbers of a tensor (rope_freqs)."""
_UNTIED = (
    "baichuan", "bailingmoe", "bailingmoe2", "codeshell", "dbrx", "dots1", "exaone-moe", "gpt-oss", "gptneox",
    "internlm2", "jais", "kimi-linear", "mellum", "minimax-m2", "nemotron", "olmo2", "olmoe", "orion", "phi2",
    "plamo", "qwen", "qwen2moe", "stablelm", "xverse",
)  # fmt: skip
"""The architectures of which llama.cpp wants an output matrix, even where it is the embedding."""
_TIED = ("cohere2", "command-r", "gemma", "gemma2", "openelm", "plm")
"""Those of which it reads none beside the embedding."""
_AS_WIDE = (
    "baichuan", "bailingmoe2", "chatglm", "cohere2", "command-r", "deepseek", "deepseek2-ocr", "exaone4",
    "falcon", "gptneox", "internlm2", "jamba", "lfm2", "lfm2moe", "nemotron", "olmo", "olmo2", "olmoe", "orion",
    "phi2", "phi3", "qwen", "qwen2", "qwen2moe", "qwen2vl", "stablelm", "starcoder", "starcoder2", "xverse",
)  # fmt: skip
"""Those whose heads must together be as wide as the hidden state."""
_BIASED_OUTPUT = (
    "bert", "bloom", "codeshell", "deci", "ernie4_5", "ernie4_5-moe", "falcon-h1", "gpt-oss", "gpt2", "gptneox",
    "granite", "granite_swa", "granitehybrid", "granitemoe", "jais", "jais2", "jina-bert-v2", "jina-bert-v3",
    "llama", "minicpm", "mistral3", "modern-bert", "mpt", "nemotron", "nemotron_h", "nemotron_h_moe",
    "nomic-bert", "nomic-bert-moe", "pangu-embedded", "phi2", "refact", "starcoder", "starcoder2",
)  # fmt: skip
"""Those that may have biases behind attention; all but Ernie's may have them in feed-forward parts."""
_LONGROPE = (
    "deci", "granite", "granite_swa", "granitemoe", "llama", "minicpm", "minicpm3", "mistral3",
    "pangu-embedded", "phi3", "refact",
)  # fmt: skip
"""Those of which llama.cpp reads the two tables of longrope; with others' it does not load a file."""
_SCORES = {"softmax": 1, "sigmoid": 2, "chosen softmax": 3, "chosen sigmoid": 2}
"""Functions from a router's logits to weights -> ``expert_gating_func``."""


ROTATION = "rope.directory_style"
"""The field that says how a directory's rows were rotated together, if not as its architecture's usually are.

llama.cpp does not read it: adapters for the directory have such rows.
"""


def factor(name: str, config: ModelConfig, said: ModelConfig) -> float:
    """What a directory's tensor is multiplied by in a GGUF file, which says ``said`` about its model."""
    scales = {
        "token_embd.weight": (config.embedding_scale, said.embedding_scale),
        "output.weight": (config.logit_scale, said.logit_scale),
    }
    had, wanted = scales.get(name, (1.0, 1.0))
    return had / wanted


def config_in_gguf(architecture: Architecture, config: ModelConfig) -> ModelConfig:
    """A directory's dimensions as a GGUF file of the same model says them."""
    files = architecture.hugging_face
    if files is not None and files.config_in_gguf is not None:
        config = files.config_in_gguf(config)
    rope = _rope(architecture, config.rope)
    window = config.window
    if window is not None:
        window = replace(window, rope=_rope(architecture, window.rope))
    experts = config.experts
    if experts is not None and experts.n_groups == 1:
        experts = replace(experts, n_group_best=2)
    tied = config.tied and architecture.name not in _UNTIED
    return replace(config, rope=rope, window=window, experts=experts, tied=tied)


def _rope(architecture: Architecture, rope: RopeConfig) -> RopeConfig:
    """A rotary embedding as GGUF files hold it, where tensors have the divisors of frequencies."""
    if rope.style != "none":
        rope = replace(rope, style=architecture.rope_style)
    if rope.scaling == "llama3" and architecture.name in DIVISORS:
        return replace(rope, scaling="none", factor=1.0)
    if rope.scaling == "longrope":
        return replace(rope, factor=1.0, short_factors=(), long_factors=())
    return rope


def metadata(architecture: Architecture, config: ModelConfig, fields: Fields) -> dict[str, Value]:
    """The fields of the metadata for a model.

    Args:
        architecture: the model's.
        config: the dimensions as GGUF says them (:func:`config_in_gguf`).
        fields: config.json.
    """
    name, files = architecture.name, architecture.hugging_face
    made: dict[str, Value | None] = {
        "block_count": config.n_layers,
        "context_length": config.context_length,
        "embedding_length": config.n_embd,
        "vocab_size": config.n_vocab,
        "feed_forward_length": _each(config.n_ff),
        "attention.head_count": _each(config.n_heads),
        f"attention.layer_norm{'_rms' if architecture.norm == 'rms' else ''}_epsilon": config.rms_eps,
        "hidden_activation": config.activation or None,
    }
    if config.n_heads:
        made |= {
            "attention.head_count_kv": _each(config.n_kv_heads),
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim_v,
        }
    made |= _rotary(config)
    if config.window is not None:
        made |= {
            "attention.sliding_window": config.window.size,
            "attention.sliding_window_pattern": config.window.layers,
        }
        if config.rope.style != "none":
            made["rope.freq_base_swa"] = config.window.rope.theta
    if config.latent is not None:
        made |= {
            "attention.q_lora_rank": config.latent.q_rank or None,
            "attention.kv_lora_rank": config.latent.rank,
        }
        if config.latent.compressed:
            made["attention.key_length_mla"] = config.latent.head_dim
            made["attention.value_length_mla"] = config.latent.head_dim_v
    if config.experts is not None:
        made |= _mixtures(config.experts)
    if config.ssm is not None:
        made |= _states(architecture, config.ssm)
    if config.delta is not None:
        made |= _delta_nets(config, config.delta)
    made["final_logit_softcapping"] = config.logit_softcap or None
    if not architecture.causal:
        made["attention.causal"] = False
    for key, pooling in (("", config.pooling), ("classifier.", config.score_pooling)):
        made[f"{key}pooling_type"] = POOLINGS.index(pooling) if pooling in POOLINGS else None
    for i, dense in enumerate(config.dense):
        made[f"dense_{i + 2}_feat_in"], made[f"dense_{i + 2}_feat_out"] = dense.n_in, dense.n_out
    if files is not None and files.gguf_fields is not None:
        made |= files.gguf_fields(config, fields)
    return {f"{name}.{key}": value for key, value in made.items() if value is not None}


def _each(values: Sequence[int]) -> Value:
    """A number for all layers, or a list with one for each; 0 if there are none."""
    if len(set(values)) > 1:
        return tuple(values)
    return values[0] if values else 0


def _rotary(config: ModelConfig) -> dict[str, Value | None]:
    rope = config.rope
    if rope.style == "none":
        return {}
    made: dict[str, Value | None] = {
        "rope.dimension_count": rope.dim,
        "rope.freq_base": rope.theta,
    }
    if rope.scaling in ("none", "proportional"):
        return made
    made["rope.scaling.type"] = rope.scaling
    if rope.scaling in ("linear", "yarn"):
        made["rope.scaling.factor"] = rope.factor
    if rope.scaling in ("yarn", "longrope"):
        made["rope.scaling.original_context_length"] = rope.original_context
        made["rope.scaling.attn_factor"] = rope.attn_factor
    if rope.scaling == "yarn":
        made["rope.scaling.yarn_beta_fast"] = rope.beta_fast
        made["rope.scaling.yarn_beta_slow"] = rope.beta_slow
    return made


def _mixtures(experts: ExpertsConfig) -> dict[str, Value | None]:
    return {
        "expert_count": experts.n_experts,
        "expert_used_count": experts.n_used,
        "expert_feed_forward_length": experts.n_ff,
        "expert_shared_feed_forward_length": experts.n_ff_shared or None,
        "expert_group_count": experts.n_groups if experts.n_groups > 1 else None,
        "expert_group_used_count": experts.n_groups_used if experts.n_groups > 1 else None,
    }


def routing(config: ModelConfig) -> dict[str, Value | None]:
    """How experts are chosen and weighed, for the architectures whose files say that."""
    experts = present(config.experts)
    return {
        "expert_gating_func": _SCORES[experts.scores],
        "expert_weights_norm": experts.normalised,
        "expert_weights_scale": experts.scale,
    }


def sparse_layers(config: ModelConfig) -> dict[str, Value | None]:
    """Which layers have experts, for the architectures whose files say that: from one on, every nth."""
    layers = () if config.experts is None else config.experts.layers
    first = next((layer for layer, sparse in enumerate(layers) if sparse), 0)
    found = [layer for layer, sparse in enumerate(layers) if sparse]
    step = found[1] - found[0] if len(found) > 1 else max(1, first + 1)
    return {
        "leading_dense_block_count": 0 if first == step - 1 else first,
        "interleave_moe_layer_step": step,
    }


def _states(architecture: Architecture, ssm: SSMConfig) -> dict[str, Value | None]:
    if architecture.recurrent == "short convolution":
        return {"shortconv.l_cache": ssm.d_conv}
    return {
        "ssm.conv_kernel": ssm.d_conv,
        "ssm.inner_size": ssm.d_inner,
        "ssm.state_size": ssm.d_state,
        "ssm.time_step_rank": ssm.heads or ssm.dt_rank,
        "ssm.group_count": ssm.groups if ssm.heads else None,
    }


def _delta_nets(config: ModelConfig, delta: DeltaNetConfig) -> dict[str, Value | None]:
    if delta.channel_decays:
        return {"ssm.conv_kernel": delta.d_conv, "kda.head_dim": delta.head_dim}
    states = tuple(config.keeps_state(layer) for layer in range(config.n_layers))
    steps = [
        n
        for n in range(1, config.n_layers + 1)
        if states == tuple((layer + 1) % n != 0 for layer in range(config.n_layers))
    ]
    return {
        "attention.head_count_kv": max(config.n_kv_heads),
        "full_attention_interval": steps[0] if steps else None,
        "attention.recurrent_layers": None if steps else states,
        "ssm.conv_kernel": delta.d_conv,
        "ssm.inner_size": delta.values,
        "ssm.state_size": delta.head_dim,
        "ssm.time_step_rank": delta.n_heads,
        "ssm.group_count": delta.n_key_heads,
    }


_APPROXIMATE = {
    "window": "windows of {before.size} positions: in longer texts all layers see all positions",
    "experts.n_group_best": "that groups of experts are ranked by their best: it adds up the best two",
    "rope.truncate": "where YaRN's ramp begins and ends within pairs of channels: it takes whole pairs",
    "ssm.norm_eps": "the epsilon of the norms of states, {before:g}: it takes that of the other norms",
    "ssm.least_step": "the least time step, {before:g}: it has none",
    "longest_text": "that texts for vectors have at most {before} tokens: it takes all positions",
    "delta.unit_eps": "the epsilon of unit queries and keys, {before:g}: it takes that of the norms",
}  # fmt: skip
"""What GGUF cannot say, and llama.cpp's conversion leaves out as well -> what a warning says about it."""


def differences(said: ModelConfig, found: ModelConfig) -> tuple[list[str], list[str]]:
    """Compare a model with what its new file says.

    Args:
        said: the dimensions, as GGUF should say them.
        found: the dimensions that the reader of GGUF files finds.

    Returns:
        What the file leaves out, and what it says wrongly.
    """
    left_out, wrong = [], []
    for path, before, after in _compared("", _plain(said), _plain(found)):
        if path == "window.rope.truncate":
            path = "rope.truncate"
        if path in _APPROXIMATE and (path != "window" or after is None):
            message = _APPROXIMATE[path].format(before=before)
            left_out += [message] if message not in left_out else []
        else:
            wrong.append(f"{path}: {_shown(before)} would become {_shown(after)}")
    return left_out, wrong


_BIASED = ("output_norm", "blk.0.attn_output", "blk.0.ffn_down", "cls", "cls.norm")
"""Parts of ModernBERT that may have biases."""


def llama_cpp_lacks(config: ModelConfig, names: Container[str]) -> list[str]:
    """What llama.cpp lacks to load a model's file, or to give its logits, which Aleator does.

    Args:
        config: the dimensions in the directory.
        names: GGUF's names of its tensors.
    """
    name, n, latent = config.architecture, config.n_layers, config.latent
    wide = bool(config.n_heads) and config.n_heads[0] * config.head_dim != config.n_embd
    grouped = any(
        0 < keys < heads for heads, keys in zip(config.n_heads, config.n_kv_heads, strict=True)
    )
    biased = {
        part: any(f"blk.{i}.{part}.bias" in names for i in range(n))
        for part in ("attn_output", "ffn_down")
    }
    betas = (config.rope.beta_fast, config.rope.beta_slow)
    lite = n in (26, 27) or (n == 48 and config.n_vocab == 128256)  # as it tells DeepSeek-V2-Lite
    found = {
        "biases behind attention": biased["attn_output"] and name not in _BIASED_OUTPUT,
        "biases in feed-forward parts": (
            biased["ffn_down"] and (name not in _BIASED_OUTPUT or name.startswith("ernie"))
        ),
        "layers without biases": name in ("gptneox", "starcoder2") and not biased["ffn_down"],
        "norms of queries and keys with fewer than 64 layers": (
            name == "command-r" and "blk.0.attn_q_norm.weight" in names and n < 64
        ),
        "fewer heads of keys than of queries": grouped
        and name in ("deepseek2-ocr", "dots1", "olmoe", "qwen"),
        "scores and logits without a cap": name == "gemma2"
        and not (config.attention_softcap and config.logit_softcap),
        f"YaRN with beta_fast={betas[0]:g} and beta_slow={betas[1]:g} instead of 32 and 1": (
            config.rope.scaling == "yarn" and betas != (32, 1) and name != "mistral3"
        ),
        "rotary scaling of type 'longrope'": (
            config.rope.scaling == "longrope" and name not in _LONGROPE
        ),
        "biases": name == "modern-bert" and any(f"{each}.bias" in names for each in _BIASED),
        "dense layers behind the pooling other than EmbeddingGemma's two": bool(config.dense)
        and (
            (name, len(config.dense), config.dense[-1].n_out)
            != ("gemma-embedding", 2, config.n_embd)
            or "dense_2.bias" in names
            or "dense_3.bias" in names
        ),
        "a bias behind experts": any(f"blk.{i}.ffn_out.bias" in names for i in range(n)),
        "a head that makes scores": (
            name in ("nomic-bert", "nomic-bert-moe") and "cls.output.weight" in names
        ),
        f"heads of {config.head_dim} channels, not hidden_size / num_attention_heads": (
            wide and name in _AS_WIDE
        ),
        "an output matrix beside the embedding": name in _TIED and not config.tied,
        "queries that are not compressed (q_lora_rank)": (
            name in ("deepseek2", "mistral4")
            and latent is not None
            and not latent.q_rank
            and not lite
        ),
    }
    return [what for what, lacks in found.items() if lacks]


def _plain(config: ModelConfig) -> ModelConfig:
    """The dimensions without what has no effect."""

    def rope(each: RopeConfig) -> RopeConfig:
        if each.scaling in ("none", "proportional"):
            each = replace(each, original_context=0)
        if each.scaling != "yarn":
            each = replace(each, beta_fast=32.0, beta_slow=1.0, truncate=True)
        return replace(each, low_freq_factor=1.0, high_freq_factor=4.0)

    window = config.window
    if window is not None:
        window = replace(window, rope=rope(window.rope))
    layers = range(config.n_layers)
    return replace(
        config,
        name="",
        attention_scale=config.attention_scale or 1.0 / math.sqrt(config.head_dim or 1),
        rope=rope(config.rope),
        window=window,
        unrotated=tuple(not config.rotated(i) for i in layers),
        keys_as_values=tuple(
            config.stores_keys(i) and config.takes_keys_as_values(i) for i in layers
        ),
        stateful=tuple(config.keeps_state(i) for i in layers),
    )


def _compared(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """The fields that differ, by path; numbers may differ by the rounding to float32."""
    if dataclasses.is_dataclass(before) and type(before) is type(after):
        for each in dataclasses.fields(before):
            name = f"{path}.{each.name}" if path else each.name
            yield from _compared(name, getattr(before, each.name), getattr(after, each.name))
    elif isinstance(before, float) and isinstance(after, float | int):
        if not math.isclose(before, after, rel_tol=1e-6):
            yield path, before, after
    elif before != after:
        yield path, before, after


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
