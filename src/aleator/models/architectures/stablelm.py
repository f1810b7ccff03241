"""stablelm: layer norms, a share of a head's channels rotated, heads normalised each with its own weights.

Models whose feed-forward part takes attention's input (StableLM 2 12B) have no ``ffn_norm`` and are not read.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture

STABLELM = Architecture("stablelm", norm="layer", head_norm_kind="each")
