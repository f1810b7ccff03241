"""codeshell: layer norms, biases everywhere, rotation, feed-forward without a gate; from GGUF."""

from aleator.models.architecture import Architecture

CODESHELL = Architecture("codeshell", norm="layer", gated=False, activation="gelu")
