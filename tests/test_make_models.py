"""The types that a random model's tensors are stored in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make_models import SPECS, type_of

MATRIX = np.zeros((64, 256), np.float32)


@pytest.mark.parametrize(
    ("model", "name", "kind"),
    [
        ("llama", "blk.0.ffn_up.weight", "MXFP4"),  # of a model without experts, everything
        ("gpt-oss", "blk.0.attn_q.weight", "F32"),
        ("gpt-oss", "blk.0.ffn_up_exps.weight", "MXFP4"),
    ],
)
def test_mxfp4_is_for_experts_if_there_are_any(model: str, name: str, kind: str) -> None:
    assert type_of(replace(SPECS[model], type="MXFP4"), name, MATRIX) == kind
