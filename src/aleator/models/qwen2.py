"""qwen2: llama with a bias on query, key and value, and the "neox" rotary layout.

Its config.json has a window's size even where windows are off.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace

QWEN2 = Architecture("qwen2", qkv_bias=True, hugging_face=HuggingFace(("qwen2",)))
