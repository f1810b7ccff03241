"""The index of architectures: one line each, in the order in which messages and tables list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from aleator.core.errors import UnsupportedModel
from aleator.models import gguf_config, json_config, refused
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

_NAMES = (
    "llama",
    "deci",
    "internlm2",
    "xverse",
    "qwen",
    "qwen2",
    "qwen3",
    "smollm3",
    "arcee",
    "granite",
    "granite_swa",
    "minicpm",
    "phi2",
    "phi3",
    "olmo",
    "olmo2",
    "seed_oss",
    "nemotron",
    "pangu-embedded",
    "plamo",
    "jais",
    "jais2",
    "maincoder",
    "ernie4_5",
    "exaone4",
    "exaone",
    "mistral3",
    "chatglm",
    "glm4",
    "hunyuan-dense",
    "hunyuan_vl",
    "paddleocr",
    "qwen2vl",
    "qwen3vl",
    "command-r",
    "gptneox",
    "falcon",
    "orion",
    "baichuan",
    "openelm",
    "plamo3",
    "spark2_5",
    "stablelm",
    "cohere2",
    "starcoder2",
    "codeshell",
    "gpt2",
    "starcoder",
    "bloom",
    "refact",
    "mpt",
    "gemma2",
    "gemma",
    "qwen2moe",
    "qwen3moe",
    "qwen3vlmoe",
    "mellum",
    "ernie4_5-moe",
    "hunyuan-moe",
    "granitemoe",
    "gpt-oss",
    "olmoe",
    "dbrx",
    "minimax-m2",
    "afmoe",
    "glm4moe",
    "dots1",
    "deepseek",
    "deepseek2-ocr",
    "bailingmoe",
    "bailingmoe2",
    "exaone-moe",
    "hy_v3",
    "cohere2moe",
    "minicpm3",
    "plm",
    "deepseek2",
    "mistral4",
    "llama4",
    "gemma3",
    "gemma4",
    "mamba",
    "jamba",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "kimi-linear",
    "mamba2",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe",
    "falcon-h1",
    "lfm2",
    "lfm2moe",
)
"""Names in files; the module in ``architectures`` has "_" for "-", its :class:`Architecture` is in capitals."""
_ENCODERS = (
    "bert",
    "nomic-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "nomic-bert-moe",
    "neo-bert",
    "eurobert",
    "gemma-embedding",
    "llama-embed",
)


class _Architectures(Mapping[str, Architecture]):
    """Architectures by name, imported on first use: a process needs only one or two."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Architecture:
        if name not in self._names:
            raise KeyError(name)
        stem = name.replace("-", "_")
        module = import_module(f"aleator.models.architectures.{stem}")
        architecture: Architecture = getattr(module, stem.upper())
        return architecture

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


ARCHITECTURES: Mapping[str, Architecture] = _Architectures(_NAMES)
"""Decoders by name, in the order of messages and tables."""
ENCODERS: Mapping[str, Architecture] = _Architectures(_ENCODERS)
"""Encoders, the same way."""
_ALL: Mapping[str, Architecture] = _Architectures((*_NAMES, *_ENCODERS))


def read_gguf(gguf: GGUFFile) -> tuple[Architecture, ModelConfig]:
    """The architecture that a GGUF file names, and the model's dimensions, every field checked.

    Raises:
        FileFormatError: a field is missing, of the wrong type, out of range, or contradicts another.
        UnsupportedModel: the file holds no model, or one that is not supported.
    """
    fields = gguf.fields
    kind = fields.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{gguf.path}: the file holds a {kind!r}, not a model (general.type)"
            f"{refused.KINDS.get(kind, '')}"
        )
    architecture = _ALL.get(fields.require("general.architecture", str))
    if architecture is None:
        raise _unsupported(fields.path, fields.require("general.architecture", str))
    read = architecture.read_gguf or gguf_config.transformer
    return _with_norm(architecture, read(gguf, architecture))


def _with_norm(architecture: Architecture, config: ModelConfig) -> tuple[Architecture, ModelConfig]:
    """Both, the architecture with the norm that the file says."""
    if config.norm:
        architecture = replace(architecture, norm=config.norm)
    return architecture, config


def read_json(fields: Fields) -> tuple[Architecture, ModelConfig]:
    """The architecture that a ``config.json`` names, and the model's dimensions."""
    model_type = fields.require("model_type", str)
    for architecture in _ALL.values():
        files = architecture.hugging_face
        if files is None or model_type not in files.model_types:
            continue
        if files.takes is None or files.takes(fields):
            if files.read is not None:
                return _with_norm(architecture, files.read(fields, architecture))
            return architecture, json_config.full_attention(fields, architecture, **files.options)
    if model_type in _ALL:
        raise UnsupportedModel(
            f"{fields.path}: models of the architecture {model_type!r} are read from GGUF files only; "
            "convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    raise _unsupported(fields.path, model_type)


def _unsupported(path: object, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path}: the architecture {name!r} is not supported{refused.why(name)}; supported are "
        f"{', '.join(_ALL)}"
    )
