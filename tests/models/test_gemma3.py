"""gemma3 against llama.cpp's logits (tools/golden_models.py).

GELU is rounded to float16 in both (models/layers/feed_forward.py), so a difference in the last bit of a sum can
become one of float16's last bit; hence the wider tolerance.
"""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp

test_llama_cpp = like_llama_cpp(
    "gemma3",
    "gemma3-pattern-2",
    "gemma3-full",
    "gemma3-softcap",
    "gemma3-full-softcap",
    tolerance=1e-4,
)
