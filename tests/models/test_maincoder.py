"""maincoder against llama.cpp's answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from aleator.models import open_weights
from tests.models.check_converted import check_converted, logits
from tests.models.check_dense import check_golden, check_no_shift, decoder_of


@pytest.mark.parametrize("name", ["maincoder"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_a_shift_is_refused(tmp_path: Path) -> None:
    check_no_shift("maincoder", tmp_path)


def test_a_directory_gives_the_bits_of_the_file(tmp_path: Path) -> None:
    """Names of fields and tensors are those that llama.cpp's converter reads."""
    weights = decoder_of("maincoder", tmp_path).weights
    config, architecture = weights.config, weights.architecture
    assert architecture.hugging_face is not None
    names = {gguf: name for name, gguf in architecture.hugging_face.names(config.n_layers).items()}
    tensors = {names[name]: torch.from_numpy(weights.floats(name)) for name in weights.names()}
    folder = tmp_path / "directory"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    fields = {
        "model_type": "maincoder",
        "vocab_size": config.n_vocab,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff[0],
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads[0],
        "num_key_value_heads": config.n_kv_heads[0],
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": float(np.float32(config.rms_eps)),
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    ids = [int(t) for t in np.random.default_rng(2).integers(0, config.n_vocab, 30)]
    assert logits(open_weights(folder), ids).tobytes() == logits(weights, ids).tobytes()
    check_converted(folder, ids, whole=True)
