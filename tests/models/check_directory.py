"""A model of tools/dense_models.py as a directory, for architectures that transformers lacks.

The names of fields and tensors are those that llama.cpp's converter reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from aleator.models import open_weights
from aleator.models.conversions import other_pairs
from aleator.models.weights import Weights
from tests.models.check_converted import check_converted, logits
from tests.models.check_golden import decoder_of


def check_directory(name: str, folder: Path, **fields: Any) -> None:
    """The directory gives the file's logits, and so does what it is converted to.

    ``fields``: those of config.json besides the usual.
    """
    weights, path = decoder_of(name, folder).weights, folder / "directory"
    path.mkdir()
    save_file(_tensors(weights), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_fields(weights) | fields))
    ids = [int(t) for t in np.random.default_rng(2).integers(0, weights.config.n_vocab, 30)]
    made, wanted = logits(open_weights(path), ids), logits(weights, ids)
    if _turned(weights) or weights.config.latent is not None:  # sums have another order
        assert np.abs(made - wanted).max() < 1e-5 * np.ptp(wanted)
    else:
        assert made.tobytes() == wanted.tobytes()
    check_converted(path, ids, whole=True)


def _turned(weights: Weights) -> bool:
    """Whether the directory rotates other channels together than the file."""
    files = weights.architecture.hugging_face
    return files is not None and files.rope_style != weights.config.rope.style


def _fields(weights: Weights) -> dict[str, Any]:
    config = weights.config
    return {
        "vocab_size": config.n_vocab,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff[0],
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads[0],
        "num_key_value_heads": config.n_kv_heads[0],
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied,
    }


def _tensors(weights: Weights) -> dict[str, Any]:
    """The tensors by Hugging Face's names, each expert's apart, rows as transformers rotates them."""
    config, files = weights.config, weights.architecture.hugging_face
    assert files is not None
    experts = config.experts.n_experts if config.experts else 0
    names = {gguf: own for own, gguf in files.names(config.n_layers, experts).items()}
    found = {name: weights.floats(name) for name in weights.names()}
    for layer in range(config.n_layers):
        at = f"blk.{layer}.attn_"
        for part, heads in (("q", config.n_heads), ("k", config.n_kv_heads)):
            if _turned(weights):
                rows = found[f"{at}{part}.weight"]
                found[f"{at}{part}.weight"] = other_pairs(rows, heads[layer], neighbours=False)
        if f"{at}qkv.weight" in names:
            parts = [found.pop(f"{at}{part}.weight") for part in "qkv"]
            found[f"{at}qkv.weight"] = np.concatenate(parts)
    made: dict[str, Any] = {}
    for name, each in found.items():
        at, stacked, _ = name.partition("_exps.")
        if stacked:
            made |= {names[f"{at}.{i}.weight"]: each[i].copy() for i in range(experts)}
        else:
            made[names[name]] = each
    return made
