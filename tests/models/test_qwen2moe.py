"""qwen2moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import transformers

from tests.models.check_transformers import SMALL, check, like_transformers, write

SIZES = SMALL | {
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 40, "num_hidden_layers": 3,
    "num_experts": 6, "num_experts_per_tok": 3,
}  # fmt: skip

test_transformers = like_transformers(
    "Qwen2MoeConfig", {}, {"norm_topk_prob": True}, {"mlp_only_layers": [0]}, sizes=SIZES
)


def test_default_windows_of_transformers(tmp_path: Path) -> None:
    """A config.json that names no kinds of layers: every other one of the first has a window."""
    changes = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    config = transformers.Qwen2MoeConfig(**(SIZES | changes))
    model = write(transformers.Qwen2MoeForCausalLM(config), tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["layer_types"]
    path.write_text(json.dumps(values))
    check(model, tmp_path)
