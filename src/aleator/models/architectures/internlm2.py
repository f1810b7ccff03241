"""internlm2: llama under another name, with as many rotated channels."""

from __future__ import annotations

from aleator.models.architecture import Architecture

INTERNLM2 = Architecture("internlm2", rope_style="norm")
