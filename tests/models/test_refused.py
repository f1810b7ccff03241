"""What is not supported is named, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.builders import model_json, model_metadata, write_gguf


@pytest.mark.parametrize(
    ("architecture", "fields", "words"),
    [
        ("llama", {"general.type": "adapter"}, "load the model that it is for.*--lora"),
        ("clip", {"general.type": "mmproj"}, "pictures.*no encoders"),
        ("clip", {}, "pictures.*no encoders"),
        ("neo-bert", {}, "encoder"),
        ("t5", {}, "encoder"),
        ("wavtokenizer-dec", {}, "sound"),
    ],
)
def test_gguf(architecture: str, fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", model_metadata(architecture) | fields, architecture=architecture
    )
    with pytest.raises(UnsupportedModel, match=words):
        open_weights(path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "hqq"}, "'hqq'"),
        ({"quant_method": "gptq", "bits": 8}, "'gptq' with bits=8"),
        ({}, "an unknown method"),
    ],
)
def test_quantised_safetensors(config: dict[str, Any], words: str) -> None:
    values = model_json(quantization_config=config)
    with pytest.raises(UnsupportedModel, match=f"{words}.*unquantised safetensors, or a GGUF"):
        read_json(Fields("config.json", values))
