"""plm against llama.cpp's answers."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_directory import check_directory
from tests.models.check_golden import model_test

test_llama_cpp = model_test(check_golden, "plm")
test_a_directory_gives_the_files_logits = model_test(
    check_directory, "plm", model_type="plm", hidden_act="relu2", kv_lora_rank=32, q_lora_rank=None,
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
)  # fmt: skip
