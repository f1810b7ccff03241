"""qwen3: RMS-normalised query and key heads, no bias, and heads whose size is free of the width."""

from __future__ import annotations

from aleator.models.decoder import Architecture

ARCHITECTURE = Architecture("qwen3", head_norm=True)
