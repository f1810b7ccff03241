"""llama4 against llama.cpp (tools/golden_models.py) and transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_models import DENSE
from dense_shapes import MixtureShape
from model_file import write_model

from aleator.core.errors import UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.check_golden import F32, FORMS, decoder_of, golden_of, tokens_of
from tests.models.check_transformers import SMALL, like_transformers, relative

LATE = 8180  # where golden_models.py begins a text that crosses the end of a chunk
SIZES: dict[str, Any] = SMALL | {
    "intermediate_size": 24, "intermediate_size_mlp": 48, "num_hidden_layers": 4, "head_dim": 8,
    "num_local_experts": 5, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
    "attention_chunk_size": 12, "floor_scale": 8, "attn_scale": 0.7, "rms_norm_eps": 1e-05,
}  # fmt: skip


def config_of(**changes: Any) -> Any:
    values = {"model_type": "llama4_text", **SIZES, **changes}
    return read_json(Fields("config.json", values))[1]


test_transformers = like_transformers(
    "Llama4TextConfig", {}, {"use_qk_norm": False, "attn_temperature_tuning": False}, sizes=SIZES
)


@pytest.mark.parametrize("form", FORMS)
def test_llama_cpp_at_a_chunks_end(form: str, tmp_path: Path) -> None:
    expected = golden_of("llama4")["late"]
    decoder = decoder_of("llama4", tmp_path, form)
    context, tokens, rows = Context(decoder, n_ctx=256, **F32), tokens_of(decoder), []
    for n in (5, 9, 6):
        at = LATE + 20 - len(tokens)
        rows.append(context.decode(Batch.one(tokens[:n], at, logits=True)))
        tokens = tokens[n:]
    # llama.cpp multiplies positions and frequencies in float32, which is off by 5e-4 of an angle here.
    assert relative(np.concatenate(rows), expected) < 1e-4


def test_bits_do_not_depend_on_what_stands_beside(tmp_path: Path) -> None:
    decoder = decoder_of("llama4", tmp_path)
    tokens = tokens_of(decoder)
    together = Context(decoder, n_ctx=256, **F32).decode(Batch.one(tokens, LATE, logits=True))
    alone = Context(decoder, n_ctx=256, n_ubatch=1, **F32)
    rows = alone.decode(Batch.one(tokens, LATE, logits=True))
    assert np.array_equal(np.asarray(rows), np.asarray(together))


def test_later_chunks_do_not_see_earlier_ones(tmp_path: Path) -> None:
    """Of a model all of whose layers have chunks a token's logits depend on its own chunk alone."""
    path = tmp_path / "model"
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.Llama4TextConfig(
        **SIZES | {"num_hidden_layers": 2, "no_rope_layers": [1, 1]}
    )
    model = transformers.Llama4ForCausalLM(config).eval()
    model.save_pretrained(path)
    decoder = build_decoder(open_weights(path))
    tokens = tokens_of(decoder)
    row = Context(decoder, n_ctx=64, **F32).decode(Batch.one(tokens, 0))[0]
    other = [(token + 1) % 96 for token in tokens[:12]] + tokens[12:]
    assert np.array_equal(row, Context(decoder, n_ctx=64, **F32).decode(Batch.one(other, 0))[0])


def test_config() -> None:
    config = config_of()
    assert config.unrotated == (False, False, False, True)
    assert config.window.layers == (True, True, True, False)
    assert (config.window.size, config.window.chunked) == (12, True)
    assert config.experts.layers == (False, True, False, True)
    assert [config.grows(layer) for layer in range(4)] == [False, False, False, True]
    assert config_of(moe_layers=[0]).experts.layers == (True, False, False, False)
    assert config_of(no_rope_layers=[0, 1, 1, 1]).unrotated == (True, False, False, False)
    whole = config_of(layer_types=["full_attention"] * 4)
    assert whole.window is None
    assert config_of(attn_temperature_tuning=4).query_growth is not None
    pictures = {"model_type": "llama4", "text_config": SIZES, "vision_config": {}}
    assert read_json(Fields("config.json", json.loads(json.dumps(pictures))))[1].n_embd == 32


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_chunk_size": None}, "attention_chunk_size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
    ],
)
def test_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_of(**changes)


def test_chunks_may_not_be_switched_off(tmp_path: Path) -> None:
    spec = DENSE["llama4"]
    without = replace(spec, meta={**spec.meta, "attention.sliding_window": 0})
    with pytest.raises(UnsupportedModel, match="sliding_window"):
        open_weights(write_model(tmp_path / "model.gguf", without))


def test_heads_of_llama_4_maverick_are_not_normalised(tmp_path: Path) -> None:
    spec = replace(DENSE["llama4"], n_layers=1, experts=MixtureShape(128, 8))
    spec = replace(spec, meta={**spec.meta, "interleave_moe_layer_step": 1})
    weights = open_weights(write_model(tmp_path / "model.gguf", spec))
    assert not weights.config.normalised_heads
    assert decoder_of("llama4", tmp_path).config.normalised_heads


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_the_last_of_every_few_layers_has_experts(step: int) -> None:
    sparse = tuple(layer % step == step - 1 for layer in range(4))
    assert config_of(interleave_moe_layer_step=step).experts.layers == sparse
