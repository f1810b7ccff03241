"""Random models that transformers writes give its own logits here, with its configurations and names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import open_weights
from tests.models.check_transformers import SMALL, check, check_transformers, write

transformers: Any = pytest.importorskip("transformers")
if not hasattr(transformers, "Gemma3TextConfig") or not hasattr(transformers, "FalconMambaConfig"):
    pytest.skip("this transformers has no gemma3 or falcon_mamba", allow_module_level=True)

GEMMA3: dict[str, Any] = SMALL | {
    "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 3, "conv_kernel": 4,
    "time_step_rank": 4,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip


def gemma3(**changes: Any) -> Any:
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**(GEMMA3 | changes)))


def with_pictures() -> Any:
    text = transformers.Gemma3TextConfig(**GEMMA3).to_dict()
    config = transformers.Gemma3Config(
        text_config=text, vision_config=VISION, mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def mamba(**changes: Any) -> Any:
    return transformers.MambaForCausalLM(transformers.MambaConfig(**(MAMBA | changes)))


def falcon(**changes: Any) -> Any:
    config = transformers.FalconMambaConfig(**(MAMBA | changes))
    return transformers.FalconMambaForCausalLM(config)


@pytest.mark.parametrize("make", [
    gemma3,
    lambda: gemma3(final_logit_softcapping=5.0, layer_types=None),
    lambda: gemma3(tie_word_embeddings=False),
    with_pictures,
    mamba,
    lambda: mamba(tie_word_embeddings=False, use_conv_bias=False, time_step_rank="auto"),
    lambda: mamba(intermediate_size=48),
    falcon,
    lambda: falcon(expand=16, intermediate_size=64, mixer_rms_eps=1e-2),
])  # fmt: skip
def test_logits(make: Callable[[], Any], tmp_path: Path) -> None:
    check_transformers(make(), tmp_path, tolerance=2e-5)


def test_text_model_under_its_later_names(tmp_path: Path) -> None:
    """model.language_model.layers... instead of language_model.model.layers..."""
    model = write(with_pictures(), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {}
    for name, values in load_file(file).items():
        later = name.replace("language_model.model.", "model.language_model.")
        tensors[later if later != name else "model." + name] = values
    save_file(tensors, file)
    check(model, tmp_path)


def test_a_text_configuration_may_leave_out_what_transformers_knows(tmp_path: Path) -> None:
    write(with_pictures(), tmp_path)
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
