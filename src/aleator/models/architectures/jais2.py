"""jais2: layer norms, biases everywhere, ReLU squared without a gate."""

from aleator.models.architecture import Architecture, HuggingFace

JAIS2 = Architecture(
    "jais2",
    hugging_face=HuggingFace(("jais2",), options={"eps": "layer_norm_eps"}),
    norm="layer",
    gated=False,
    activation="relu_squared",
)
