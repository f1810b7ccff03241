"""phi3 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["phi3", "phi3-longrope", "phi3-longrope-short"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    # llama.cpp multiplies lengths once more when it shifts keys.
    check_golden(name, tmp_path, script_rows=4 if "longrope" in name else 8)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
        {"sliding_window": 12},
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Phi3Config(**(SMALL | changes))
    check_transformers(transformers.Phi3ForCausalLM(config), tmp_path)


@pytest.mark.parametrize(("n", "n_ctx"), [(24, 32), (40, 64)])
def test_longrope_by_the_size_of_the_context(n: int, n_ctx: int, tmp_path: Path) -> None:
    """transformers goes by the length of the text, we by that of the context."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    }
    config = transformers.Phi3Config(
        **SMALL, rope_parameters=rope, original_max_position_embeddings=32
    )
    check_transformers(transformers.Phi3ForCausalLM(config), tmp_path, n, n_ctx)
