"""What files have besides a model's own tensors, and how sentence-transformers' files say how to pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aleator.core.errors import FileFormatError
from aleator.models.architectures import bert, gpt_files
from aleator.models.sentence_transformers import modules_of_directory

KIND = "sentence_transformers.models."


def test_what_only_training_needs_has_no_name() -> None:
    for name in ("cls.predictions.bias", "bert.cls.predictions.bias"):
        assert bert.usual_name(name) == ""
    assert bert.usual_name("bert.embeddings.LayerNorm.gamma") == "embeddings.LayerNorm.weight"
    for name in ("h.0.attn.bias", "transformer.h.3.attn.masked_bias"):
        assert gpt_files.usual_name(name) == ""
    assert gpt_files.usual_name("h.0.attn.c_attn.bias") == "transformer.h.0.attn.c_attn.bias"
    assert gpt_files.usual_name("lm_head.weight") == "lm_head.weight"


def test_modules_without_one_that_pools_say_nothing(tmp_path: Path) -> None:
    modules = [{"path": "", "type": f"{KIND}Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert modules_of_directory(tmp_path).pooling == ""
    modules.append({"path": "../outside", "type": f"{KIND}Pooling"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(FileFormatError, match="inside the directory"):
        modules_of_directory(tmp_path)


def test_a_list_of_modules_is_short(tmp_path: Path) -> None:
    path = tmp_path / "modules.json"
    path.write_text("[" + " " * (1 << 16) + "]")
    with pytest.raises(FileFormatError, match="must be a list of modules"):
        modules_of_directory(tmp_path)
