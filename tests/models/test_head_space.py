"""States with one decay for each head, and short convolutions, have the reference's bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats, fused
from hybrid_models import HYBRID
from model_file import write_model

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.weights import Weights
from tests.models.native_parts import decoder_step

NAMES = ["mamba2", "granitehybrid-experts", "nemotron_h", "falcon-h1-norm", "lfm2"]
TOKENS = [int(t) for t in np.random.default_rng(4).integers(0, 64, 25)]


def native(name: str, folder: Path) -> Any:
    return build_decoder(open_weights(write_model(folder / "m.gguf", HYBRID[name])), form="native")


class Reference:
    """The parts of a decoder as docs/numerics.md says, part 2."""

    def __init__(self, decoder: Any) -> None:
        self.decoder, self.eps = decoder, decoder.config.rms_eps

    def product(self, name: str, x: Floats) -> Floats:
        return reference.products(self.decoder.weights.floats(f"{name}.weight"), x)

    def heads(self, layer: Any, at: str, x: Floats) -> tuple[Floats, Floats, Floats]:
        """What a layer gives for normalised x [T, n], and what it keeps."""
        ssm, t = layer.ssm, len(x)
        inner, n = ssm.d_inner, ssm.groups * ssm.d_state
        projected = self.product(at + "ssm_in", x)
        gate, values, steps = np.split(projected, [inner, inner + ssm.conv_channels], axis=1)
        before = np.zeros((ssm.d_conv - 1, ssm.conv_channels), np.float32)
        latest = np.concatenate((before, values))[t:]
        values = reference.convolve(values, before, layer.conv_weight.T, layer.conv_bias)
        u, b, c = np.split(values, [inner, inner + n], axis=1)
        dt = np.maximum(reference.softplus(steps + layer.time_bias), np.float32(ssm.least_step))
        shape = (t, ssm.heads, inner // ssm.heads)
        shared = (t, ssm.groups, ssm.d_state)
        y, state = reference.scan_heads(
            u.reshape(shape),
            dt,
            layer.a,
            b.reshape(shared),
            c.reshape(shared),
            np.zeros((*shape[1:], ssm.d_state), np.float32),
        )
        d = np.repeat(layer.d, shape[2])
        y = fused(np.broadcast_to(d, u.shape), np.ascontiguousarray(u), y.reshape(u.shape))
        y = y * reference.silu(gate)
        parts = np.split(y, layer.norm_groups, axis=1)
        weights = np.split(layer.gated_norm, layer.norm_groups)
        y = np.concatenate(
            [
                reference.rms_norm(np.ascontiguousarray(part), weight, self.eps)
                for part, weight in zip(parts, weights, strict=True)
            ],
            axis=1,
        )
        return self.product(at + "ssm_out", y), latest.T, state.reshape(inner, -1)


@pytest.mark.parametrize(("name", "least"), [("mamba2", 0.0), ("mamba2-tied", 0.4)])
def test_logits_and_states_are_the_reference(name: str, least: float, tmp_path: Path) -> None:
    decoder = native(name, tmp_path)
    for layer in decoder.recurrent:
        layer.ssm = replace(layer.ssm, least_step=least)
    parts, ids, states = Reference(decoder), TOKENS[:9], []
    x = decoder.weights.floats("token_embd.weight")[ids]
    for i, layer in enumerate(decoder.recurrent):
        normed = reference.rms_norm(x, layer.norm, parts.eps)
        given, latest, state = parts.heads(layer, f"blk.{i}.", normed)
        x = x + given
        states += [latest, state]
    x = reference.rms_norm(x, decoder.output_norm, parts.eps)
    expected = parts.product("token_embd" if decoder.config.tied else "output", x)
    context: Any = Context(decoder, n_ubatch=5)  # the second micro-batch begins with states
    assert np.array_equal(context.decode(Batch.one(ids, logits=True)), expected)
    (row, _), *_ = context.cache.states[0]
    held = [
        t[row] for pair in zip(context.cache.conv, context.cache.ssm, strict=True) for t in pair
    ]
    for ours, theirs in zip(held, states, strict=True):
        assert np.array_equal(ours, theirs)


def test_short_convolutions_are_the_reference(tmp_path: Path) -> None:
    """What the second layer keeps depends on every bit of what the first one gives."""
    decoder = native("lfm2", tmp_path)
    parts, ids = Reference(decoder), TOKENS[:9]
    context: Any = Context(decoder, n_ubatch=5)
    context.decode(Batch.one(ids))
    x = decoder.weights.floats("token_embd.weight")[ids]
    pool = context.cache.pool.recurrent
    (row, _), *_ = pool.states.history(0)[-1:]
    for i, layer in enumerate(decoder.recurrent[:2]):
        at = f"blk.{i}."
        normed = reference.rms_norm(x, layer.norm, parts.eps)
        b, c, values = np.split(parts.product(at + "shortconv.in_proj", normed), 3, axis=1)
        values = b * values
        before = np.zeros((layer.ssm.d_conv - 1, len(layer.norm)), np.float32)
        assert np.array_equal(pool.conv[i][row], np.concatenate((before, values))[len(ids) :].T)
        none = np.zeros(len(layer.norm), np.float32)
        mixed = reference.convolve(values, before, layer.conv_weight.T, none, activated=False)
        x = x + parts.product(at + "shortconv.out_proj", c * mixed)
        normed = reference.rms_norm(x, layer.ffn_norm, parts.eps)
        gate = reference.silu(parts.product(at + "ffn_gate", normed))
        x = x + parts.product(at + "ffn_down", gate * parts.product(at + "ffn_up", normed))


def check_forms(weights: Weights) -> None:
    """The form in PyTorch gives the native logits."""
    pytest.importorskip("torch")
    rows = []
    for form in ("native", "torch"):
        decoder = build_decoder(weights, form=form)
        types: Any = {"type_k": "f32", "type_v": "f32"} if decoder.cache_shapes else {}
        context = Context(decoder, n_ctx=32, **types)
        rows.append(np.asarray(context.decode(Batch.one(TOKENS, 0, logits=True))))
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-4 * np.abs(rows[0]).max())


def test_beside_attention_with_post_norms(tmp_path: Path) -> None:
    """Which no model has so far: both forms add the state to the sum with what attention's norm gives."""
    read = open_weights(write_model(tmp_path / "m.gguf", HYBRID["falcon-h1"]))
    rng, tensors = np.random.default_rng(5), {name: read.stored(name) for name in read.names()}
    for layer in range(read.config.n_layers):
        for name in ("post_attention_norm", "post_ffw_norm"):
            values = rng.uniform(0.5, 1.5, read.config.n_embd).astype(np.float32)
            tensors[f"blk.{layer}.{name}.weight"] = StoredTensor.of(values)
    architecture = replace(read.architecture, post_norm=True)
    check_forms(Weights(read.path, architecture, read.config, tensors, read.gguf))


