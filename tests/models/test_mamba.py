"""mamba against llama.cpp's logits (tools/golden_models.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.check_golden import check_prefill_and_greedy, check_recurrent_script

NAMES = ["mamba", "mamba-untied", "mamba-norms"]


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_greedy(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)


@pytest.mark.parametrize("name", NAMES)
def test_forked_and_relabelled_sequences(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_recurrent_script(make_decoder(name), name, golden_logits)
