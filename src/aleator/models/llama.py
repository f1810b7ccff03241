"""llama: the plain pre-norm transformer (also Mistral and others under that name in GGUF files).

Biases of the projections are used where a file has them.
"""

from __future__ import annotations

from aleator.models.decoder import Architecture

ARCHITECTURE = Architecture("llama")
