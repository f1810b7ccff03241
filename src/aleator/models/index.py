"""The index of architectures: one line each, in the order in which messages and tables list them."""

# ruff: noqa: I001
from __future__ import annotations

from aleator.core.errors import UnsupportedModel
from aleator.models import refused
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

from aleator.models.llama import LLAMA as LLAMA
from aleator.models.qwen2 import QWEN2 as QWEN2
from aleator.models.qwen3 import QWEN3 as QWEN3
from aleator.models.smollm3 import SMOLLM3 as SMOLLM3
from aleator.models.granite import GRANITE as GRANITE
from aleator.models.phi3 import PHI3 as PHI3
from aleator.models.olmo2 import OLMO2 as OLMO2
from aleator.models.seed_oss import SEED_OSS as SEED_OSS
from aleator.models.ernie4_5 import ERNIE4_5 as ERNIE4_5
from aleator.models.exaone4 import EXAONE4 as EXAONE4
from aleator.models.mistral3 import MISTRAL3 as MISTRAL3
from aleator.models.glm4 import GLM4 as GLM4
from aleator.models.hunyuan_dense import HUNYUAN_DENSE as HUNYUAN_DENSE
from aleator.models.qwen2vl import QWEN2VL as QWEN2VL
from aleator.models.command_r import COMMAND_R as COMMAND_R
from aleator.models.starcoder2 import STARCODER2 as STARCODER2
from aleator.models.gpt2 import GPT2 as GPT2
from aleator.models.bloom import BLOOM as BLOOM
from aleator.models.mpt import MPT as MPT
from aleator.models.gemma2 import GEMMA2 as GEMMA2
from aleator.models.qwen2moe import QWEN2MOE as QWEN2MOE
from aleator.models.qwen3moe import QWEN3MOE as QWEN3MOE
from aleator.models.ernie4_5_moe import ERNIE4_5_MOE as ERNIE4_5_MOE
from aleator.models.hunyuan_moe import HUNYUAN_MOE as HUNYUAN_MOE
from aleator.models.granitemoe import GRANITEMOE as GRANITEMOE
from aleator.models.gpt_oss import GPT_OSS as GPT_OSS
from aleator.models.minicpm3 import MINICPM3 as MINICPM3
from aleator.models.deepseek2 import DEEPSEEK2 as DEEPSEEK2
from aleator.models.llama4 import LLAMA4 as LLAMA4
from aleator.models.gemma3 import GEMMA3 as GEMMA3
from aleator.models.gemma4 import GEMMA4 as GEMMA4
from aleator.models.mamba import MAMBA as MAMBA
from aleator.models.jamba import JAMBA as JAMBA
from aleator.models.qwen3next import QWEN3NEXT as QWEN3NEXT
from aleator.models.qwen35 import QWEN35 as QWEN35
from aleator.models.qwen35moe import QWEN35MOE as QWEN35MOE
from aleator.models.mamba2 import MAMBA2 as MAMBA2
from aleator.models.granitehybrid import GRANITEHYBRID as GRANITEHYBRID
from aleator.models.nemotron_h import NEMOTRON_H as NEMOTRON_H
from aleator.models.falcon_h1 import FALCON_H1 as FALCON_H1
from aleator.models.lfm2 import LFM2 as LFM2
from aleator.models.lfm2moe import LFM2MOE as LFM2MOE

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
            f"{refused.KINDS.get(kind, '')}"
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
        f"{path}: the architecture {name!r} is not supported{refused.why(name)}; supported are "
        f"{', '.join(ARCHITECTURES)}"
    )