@pytest.mark.parametrize("name", ["kimi-linear", "lfm2", "mamba2"])
def test_what_a_layer_with_a_state_adds_is_scaled(name: str, tmp_path: Path) -> None:
    """Of known models those with one kind of state have such a factor; both forms heed it in all."""
    read = open_weights(write_model(tmp_path / "m.gguf", HYBRID[name]))
    tensors = {each: read.stored(each) for each in read.names()}
    config = replace(read.config, residual_scale=0.6)
    check_forms(Weights(read.path, read.architecture, config, tensors, read.gguf))


def test_shapes_are_checked(tmp_path: Path) -> None:
    decoder = native("mamba2", tmp_path)
    layer = decoder.recurrent[0]
    ssm = layer.ssm
    conv = np.zeros((2, ssm.conv_channels, ssm.d_conv - 1), np.float32)
    state = np.zeros((2, ssm.d_inner, ssm.d_state), np.float32)

    def add(state: Floats = state, **changes: Any) -> None:
        step = decoder_step(
            np.zeros(0),
            False,
            embedding=[decoder.embedding],
            output_norm=decoder.output_norm,
            eps=1e-5,
            attention_scale=1.0,
        )
        step.add_state("heads", SimpleNamespace(**vars(layer) | changes), conv, state, False)

    add()
    for name, value, message in (
        ("project", layer.output, "ssm_in"),
        ("output", layer.project, "ssm_"),
        ("norm", layer.norm[:-1].copy(), "attn_norm"),
        ("conv_bias", layer.conv_bias[:-1].copy(), "ssm_conv1d"),
        ("time_bias", layer.a[:-1].copy(), "ssm_dt"),
        ("d", layer.a[:-1].copy(), "ssm_d"),
        ("a", layer.a[:-1].copy(), "ssm_a"),
        ("ssm", replace(ssm, groups=3), "groups"),
        ("gated_norm", layer.norm, "ssm_norm"),
        ("norm_groups", 7, "ssm_norm"),
        ("state", state[:1].copy(), "rows of states"),
    ):
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=message):
            add(**wrong)
