"""nomic-bert: bert with a rotary embedding instead of vectors of positions, and a gate with SiLU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures.bert import EMBEDDINGS, ENCODER, HEAD, usual_name
from aleator.models.config import Fields, ModelConfig, refuse_others
from aleator.models.json_config import transformer

SILU = ("silu", "swiglu")
THETA = 1000.0
COMPUTED = {
    "prenorm": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "causal": False,
    "parallel_block": False, "use_rms_norm": False, "rotary_emb_scale_base": None,
}  # fmt: skip
"""Fields of the model's own code -> what is computed here."""


def has_experts(fields: Fields) -> bool:
    """Whether a model of this type has mixtures of experts; without them, files may say -1."""
    return fields.get("moe_every_n_layers", 0) > 0


def read_json(fields: Fields, architecture: Architecture, *, experts: bool = False) -> ModelConfig:
    """The dimensions in config.json, under transformers' names or under those of the model's own code.

    ``experts``: mixtures are allowed, which the caller reads.
    """
    if "n_embd" in fields:
        activation = fields.get("activation_function", "swiglu")
        fields = fields.changed(
            hidden_size=fields.width("n_embd"),
            num_hidden_layers=fields.layers("n_layer"),
            num_attention_heads=fields.width("n_head"),
            intermediate_size=fields.width("n_inner", 4 * fields.width("n_embd")),
            max_position_embeddings=fields.length("max_trained_positions", 2048),
            layer_norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-12),
            rope_theta=fields.number("rotary_emb_base", 1.0, 1e30, THETA),
            hidden_act="silu" if activation in SILU else activation,
        )
        refuse_others(fields, COMPUTED)
    if "rope_theta" not in fields and "rope_parameters" not in fields:
        fields = fields.changed(rope_theta=THETA)
    config = transformer(fields, architecture, tied=True, eps="layer_norm_eps", experts=experts)
    return replace(config, tied=True)


OUTER = EMBEDDINGS | HEAD | {"emb_ln": "token_embd_norm"}
LAYER = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
}
own_name = partial(usual_name, prefixes=("bert.", "nomic_bert."))
NOMIC_BERT = ENCODER(
    "nomic-bert",
    hugging_face=HuggingFace(
        ("nomic_bert",),
        read_json,
        takes=lambda fields: not has_experts(fields),
        stack="encoder",
        outer=OUTER,
        layer=LAYER | {"mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate"},
        usual_name=own_name,
    ),
)
