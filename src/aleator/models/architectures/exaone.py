"""exaone: llama under another name, with other channels rotated together (EXAONE 3 and 3.5)."""

from __future__ import annotations

from aleator.models.architecture import Architecture

EXAONE = Architecture("exaone")
