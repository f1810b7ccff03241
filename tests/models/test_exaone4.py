"""exaone4 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_file import write_model

from tests.models.check_transformers import SMALL, check_transformers, like_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = SMALL | {"num_hidden_layers": 4}

test_transformers = like_transformers(
    "Exaone4Config",
    {"sliding_window": 8, "sliding_window_pattern": 4},
    {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
    {"sliding_window": 8, "layer_types": ["full_attention"] * 4},
    {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    sizes=SIZES,
)


def test_layers_without_a_window_keep_their_keys_in_a_shift(tmp_path: Path) -> None:
    """A text whose beginning was cut has the logits of one computed from there on alone."""
    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    config = transformers.Exaone4Config(**SIZES | {"sliding_window": 4, "num_hidden_layers": 4})
    check_transformers(transformers.Exaone4ForCausalLM(config), tmp_path)
    decoder = build_decoder(open_weights(tmp_path))
    rows = []
    for start in (0, 5):
        context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32", swa_full=True)
        context.decode(Batch.one([3], start))
        if start:
            context.cache.seq_add(0, 0, -1, -5)
        rows.append(context.decode(Batch.one([4], 1))[0])
    assert abs(rows[0] - rows[1]).max() < 1e-5 * (rows[0].max() - rows[0].min())


def test_divisors_of_the_frequencies_count_in_window_layers(tmp_path: Path) -> None:
    """These are the layers that rotate, and llama.cpp divides there."""
    from dense_models import DENSE

    from aleator.models import build_decoder, open_weights

    spec = replace(
        DENSE["exaone4"], n_layers=64, n_embd=16, n_ff=16, meta={"attention.sliding_window": 6}
    )
    plain, divided = (
        build_decoder(open_weights(write_model(tmp_path / f"{divisors}.gguf", each)))
        for divisors in (False, True)
        for each in (replace(spec, divisors=divisors),)
    )
    ratio = plain.window_rotation.frequencies / divided.window_rotation.frequencies
    assert divided.config.window is not None
    assert ratio[0] == 1
    assert abs(ratio[-1] - 8) < 1e-6
