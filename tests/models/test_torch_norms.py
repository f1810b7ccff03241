"""Norms in PyTorch: weights for all rows, or for each head."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from aleator.models.layers.norms import LayerNorm, RMSNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_rows_and_of_each_head(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, 48, generator=draw).to(dtype)
    rows, heads = (torch.randn(*shape, generator=draw).to(dtype) for shape in ((96,), (3, 96)))
    for weight in (rows[:48], heads[:, :48]):
        if weight.dim() == 1:
            expected = F.rms_norm(x, (48,), weight, 1e-5)
        else:
            expected = F.rms_norm(x, (48,), None, 1e-5) * weight
        assert torch.equal(RMSNorm(weight, 1e-5)(x), expected)
    weight, bias = rows.chunk(2)
    assert torch.equal(LayerNorm(rows, 1e-5)(x), F.layer_norm(x, (48,), weight, bias, 1e-5))
    weight, bias = heads.chunk(2, -1)
    expected = F.layer_norm(x, (48,), None, None, 1e-5) * weight + bias
    assert torch.equal(LayerNorm(heads, 1e-5)(x), expected)
