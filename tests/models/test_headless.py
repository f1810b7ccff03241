"""Directories of models without output matrix, whose names of tensors do not begin with "model."."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.models.check_transformers import QWEN3_MOE, write

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3Moe", "Mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_hidden_states_are_those_of_transformers(name: str, tied: bool, tmp_path: Path) -> None:
    sizes = {
        key: n
        for key, n in QWEN3_MOE.items()
        if name.endswith("Moe") or not key.startswith(("num_exp", "moe"))
    }
    config = getattr(transformers, f"{name}Config")(**sizes, tie_word_embeddings=tied)
    model = write(getattr(transformers, f"{name}Model")(config), tmp_path)
    ids = torch.randint(0, 96, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state[0]
    weights = open_weights(tmp_path)
    assert weights.config.tied
    context = Context(build_decoder(weights), n_ctx=64, type_k="f32", type_v="f32", embeddings=True)
    rows = torch.from_numpy(context.decode(Batch.one(ids[0].tolist(), logits=True)))
    assert (rows - expected).abs().max() < 1e-5 * (expected.max() - expected.min())
