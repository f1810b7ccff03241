"""Random adapters for the small models of builders.py, and the models that they make when they are merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.builders import N_HEADS, N_KV_HEADS, model_tensors, write_gguf

Floats = NDArray[np.float32]
ALL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
THEIRS = dict(
    zip(
        ALL,
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        strict=True,
    )
)  # fmt: skip
RANK, ALPHA = 6, 9.0


def pairs_of(
    seed: int, names: Sequence[str] = ALL, rank: int = RANK, size: float = 0.3
) -> dict[str, tuple[Floats, Floats]]:
    """A [rank, in] and B [out, rank] of matrices of both layers, by their GGUF names."""
    rng, base = np.random.default_rng(seed), model_tensors()
    made = {}
    for name in (f"blk.{layer}.{each}.weight" for layer in (0, 1) for each in names):
        out, n_in = base[name].shape
        a, b = rng.standard_normal((rank, n_in)), rng.standard_normal((out, rank))
        made[name] = (size * a).astype(np.float32), (size * b).astype(np.float32)
    return made


def write_adapter(
    path: Path,
    pairs: Mapping[str, tuple[Floats, Floats]],
    fields: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """A GGUF adapter as llama.cpp's convert_lora_to_gguf.py makes it; ``fields`` change its metadata."""
    about = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": ALPHA,
        **(fields or {}),
    }
    tensors = {
        f"{name}.lora_{side}": part
        for name, pair in pairs.items()
        for side, part in zip("ab", pair, strict=True)
    }
    return write_gguf(path, about, tensors, architecture=architecture)


def merged(
    *given: tuple[Mapping[str, tuple[Floats, Floats]], float],
) -> dict[str, Floats]:
    """The small model's tensors with scale * B A added to each matrix, in float64."""
    made = {name: values.astype(np.float64) for name, values in model_tensors().items()}
    for pairs, scale in given:
        for name, (a, b) in pairs.items():
            made[name] += scale * (b.astype(np.float64) @ a.astype(np.float64))
    return {name: values.astype(np.float32) for name, values in made.items()}


def of_hugging_face(rows: Floats, name: str) -> Floats:
    """Rows of queries and keys in the order of Hugging Face's files."""
    heads = {"attn_q": N_HEADS, "attn_k": N_KV_HEADS}.get(name.split(".")[2])
    if heads is None:
        return rows
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def their_name(name: str) -> str:
    """Hugging Face's name of a layer's matrix, without ".weight"."""
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{THEIRS[kind]}"


def write_peft(
    folder: Path,
    pairs: Mapping[str, tuple[Floats, Floats]],
    magnitudes: Mapping[str, Floats] | None = None,
    **config: Any,
) -> Path:
    """The same adapter as PEFT saves it."""
    from safetensors.numpy import save_file

    folder.mkdir()
    tensors = {}
    for name, (a, b) in pairs.items():
        stem = f"base_model.model.{their_name(name)}"
        tensors[f"{stem}.lora_A.weight"] = a
        tensors[f"{stem}.lora_B.weight"] = np.ascontiguousarray(of_hugging_face(b, name))
        if magnitudes is not None:
            column = of_hugging_face(magnitudes[name][:, None], name)[:, 0]
            tensors[f"{stem}.lora_magnitude_vector"] = np.ascontiguousarray(column)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": sorted(THEIRS.values()),
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "use_dora": magnitudes is not None,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": True,
        "peft_version": "0.17.0",
    }
    (folder / "adapter_config.json").write_text(json.dumps(about | config))
    return folder
