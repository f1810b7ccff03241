"""xverse: llama under another name."""

from aleator.models.architecture import Architecture, HuggingFace

XVERSE = Architecture("xverse", rope_style="norm", hugging_face=HuggingFace(("xverse",)))
