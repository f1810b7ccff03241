"""llama-embed: llama as an encoder, whose tokens see the whole text (llama-embed-nemotron)."""

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import eurobert

LLAMA_EMBED = Architecture(
    "llama-embed",
    rope_style="norm",
    read_gguf=eurobert.read_gguf,
    hugging_face=HuggingFace(("llama_bidirec",), eurobert.read_json),
    causal=False,
)
