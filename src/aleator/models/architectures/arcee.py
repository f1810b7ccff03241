"""arcee: llama whose feed-forward part has no gate and uses ReLU squared."""

from aleator.models.architecture import Architecture, HuggingFace

ARCEE = Architecture(
    "arcee",
    rope_style="norm",
    hugging_face=HuggingFace(("arcee",)),
    gated=False,
    activation="relu_squared",
)
