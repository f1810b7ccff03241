"""deepseek2-ocr: the text part of DeepSeek-OCR, which is deepseek with the "neox" rotation; from GGUF."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig, unsupported
from aleator.models.experts import after_dense


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    if config.rope.scaling != "none":  # llama.cpp does not read it
        raise unsupported(gguf.path, f"rotary scaling of type {config.rope.scaling!r}")
    return after_dense(config, gguf, default=1)


DEEPSEEK2_OCR = Architecture("deepseek2-ocr", read_gguf=read_gguf)
