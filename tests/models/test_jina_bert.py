"""Directories of jina-bert-v2, for which transformers has no class: hidden states as Jina's code has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.cli import main
from aleator.core.errors import UnsupportedModel
from aleator.models import build_decoder, open_weights
from aleator.models.encoder import Encoder
from tests.models.check_transformers import relative

from .test_encoders import IDS, SIZES, write_tokenizer

torch: Any = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
WIDTH, FF, HEADS, LAYERS, EPS = 32, 48, 4, 3, 1e-12


def tensors() -> dict[str, Any]:
    """Random weights by Jina's names."""
    torch.manual_seed(5)
    made, wide = dict[str, Any](), (WIDTH, WIDTH)

    def add(name: str, *shape: int, bias: bool = True) -> None:
        made[f"{name}.weight"] = torch.randn(*shape) * 0.3
        if bias:
            made[f"{name}.bias"] = torch.randn(shape[0]) * 0.3

    add("embeddings.word_embeddings", SIZES["vocab_size"], WIDTH, bias=False)
    add("embeddings.token_type_embeddings", 2, WIDTH, bias=False)
    add("embeddings.LayerNorm", WIDTH)
    add("pooler.dense", *wide)
    for i in range(LAYERS):
        at = f"encoder.layer.{i}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            add(f"{at}attention.{part}", *wide)
        add(f"{at}attention.output.LayerNorm", WIDTH)
        add(f"{at}mlp.gated_layers", 2 * FF, WIDTH, bias=False)
        add(f"{at}mlp.wo", WIDTH, FF)
        add(f"{at}mlp.layernorm", WIDTH)
    return made


def states(made: dict[str, Any], ids: list[int]) -> Any:
    """The last hidden states of the model, [n, WIDTH]."""
    functional, n = torch.nn.functional, len(ids)

    def norm(x: Any, name: str) -> Any:
        own = made[f"{name}.weight"], made[f"{name}.bias"]
        return functional.layer_norm(x, (WIDTH,), *own, EPS)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, made[f"{name}.weight"], made.get(f"{name}.bias"))

    embeddings = made["embeddings.word_embeddings.weight"][ids]
    x = norm(
        embeddings + made["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
    )
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])
    apart = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs()
    for i in range(LAYERS):
        at = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, f"{at}attention.self.{part}").view(n, HEADS, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(1, 2) / (WIDTH // HEADS) ** 0.5 - slopes[:, None, None] * apart
        seen = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, WIDTH)
        x = norm(x + linear(seen, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        gate, up = linear(x, f"{at}mlp.gated_layers").chunk(2, -1)
        x = norm(x + linear(functional.gelu(gate) * up, f"{at}mlp.wo"), f"{at}mlp.layernorm")
    return x


def test_a_directory_and_the_file_that_it_becomes(tmp_path: Path) -> None:
    """llama.cpp has the file's vectors within 2e-6, once its own GELU is taken."""
    from safetensors.torch import save_file

    made, folder = tensors(), tmp_path / "m"
    folder.mkdir()
    save_file(made, folder / "model.safetensors")
    write_tokenizer(folder)
    fields = {
        **SIZES, "model_type": "bert", "max_position_embeddings": 64, "layer_norm_eps": EPS,
        "hidden_act": "gelu", "position_embedding_type": "alibi", "feed_forward_type": "geglu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields))
    decoder = build_decoder(open_weights(folder))
    assert isinstance(decoder, Encoder)
    (got,) = decoder.states([IDS])
    assert relative(got, states(made, IDS).numpy()) < 5e-6
    assert main(["convert", str(folder), str(tmp_path / "m.gguf")]) == 0
    text = "the queen is loving a king"
    wanted, found = (aleator.load(each).embed(text) for each in (folder, tmp_path / "m.gguf"))
    assert relative(found, wanted) < 2e-3  # GELU from a table of float16
    (folder / "config.json").write_text(json.dumps(fields | {"feed_forward_type": "reglu"}))
    with pytest.raises(UnsupportedModel, match=r"'reglu' \(feed_forward_type\)"):
        open_weights(folder)
