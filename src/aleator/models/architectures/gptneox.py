"""gptneox: layer norms, biases, feed-forward beside attention with a norm of its own (GPT-NeoX, Pythia, Dolly).

In some models it follows attention instead, as their files say.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.config import MAX_THETA, Fields, GGUFFile, ModelConfig
from aleator.models.conversions import heads_apart
from aleator.models.json_config import transformer

QUARTER = 0.25  # share of a head's channels that is rotated, if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    return replace(config, parallel=gguf.fields.require("gptneox.use_parallel_residual", bool))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    rope = fields.changed(rope_theta=fields.number("rotary_emb_base", 1.0, MAX_THETA, 10000.0))
    share = fields.number("rotary_pct", 0.0, 1.0, QUARTER)
    config = transformer(fields, architecture, eps="layer_norm_eps", rope=rope, rotated=share)
    return replace(config, parallel=fields.get("use_parallel_residual", True))


def usual_name(name: str) -> str:
    """A tensor's name; "" for the masks that older files contain."""
    return "" if name.endswith((".attention.bias", ".attention.masked_bias")) else name


GPTNEOX = Architecture(
    "gptneox",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("gpt_neox",),
        read_json,
        stack="gpt_neox",
        outer=outside("gpt_neox.embed_in", "gpt_neox.final_layer_norm") | {"embed_out": "output"},
        layer={
            "input_layernorm": "attn_norm",
            "attention.query_key_value": "attn_qkv",
            "attention.dense": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        usual_name=usual_name,
        move_rows=heads_apart,
        gguf_fields=lambda config, _: {"use_parallel_residual": config.parallel},
    ),
    norm="layer",
    gated=False,
    activation="gelu_exact",
    parallel=True,
)
