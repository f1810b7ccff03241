"""lfm2 against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import FileFormatError
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.builders import model_json
from tests.models.check_transformers import SMALL, like_transformers

test_transformers = like_transformers(
    "Lfm2Config", {}, {"conv_bias": True, "block_auto_adjust_ff_dim": False}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 96, "block_multiple_of": 16, "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
    },
)  # fmt: skip


def test_older_names_and_widths_that_are_not_rounded() -> None:
    def config(**changes: Any) -> ModelConfig:
        values = model_json(model_type="lfm2", intermediate_size=96, norm_eps=1e-5)
        values["block_multiple_of"] = 16
        return read_json(Fields("config.json", values | changes))[1]

    assert config().n_ff == (64, 64)
    assert config(block_ffn_dim_multiplier=1.3).n_ff == (96, 96)
    assert config(intermediate_size=99, block_ffn_dim_multiplier=None).n_ff == (66, 66)
    assert [config(tie_embedding=tied).tied for tied in (True, False)] == [True, False]


@pytest.mark.parametrize("width", ["96", [96], True])
def test_an_old_name_s_width_is_a_number(width: Any) -> None:
    values = model_json(model_type="lfm2", block_ff_dim=width, intermediate_size=None)
    with pytest.raises(FileFormatError, match="block_ff_dim must be an integer"):
        read_json(Fields("config.json", values))
