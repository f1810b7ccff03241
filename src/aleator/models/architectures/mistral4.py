"""mistral4: deepseek2 under another name."""

from __future__ import annotations

from aleator.models.architecture import Architecture
from aleator.models.architectures.deepseek_files import read_gguf

MISTRAL4 = Architecture("mistral4", rope_style="norm", read_gguf=read_gguf)
