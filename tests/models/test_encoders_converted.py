"""Encoders' directories against the GGUF files that they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.cli import main
from aleator.models.conversion.gguf_form import llama_cpp_lacks
from aleator.models.weights import open_weights
from tests.models.check_transformers import relative
from tests.models.test_encoders import SIZES, encoders, saved, torch, transformers

TEXTS = ["the queen loves", "is a king, b", ""]


@pytest.mark.parametrize("name", list(encoders()))
def test_vectors_and_tokens_are_those_of_the_directory(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    folder, file = saved(encoders()[name](), tmp_path / "m"), tmp_path / "m.gguf"
    config = json.loads((folder / "config.json").read_text())
    config |= {"bos_token_id": 2, "eos_token_id": 3}  # as the tokenizer has them
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["convert", str(folder), str(file)]) == 0
    theirs, ours = aleator.load(folder), aleator.load(file)
    for text in TEXTS:
        tokens = theirs.request_maker.tokens(text, whole=True)
        assert list(ours.request_maker.tokens(text, whole=True)) == list(tokens)
    # In GGUF files GELU is llama.cpp's approximation; SiLU is what it is.
    most = 0.0 if name in ("nomic-bert", "modern-bert-silu", "eurobert") else 5e-4
    for pooling in ("mean", "cls"):
        assert relative(ours.embed(TEXTS, pooling), theirs.embed(TEXTS, pooling)) <= most, pooling


@pytest.mark.parametrize(
    ("name", "given", "lacks"),
    [
        ("ModernBert", {}, []),
        ("ModernBert", {"norm_bias": True}, ["biases"]),
        ("ModernBert", {"attention_bias": True}, ["biases"]),
        ("ModernBert", {"mlp_bias": True}, ["biases"]),
        ("ModernBert", {"classifier_bias": True}, ["biases"]),
        ("NomicBert", {}, ["a head that makes scores"]),
        ("Bert", {}, []),
    ],
)
def test_what_llama_cpp_does_not_load(
    name: str, given: dict[str, Any], lacks: list[str], tmp_path: Path
) -> None:
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = getattr(transformers, f"{name}Config")(**SIZES, **ends, **given, num_labels=1)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    weights = open_weights(saved(model, tmp_path))
    assert llama_cpp_lacks(weights.config, weights) == lacks
