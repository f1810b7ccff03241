"""Names in PEFT's files that are not those of the model's own file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.adapter_files import CONFIG, TENSORS
from tests.models.adapters import pairs_of, write_peft
from tests.models.builders import write_gguf
from tests.models.check_transformers import write
from tests.models.test_adapters import adapted, logits
from tests.models.test_convert_architectures import gemma3_with_pictures


def test_an_adapter_of_a_model_without_its_head(tmp_path: Path) -> None:
    """Trained on transformers' LlamaModel, as those for vectors are: nothing is called "model."."""
    base, folder = write_gguf(tmp_path / "base.gguf"), write_peft(tmp_path / "p", pairs_of(1))
    rows = logits(adapted(base, folder), "a")
    tensors = load_file(folder / TENSORS)
    bare = {name.replace(".model.model.", ".model."): each for name, each in tensors.items()}
    assert bare.keys().isdisjoint(tensors)
    save_file(bare, folder / TENSORS)
    assert (logits(adapted(base, folder), "a") == rows).all()
    save_file(bare | tensors, folder / TENSORS)
    with pytest.raises(FileFormatError, match="changes this matrix twice"):
        adapted(base, folder)
    save_file(bare | {"": np.ones(1, np.float32)}, folder / TENSORS)
    with pytest.raises(UnsupportedModel, match="the tensor '' is no part of LoRA"):
        adapted(base, folder)


def test_parts_that_see_pictures_are_left_out_as_the_models_are(tmp_path: Path) -> None:
    """``target_modules="all-linear"``, or q_proj, adapts the eyes of Gemma 3 as well."""
    base, folder, rng = tmp_path / "base", tmp_path / "p", np.random.default_rng(1)
    model = write(gemma3_with_pictures(), base)
    own = {
        f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight": (
            rng.standard_normal(shape).astype(np.float32)
        )
        for name, each in model.named_parameters()
        if name.endswith(("self_attn.q_proj.weight", "fc1.weight"))
        for side, shape in (("A", (4, each.shape[1])), ("B", (each.shape[0], 4)))
    }
    eyes = {name: each for name, each in own.items() if "vision_tower" in name}
    text = {name: each for name, each in own.items() if name not in eyes}
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    save_file(text, folder / TENSORS)
    rows = logits(adapted(base, folder), "a")
    save_file(own, folder / TENSORS)
    assert (logits(adapted(base, folder), "a") == rows).all()
    save_file(eyes, folder / TENSORS)
    for dora in (False, True):
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": dora}
        (folder / CONFIG).write_text(json.dumps(config))
        with pytest.raises(FileFormatError, match="no tensors that change a text"):
            adapted(base, folder)


def test_a_table_of_positions_is_named(tmp_path: Path) -> None:
    import transformers

    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=32, vocab_size=24)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "base")
    folder = write_peft(tmp_path / "p", {})
    stem = "base_model.model.transformer.wpe.lora_embedding_"
    parts = {"A": np.ones((6, 32), np.float32), "B": np.ones((32, 6), np.float32)}
    save_file({stem + side: each for side, each in parts.items()}, folder / TENSORS)
    with pytest.raises(UnsupportedModel, match=r"the adapter changes 'position_embd\.weight'"):
        adapted(tmp_path / "base", folder)
