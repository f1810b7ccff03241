"""A random model of transformers' against its own logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.models.check_converted import check_converted


def write(model: Any, folder: Path) -> Any:
    """The model with random weights of a size that matters, in a directory."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "norm" in name or name.endswith(".D"):
                values.add_(0.2 * torch.randn_like(values))
            elif values.dim() >= 2 and "A_log" not in name:
                values.copy_(torch.randn_like(values) * 1.5 / values.shape[-1] ** 0.5)
    model.eval().save_pretrained(folder)
    return model


def check(model: Any, folder: Path, tolerance: float = 1e-5, whole: bool = False) -> None:
    """Logits in both forms, and those of the converted file; ``whole``: GGUF can say all of the model."""
    ids = torch.randint(0, 96, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0]
    for form in ("auto", "torch"):
        decoder = build_decoder(open_weights(folder), form=form)
        context = Context(decoder, n_ctx=64, n_ubatch=16, type_k="f32", type_v="f32")
        rows = torch.from_numpy(context.decode(Batch.one(ids[0].tolist(), logits=True)))
        assert (rows - expected).abs().max() < tolerance * (expected.max() - expected.min())
    check_converted(folder, ids[0].tolist(), tolerance, whole)
