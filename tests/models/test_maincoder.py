"""maincoder against llama.cpp's answers."""

from __future__ import annotations

from tests.models.check_dense import check_golden, check_no_shift
from tests.models.check_directory import check_directory
from tests.models.check_golden import model_test

test_llama_cpp = model_test(check_golden, "maincoder")
test_a_shift_is_refused = model_test(check_no_shift, "maincoder")
test_a_directory_gives_the_files_logits = model_test(
    check_directory, "maincoder", model_type="maincoder"
)
