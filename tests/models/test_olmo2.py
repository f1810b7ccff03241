"""olmo2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "olmo2")
# llama.cpp multiplies lengths once more when it shifts keys under YaRN.
test_llama_cpp_with_windows = model_test(check_golden, "olmo2-windows", script_rows=4)
test_transformers = like_transformers(
    "Olmo2Config", {}, {"num_key_value_heads": 4, "attention_bias": True}
)
test_olmo3_has_windows = like_transformers(
    "Olmo3Config", sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 8}
)
