"""deepseek2-ocr: the text part of DeepSeek-OCR, which is deepseek with the "neox" rotation."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import deepseek_files
from aleator.models.config import Fields, GGUFFile, ModelConfig, present, refuse, unsupported
from aleator.models.conversions import in_text_model, text_part
from aleator.models.experts import after_dense
from aleator.models.json_config import listed_kinds

TYPES = "deepseek_ocr2_text", "deepseek_ocr2"
"""Types of transformers' own; the published files' is DeepSeek-VL2's, whose other models are not read."""
GROUPED = "group_limited_greedy"
_PICTURES = ("sam_model.", "qwen2_model.", "image_newline", "view_seperator", "view_separator")


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    if config.rope.scaling != "none":  # llama.cpp does not read it
        raise unsupported(gguf.path, f"rotary scaling of type {config.rope.scaling!r}")
    return after_dense(config, gguf, default=1)


def is_ocr(fields: Fields) -> bool:
    """Whether a config.json is of DeepSeek-OCR."""
    named = fields.get("architectures", kind=list) or []
    return fields.get("model_type") in TYPES or any(
        str(each).startswith("DeepseekOCR") for each in named
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part is a section of its own."""
    text = fields.get("language_config", kind=dict)
    if text is not None:
        fields = fields.changed(text_config={**text, "model_type": TYPES[0]})
    fields = text_part(fields, *TYPES).over({"rms_norm_eps": 1e-6, "topk_method": "greedy"})
    refuse(fields, "compressed keys", "use_mla")
    if fields.get("topk_method") == "greedy":
        fields = fields.changed(n_group=1, topk_group=1)
    elif fields.get("topk_method") != GROUPED:
        raise unsupported(fields.path, f"topk_method = {fields.get('topk_method')!r:.40}")
    config = deepseek_files.read_json(fields, architecture)
    sparse = listed_kinds(fields, config.n_layers, ("sparse",), ("dense",), "mlp_layer_types")
    if sparse is None:
        return config
    return replace(config, experts=replace(present(config.experts), layers=sparse))


def usual_name(name: str) -> str:
    """A tensor's usual name; "" for one of the parts that see pictures."""
    return "" if name.removeprefix("model.").startswith(_PICTURES) else in_text_model(name)


DEEPSEEK2_OCR = Architecture(
    "deepseek2-ocr",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("deepseek_vl_v2", *TYPES),
        read_json,
        takes=is_ocr,
        layer=TRANSFORMER | deepseek_files.ROUTED,
        expert=EXPERTS,
        usual_name=usual_name,
        gguf_fields=deepseek_files.mixture_fields,
    ),
)
