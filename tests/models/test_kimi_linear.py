"""kimi-linear against llama.cpp's answers (tools/golden_models.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_numerics import delta as rules
from decoder_numerics import floats as plain
from decoder_numerics.blocks import Floats
from hybrid_models import HYBRID, each_tensor, write_hybrid

from aleator.core.errors import FileFormatError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.models.check_hybrid import check_generation, check_golden, check_reuse

NAME = "kimi-linear"


def test_against_llama_cpp(tmp_path: Path) -> None:
    check_golden(NAME, tmp_path)


def test_rewinds_and_cached_prefixes(tmp_path: Path) -> None:
    check_reuse(NAME, tmp_path)


def test_generation_and_sessions(tmp_path: Path) -> None:
    check_generation(NAME, tmp_path)


ODD = replace(HYBRID[NAME], layers="ssa", dense_layers=2, head_dim=37, d_conv=3, n_ff=40, seed=5)
"""Two layers with delta nets before one that attends, of sizes that fill no register."""


def states_by_the_rules(ids: list[int]) -> list[Floats]:
    """The convolution's values and the state after a text, of each layer with a delta net."""
    tensors = dict(each_tensor(ODD))
    x, found, eps = tensors["token_embd.weight"][ids], [], 1e-5
    t, heads, dim, wide = len(ids), ODD.n_heads, ODD.head_dim, ODD.n_heads * ODD.head_dim
    for layer in range(2):

        def of(name: str, at: str = f"blk.{layer}.") -> Floats:
            return tensors[at + name]

        def low(name: str, taken: Floats, of: Any = of) -> Floats:
            few = plain.products(of(f"ssm_{name}_a.weight"), taken)
            return plain.products(of(f"ssm_{name}_b.weight"), few).reshape(t, heads, dim)

        taken = plain.rms_norm(x, of("attn_norm.weight"), eps)
        values = [plain.products(of(f"attn_{part}.weight"), taken) for part in "qkv"]
        joint = np.concatenate(values, axis=1)
        before = np.zeros((ODD.d_conv - 1, 3 * wide), np.float32)
        found.append(np.concatenate((before, joint))[t:].T)
        weights = [of(f"ssm_conv1d_{part}.weight").reshape(wide, -1) for part in "qkv"]
        weight, nothing = np.concatenate(weights).T, np.zeros(3 * wide, np.float32)
        u = plain.convolve(joint, before, weight, nothing).reshape(t, 3, heads, dim)
        scale = np.float32(1) / np.sqrt(np.float32(dim))
        q, k = rules.unit_length(u[:, 0], eps, scale), rules.unit_length(u[:, 1], eps)
        beta = plain.sigmoid(plain.products(of("ssm_beta.weight"), taken))
        decay = rules.decay_of(low("f", taken), of("ssm_dt.bias").reshape(heads, dim), of("ssm_a"))
        zero = np.zeros((heads, dim, dim), np.float32)
        y, state = rules.delta_rule(q, k, u[:, 2], beta, decay, zero)
        found.append(state.reshape(wide, dim))
        y = rules.sigmoid_gate(plain.rms_norm(y, of("ssm_norm.weight"), eps), low("g", taken))
        x = x + plain.products(of("attn_output.weight"), y.reshape(t, -1))
        taken = plain.rms_norm(x, of("ffn_norm.weight"), eps)
        up = plain.products(of("ffn_up.weight"), taken)
        up = plain.silu(plain.products(of("ffn_gate.weight"), taken)) * up
        x = x + plain.products(of("ffn_down.weight"), up)
    return found


def test_states_are_those_of_the_rules(tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_hybrid(tmp_path / "m.gguf", ODD)))
    ids = [int(t) for t in np.random.default_rng(4).integers(0, 64, 9)]
    expected = states_by_the_rules(ids)
    for threads, ubatch in ((1, 5), (3, 9)):
        context: Any = Context(decoder, n_ctx=32, n_ubatch=ubatch, n_threads=threads)
        context.decode(Batch.one(ids))
        states = context.cache.pool.recurrent
        (row, _), *_ = states.states.book()[0]
        held = [t[row] for pair in zip(states.conv, states.ssm, strict=True) for t in pair]
        for ours, theirs in zip(held, expected, strict=True):
            assert np.array_equal(ours, theirs)


def test_layers_that_all_attend_are_refused(tmp_path: Path) -> None:
    path = write_hybrid(tmp_path / "m.gguf", replace(HYBRID[NAME], layers="aa"))
    with pytest.raises(FileFormatError, match="some layers must have KV heads"):
        open_weights(path)


def test_convolutions_of_another_size_are_refused(tmp_path: Path) -> None:
    spec = HYBRID[NAME]
    path = write_hybrid(
        tmp_path / "m.gguf", replace(spec, meta={**spec.meta, "ssm.conv_kernel": 3})
    )
    with pytest.raises(FileFormatError, match="ssm_conv1d"):
        build_decoder(open_weights(path))
