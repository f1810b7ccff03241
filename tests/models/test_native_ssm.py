"""The native mamba step against the torch layers, which are compared with llama.cpp's logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import numpy.typing as npt
import pytest
from decoder_numerics import floats as reference
from decoder_numerics.blocks import fused
from make_models import SPECS, Spec, write_model

from aleator import _native
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.generate import Batch, Context
from aleator.models import build_decoder, native_decoder, open_weights
from aleator.models.decoder import Decoder

MAMBA = SPECS["mamba"]
SHAPES = {
    "plain": MAMBA,
    "odd": Spec(arch="mamba", n_embd=37, d_state=11, d_conv=5, dt_rank=3, n_layers=3, seed=2),
    "norms": replace(MAMBA, dt_b_c_norm=True, d_state=21),
    "wide state": replace(MAMBA, d_state=40, n_embd=32),
    "f16": replace(MAMBA, type="F16"),
    "bf16": replace(MAMBA, type="BF16"),
    "q8_0": replace(MAMBA, type="Q8_0"),
    "q4_0": replace(MAMBA, type="Q4_0"),
}


def decoder_of(folder: Path, spec: Spec) -> Decoder:
    return build_decoder(open_weights(write_model(folder / "m.gguf", spec)))


def contexts(decoder: Decoder, **options: Any) -> tuple[Any, Any]:
    """The same decoder in native code and in torch."""
    pytest.importorskip("torch")
    plain = build_decoder(decoder.weights, form="torch")
    return Context(decoder, **options), Context(plain, **options)


def sequences(decoder: Decoder) -> list[Batch]:
    """Batches with several sequences that begin, mix, and share tokens."""
    rng = np.random.default_rng(3)

    def batch(*rows: tuple[int, list[int]]) -> Batch:
        made = Batch()
        for pos, seqs in rows:
            made.add(int(rng.integers(decoder.config.n_vocab)), pos, seqs, logits=True)
        return made

    return [
        batch(*[(i, [0, 1]) for i in range(5)]),
        batch((5, [0]), (5, [1]), (6, [1]), (6, [0]), (0, [2])),
        batch(*[(1 + i, [2]) for i in range(40)], *[(7 + i, [0]) for i in range(11)], (7, [1])),
        batch((18, [0])),
        batch((0, [3, 4]), (1, [3, 4]), (2, [4]), (2, [3]), (3, [3])),
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_against_torch(tmp_path: Path, name: str) -> None:
    decoder = decoder_of(tmp_path, SHAPES[name])
    native, plain = contexts(decoder, n_seq_max=6, n_ubatch=24)
    for batch in sequences(decoder):
        ours, theirs = native.decode(batch), plain.decode(batch)
        assert np.abs(ours - theirs).max() < 2e-5 * (theirs.max() - theirs.min())
        native.cache.check()
        states = zip(
            [*native.cache.ssm, *native.cache.conv],
            [*plain.cache.ssm, *plain.cache.conv],
            strict=True,
        )
        for a, b in states:
            # Small values are differences of large ones: rounding goes with the largest.
            assert np.allclose(a, b, rtol=1e-3, atol=max(1e-5, 2e-6 * float(np.abs(b).max())))


def by_the_rules(decoder: Any, ids: list[int]) -> tuple[npt.NDArray[np.float32], list[Any]]:
    """Logits of a text [T, n_vocab] and the states after it, as docs/numerics.md says, part 2."""

    def matrix(name: str) -> npt.NDArray[np.float32]:
        stored = decoder.weights.gguf.stored(f"{name}.weight")
        return np.concatenate([rows for _, rows in stored.pieces()])

    eps, ssm = decoder.config.rms_eps, decoder.config.ssm
    x, states = matrix("token_embd")[ids], []
    for i, layer in enumerate(decoder.recurrent):
        at = f"blk.{i}."
        inner = reference.products(matrix(at + "ssm_in"), reference.rms_norm(x, layer.norm, eps))
        u, gate = np.split(inner, 2, axis=1)
        before = np.zeros((ssm.d_conv - 1, ssm.d_inner), np.float32)
        latest = np.concatenate((before, u))[len(ids) :]
        u = reference.convolve(u, before, layer.conv_weight.T, layer.conv_bias)
        selected = reference.products(matrix(at + "ssm_x"), u)
        parts = np.split(selected, [ssm.dt_rank, ssm.dt_rank + ssm.d_state], axis=1)
        if ssm.norm_eps is not None:  # without weights
            parts = [
                reference.rms_norm(p, np.ones(p.shape[1], np.float32), ssm.norm_eps) for p in parts
            ]
        dt, b, c = map(np.ascontiguousarray, parts)
        bias = decoder.weights.gguf.stored(at + "ssm_dt.bias").data.view(np.float32)
        dt = reference.softplus(reference.products(matrix(at + "ssm_dt"), dt, bias))
        nothing = np.zeros((ssm.d_inner, ssm.d_state), np.float32)
        y, state = reference.scan(u, dt, layer.a, b, c, nothing)
        y = fused(np.broadcast_to(layer.d, u.shape), u, y) * reference.silu(gate)
        x = x + reference.products(matrix(at + "ssm_out"), y)
        states += [latest.T, state]
    head = "output" if "output.weight" in decoder.weights.gguf.tensors else "token_embd"
    x = reference.rms_norm(x, decoder.output_norm, eps)
    return reference.products(matrix(head), x), states


@pytest.mark.parametrize("name", ["plain", "odd", "norms", "wide state"])
def test_logits_and_states_are_the_reference(tmp_path: Path, name: str) -> None:
    decoder = decoder_of(tmp_path, SHAPES[name])
    ids = [int(t) for t in np.random.default_rng(4).integers(0, decoder.config.n_vocab, 9)]
    logits, states = by_the_rules(decoder, ids)
    context = Context(decoder, n_ubatch=5)  # the second micro-batch begins with states
    assert np.array_equal(context.decode(Batch.one(ids, logits=True)), logits)
    cache: Any = context.cache
    (row, _), *_ = cache.states[0]
    held = [t[row] for pair in zip(cache.conv, cache.ssm, strict=True) for t in pair]
    for ours, theirs in zip(held, states, strict=True):
        assert np.array_equal(ours, theirs)


def test_bits_do_not_depend_on_threads_or_company(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, MAMBA)
    alone, company = Context(decoder), Context(decoder, n_seq_max=2, n_threads=3)
    a = np.concatenate([alone.decode(Batch.one([t])) for t in (5, 6, 7)])
    for t, (other, row) in enumerate(zip((9, 8, 7), a, strict=True)):
        batch = Batch()
        batch.add(5 + t, t, [0], logits=True)
        batch.add(other, t, [1], logits=True)
        assert np.array_equal(company.decode(batch)[0], row)


def test_embeddings_and_no_logits(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, MAMBA)
    native, plain = contexts(decoder)
    batch = Batch()
    for vector in np.random.default_rng(1).normal(size=(4, MAMBA.n_embd)).astype(np.float32):
        batch.add_embedding(vector)
    assert np.allclose(native.decode(batch), plain.decode(batch), atol=1e-4)
    assert native.decode(Batch.one([1, 2], logits=False)).shape == (0, MAMBA.n_vocab)


def test_indices_are_checked(tmp_path: Path) -> None:
    native, _ = contexts(decoder_of(tmp_path, MAMBA))
    step, pool = native._step._step, _native.ThreadPool(1)
    good = {
        "ids": [1, 2],
        "starts": [0, 2],
        "sources": [-1],
        "order": [0, 1],
        "stores": [-1, 1],
        "out_rows": [1],
    }
    logits = np.zeros((1, MAMBA.n_vocab), np.float32)

    def run(**changes: list[int]) -> None:
        values = {k: np.array(v, np.int64) for k, v in (good | changes).items()}
        states = tuple(values[name] for name in ("starts", "sources", "order", "stores"))
        nothing = native_decoder._nothing_seen(2)
        positions = np.arange(2, dtype=np.int32)
        ends = *nothing, values["out_rows"], logits
        step.run(pool, values["ids"], None, positions, *ends, recurrent=states)

    run()
    for bad in (
        {"ids": [1, MAMBA.n_vocab]},
        {"ids": [-1, 0]},
        {"starts": [0, 3]},
        {"starts": [1, 2]},
        {"starts": [0, 0, 2], "sources": [-1, -1]},
        {"sources": [2]},
        {"sources": [-2]},
        {"order": [0, 0]},
        {"order": [0, 2]},
        {"stores": [0, 2]},
        {"out_rows": [2]},
    ):
        with pytest.raises(ValueError, match=r"row|order|run|outside"):
            run(**bad)


def test_a_step_whose_making_was_interrupted_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Step:
        def __init__(self, *arguments: object, **options: object) -> None:
            self.layers = 0

        def run(self, *arguments: object) -> None:
            ran.append(self.layers)

        def add_state(self, *arguments: object) -> None:
            self.layers += 1
            if interrupting and self.layers == 2:
                interrupting.clear()
                raise KeyboardInterrupt

    ran: list[int] = []
    interrupting: list[bool] = []
    decoder: Any = decoder_of(tmp_path, replace(MAMBA, n_layers=4))
    context: Any = Context(decoder)
    monkeypatch.setattr(native_decoder, "_native", SimpleNamespace(DecoderStep=Step))
    few, more = ([np.zeros(n)] * 4 for n in (1, 2))

    def run(rows: list[npt.NDArray[np.float64]]) -> None:
        cells = RecurrentBatch(rows, rows, [], np.zeros(1, np.int32))
        step.run(np.zeros(1, np.int64), np.zeros(1, np.int32), cells, np.zeros(1, np.int64))

    step = native_decoder.NativeStep(decoder, context.cache.pool)
    run(few)
    interrupting.append(True)
    with pytest.raises(KeyboardInterrupt):
        run(more)
    run(more)
    assert ran == [4, 4]


def test_a_step_is_built_once_for_the_rows_of_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = MagicMock(side_effect=native_decoder.NativeStep._build)
    monkeypatch.setattr(native_decoder.NativeStep, "_build", lambda step: build(step))
    context = Context(decoder_of(tmp_path, MAMBA), n_ctx=64, n_seq_max=8)
    for pos in range(3):
        context.decode(Batch.one([1], pos, logits=True))
    assert build.call_count == 1
