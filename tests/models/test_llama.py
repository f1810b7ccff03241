"""llama against llama.cpp's logits (tools/golden_models.py)."""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp

test_llama_cpp = like_llama_cpp(
    "llama", "llama-one-layer", "llama-tied-mha", "llama-linear", "llama-freqs", "llama-bias"
)
# After a shift llama.cpp multiplies keys by YaRN's magnitude once more; ours stay exact
# (tests/generate/test_context.py), so only the rows before it can agree.
test_llama_cpp_with_yarn = like_llama_cpp("llama-yarn", n_rows=4)
