"""exaone against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator.models.architectures.exaone import FIELDS, PARTS
from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ],
)
@pytest.mark.parametrize("published", [True, False])
def test_transformers(published: bool, changes: dict[str, Any], tmp_path: Path) -> None:
    """The names of transformers 5 and those of the published files."""
    config = transformers.ExaoneConfig(**(SMALL | changes))
    model = transformers.AutoModelForCausalLM.from_config(config)

    def change(folder: Path) -> None:
        def fields(values: dict[str, Any]) -> None:
            values["model_type"] = "exaone"
            for ours, theirs in FIELDS.items():
                usual = values.pop(theirs)
                values |= {ours: usual} if published else {theirs: usual, ours: None}

        def tensors(found: dict[str, Any]) -> dict[str, Any]:
            made = {}
            for name, each in found.items():
                for part, usual in PARTS.items():
                    if published and usual not in (".self_attn.",):
                        name = name.replace(usual, part)
                made[name.replace(".self_attn.", ".attn.attention.") if published else name] = each
            assert not published or "transformer.h.1.attn.attention.out_proj.weight" in made
            return made

        renamed(folder, fields, tensors)

    check_transformers(model, tmp_path, change=change, whole=True)
