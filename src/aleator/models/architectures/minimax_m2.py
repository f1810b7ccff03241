"""minimax-m2: mixtures of experts chosen with a bias, queries and keys normalised over all heads together.

Half of a head's channels are rotated.
"""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import (
    HEAD_NORMS,
    MIXTRAL_EXPERT,
    WITHOUT_MLP,
    Architecture,
    HuggingFace,
    under,
)
from aleator.models.config import MAX_HEAD_DIM, Fields, GGUFFile, ModelConfig
from aleator.models.conversion.gguf_form import routing
from aleator.models.experts import SCORES, in_gguf, in_json
from aleator.models.json_config import full_attention

HEAD_DIM = 128  # if config.json has none, as in transformers
PART = "block_sparse_moe"


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    kind = gguf.fields.integer(f"{architecture.name}.expert_gating_func", 1, max(SCORES))
    return in_gguf(
        config,
        gguf.fields,
        n_ff=config.n_ff[0],
        scores=SCORES[kind],
        normalised=True,
        choice_bias=True,
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, which may say how many channels are rotated (``rotary_dim``)."""
    dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, HEAD_DIM)
    rotated = fields.integer("rotary_dim", 2, dim, dim) / dim
    config = full_attention(fields, architecture, head_dim=dim, rotated=rotated, experts=True)
    return in_json(config, fields, (256, 8), scores="sigmoid", normalised=True, choice_bias=True)


MINIMAX_M2 = Architecture(
    "minimax-m2",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("minimax_m2",),
        read_json,
        layer=WITHOUT_MLP | HEAD_NORMS | {f"{PART}.gate": "ffn_gate_inp"},
        bare={f"{PART}.e_score_correction_bias": "exp_probs_b.bias"},
        expert=under(f"{PART}.experts.{{}}", MIXTRAL_EXPERT),
        gguf_fields=lambda config, _: routing(config),
    ),
    head_norm=True,
    head_norm_kind="all",
)
