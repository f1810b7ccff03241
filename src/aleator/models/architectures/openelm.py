"""openelm: llama with normalised heads, and layers of different numbers of heads and widths; from GGUF."""

from aleator.models.architecture import Architecture

OPENELM = Architecture("openelm", head_norm=True)
