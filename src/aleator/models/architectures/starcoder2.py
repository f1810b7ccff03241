"""starcoder2: layer norms, biases everywhere, rotation, feed-forward without a gate.

llama.cpp ignores the window that these files name; with Hugging Face's files it is used.
"""

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace

STARCODER2 = Architecture(
    "starcoder2",
    hugging_face=HuggingFace(
        ("starcoder2",),
        options={"tied": True, "eps": "norm_epsilon", "windows": 1},
        layer=TRANSFORMER | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    ),
    norm="layer",
    gated=False,
    activation="gelu",
)
