"""qwen2: llama with a bias on query, key and value, and the "neox" rotary layout."""

from __future__ import annotations

from aleator.models.decoder import Architecture

ARCHITECTURE = Architecture("qwen2", qkv_bias=True)
