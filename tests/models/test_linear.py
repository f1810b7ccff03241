"""Products with weights: stored and dense forms alike, and which of them have a bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from aleator.core.errors import FileFormatError
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.linear import DenseLinear, Linear, StoredLinear, tensor
from aleator.models.weights import Weights, open_weights
from tests.models.builders import model_metadata, model_tensors, write_gguf

N_IN = 32
CPU = torch.device("cpu")


def linear(
    weights: Weights,
    names: list[str],
    n_outs: list[int],
    dtype: torch.dtype,
    device: torch.device = CPU,
    bias: bool = False,
) -> Linear:
    """The product with matrices outside the layers."""
    return LayerWeights(weights, -1, device, dtype).matrix(names, N_IN, n_outs, bias=bias)


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    """Matrices a [3, 32] and c [5, 32] without a bias, b [4, 32] with one."""
    rng = np.random.default_rng(1)
    own = {
        "a.weight": rng.normal(size=(3, N_IN)),
        "b.weight": rng.normal(size=(4, N_IN)),
        "b.bias": rng.normal(size=4),
        "c.weight": rng.normal(size=(5, N_IN)),
    }
    tensors = model_tensors() | {name: each.astype(np.float32) for name, each in own.items()}
    return open_weights(write_gguf(tmp_path / "m.gguf", model_metadata(), tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("names", ["a", "b", "ac", "ab", "bac", "ba"])
def test_a_bias_that_is_there_is_used_and_only_that(
    weights: Weights, names: str, dtype: torch.dtype
) -> None:
    sizes = {"a": 3, "b": 4, "c": 5}
    product = linear(weights, list(names), [sizes[n] for n in names], dtype)
    assert isinstance(product, StoredLinear if dtype == torch.float32 else DenseLinear)
    x = torch.randn(2, N_IN, generator=torch.Generator().manual_seed(0), dtype=dtype)
    parts = []
    for name in names:
        part = x.double() @ tensor(weights, f"{name}.weight", torch.float64).T
        parts.append(part + tensor(weights, "b.bias", torch.float64) if name == "b" else part)
    torch.testing.assert_close(product(x).double(), torch.cat(parts, 1), rtol=1e-5, atol=1e-5)
    if isinstance(product, DenseLinear):
        assert (product.bias is None) == ("b" not in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_that_must_be_there_is_missed(weights: Weights, dtype: torch.dtype) -> None:
    def with_bias(names: list[str], sizes: list[int]) -> object:
        return linear(weights, names, sizes, dtype, bias=True)

    with_bias(["b"], [4])
    for names, sizes in ((["a"], [3]), (["b", "a"], [4, 3])):
        with pytest.raises(FileFormatError, match=r"'a\.bias' is missing"):
            with_bias(names, sizes)


def test_only_float32_on_the_cpu_is_used_as_it_is_stored(weights: Weights) -> None:
    for dtype, kind in ((torch.float32, StoredLinear), (torch.bfloat16, DenseLinear)):
        assert isinstance(linear(weights, ["a"], [3], dtype), kind)
    meta = linear(weights, ["a"], [3], torch.float32, torch.device("meta"))
    assert isinstance(meta, DenseLinear)
