"""gemma3: norms before and after attention and feed-forward, normalised query and key heads, GeGLU.

Most layers see a window of the latest positions and have a rotary base of their own; embeddings are
multiplied by sqrt(n_embd).  As in llama.cpp, weights of norms are stored whole (Hugging Face stores them
less one).
"""

from __future__ import annotations

from aleator.models.decoder import Architecture

ARCHITECTURE = Architecture(
    "gemma3", head_norm=True, post_norm=True, activation="gelu", scaled_embedding=True
)
