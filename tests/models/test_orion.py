"""orion against llama.cpp's answers and those of StableLM, which it is with other fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


def test_transformers(tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 1.0}
    config = transformers.StableLmConfig(**SMALL, rope_parameters=rope)

    def change(folder: Path) -> None:
        other = {"model_type": "orion", "rms_norm_eps": 1e-5, "rope_theta": 1e4}
        unused = ("rope_parameters", "layer_norm_eps", "use_parallel_residual", "qk_layernorm")
        renamed(folder, lambda fields: [fields.update(other), *map(fields.pop, unused)])

    model = transformers.StableLmForCausalLM(config)
    check_transformers(model, tmp_path, change=change, whole=True)
