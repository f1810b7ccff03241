"""gemma3: norms before and after attention and feed-forward, normalised query and key heads, GeGLU.

Most layers see a window of the latest positions and have a rotary base of their own; embeddings are
multiplied by sqrt(n_embd).  As in llama.cpp, weights of norms are stored whole (Hugging Face stores them
minus one).
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import gemma3_files
from aleator.models.conversions import in_text_model, whole_norms

GEMMA3 = Architecture(
    "gemma3",
    read_gguf=gemma3_files.read_gguf,
    hugging_face=HuggingFace(
        ("gemma3", "gemma3_text"),
        gemma3_files.read_json,
        takes=lambda fields: not gemma3_files.is_encoder(fields),
        layer=gemma3_files.LAYER,
        usual_name=in_text_model,
        convert=whole_norms,
    ),
    head_norm=True,
    post_norm=True,
    activation="gelu",
    scaled_embedding=True,
)
