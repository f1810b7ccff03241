"""Fields of lfm2 and lfm2moe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import HYBRID
from model_file import write_model

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import open_weights
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.builders import model_json


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


def test_a_window_in_the_file_is_not_read(tmp_path: Path) -> None:
    """llama.cpp reads it of lfm2 alone, where it is refused."""
    for arch in ("lfm2moe", "lfm2"):
        spec = replace(HYBRID[arch], meta={**HYBRID[arch].meta, "attention.sliding_window": 4})
        path = write_model(tmp_path / f"{arch}.gguf", spec)
        if arch == "lfm2":
            with pytest.raises(UnsupportedModel, match="sliding_window"):
                open_weights(path)
        else:
            assert open_weights(path).config.window is None
