"""qwen3vlmoe: the text part of Qwen3-VL with mixtures of experts, which is qwen3moe; see qwen2vl."""

from __future__ import annotations

from collections.abc import Mapping

from aleator.models import gguf_config
from aleator.models.architecture import (
    EXPERTS,
    HEAD_NORMS,
    STACKED,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    under,
)
from aleator.models.architectures import pictures
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor, present
from aleator.models.conversions import axes, in_text_model, text_part
from aleator.models.experts import in_gguf, in_json, sparse_layers
from aleator.models.json_config import full_attention, with_scaling

TEXT_TYPE = "qwen3_vl_moe_text"
THETA = 500000.0  # if config.json has none, as in transformers


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    pictures.check_axes(fields, config)
    return in_gguf(config, fields, n_ff_used=config.n_ff[0], normalised=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    fields = with_scaling(text_part(fields, TEXT_TYPE, "qwen3_vl_moe"), "default", ["mrope"])
    fields = fields.over({"rope_theta": THETA})
    config = full_attention(fields, architecture, experts=True)
    return in_json(
        config,
        fields,
        (60, 4),
        layers=sparse_layers(fields, config.n_layers),
        n_ff=fields.width("moe_intermediate_size", 1408),
        normalised=True,
    )


def as_gguf(
    name: str, tensor: StoredTensor, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> StoredTensor:
    """Convert a tensor to GGUF's form: experts' matrices are [out, in].

    Files of transformers 4, as the published ones, hold them transposed, those of 5.2 and later do not.  Their
    shapes tell.  Of a square one the layer's other one tells, which is not square then: a file has one order.
    """
    n_in = {"ffn_gate_up_exps": config.n_embd, "ffn_down_exps": present(config.experts).n_ff}
    kind = name.split(".")[-2]
    if kind not in n_in or len(tensor.shape) != 3:
        return tensor
    shape: tuple[int, ...] = tensor.shape
    if shape[1] == shape[2]:
        (other,) = n_in.keys() - {kind}
        shape, kind = shapes.get(name.replace(kind, other), ()), other
    if shape[2:] == (n_in[kind],):
        return tensor
    return tensor.moved(lambda values: values.swapaxes(1, 2))


QWEN3VLMOE = Architecture(
    "qwen3vlmoe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("qwen3_vl_moe", TEXT_TYPE),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"},
        bare=under("mlp", STACKED),
        expert=EXPERTS,
        usual_name=in_text_model,
        convert_beside=as_gguf,
        gguf_fields=axes,
    ),
    head_norm=True,
    shifts=False,
    position_axes=4,
)
