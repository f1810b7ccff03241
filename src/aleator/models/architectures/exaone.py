"""exaone: llama under another name, with other channels rotated together (EXAONE 3 and 3.5)."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, ModelConfig
from aleator.models.json_config import full_attention

FIELDS = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
"""The published files' fields -> their usual names, which transformers writes."""
PARTS = {
    "transformer.wte.": "model.embed_tokens.", "transformer.h.": "model.layers.",
    "transformer.ln_f.": "model.norm.", ".attn.attention.out_proj.": ".self_attn.o_proj.",
    ".attn.attention.": ".self_attn.", ".ln_1.": ".input_layernorm.", ".ln_2.": ".post_attention_layernorm.",
    ".mlp.c_fc_0.": ".mlp.gate_proj.", ".mlp.c_fc_1.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj.",
}  # fmt: skip
"""Parts of tensors' names, likewise."""
THETA = 500000.0  # if config.json has none, as in transformers


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    values = {FIELDS.get(key, key): value for key, value in fields.over({}).values.items()}
    return full_attention(Fields(fields.path, values).over({"rope_theta": THETA}), architecture)


def usual_name(name: str) -> str:
    """A tensor's usual name."""
    for part, usual in PARTS.items():
        name = name.replace(part, usual)
    return name


EXAONE = Architecture(
    "exaone", hugging_face=HuggingFace(("exaone",), read_json, usual_name=usual_name)
)
