"""Text parts of models that read pictures: transformers' own logits, names and fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import open_weights
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.check_transformers import SMALL, check, check_transformers, write
from tests.models.test_convert_architectures import gemma3_with_pictures

transformers: Any = pytest.importorskip("transformers")


def test_gemma3(tmp_path: Path) -> None:
    check_transformers(gemma3_with_pictures(), tmp_path, tolerance=2e-5)


@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen2_5_VL"])
def test_qwen2vl(kind: str, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    config = getattr(transformers, f"{kind}Config")(
        text_config=SMALL | {"rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2},
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    check_transformers(model, tmp_path)


VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("sections", [[2, 2, 2, 2], [4, 2, 2]])
def test_hunyuan_vl(sections: list[int], tmp_path: Path) -> None:
    """Text has the same position along all axes, of which HunyuanOCR has four."""
    rope = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "alpha": 20.0,
        "factor": 1.0,
        "mrope_section": sections,
    }
    text = SMALL | {"head_dim": 16, "rope_parameters": rope}
    config = transformers.HunYuanVLConfig(
        text_config=text, vision_config=VISION | {"out_hidden_size": 32, "text_hidden_size": 32}
    )
    check_transformers(
        transformers.HunYuanVLForConditionalGeneration(config), tmp_path, as_published
    )


def as_published(folder: Path) -> None:
    """Fields as HunyuanOCR's config.json has them."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    rope |= {"type": "xdrope", "xdrope_section": rope.pop("mrope_section")}
    del rope["rope_type"]
    further = {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "num_experts": 1}
    file.write_text(json.dumps(config | text | further | {"model_type": "hunyuan_vl"}))


def test_paddleocr(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 2, 2]}
    text = SMALL | {"head_dim": 16, "rope_parameters": rope, "use_bias": True}
    config = transformers.PaddleOCRVLConfig(text_config=text, vision_config=VISION)
    check_transformers(transformers.PaddleOCRVLForConditionalGeneration(config), tmp_path)


def test_text_model_under_its_later_names(tmp_path: Path) -> None:
    """model.language_model.layers... instead of language_model.model.layers..."""
    model = write(gemma3_with_pictures(), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {}
    for name, values in load_file(file).items():
        later = name.replace("language_model.model.", "model.language_model.")
        tensors[later if later != name else "model." + name] = values
    save_file(tensors, file)
    check(model, tmp_path)


def test_mixtures_of_a_size_that_a_file_leaves_out() -> None:
    values = transformers.Qwen3_5MoeTextConfig().to_dict()
    wanted = [values.pop(key) for key in ("num_experts", "num_experts_per_tok")]
    found = read_json(Fields("config.json", values))[1].experts
    assert found is not None
    assert [found.n_experts, found.n_used] == wanted


def test_a_text_configuration_may_leave_out_what_transformers_knows(tmp_path: Path) -> None:
    write(gemma3_with_pictures(), tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    for key in ("num_key_value_heads", "vocab_size", "rms_norm_eps", "max_position_embeddings"):
        del config["text_config"][key]
    file.write_text(json.dumps(config))
    found = open_weights(tmp_path).config
    assert (found.n_vocab, found.n_kv_heads[0], found.rms_eps) == (262208, 4, 1e-6)
    config["text_config"]["model_type"] = "llama"
    file.write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="llama"):
        open_weights(tmp_path)
    del config["text_config"]
    file.write_text(json.dumps(config))
    with pytest.raises(FileFormatError, match="text_config"):
        open_weights(tmp_path)
