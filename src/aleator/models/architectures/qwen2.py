"""qwen2: llama with a bias on query, key and value, and the "neox" rotary layout.

Its config.json has a window's size even if windows are off.
"""

from aleator.models.architecture import Architecture, HuggingFace

# Default number of layers without a window if config.json switches windows on, as in transformers.
MAX_WINDOW_LAYERS = 28

QWEN2 = Architecture(
    "qwen2",
    qkv_bias=True,
    hugging_face=HuggingFace(("qwen2",), options={"max_window_layers": MAX_WINDOW_LAYERS}),
)
