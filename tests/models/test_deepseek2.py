"""deepseek2 against llama.cpp (tools/golden_models.py) and transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_models import DENSE
from dense_shapes import LatentShape
from model_file import write_model

from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.files.fields import Fields
from aleator.models.index import read_json
from tests.models.builders import model_json
from tests.models.check_golden import F32, decoder_of
from tests.models.check_transformers import SMALL, like_transformers, relative

SIZES: dict[str, Any] = SMALL | {
    "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 3, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "mscale": 0.707, "mscale_all_dim": 0.707,
}  # fmt: skip

test_version_2_of_transformers = like_transformers(
    "DeepseekV2Config",
    {"q_lora_rank": None},
    {"q_lora_rank": 24, "rope_parameters": YARN, "routed_scaling_factor": 4.0}
    | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    sizes=SIZES,
)
test_version_3_of_transformers = like_transformers(
    "DeepseekV3Config",
    {"n_group": 4, "topk_group": 2},
    {"n_group": 1, "topk_group": 1, "rope_interleave": False, "rope_parameters": YARN},
    sizes=SIZES | {"q_lora_rank": 24},
)


def test_kimi_k2_is_a_version_3() -> None:
    read = [
        read_json(
            Fields(
                "config.json", model_json(model_type=name) | SIZES | {"n_group": 1, "topk_group": 1}
            )
        )
        for name in ("deepseek_v3", "kimi_k2")
    ]
    assert read[0] == read[1]


def test_other_choices_of_experts_are_refused() -> None:
    values = model_json(model_type="deepseek_v2") | SIZES
    with pytest.raises(UnsupportedModel, match="topk_method"):
        read_json(Fields("config.json", values | {"topk_method": "noaux_tc"}))
    grouped = values | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1}
    with pytest.raises(FileFormatError, match="n_group"):
        read_json(Fields("config.json", grouped))


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-heads"])
def test_a_token_has_the_same_bits_in_any_company(name: str, tmp_path: Path) -> None:
    decoder = decoder_of(name, tmp_path)
    tokens = [(7 * i * i + 3) % decoder.config.n_vocab for i in range(24)]
    alone = Context(decoder, n_ctx=64, n_threads=1)
    right = np.concatenate([alone.decode(Batch.one([t], i)) for i, t in enumerate(tokens)])
    context = Context(decoder, n_ctx=64, n_threads=3, prefix=PrefixConfig(), n_seq_max=2)
    together = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    assert together.tobytes() == right.tobytes()
    context.cache.keep(0, tokens)
    held = context.cache.reuse(1, tokens[:17])
    assert held == 16
    again = np.asarray(context.decode(Batch.one(tokens[16:], 16, seq=1, logits=True)))
    assert again.tobytes() == right[16:].tobytes()


def test_the_cache_holds_compressed_keys_alone(tmp_path: Path) -> None:
    cache = Context(decoder_of("deepseek2", tmp_path), n_ctx=64, **F32).cache
    assert (cache.bytes_k, cache.bytes_v) == (64 * 3 * (32 + 8) * 4, 0)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_a_quantised_cache_holds_compressed_keys(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    latent = LatentShape(128, 96, 64, q_rank=32)
    spec = replace(DENSE["deepseek2-yarn"], n_layers=1, rope=64, latent=latent)
    path = write_model(tmp_path / "m.gguf", replace(spec, meta={"expert_used_count": 2}))
    tokens = [(7 * i * i + 3) % spec.n_vocab for i in range(20)]
    types: Any = {"type_k": kind, "type_v": kind}
    rows = {}
    for form in ("native", "torch"):
        decoder = build_decoder(open_weights(path), form=form)
        context = Context(decoder, n_ctx=64, n_threads=1, **types)
        rows[form] = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
        if form == "native":
            alone = Context(decoder, n_ctx=64, n_threads=2, **types)
            each = [alone.decode(Batch.one([t], i)) for i, t in enumerate(tokens)]
            assert np.concatenate(each).tobytes() == rows[form].tobytes()
            plain = Context(decoder, n_ctx=64, n_threads=1, **F32)
            exact = np.asarray(plain.decode(Batch.one(tokens, 0, logits=True)))
    assert 0 < relative(rows["native"], exact) < 0.2  # what rounding the cache changes
    # A key near the middle of two numbers may be rounded to the other.
    assert relative(rows["torch"], rows["native"]) < relative(rows["native"], exact)


def test_compressed_keys_that_end_within_a_block_are_refused(tmp_path: Path) -> None:
    decoder = decoder_of("deepseek2-yarn", tmp_path)  # 24 and 8 rotated channels, of blocks of 32
    with pytest.raises(ParameterError, match="24 compressed") as error:
        Context(decoder, n_ctx=64, type_k="q8_0", type_v="q8_0")
    assert error.value.parameter == "type_k"


def test_raw_keys_after_a_shift(tmp_path: Path) -> None:
    rows = []
    for storage in ("rotated", "raw"):
        context = Context(decoder_of("deepseek2", tmp_path), n_ctx=64, k_storage=storage, **F32)
        context.decode(Batch.one([5, 9, 2, 44, 17, 3], 0))
        context.cache.seq_rm(0, 1, 3)
        context.cache.seq_add(0, 3, -1, -2)
        rows.append(np.asarray(context.decode(Batch.one([8], 4)))[0])
    assert np.abs(rows[0] - rows[1]).max() < 1e-5 * np.ptp(rows[0])
