"""Native code reads parts of layers by their names, and refuses those that lack what it needs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wide_models import SMALL, write_model

from aleator.generate import Context
from aleator.models import build_decoder, open_weights

NEEDED = [
    ("mamba2", "recurrent.a", "blk.0.ssm_a"),
    ("mamba2", "recurrent.d", "blk.0.ssm_d"),
    ("mamba2", "recurrent.time_bias", "blk.0.ssm_dt.bias"),
    ("jamba", "recurrent.d", "blk.0.ssm_d"),
    ("jamba", "recurrent.ffn_norm", "blk.0.ffn_norm"),
    ("qwen35moe", "recurrent.a", "blk.0.ssm_a"),
    ("qwen35moe", "recurrent.time_bias", "blk.0.ssm_dt.bias"),
    ("qwen35moe", "recurrent.head_norm", "blk.0.ssm_norm.weight"),
    ("deepseek2", "blocks.latent.norm", "blk.0.attn_kv_a_norm.weight"),
    ("gemma4-experts", "blocks.ffn.norms.expert", "blk.0.a norm of experts beside a dense part"),
    ("gemma4-layer-embeddings", "embedding_parts.norm", "blk.0.post_norm.weight"),
    ("gemma4-layer-embeddings", "layer_embeddings.norm", "per_layer_proj_norm.weight"),
]


def native(name: str, folder: Path) -> Any:
    path = write_model(folder / "m.gguf", SMALL[name])
    return build_decoder(open_weights(path), form="native")


@pytest.mark.parametrize(("name", "where", "tensor"), NEEDED)
def test_what_is_needed_is_there(name: str, where: str, tensor: str, tmp_path: Path) -> None:
    decoder = native(name, tmp_path)
    kind, *names, last = where.split(".")
    part = getattr(decoder, kind)
    part = part[0] if isinstance(part, list) else part
    for each in names:
        part = getattr(part, each)
    object.__setattr__(part, last, None)
    with pytest.raises(ValueError, match=f"{re.escape(tensor)} is missing"):
        Context(decoder, n_ctx=32)


def test_rates_of_states_are_a_matrix_of_them(tmp_path: Path) -> None:
    decoder = native("jamba", tmp_path)
    layer = decoder.recurrent[0]
    layer.a = np.ascontiguousarray(layer.a.T)
    with pytest.raises(ValueError, match=r"blk\.0\.ssm_a: wrong size"):
        Context(decoder, n_ctx=32)


def test_experts_beside_a_dense_part_take_what_attention_gives(tmp_path: Path) -> None:
    decoder = native("gemma4-experts", tmp_path)
    decoder.config = replace(decoder.config, parallel=True)
    with pytest.raises(ValueError, match="experts beside the dense part"):
        Context(decoder, n_ctx=32)
