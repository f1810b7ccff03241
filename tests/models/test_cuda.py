"""Every architecture on a CUDA device against the CPU; skipped without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from make_models import SPECS, write_model

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.placement import placement

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

SMALL = [name for name, spec in SPECS.items() if spec.n_embd <= 256]


def contexts(path: Any, form: str = "auto", **options: Any) -> list[Context]:
    """On the CPU, there in this form, and on the device."""
    weights = open_weights(path)
    decoders = (
        build_decoder(weights, device, "float32", form=form if device == "cpu" else "torch")
        for device in ("cpu", "cuda")
    )
    return [Context(decoder, n_ctx=96, n_seq_max=2, **options) for decoder in decoders]


def close(both: list[Context], batch: Batch, part: float) -> None:
    """Logits apart by less than a part of their range."""
    host, device = (torch.as_tensor(context.decode(batch)).cpu().numpy() for context in both)
    assert host.shape == device.shape
    assert np.isfinite(device).all()
    assert np.abs(host - device).max() < part * (host.max() - host.min())


@pytest.mark.parametrize("name", SMALL)
def test_logits(tmp_path: Any, name: str) -> None:
    spec = replace(SPECS[name], type="F32")
    both = contexts(write_model(tmp_path / "m.gguf", spec), type_k="f32", type_v="f32")
    tokens = np.random.default_rng(1).integers(0, 64, 49).tolist()
    close(both, Batch.one(tokens[:40], 0, logits=True), 1e-4)
    close(both, Batch.one(tokens[40:], 40, logits=True), 1e-4)
    for context in both:
        context.cache.seq_cp(0, 1)
    for i in range(3):
        batch = Batch()
        batch.add(5 + i, 49 + i, [0], logits=True)
        batch.add(8 + i, 49 + i, [1], logits=True)
        close(both, batch, 1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_the_last_layers_on_the_device(tmp_path: Any, name: str) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", replace(SPECS[name], type="F32")))
    n = weights.config.n_layers
    places = placement("cuda", "float32", max(1, n // 2)).places(n)
    decoders = build_decoder(weights, form="torch"), build_decoder(weights, places=places)
    types: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
    both = [Context(decoder, n_ctx=96, n_seq_max=2, **types) for decoder in decoders]
    tokens = np.random.default_rng(1).integers(0, 64, 49).tolist()
    close(both, Batch.one(tokens[:40], 0, logits=True), 1e-4)
    close(both, Batch.one(tokens[40:], 40, logits=True), 1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_stored_types(tmp_path: Any, kind: str) -> None:
    spec = replace(SPECS["llama"], type=kind, n_embd=256, n_ff=256)
    both = contexts(write_model(tmp_path / "m.gguf", spec), type_k="f32", type_v="f32")
    # The CPU rounds activations to int8 for quantised weights.
    part = 2e-2 if kind.startswith("Q") else 1e-4
    close(both, Batch.one(list(range(40)), 0, logits=True), part)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("k_storage", ["rotated", "raw"])
def test_a_cache_that_is_edited(tmp_path: Any, kind: str, k_storage: str) -> None:
    spec = replace(SPECS["qwen2"], type="F32")
    path = write_model(tmp_path / "m.gguf", spec)
    both = contexts(path, "torch", type_k=kind, type_v=kind, k_storage=k_storage)
    tokens = np.random.default_rng(1).integers(0, 64, 40).tolist()
    close(both, Batch.one(tokens, 0, logits=True), 1e-2)
    for context in both:
        context.cache.seq_rm(0, 3, 12)
        context.cache.seq_add(0, 12, -1, -9)
        context.cache.seq_cp(0, 1)
    batch = Batch()
    batch.add(5, 31, [0], logits=True)
    batch.add(8, 31, [1], logits=True)
    close(both, batch, 1e-2)
    for context in both:
        saved = context.cache.state_write()
        context.cache.clear()
        context.cache.state_read(saved)
    close(both, Batch.one([7], 32), 1e-2)
