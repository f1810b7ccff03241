"""gpt-oss: mixtures of experts with biases and a clamped gate, learned sinks, every other layer with a window.

An expert's weight is the softmax of the chosen experts' logits.  Hugging Face's files hold gate and up
interleaved, and matrices transposed (https://openai.com/index/introducing-gpt-oss).
Real files store experts as MXFP4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.models import gguf_config
from aleator.models.architecture import WITHOUT_MLP, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor, unsupported
from aleator.models.experts import in_gguf, in_json
from aleator.models.json_config import full_attention

PATTERN = 2
"""One of this many layers sees everything, unless the file says otherwise."""
WINDOW = 128
"""Positions of a window, if config.json has none."""
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Defaults of transformers' GptOssConfig."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; the rotary embeddings of both kinds of layers differ only in the base."""
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    fields.length(f"{architecture.name}.attention.sliding_window")
    config = replace(config, window=gguf_config.read_windows(fields, config, every=PATTERN))
    wide = config.n_ff[0] or None
    return in_gguf(config, fields, default_n_ff=wide, scores="chosen softmax", biases=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    if fields.get("rope_parameters") is None and fields.get("rope_scaling") is None:
        fields = fields.changed(rope_scaling=YARN)
    for key, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if fields.number(key, -1e6, 1e6, value) != value:
            raise unsupported(fields.path, f"{key} other than {value}")
    if not fields.get("attention_bias", True):
        raise unsupported(fields.path, "projections without a bias (attention_bias)")
    config = full_attention(
        fields, architecture, head_dim=64, windows=PATTERN, window=WINDOW, experts=True
    )
    return in_json(config, fields, (128, 4), scores="chosen softmax", biases=True)


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: experts' matrices [experts, n_out, n_in], gate's rows before up's."""
    if "_exps" not in name:
        return tensor

    def apart(rows: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([rows[:, ::2], rows[:, 1::2]], 1)

    matrices = name.endswith(".weight")
    if matrices and tensor.type != "MXFP4":  # whose blocks lie along the rows
        tensor = tensor.moved(lambda values: values.swapaxes(1, 2))
    if "gate_up" not in name:
        return tensor
    return tensor.moved_rows(apart) if matrices else tensor.moved(apart)


GPT_OSS = Architecture(
    "gpt-oss",
    read_gguf=read_gguf,
    qkv_bias=True,
    sinks=True,
    activation="silu_clamped",
    ffn_norm="post_attention_norm",
    hugging_face=HuggingFace(
        ("gpt_oss",),
        read_json,
        layer=WITHOUT_MLP
        | {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
        bare={
            "self_attn.sinks": "attn_sinks.weight",
            "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "mlp.experts.gate_up_proj_bias": "ffn_gate_up_exps.bias",
            "mlp.experts.down_proj": "ffn_down_exps.weight",
            "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
        },
        experts_interleaved=True,
        convert=as_gguf,
    ),
)
