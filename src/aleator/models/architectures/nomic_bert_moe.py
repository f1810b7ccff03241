"""nomic-bert-moe: nomic-bert without gates, with mixtures of experts in every second layer."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, under
from aleator.models.architectures import nomic_bert
from aleator.models.architectures.bert import ENCODER
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse_others, unsupported
from aleator.models.conversions import expert_by_expert
from aleator.models.experts import in_gguf, in_json
from aleator.models.files.fields import Value

EVERY = "moe_every_n_layers"
EXPERTS = {
    "mlp.w1": "ffn_up_exps.weight",
    "mlp.w2": "ffn_down_exps.weight",
    "bias": "ffn_out.bias",
}


def with_experts(n_layers: int, every: int) -> tuple[bool, ...]:
    """Which layers have experts: of every n the second, as in llama.cpp."""
    return tuple(bool(every) and layer % every == 1 for layer in range(n_layers))


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions."""
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    config = replace(config, tied=True)
    every = fields.layers(f"nomic-bert-moe.{EVERY}", 0, low=0)
    layers = with_experts(config.n_layers, every)
    return in_gguf(config, fields, layers, n_ff=config.n_ff[0]) if any(layers) else config


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    others = "moe_normalize_expert_weights", "expert_choice_router", "num_shared_experts"
    refuse_others(fields, dict.fromkeys(others, False))
    config = nomic_bert.read_json(fields, architecture, experts=True)
    layers = with_experts(config.n_layers, fields.layers(EVERY))
    if not any(layers):
        raise unsupported(fields.path, f"experts in none of its layers ({EVERY})")
    return in_json(config, fields, (8, 1), "moe_top_k", layers=layers)


def gguf_fields(_: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    return {EVERY: fields.layers(EVERY)}


NOMIC_BERT_MOE = ENCODER(
    "nomic-bert-moe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("nomic_bert",),
        read_json,
        takes=nomic_bert.has_experts,
        stack="encoder",
        outer=nomic_bert.OUTER,
        layer=nomic_bert.LAYER | {"mlp.fc1": "ffn_up", "mlp.router.layer": "ffn_gate_inp"},
        bare=under("mlp.experts", EXPERTS),
        usual_name=nomic_bert.own_name,
        move_rows=expert_by_expert,
        gguf_fields=gguf_fields,
    ),
    gated=False,
    activation="gelu_exact",
)
