"""A model of tools/dense_models.py as a directory, for architectures that transformers lacks.

The names of fields and tensors are those that llama.cpp's converter reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from wide_models import SMALL, write_model

from aleator.models import open_weights
from aleator.models.conversions import other_pairs
from aleator.models.weights import Weights
from tests.models.adapters import ALPHA, RANK
from tests.models.check_converted import check_converted, logits
from tests.models.test_adapted import pair, write_outer_peft
from tests.models.test_adapters import adapted
from tests.models.test_adapters import logits as of_adapted

IDS = [int(token) for token in np.random.default_rng(2).integers(0, 64, 30)]
FUSED = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_kv": ("attn_k", "attn_v"),
    "ffn_gate_up_shexp": ("ffn_gate", "ffn_up"),
}
"""GGUF's names of what directories may have in one tensor -> the parts."""
Tensors = dict[str, Any]


def check_directory(
    name: str,
    folder: Path,
    sizes: Mapping[str, Any] | None = None,
    others: Callable[[Tensors], Tensors] = dict,
    **fields: Any,
) -> None:
    """The directory gives the file's logits, and so does what it is converted to; so do adapters of both.

    Args:
        name: of the model in tools/dense_models.py.
        folder: for files.
        sizes: what differs from it.
        others: changes the numbers to those that a directory has, by GGUF's names.
        fields: those of config.json besides the usual.
    """
    file, path = folder / "m.gguf", folder / "directory"
    weights = open_weights(write_model(file, replace(SMALL[name], **sizes or {})))
    weights.kind = "safetensors"  # GELU without the rounding of llama.cpp's table
    path.mkdir()
    tensors = _tensors(weights, others)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_fields(weights) | fields))
    made, wanted = logits(open_weights(path), IDS), logits(weights, IDS)
    if _turned(weights) or weights.config.latent is not None or others is not dict:
        assert np.abs(made - wanted).max() < 1e-5 * np.ptp(wanted)  # sums have another order
    else:
        assert made.tobytes() == wanted.tobytes()
    check_converted(path, IDS, whole=True)
    check_adapter(path, tensors, made)


def check_adapter(path: Path, tensors: Tensors, plain: Any, beside: bool = True) -> None:
    """With an adapter of all its layers' matrices a directory, and its file, are the sum of both.

    ``beside``: the adapter is read beside the file too.
    """
    files = open_weights(path).architecture.hugging_face
    added: Tensors = {}
    sums = dict(tensors)
    assert files is not None
    for i, (name, values) in enumerate(tensors.items()):
        stem, _, kind = name.rpartition(".")
        if kind != "weight" or values.ndim != 2 or stem in files.outer:
            continue
        a, b = pair(i, *(values.shape[::-1] if files.turned else values.shape), size=0.05)
        added |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        more = np.float32(ALPHA / RANK) * (b @ a)
        sums[name] = values + (more.T if files.turned else more)
    peft, file = write_outer_peft(path.with_name("peft"), added), path / "converted.gguf"
    rows = [
        np.asarray(of_adapted(adapted(each, peft), "a", IDS)) for each in (path, file)[: 1 + beside]
    ]
    save_file(sums, path / "model.safetensors")
    wanted = logits(open_weights(path), IDS)
    assert np.abs(plain - wanted).max() > 0.02 * np.ptp(wanted)
    table = "gelu" in str(open_weights(path).architecture.activation)
    for row, most in zip(rows, (2e-5, 1e-3 if table else 2e-5), strict=False):
        assert np.abs(row - wanted).max() < most * np.ptp(wanted)


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


def _tensors(weights: Weights, others: Callable[[Tensors], Tensors]) -> Tensors:
    """The tensors by Hugging Face's names, each expert's apart, rows as transformers rotates them."""
    config, files, gguf = weights.config, weights.architecture.hugging_face, weights.gguf
    assert files is not None
    assert gguf is not None
    experts = config.experts.n_experts if config.experts else 0
    names = {of: own for own, of in files.names(config.n_layers, experts).items()}
    found = {name: gguf.stored(name).floats() for name in gguf.tensors}
    for layer in range(config.n_layers):
        at = f"blk.{layer}."
        for part, heads in (("attn_q", config.n_heads), ("attn_k", config.n_kv_heads)):
            if _turned(weights) and f"{at}{part}.weight" in found:
                rows = found[f"{at}{part}.weight"]
                found[f"{at}{part}.weight"] = other_pairs(rows, heads[layer], neighbours=False)
        for whole, parts in FUSED.items():
            for kind in ("weight", "bias"):
                if f"{at}{whole}.{kind}" in names and f"{at}{parts[0]}.{kind}" in found:
                    each = [found.pop(f"{at}{part}.{kind}") for part in parts]
                    found[f"{at}{whole}.{kind}"] = np.concatenate(each)
    made: Tensors = {}
    for name, each in others(found).items():
        at, stacked, _ = name.partition("_exps.")
        if files.turned and each.ndim == 2 and name.startswith("blk."):
            made[names[name]] = each.T.copy()
        elif stacked and name not in names:
            made |= {names[f"{at}.{i}.weight"]: each[i].copy() for i in range(experts)}
        elif name != "rope_freqs.weight":  # config.json has what makes them
            made[names[name]] = each
    return made
