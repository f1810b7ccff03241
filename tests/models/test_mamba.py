"""mamba against llama.cpp's logits (tools/golden_models.py)."""

from __future__ import annotations

from tests.models.check_golden import check_recurrent_script, like_llama_cpp

test_llama_cpp = like_llama_cpp(
    "mamba", "mamba-untied", "mamba-norms", script=check_recurrent_script
)
