"""qwen2 against llama.cpp's logits (tools/golden_models.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.check_golden import check_prefill_and_greedy, check_script

PLAIN = ["qwen2"]
YARN = ["qwen2-tied-yarn"]


@pytest.mark.parametrize("name", PLAIN + YARN)
def test_prefill_and_greedy(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)


@pytest.mark.parametrize("name", PLAIN)
def test_shared_cut_and_shifted_sequences(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_script(make_decoder(name), name, golden_logits)


@pytest.mark.parametrize("name", YARN)
def test_shared_sequences_with_yarn(name: str, make_decoder: Any, golden_logits: Any) -> None:
    # After a shift llama.cpp multiplies keys by YaRN's magnitude once more; ours stay exact
    # (tests/generate/test_context.py), so only the rows before it can agree.
    check_script(make_decoder(name), name, golden_logits, n_rows=4)
