"""mistral4 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_converted import converted
from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")

SIZES: dict[str, Any] = SMALL | {
    "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 3, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
}  # fmt: skip


def in_a_model_with_pictures(folder: Path) -> None:
    """The directory of a model that reads pictures as well, with this text part."""

    def fields(values: dict[str, Any]) -> None:
        text = dict(values)
        values.clear()
        values |= {"model_type": "mistral3", "text_config": text, "tie_word_embeddings": False}

    def tensors(found: dict[str, Any]) -> dict[str, Any]:
        return {f"language_model.{name}": each for name, each in found.items()}

    renamed(folder, fields, tensors)


@pytest.mark.parametrize(
    ("changes", "pictures"),
    [
        ({}, False),
        ({"rope_parameters": YARN}, True),
        ({"first_k_dense_replace": 1, "rope_interleave": False}, False),
        ({"q_lora_rank": None}, False),
    ],
)
def test_transformers(changes: dict[str, Any], pictures: bool, tmp_path: Path) -> None:
    rope = YARN | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
    config = transformers.Mistral4Config(**(SIZES | {"rope_parameters": rope} | changes))
    check_transformers(
        transformers.Mistral4ForCausalLM(config),
        tmp_path,
        change=in_a_model_with_pictures if pictures else None,
        whole=True,
    )
    lacks = converted(tmp_path, tmp_path / "m.gguf").llama_cpp_lacks
    plain = "q_lora_rank" in changes
    assert lacks == (["queries that are not compressed (q_lora_rank)"] if plain else [])
