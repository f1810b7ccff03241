"""Conversions from Hugging Face files to GGUF's form that several architectures share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from aleator.models.config import ModelConfig, present, unsupported
from aleator.models.files.fields import Fields, Value
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.json_config import rope_fields

T = TypeVar("T", bound=np.generic)

ROTATED = ("attn_q.", "attn_k.", "attn_q_b.", "attn_kv_a_mqa.")
"""Beginnings of the names within a layer of projections to queries and keys that are rotated."""

_OTHER_PARTS = (
    "vision_tower.", "vision_model.", "multi_modal_projector.", "visual.", "vit.", "projector.", "mlp_AR.",
)  # fmt: skip


def whole_norms(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form; Hugging Face's files store the weights of norms minus one."""
    if not name.endswith("norm.weight"):
        return tensor
    return StoredTensor.of(np.float32(1) + tensor.floats())


def router_as_vector(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: the shared expert's router is a vector there."""
    if name.endswith("ffn_gate_inp_shexp.weight") and len(tensor.shape) == 2:
        return replace(tensor, shape=(tensor.n_elements,))
    return tensor


def other_pairs(rows: NDArray[T], heads: int, *, neighbours: bool = True) -> NDArray[T]:
    """Reorder the rows of a projection to heads, so that other rows are rotated together.

    ``neighbours``: rows that are half a head apart become neighbours; otherwise the reverse.
    """
    pairs = rows.reshape(heads, *((2, -1) if neighbours else (-1, 2)), *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def otherwise_rotated(
    rows: NDArray[T], stem: str, layer: int, config: ModelConfig, *, neighbours: bool = True
) -> NDArray[T]:
    """Reorder the rows of one of the projections :data:`ROTATED`, as :func:`other_pairs` does.

    With compressed keys the rotated rows of a head are its last.  Rows of another number stay as they are:
    their shape is refused.
    """
    heads = (config.n_heads if stem.startswith("attn_q") else config.n_kv_heads)[layer]
    wide = len(rows) // max(heads, 1)
    dim = wide if config.latent is None else config.rope.dim
    if heads == 0 or len(rows) % heads or dim % 2 or dim > wide:
        return rows
    made = rows.reshape(heads, wide, -1).copy()
    last = made[:, -dim:].reshape(heads * dim, -1)
    made[:, -dim:] = other_pairs(last, heads, neighbours=neighbours).reshape(heads, dim, -1)
    return made.reshape(rows.shape)


def heads_apart(name: str, tensor: StoredTensor, config: ModelConfig) -> StoredTensor:
    """Convert a tensor to GGUF's form: all queries, all keys, all values.

    Hugging Face's files keep the queries, the key and the value of each KV head together.
    """
    groups, each = config.n_kv_heads[0], config.n_heads[0] // config.n_kv_heads[0] + 2
    if ".attn_qkv." not in name or tensor.shape[0] % (groups * each):
        return tensor

    def apart(rows: NDArray[Any]) -> NDArray[Any]:
        parts = rows.reshape(groups, each, -1)
        return np.concatenate(
            [part.reshape(-1) for part in np.split(parts, [each - 2, each - 1], 1)]
        )

    return tensor.moved_rows(apart)


def expert_by_expert(name: str, tensor: StoredTensor, config: ModelConfig) -> StoredTensor:
    """Convert a tensor to GGUF's form: experts' matrices are apart, and the last of each is [out, in]."""
    n = present(config.experts).n_experts
    if not name.endswith("_exps.weight") or len(tensor.shape) != 2 or tensor.shape[0] % n:
        return tensor
    made = replace(tensor, shape=(n, tensor.shape[0] // n, tensor.shape[1]))
    return made.moved(lambda values: values.swapaxes(1, 2)) if "ffn_down" in name else made


def in_text_model(name: str) -> str:
    """A tensor's name in the text part of a model with pictures; "" for the other parts.

    transformers has written these names as language_model.model... and as model.language_model...
    """
    plain = name.removeprefix("model.")
    if plain.startswith(_OTHER_PARTS):
        return ""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


def text_part(fields: Fields, *allowed: str) -> Fields:
    """The part of a configuration with pictures that describes the text model, by default of the first type.

    A configuration of an ``allowed`` type without such a part is the text model's own.
    """
    if fields.get("text_config") is None and fields.get("model_type") in allowed:
        return fields
    text: dict[str, Any] = {"model_type": allowed[0]}
    text |= fields.require("text_config", dict)
    if text["model_type"] not in allowed:
        raise unsupported(fields.path, f"a text model of type {text['model_type']!r}")
    for key in ("quantization_config", "tie_word_embeddings", "_name_or_path"):
        if fields.get(key) is not None:
            text[key] = fields.get(key)
    return Fields(fields.path, text)


def axes(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    """GGUF's field that divides the rotated channels among the axes of M-RoPE; by default in three."""
    fields = Fields(fields.path, fields.get("text_config", kind=dict) or fields.values)
    rope = rope_fields(fields)
    pairs = config.rope.dim // 2
    sections = rope.get("mrope_section") or rope.get("xdrope_section")
    sections = sections or [(pairs + 2 - axis) // 3 for axis in range(3)]
    if not isinstance(sections, list) or not all(type(n) is int and n >= 0 for n in sections):
        raise fields.error("mrope_section", f"mrope_section is {sections!r:.60}; it must be sizes")
    return {"rope.dimension_sections": [*sections, 0, 0, 0, 0][:4]}
