"""Whole layers of Triton's kernels, under its interpreter, leave the states that native decoders leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own", allow_module_level=True)

import torch
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats
from delta_models import DELTAS, write_delta
from hybrid_models import HYBRID, write_hybrid
from make_models import SPECS, write_model

from aleator.cache.pools.recurrent_rows import RecurrentBatch, Run
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.kernels import recurrent, recurrent_parts
from aleator.models.kernels.runs import Runs

IDS = [int(t) for t in np.random.default_rng(4).integers(0, 64, 9)]
CUTS = ((0, 5), (5, 9))  # micro-batches


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def native(path: Path) -> Any:
    return build_decoder(open_weights(path), form="native")


class Parts:
    """A native decoder's tensors, and the states of its first layer by these kernels, in row 0."""

    def __init__(self, path: Path) -> None:
        self.decoder = native(path)
        self.layer = self.decoder.recurrent[0]
        self.x = self.tensor("token_embd.weight")[IDS]
        self.eps = self.decoder.config.rms_eps
        self.kept: tuple[torch.Tensor, torch.Tensor] = (torch.zeros(0), torch.zeros(0))

    def tensor(self, name: str) -> Floats:
        floats: Floats = self.decoder.weights.floats(name)
        return floats

    def product(
        self,
        name: str,
        x: torch.Tensor | Floats,
        bias: Floats | None = None,
        layer: int = 0,
    ) -> torch.Tensor:
        """By the reference."""
        rows = np.ascontiguousarray(x)
        return torch.from_numpy(
            reference.products(self.tensor(f"blk.{layer}.{name}.weight"), rows, bias)
        )

    def start(self, *shapes: tuple[int, ...]) -> None:
        conv, ssm = (torch.full((2, *shape), float("nan")) for shape in shapes)
        self.kept = conv, ssm

    def batches(self) -> Iterator[tuple[Floats, Runs]]:
        """The first layer's normalised input, by micro-batch."""
        x = reference.rms_norm(self.x, self.layer.norm, self.eps)
        for begin, end in CUTS:
            tokens = list(range(end - begin))
            run = Run(0 if begin else -1, (0,), tokens, tokens, [(tokens[-1], 0)])
            batch = RecurrentBatch([], [], [run], np.arange(begin, end, dtype=np.int32))
            yield x[begin:end], Runs.of(batch, torch.device("cpu"))

    def compare(
        self, given: list[torch.Tensor], convolved: Callable[[Floats, int], torch.Tensor]
    ) -> None:
        """Compare the first layer's states, and the convolution's values of the second.

        Those depend on every bit of what the first layer has ``given``; ``convolved`` makes them of
        normalised rows of a layer.
        """
        x = self.x + torch.cat(given).numpy()
        if self.layer.ffn is not None:
            normed = reference.rms_norm(x, self.layer.ffn_norm, self.eps)
            gate, up = (self.product(name, normed).numpy() for name in ("ffn_gate", "ffn_up"))
            x = x + self.product("ffn_down", reference.silu(gate) * up).numpy()
        second = self.decoder.recurrent[1]
        values = convolved(reference.rms_norm(x, second.norm, self.eps), 1).numpy()
        context: Any = Context(self.decoder, n_ctx=32, n_ubatch=5)
        context.decode(Batch.one(IDS))
        pool = getattr(getattr(context.cache, "pool", None), "recurrent", None) or context.cache
        width = self.kept[0].shape[2]
        for ours, theirs in (
            (self.kept[0][0].numpy(), pool.conv[0]),
            (self.kept[1][0].numpy(), pool.ssm[0]),
            (values[len(IDS) - width :].T, pool.conv[1]),
        ):
            assert ours.size == 0 or any(np.array_equal(ours, np.asarray(row)) for row in theirs)


def weight(values: Floats) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def optional(values: Floats | None) -> torch.Tensor | None:
    return None if values is None else weight(values)


