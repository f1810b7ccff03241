"""deci: llama whose layers have different heads and widths, or no attention (Nemotron Super 49B); from GGUF."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig, unsupported


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads are feed-forward parts alone."""
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0)
    linear = [
        heads > kv for heads, kv in zip(config.n_heads, config.n_kv_heads, strict=True) if not kv
    ]
    if any(linear):
        raise unsupported(gguf.path, "layers with a product instead of attention (Nemotron 51B)")
    return config


DECI = Architecture("deci", rope_style="norm", read_gguf=read_gguf)
