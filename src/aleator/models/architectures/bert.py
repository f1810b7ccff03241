"""bert: an encoder with norms of the sums, vectors of positions and segments; roberta and xlm-roberta too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor, refuse, unsupported
from aleator.models.json_config import transformer

ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Types whose positions begin after the number of the padding token."""
EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
HEAD = {
    "pooler.dense": "cls",
    "classifier": "cls.output",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
ATTENTION = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
}
LAYER = ATTENTION | {
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_OF_TRAINING = ("cls.", "lm_head.", "decoder.", "embeddings.position_ids", "dropout.")
"""Beginnings of names of tensors that guess masked words, and of a table of numbers."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions of an encoder, which has no output matrix."""
    for name in gguf.tensors:
        if "attn_norm_2." in name or "_exps." in name:
            raise unsupported(gguf.path, f"the tensor {name}")
    return replace(gguf_config.transformer(gguf, architecture), tied=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "a decoder of bert's kind", "is_decoder", "add_cross_attention")
    kind = fields.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise unsupported(fields.path, f"positions of the kind {kind!r} (position_embedding_type)")
    first = first_position(fields)
    rows = fields.length("max_position_embeddings")
    if rows <= first:
        raise fields.error("max_position_embeddings", f"{rows} positions begin at {first}")
    sizes = fields.changed(max_position_embeddings=rows - first)
    return replace(transformer(sizes, architecture, tied=True, eps="layer_norm_eps"), tied=True)


def is_plain(fields: Fields) -> bool:
    """Whether a model of the type bert has vectors of positions, and is not Jina's."""
    return fields.get("position_embedding_type", "absolute") != "alibi"


def first_position(fields: Fields) -> int:
    """The row of the table that a text's first position has."""
    if fields.get("model_type") not in ROBERTA:
        return 0
    return fields.integer("pad_token_id", 0, 1 << 24, 1) + 1


def as_gguf(name: str, tensor: StoredTensor, fields: Fields, config: ModelConfig) -> StoredTensor:
    """Convert a tensor to GGUF's form, in which the table begins with a text's first position."""
    first = first_position(fields)
    if name != "position_embd.weight" or not first:
        return tensor
    return StoredTensor.of(tensor.floats()[first:])


def usual_name(name: str, prefixes: tuple[str, ...] = ("bert.", "roberta.")) -> str:
    """A tensor's name without its prefix; "" for what only training needs."""
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    if name.startswith(_OF_TRAINING):
        return ""
    # Files of old versions name the parameters of norms as TensorFlow did.
    return name.replace(".gamma", ".weight").replace(".beta", ".bias")


def without_pooler(name: str) -> str:
    """:func:`usual_name` of a model for vectors alone, of which llama.cpp reads no pooler."""
    usual = usual_name(name)
    return "" if usual.startswith("pooler.") else usual


ENCODER = partial(
    Architecture,
    read_gguf=read_gguf,
    norm="layer",
    causal=False,
    pre_norm=False,
    sum_norm=True,
    output_norm="",
    embedding_norm=True,
)
"""The facts that encoders of this kind have in common."""

BERT = ENCODER(
    "bert",
    rope_style="none",
    hugging_face=HuggingFace(
        ("bert", *ROBERTA),
        read_json,
        takes=is_plain,
        stack="encoder",
        layers="layer",
        outer=EMBEDDINGS | HEAD,
        layer=LAYER,
        usual_name=usual_name,
        convert_fields=as_gguf,
    ),
    gated=False,
    activation="gelu_exact",
    position_embedding=True,
)
