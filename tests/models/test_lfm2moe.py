"""lfm2moe against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import HYBRID, write_hybrid

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_hybrid import check_golden, check_reuse
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["lfm2moe"])
def test_against_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_rewinds_and_cached_prefixes(tmp_path: Path) -> None:
    check_reuse("lfm2moe", tmp_path)


@pytest.mark.parametrize("changes", [{}, {"use_expert_bias": False, "norm_topk_prob": False}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 96,
        "moe_intermediate_size": 24,
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention", "conv"],
    }
    config = transformers.Lfm2MoeConfig(**sizes | changes)
    check(write(transformers.Lfm2MoeForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)


def test_a_window_in_the_file_is_not_read(tmp_path: Path) -> None:
    """llama.cpp reads it of lfm2 alone, where it is refused."""
    for arch in ("lfm2moe", "lfm2"):
        spec = replace(HYBRID[arch], meta={**HYBRID[arch].meta, "attention.sliding_window": 4})
        path = write_hybrid(tmp_path / f"{arch}.gguf", spec)
        if arch == "lfm2":
            with pytest.raises(UnsupportedModel, match="sliding_window"):
                open_weights(path)
        else:
            assert open_weights(path).config.window is None
