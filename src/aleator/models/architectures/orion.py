"""orion: llama with layer norms, and other channels rotated together."""

from aleator.models.architecture import Architecture, HuggingFace

ORION = Architecture("orion", hugging_face=HuggingFace(("orion",)), norm="layer")
