"""Objects with the attributes that native code reads of decoders and layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from aleator import _native


def weight(matrix: Any, bias: Any = None) -> SimpleNamespace:
    """A matrix float32 [out, in] as StoredWeight has it."""
    data, (n_out, n_in) = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1), matrix.shape
    return SimpleNamespace(matrix=_native.StoredMatrix(data, "F32", n_out, n_in, bias))


def decoder_step(
    frequencies: Any, interleaved: bool, offset: int = 0, **given: Any
) -> _native.DecoderStep:
    """A native step without layers; what is not given is as in llama."""
    rotation = SimpleNamespace(
        frequencies=frequencies, magnitude=1.0, interleaved=interleaved, offset=offset
    )
    plain: dict[str, Any] = {
        "output": None, "rotation": rotation, "window_rotation": None, "embedding_scale": 1.0,
        "gate": "silu", "raw_keys": False, "layer_norm": False, "head_norm": "", "residual_scale": 1.0,
        "softcap": 0.0, "clamp": 0.0, "parallel": False, "norm_sums": False, "embedding_norm": None,
        "slopes": None, "position_embedding": None,
    }  # fmt: skip
    return _native.DecoderStep(SimpleNamespace(**plain | given))


def attention(**given: Any) -> SimpleNamespace:
    """A layer with attention; what is not given is as in llama."""
    plain: dict[str, Any] = {
        "windowed": False, "rotated": True, "grows": True, "qkv": None, "latent": None, "q_norm": None,
        "k_norm": None, "v_norm": None, "gated": False, "sinks": None, "post_norms": None, "ffn": None,
        "output_scale": None,
    }  # fmt: skip
    return SimpleNamespace(**plain | given)
