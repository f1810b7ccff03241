"""plamo: llama whose feed-forward part stands beside attention; from GGUF."""

from aleator.models.architecture import Architecture

PLAMO = Architecture("plamo", ffn_norm="", parallel=True)
