"""qwen35: the text part of Qwen3.5, gated delta nets and every fourth layer gated attention.

Pictures are left out.  Of text every axis of the interleaved M-RoPE has the same position, so that a part of a
head's channels is rotated as by the usual embedding.  llama.cpp cannot shift positions of these models; here it
is refused.  Its states keep further positions of each cell and are not read here.
"""

from __future__ import annotations

from functools import partial

from aleator.models import qwen3next
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.conversions import in_text_model, text_part
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.qwen3next import BARE, LAYER, as_gguf, without_further

PROJECTIONS = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
}
"""Hugging Face's names of a gated delta net's projections -> GGUF's."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which must say how channels are divided among the axes."""
    config = qwen3next.read_gguf(gguf, architecture, tiled=True)
    key, pairs = f"{architecture.name}.rope.dimension_sections", config.rope.dim // 2
    sections = gguf.fields.require(key, list)
    if len(sections) > 4 or not all(type(n) is int and n >= 0 for n in sections):
        raise gguf.fields.error(key, f"{key} must be up to four sizes of sections")
    sections = [*sections, 0, 0, 0][:3]
    if not all(pair < 3 * sections[pair % 3] for pair in range(pairs)) or sum(sections) < pairs:
        raise gguf.fields.error(key, f"{key} is {sections}; {pairs} pairs are to be divided")
    return config


def read_json(fields: Fields, architecture: Architecture, *, experts: bool) -> ModelConfig:
    """The dimensions in config.json, whose text part may stand apart."""
    if fields.get("text_config", kind=dict) is not None:
        text = "qwen3_5_moe_text" if experts else "qwen3_5_text"
        fields = text_part(fields, text, (text,))
    return qwen3next.read_json(fields, architecture, experts=experts)


def ours(name: str) -> str:
    """A tensor's name in the text part; "" for one of pictures, or of blocks that predict further tokens."""
    return in_text_model(without_further(name))


QWEN35 = Architecture(
    "qwen35",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("qwen3_5", "qwen3_5_text"),
        partial(read_json, experts=False),
        layer=LAYER | PROJECTIONS,
        bare=BARE,
        ours=ours,
        convert=as_gguf,
    ),
    ffn_norm="post_attention_norm",
    head_norm=True,
    attention_gate=True,
    shifts=False,
    position_axes=4,
    recurrent="delta net",
)
