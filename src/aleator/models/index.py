"""The index of architectures: one line each, in the order in which messages and tables list them."""

# ruff: noqa: I001
from __future__ import annotations

from aleator.core.errors import UnsupportedModel
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

from aleator.models.llama import LLAMA as LLAMA
from aleator.models.qwen2 import QWEN2 as QWEN2
from aleator.models.qwen3 import QWEN3 as QWEN3
from aleator.models.qwen2moe import QWEN2MOE as QWEN2MOE
from aleator.models.qwen3moe import QWEN3MOE as QWEN3MOE
from aleator.models.gemma3 import GEMMA3 as GEMMA3
from aleator.models.mamba import MAMBA as MAMBA
from aleator.models.jamba import JAMBA as JAMBA

ARCHITECTURES: dict[str, Architecture] = {
    value.name: value for value in list(globals().values()) if isinstance(value, Architecture)
}
"""Architectures by name."""


def read_gguf(gguf: GGUFFile) -> tuple[Architecture, ModelConfig]:
    """The architecture that a GGUF file names, and the model's dimensions, every field checked.

    Raises:
        FileFormatError: a field is missing, of the wrong type, out of range, or contradicts another.
        UnsupportedModel: the file holds no model, or one that no decoder here computes.
    """
    fields = gguf.fields
    kind = fields.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{gguf.path}: the file holds a {kind!r}, not a model (general.type)"
        )
    architecture = ARCHITECTURES.get(fields.require("general.architecture", str))
    if architecture is None:
        raise _unsupported(fields.path, fields.require("general.architecture", str))
    return architecture, architecture.read_gguf(gguf, architecture)


def read_json(fields: Fields) -> tuple[Architecture, ModelConfig]:
    """The architecture that a ``config.json`` names, and the model's dimensions.

    Raises:
        FileFormatError: as for :func:`read_gguf`.
        UnsupportedModel: as for :func:`read_gguf`.
    """
    model_type = fields.require("model_type", str)
    for architecture in ARCHITECTURES.values():
        files = architecture.hugging_face
        if files is not None and model_type in files.model_types:
            return architecture, files.read(fields, architecture)
    if model_type in ARCHITECTURES:
        raise UnsupportedModel(
            f"{fields.path}: models of the architecture {model_type!r} are read from GGUF files only; "
            "convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    raise _unsupported(fields.path, model_type)


def _unsupported(path: object, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path}: the architecture {name!r} is not supported; supported are "
        f"{', '.join(ARCHITECTURES)}"
    )
