"""Adapters of encoders: what transformers computes with the merged matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import UnsupportedModel
from aleator.models import build_decoder, open_weights
from aleator.models.adapter_files import load_adapters
from aleator.models.encoder import Encoder
from tests.models.check_transformers import relative

from .test_encoders import IDS, encoders, saved, states

torch: Any = pytest.importorskip("torch")
RANK = 4


def write(folder: Path, names: list[str], model: Any, kind: str = "lora") -> dict[str, Any]:
    """PEFT's directory of an adapter of these modules with alpha = 2 r; what it adds at scale 1."""
    from safetensors.torch import save_file

    folder.mkdir()
    added, tensors, end = {}, {}, ".weight" if kind == "lora" else ""
    for name in names:
        out, wide = model.get_submodule(name).weight.shape
        a, b = 0.3 * torch.randn(RANK, wide), 0.3 * torch.randn(out, RANK)
        if kind != "lora":
            a, b = 0.3 * torch.randn(RANK, out), 0.3 * torch.randn(wide, RANK)
        tensors[f"base_model.model.{name}.{kind}_A{end}"] = a
        tensors[f"base_model.model.{name}.{kind}_B{end}"] = b
        added[name] = 2 * (b @ a)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return added


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modern-bert", "eurobert"])
def test_hidden_states_are_those_of_merged_matrices(name: str, tmp_path: Path) -> None:
    """At a scale that holds for all texts; at 0 every bit is that of the model alone."""
    torch.manual_seed(1)
    model, file = encoders()[name](), tmp_path / "adapter"
    folder = saved(model, tmp_path / "m")
    modules = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "layer" in name
    ]
    added = write(file, modules, model)
    ids = [3 if i == 1 else i for i in IDS]
    texts = [ids, ids[:7]]

    def found(*scales: float) -> list[Any]:
        weights = open_weights(folder)
        decoder = build_decoder(weights)
        assert isinstance(decoder, Encoder)
        decoder.take(load_adapters([("x", str(file), each) for each in scales], weights))
        return list(decoder.states(texts))

    alone, off, on = found(), found(0.0), found(0.5)
    assert all(map(np.array_equal, alone, off))
    with torch.no_grad():
        for each, change in added.items():
            model.get_submodule(each).weight += 0.5 * change
    for ours, text, before in zip(on, texts, alone, strict=True):
        wanted = states(model, text).last_hidden_state[0].numpy()
        assert relative(ours, wanted) < 2e-6
        assert relative(before, wanted) > 0.01


@pytest.mark.parametrize(
    ("name", "kind", "more", "message"),
    [
        ("embeddings.word_embeddings", "lora_embedding", {},
         r"adapter: .* changes 'token_embd\.weight'.* merge"),
        ("encoder.layer.0.attention.self.query", "lora", {"alora_invocation_tokens": [3]},
         "begins at its invocation tokens .* remove alora_invocation_tokens"),
    ],
)  # fmt: skip
def test_what_is_refused(
    name: str, kind: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model, file = encoders()["bert"](), tmp_path / "adapter"
    folder = saved(model, tmp_path / "m")
    write(file, [name], model, kind)
    about = json.loads((file / "adapter_config.json").read_text()) | more
    (file / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(UnsupportedModel, match=message):
        aleator.load(folder, adapters={"x": file})
