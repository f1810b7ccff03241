"""Gated delta nets: native code against the rules of docs/numerics.md, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_numerics import delta as rules
from decoder_numerics import floats as plain
from decoder_numerics.blocks import Floats
from delta_models import DELTAS, Delta
from model_file import write_model

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import build_decoder, open_weights
from tests.models.check_kept import check_states

ODD = replace(
    DELTAS["qwen35-further"], key_heads=2, value_heads=6, delta_dim=37, d_conv=3, n_ff=40, further=0
)
"""Two layers with delta nets before one that attends, of sizes that fill no register."""


def states_by_the_rules(spec: Delta, ids: list[int], tiled: bool) -> list[Floats]:
    """The convolution's values and the state after a text, of each layer with a delta net."""
    tensors = dict(spec.each_tensor())
    x, found, eps = tensors["token_embd.weight"][ids], [], 1e-5
    dim, heads = spec.delta_dim, spec.value_heads
    keys, shared = spec.key_heads * dim, heads // spec.key_heads
    which = np.arange(heads) % spec.key_heads if tiled else np.arange(heads) // shared
    for layer in range(2):

        def of(name: str, at: str = f"blk.{layer}.") -> Floats:
            return tensors[at + name]

        taken = plain.rms_norm(x, of("attn_norm.weight"), eps)
        values = plain.products(of("attn_qkv.weight"), taken)
        before = np.zeros((spec.d_conv - 1, values.shape[1]), np.float32)
        found.append(np.concatenate((before, values))[len(ids) :].T)
        weight = of("ssm_conv1d.weight").T
        u = plain.convolve(values, before, weight, np.zeros(values.shape[1], np.float32))
        q, k, v = np.split(u, [keys, 2 * keys], axis=1)
        scale = np.float32(1) / np.sqrt(np.float32(dim))
        q = rules.unit_length(q.reshape(len(ids), -1, dim), eps, scale)[:, which]
        k = rules.unit_length(k.reshape(len(ids), -1, dim), eps)[:, which]
        beta = plain.sigmoid(plain.products(of("ssm_beta.weight"), taken))
        decay = plain.products(of("ssm_alpha.weight"), taken)
        decay = rules.decay_of(decay, of("ssm_dt.bias"), of("ssm_a"))
        nothing = np.zeros((heads, dim, dim), np.float32)
        y, state = rules.delta_rule(q, k, v.reshape(len(ids), heads, dim), beta, decay, nothing)
        found.append(state.reshape(heads * dim, dim))
        gate = plain.products(of("attn_gate.weight"), taken).reshape(y.shape)
        y = rules.gated_norm(y, of("ssm_norm.weight"), gate, eps).reshape(len(ids), -1)
        x = x + plain.products(of("ssm_out.weight"), y)
        taken = plain.rms_norm(x, of("post_attention_norm.weight"), eps)
        up = plain.products(of("ffn_up.weight"), taken)
        up = plain.silu(plain.products(of("ffn_gate.weight"), taken)) * up
        x = x + plain.products(of("ffn_down.weight"), up)
    return found


def test_states_are_those_of_the_rules(tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", ODD)))
    ids = [int(t) for t in np.random.default_rng(4).integers(0, 64, 9)]
    check_states(decoder, ids, states_by_the_rules(ODD, ids, tiled=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_heads": 5}, "multiple of 2"),
        ({"sections": (1, 1, 1, 0)}, "4 pairs"),
        ({"listed": (True, False)}, "booleans"),
        ({"further": 0, "n_kv_heads": 0}, "no KV heads"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    spec = replace(DELTAS["qwen35"], **changes)
    with pytest.raises(FileFormatError, match=message):
        open_weights(write_model(tmp_path / "m.gguf", spec, {}))


def test_models_that_never_attend_are_refused(tmp_path: Path) -> None:
    spec = replace(DELTAS["qwen35"], interval=5)
    with pytest.raises(UnsupportedModel, match="without any attention"):
        open_weights(write_model(tmp_path / "m.gguf", spec))
