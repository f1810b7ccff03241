"""gpt2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch

from aleator.core.errors import InvalidBatch
from aleator.generate import Batch, Context
from aleator.models import open_weights
from tests.models.check_converted import logits
from tests.models.check_golden import FORMS, decoder_of
from tests.models.check_transformers import like_transformers, renamed, write
from tests.models.prequantised import gptq, nf4

test_transformers = like_transformers(
    "GPT2Config", {}, {"n_inner": 48, "tie_word_embeddings": False, "scale_attn_weights": False},
    sizes={"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
)  # fmt: skip


def test_a_position_without_a_vector_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    for form in FORMS:
        context = Context(decoder_of("gpt2", tmp_path, form), n_ctx=64)
        context.decode(Batch.one([1, 2, 3], 125))
        with pytest.raises(InvalidBatch, match="position 128"):
            context.decode(Batch.one([4], 128))
        assert context.cache.seq_pos_max(0) == 127


@pytest.mark.parametrize(
    ("make", "method"),
    [(nf4, {"quant_method": "bitsandbytes"}), (gptq, {"quant_method": "gptq", "group_size": 64})],
)
def test_quantised_matrices_are_not_turned(tmp_path: Path, make: Any, method: Any) -> None:
    """transformers' Conv1D has matrices [in, out]; bitsandbytes and GPTQ store [out, in] of it."""
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=24, n_embd=64, n_layer=2, n_head=2, n_positions=64)
    rng = np.random.default_rng(1)
    coded: dict[str, Any] = {}
    turned: dict[str, Any] = {}
    model = transformers.GPT2LMHeadModel(config)
    for name, values in model.state_dict().items():
        if ".h." in name and values.dim() == 2:
            n_in, out = values.shape
            tensors, whole = make(rng, out, n_in)
            stem = name.removesuffix("weight")
            coded |= {stem + end: each for end, each in tensors.items()}
            turned[name] = torch.from_numpy(whole.T.copy())
    write(model, tmp_path / "coded")
    copytree(tmp_path / "coded", tmp_path / "floats")
    renamed(tmp_path / "floats", dict, lambda found: found | turned)
    renamed(
        tmp_path / "coded",
        lambda values: values.update(quantization_config=method),
        lambda found: {n: each for n, each in found.items() if n not in turned} | coded,
    )
    rows = logits(open_weights(tmp_path / "coded"), [*range(20)])
    wanted = logits(open_weights(tmp_path / "floats"), [*range(20)])
    tolerance = 1e-6 if make is nf4 else 0.03  # beside Q5_0 activations are rounded
    assert np.abs(rows - wanted).max() < tolerance * np.ptp(wanted)
