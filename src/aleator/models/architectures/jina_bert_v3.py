"""jina-bert-v3: bert with a rotary embedding instead of vectors of positions."""

from __future__ import annotations

from dataclasses import replace

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures.bert import EMBEDDINGS, ENCODER, without_pooler
from aleator.models.config import Fields, ModelConfig
from aleator.models.json_config import transformer

THETA = 20000.0


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    if "rope_theta" not in fields and "rope_parameters" not in fields:
        fields = fields.changed(rope_theta=THETA)
    return replace(transformer(fields, architecture, tied=True, eps="layer_norm_eps"), tied=True)


JINA_BERT_V3 = ENCODER(
    "jina-bert-v3",
    hugging_face=HuggingFace(
        ("jina_embeddings_v3",),
        read_json,
        stack="encoder",
        outer=EMBEDDINGS | {"emb_ln": "token_embd_norm"},
        layer={
            "mixer.Wqkv": "attn_qkv",
            "mixer.out_proj": "attn_output",
            "norm1": "attn_output_norm",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
            "norm2": "layer_output_norm",
        },
        usual_name=without_pooler,
    ),
    gated=False,
    activation="gelu_exact",
)
