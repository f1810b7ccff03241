"""Sampling and KV cache for language models: same seed, same token, everywhere.

``import aleator`` costs NumPy and the native module; torch and the rest load when first used.
"""

from __future__ import annotations

__version__ = "0.1.0"
