"""qwen3vl against llama.cpp's answers."""

from __future__ import annotations

from tests.models.check_dense import check_golden, check_no_shift
from tests.models.check_golden import model_test

test_llama_cpp = model_test(check_golden, "qwen3vl")
test_a_shift_is_refused = model_test(check_no_shift, "qwen3vl")
