"""jina-bert-v2: bert with attention that falls with the distance (ALiBi), and a gate with GELU."""

from __future__ import annotations

from dataclasses import replace

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import bert
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.json_config import transformer

ALIBI = 8.0


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return replace(bert.read_gguf(gguf, architecture), alibi=ALIBI)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    kind = fields.get("feed_forward_type", "original")
    if kind != "geglu":
        raise unsupported(
            fields.path, f"feed-forward parts of the kind {kind!r} (feed_forward_type)"
        )
    config = transformer(fields, architecture, tied=True, eps="layer_norm_eps")
    return replace(config, tied=True, alibi=ALIBI)


JINA_BERT_V2 = bert.ENCODER(
    "jina-bert-v2",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("bert",),
        read_json,
        takes=lambda fields: not bert.is_plain(fields),
        stack="encoder",
        layers="layer",
        outer=bert.EMBEDDINGS,
        layer=bert.ATTENTION
        | {
            "attention.self.layer_norm_q": "attn_q_norm",
            "attention.self.layer_norm_k": "attn_k_norm",
            "mlp.gated_layers": "ffn_up",
            "mlp.wo": "ffn_down",
            "mlp.layernorm": "layer_output_norm",
        },
        usual_name=bert.without_pooler,
    ),
    activation="gelu_exact",
    fused_gate=True,
    head_norm_kind="all",
)
