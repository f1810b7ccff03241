"""Tensors of selective state spaces as Hugging Face's files and GGUF's hold them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aleator.models.files.tensor_types import StoredTensor


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """A tensor as GGUF files hold it: A itself, not log(-A); the convolution without its middle dimension."""
    if name.endswith("ssm_a"):
        # In float64, so that the C library's last bits do not matter after rounding.
        return StoredTensor.of(-np.exp(tensor.floats().astype(np.float64)).astype(np.float32))
    if name.endswith("ssm_conv1d.weight") and len(tensor.shape) == 3 and tensor.shape[1] == 1:
        return replace(tensor, shape=(tensor.shape[0], tensor.shape[2]))
    return tensor
