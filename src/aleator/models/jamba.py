"""jamba: selective state spaces, every few layers attention instead, each followed by a feed-forward layer.

Attention has no rotary embedding: the states know the order (Lieber et al. 2024, arXiv:2403.19887).  Time step,
B and C are normalised with weights.  Mixtures of experts are refused.
"""

from __future__ import annotations

from aleator.models.decoder import Architecture
from aleator.models.mamba import MambaLayer

ARCHITECTURE = Architecture("jamba", layer=MambaLayer, rotary=False, state_norm=True)
