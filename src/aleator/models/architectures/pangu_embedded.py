"""pangu-embedded: llama with biases in attention (openPangu-Embedded)."""

from aleator.models.architecture import Architecture, HuggingFace

PANGU_EMBEDDED = Architecture("pangu-embedded", hugging_face=HuggingFace(("PanguEmbedded",)))
