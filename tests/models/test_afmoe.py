"""afmoe's gates in a tensor of their own, and norms of parts beside each other that a file lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dense_models import DENSE
from wide_models import write_model

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import build_decoder, open_weights
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.weights import separated

Q, GATE = "blk.0.attn_q.weight", "blk.0.attn_gate.weight"


def test_gates_stand_behind_their_queries_in_any_type(tmp_path: Path) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE["afmoe"]))
    config, (n_out, n_in) = weights.config, weights.stored(Q).shape
    heads = config.n_heads[0]
    q, gate = (np.random.default_rng(i).random((n_out // 2, n_in), np.float32) for i in (1, 2))
    wanted = np.stack([each.reshape(heads, -1, n_in) for each in (q, gate)], 1)
    half = StoredTensor("F16", gate.shape, gate.astype(np.float16).view(np.uint8).reshape(-1))
    for other, tolerance in ((StoredTensor.of(gate), 0.0), (half, 1e-3)):
        given = {Q: StoredTensor.of(q), GATE: other}
        made = separated(given, weights.architecture, config)
        assert list(made) == [Q]
        assert made[Q].shape == (n_out, n_in)
        np.testing.assert_allclose(
            made[Q].floats(), wanted.reshape(n_out, n_in), rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("rows", [1, 12])
def test_gates_of_another_size_are_not_joined(rows: int, tmp_path: Path) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE["afmoe"]))
    given = {
        Q: StoredTensor.of(np.ones((64, 64), np.float32)),
        GATE: StoredTensor.of(np.ones((rows, 64), np.float32)),
    }
    assert separated(given, weights.architecture, weights.config) == given


@pytest.mark.parametrize("form", ["native", "torch"])
def test_a_norm_beside_attention_is_missed(form: str, tmp_path: Path) -> None:
    spec = replace(DENSE["gptneox"], norms=("attn_norm",))
    weights = open_weights(write_model(tmp_path / "m.gguf", spec))
    with pytest.raises(FileFormatError, match=r"blk\.0\.ffn_norm\.weight"):
        build_decoder(weights, form=form)


def test_dense_layers_behind_the_pooling_are_refused(tmp_path: Path) -> None:
    spec = replace(DENSE["gemma"], arch="gemma-embedding", last_norm="dense_2")
    with pytest.raises(UnsupportedModel, match=r"dense_2\.weight"):
        open_weights(write_model(tmp_path / "m.gguf", spec))
