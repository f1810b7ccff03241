"""baichuan: llama with a rotation in the model of 32 layers, and ALiBi in that of 40 (7B, 13B); from GGUF.

Others, which are not published, have neither, as in llama.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig

ALIBI = {40: 8.0}
ROTATED = 32


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    n = config.n_layers
    unrotated = () if n == ROTATED else (True,) * n
    return replace(config, unrotated=unrotated, alibi=ALIBI.get(n, 0.0))


BAICHUAN = Architecture("baichuan", rope_style="norm", read_gguf=read_gguf)
