"""qwen3 against llama.cpp's logits (tools/golden_models.py)."""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp

test_llama_cpp = like_llama_cpp("qwen3")
# After a shift llama.cpp multiplies keys by YaRN's magnitude once more.
test_llama_cpp_with_yarn = like_llama_cpp("qwen3-tied-yarn", n_rows=4)
