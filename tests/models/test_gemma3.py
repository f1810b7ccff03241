"""gemma3 against llama.cpp's logits (tools/golden_models.py).

GELU is rounded to float16 in both (models/layers/feed_forward.py), so a difference in the last bit of a sum can
become one of float16's last bit; hence the wider tolerance.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.check_golden import check_prefill_and_greedy, check_script

NAMES = ["gemma3", "gemma3-pattern-2", "gemma3-full", "gemma3-softcap", "gemma3-full-softcap"]
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_greedy(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits, TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_shared_cut_and_shifted_sequences(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_script(make_decoder(name), name, golden_logits, tolerance=TOLERANCE)
