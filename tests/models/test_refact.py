"""Refact's directories against its own arithmetic: norms that subtract the mean, which llama.cpp's lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import open_weights
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.adapters import Floats

pytest.importorskip("safetensors")

from safetensors.numpy import save_file

from tests.models.check_converted import check_converted, logits
from tests.models.check_directory import IDS, check_adapter

N, HEADS, LAYERS, WIDE = 64, 4, 2, 256
FIELDS = {
    "model_type": "gpt_refact", "n_embd": N, "n_head": HEADS, "n_layer": LAYERS, "n_positions": 128,
    "layer_norm_epsilon": 1e-5, "vocab_size": 64, "multi_query": True,
    "activation_function": "gelu_pytorch_tanh",
}  # fmt: skip
"""Its width is 2/3 of 4 * 64, rounded up to a multiple of 256; the activation is SiLU whatever this says."""

WRONG = {
    "lm_head.weight": r"output\.weight", "transformer.wte.weight": r"token_embd\.weight.*\[64\]",
    "transformer.h.0.attn.kv.bias": r"attn_kv\.bias",
    "transformer.h.0.mlp.gate_up_proj.bias": r"ffn_gate_up_shexp\.bias",
}  # fmt: skip


def tensors() -> dict[str, Floats]:
    rng = np.random.default_rng(1)

    def matrix(out: int, n_in: int, mean: float = 0.0) -> Floats:
        made: Floats = (rng.standard_normal((out, n_in)) / n_in**0.5 + mean).astype(np.float32)
        return made

    def vector() -> Floats:
        return (1 + 0.2 * rng.standard_normal(N)).astype(np.float32)

    made = {"transformer.wte.weight": 8 * matrix(64, N, 0.3), "lm_head.weight": matrix(64, N)}
    made["ln_f.weight"] = vector()
    for at in (f"transformer.h.{layer}." for layer in range(LAYERS)):
        made |= {f"{at}ln_1.weight": vector(), f"{at}ln_2.weight": vector()}
        made |= {f"{at}attn.q.weight": matrix(N, N), f"{at}attn.c_proj.weight": matrix(N, N, 0.2)}
        made[f"{at}attn.kv.weight"] = matrix(2 * N // HEADS, N)
        made[f"{at}mlp.gate_up_proj.weight"] = matrix(2 * WIDE, N)
        made[f"{at}mlp.c_proj.weight"] = matrix(N, WIDE, 0.1)
        made[f"{at}mlp.c_proj.bias"] = vector()
    return made


def own(t: dict[str, Floats]) -> Floats:
    """The logits by the model's own code, in float64."""

    def norm(x: Any, name: str) -> Any:
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * t[name]

    x, n = t["transformer.wte.weight"][IDS].astype(np.float64), len(IDS)
    ahead, slopes = np.arange(n)[None] - np.arange(n)[:, None], 0.25 ** np.arange(1, HEADS + 1)
    for at in (f"transformer.h.{layer}." for layer in range(LAYERS)):
        y = norm(x, f"{at}ln_1.weight")
        q = (y @ t[f"{at}attn.q.weight"].T).reshape(n, HEADS, -1)
        k, v = np.split(y @ t[f"{at}attn.kv.weight"].T, 2, 1)
        scores = np.einsum("thd,sd->hts", q, k) / (N // HEADS) ** 0.5
        scores = np.where(ahead > 0, -np.inf, scores + slopes[:, None, None] * ahead)
        weights = np.exp(scores - scores.max(2, keepdims=True))
        heads = np.einsum("hts,sd->thd", weights / weights.sum(2, keepdims=True), v)
        x = x + heads.reshape(n, -1) @ t[f"{at}attn.c_proj.weight"].T
        gate, up = np.split(norm(x, f"{at}ln_2.weight") @ t[f"{at}mlp.gate_up_proj.weight"].T, 2, 1)
        x = x + gate / (1 + np.exp(-gate)) * up @ t[f"{at}mlp.c_proj.weight"].T
        x += t[f"{at}mlp.c_proj.bias"]
    made: Floats = norm(x, "ln_f.weight") @ t["lm_head.weight"].T
    return made


def test_its_own_logits(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    made = tensors()
    save_file(made, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(FIELDS))
    rows, wanted = logits(open_weights(path), IDS), own(made)
    assert np.abs(rows - wanted).max() < 1e-5 * np.ptp(wanted)
    check_converted(path, IDS, whole=True)
    check_adapter(path, made, rows, beside=False)
    for name, wrong in (
        ("lm_head.weight", None),
        ("transformer.wte.weight", np.ones(64, np.float32)),
        ("transformer.h.0.attn.kv.bias", np.ones(N, np.float32)),
        ("transformer.h.0.mlp.gate_up_proj.bias", np.ones(N, np.float32)),
    ):
        changed = {key: each for key, each in (made | {name: wrong}).items() if each is not None}
        save_file(changed, path / "model.safetensors")
        with pytest.raises(FileFormatError, match=WRONG[name]):
            logits(open_weights(path), IDS)


def test_several_heads_of_keys_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="multi_query"):
        read_json(Fields("config.json", FIELDS | {"multi_query": False}))