@pytest.mark.parametrize("name", ["mamba", "norms"])
def test_state_spaces(name: str, tmp_path: Path) -> None:
    spec = SPECS["mamba"]
    if name == "norms":
        spec = replace(spec, dt_b_c_norm=True, d_state=21)
    parts = Parts(write_model(tmp_path / "m.gguf", spec))
    layer, ssm = parts.layer, parts.layer.ssm
    inner, n, rank = ssm.d_inner, ssm.d_state, ssm.dt_rank
    parts.start((inner, ssm.d_conv - 1), (inner, n))
    conv, states = parts.kept
    bias = parts.decoder.weights.gguf.stored("blk.0.ssm_dt.bias").data.view(np.float32)
    outputs = []
    for x, runs in parts.batches():
        projected = parts.product("ssm_in", x)
        u = recurrent.convolve(
            projected[:, :inner],
            weight(layer.conv_weight),
            optional(layer.conv_bias),
            conv,
            runs,
            True,
        )
        selected = parts.product("ssm_x", u)
        if ssm.norm_eps is not None:
            selected = recurrent_parts.state_norms(selected, rank, n, None, ssm.norm_eps)
        step, b, c = torch.split(selected, [rank, n, n], dim=1)
        step = parts.product("ssm_dt", step, bias)
        y = recurrent.scan(
            u, step, weight(layer.a), b, c, weight(layer.d), projected[:, inner:], states, runs
        )
        outputs.append(parts.product("ssm_out", y))
    parts.compare(outputs, lambda x, i: parts.product("ssm_in", x, layer=i)[:, :inner])


def test_heads(tmp_path: Path) -> None:
    parts = Parts(write_hybrid(tmp_path / "m.gguf", HYBRID["mamba2"]))
    layer, ssm = parts.layer, parts.layer.ssm
    inner, n, channels = ssm.d_inner, ssm.groups * ssm.d_state, ssm.conv_channels
    parts.start((channels, ssm.d_conv - 1), (inner, ssm.d_state))
    conv, states = parts.kept
    outputs = []
    for x, runs in parts.batches():
        projected = parts.product("ssm_in", x)
        gate, values, steps = torch.split(projected, [inner, channels, ssm.heads], dim=1)
        values = recurrent.convolve(
            values, weight(layer.conv_weight), optional(layer.conv_bias), conv, runs, True
        )
        u, b, c = torch.split(values, [inner, n, n], dim=1)
        step, decay = recurrent_parts.time_step(
            steps, weight(layer.time_bias), weight(layer.a), ssm.least_step
        )
        y = recurrent.scan_heads(u, step, decay, b, c, weight(layer.d), gate, states, runs)
        y = recurrent_parts.group_norm(y, weight(layer.gated_norm), layer.norm_groups, parts.eps)
        outputs.append(parts.product("ssm_out", y))
    taken = slice(inner, inner + channels)
    parts.compare(outputs, lambda x, i: parts.product("ssm_in", x, layer=i)[:, taken])


def test_short_convolutions(tmp_path: Path) -> None:
    parts = Parts(write_hybrid(tmp_path / "m.gguf", HYBRID["lfm2"]))
    layer = parts.layer
    parts.start((len(layer.norm), layer.ssm.d_conv - 1), (0,))
    outputs = []

    def mixed(x: Floats, index: int) -> torch.Tensor:
        b, _, values = parts.product("shortconv.in_proj", x, layer=index).chunk(3, dim=1)
        return b * values

    for x, runs in parts.batches():
        c = parts.product("shortconv.in_proj", x).chunk(3, dim=1)[1]
        y = c * recurrent.convolve(
            mixed(x, 0),
            weight(layer.conv_weight),
            optional(layer.conv_bias),
            parts.kept[0],
            runs,
            False,
        )
        outputs.append(parts.product("shortconv.out_proj", y))
    parts.compare(outputs, mixed)


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_delta_nets(name: str, tmp_path: Path) -> None:
    spec = replace(DELTAS[name], n_layers=3, interval=3, n_experts=0)
    parts = Parts(write_delta(tmp_path / "m.gguf", spec))
    layer, net = parts.layer, parts.layer.net
    parts.start((net.channels, net.d_conv - 1), (net.values, net.head_dim))
    conv, states = parts.kept
    outputs = []
    for x, runs in parts.batches():
        t = len(x)
        qkv = recurrent.convolve(
            parts.product("attn_qkv", x), weight(layer.conv_weight), None, conv, runs, True
        )
        qk, v = torch.split(qkv, [2 * net.keys, net.values], dim=1)
        qk = recurrent_parts.unit_length(qk, net.head_dim, net.unit_eps, net.n_key_heads)
        q, k = qk.view(t, 2, net.n_key_heads, net.head_dim).unbind(1)
        beta, decay = recurrent_parts.delta_rates(
            parts.product("ssm_beta", x),
            parts.product("ssm_alpha", x),
            weight(layer.time_bias),
            weight(layer.a),
        )
        v = v.view(t, net.n_heads, net.head_dim_v)
        y = recurrent.delta_rule(q, k, v, beta, decay, states, runs, net.tiled)
        y = recurrent_parts.gated_norm(
            y.flatten(1), weight(layer.head_norm), parts.product("attn_gate", x), parts.eps
        )
        outputs.append(parts.product("ssm_out", y))
    parts.compare(outputs, lambda x, i: parts.product("attn_qkv", x, layer=i))
