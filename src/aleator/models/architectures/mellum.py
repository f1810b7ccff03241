"""mellum: qwen3moe with windows, whose layers rotate without the scaling of the others (Mellum 2)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, unscaled
from aleator.models.experts import in_gguf, in_json

EVERY = 4
DEFAULTS = {
    "rope_parameters": {"full_attention": {"rope_theta": 500000.0}, "sliding_attention": {}},
    "sliding_window": 1024,
}
"""Of config.json, as in transformers."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    window = gguf_config.read_windows(
        gguf.fields, config, every=EVERY, rope=unscaled(config.rope), own_base=False
    )
    return in_gguf(replace(config, window=window), gguf.fields, normalised=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; layers with a window have a rotation of their own."""
    fields = fields.over(DEFAULTS)
    own = [json_config.rope_part(fields, f"{kind}_attention") for kind in ("full", "sliding")]
    config = json_config.transformer(fields, architecture, experts=True, head_dim=128, rope=own[0])
    n = config.n_layers
    rope = json_config.read_rope(own[1], config.head_dim, config.context_length, architecture)
    window = json_config.read_windows(fields, config, (False,) * n, rope=rope)
    sparse = json_config.listed_kinds(fields, n, ("sparse",), ("dense",), key="mlp_layer_types")
    return in_json(
        replace(config, window=window),
        fields,
        (64, 8),
        layers=sparse or (True,) * n,
        n_ff=fields.width("moe_intermediate_size", 896),
        normalised=fields.get("norm_topk_prob", True),
    )


MELLUM = Architecture(
    "mellum",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mellum",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"},
        expert=EXPERTS,
        mtp_prefix="mtp.",
    ),
    head_norm=True,
)
