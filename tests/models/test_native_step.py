"""A whole decoder in one native call, against a float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from make_models import SPECS, write_model

from aleator import _native
from aleator.core.threads import pool as thread_pool
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.models.native_parts import attention, decoder_step, weight

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    """Dimensions of a test decoder; ``rotated`` channels of each head are turned."""

    n_embd: int = 48
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    dim_v: int = 16
    rotated: int = 16
    ff: int = 80
    vocab: int = 37
    interleaved: bool = True
    bias: bool = False
    head_norm: bool = False
    cache: str = "F32"
    gain: float = 1.0
    n_cells: int = 40
    layers: int = 2
    keys_as_values: bool = False
    normalised_values: bool = False
    output_scale: float = 1.0


SHAPES = {
    "llama": Shape(),
    "neox": Shape(interleaved=False, heads=6, kv_heads=1),
    "qwen2": Shape(interleaved=False, bias=True, heads=2, kv_heads=2, dim=32, dim_v=32, rotated=32),
    "qwen3": Shape(interleaved=False, head_norm=True, dim=24, dim_v=24, rotated=24),
    "odd": Shape(n_embd=37, dim=22, dim_v=13, rotated=10, ff=51, heads=3, kv_heads=3, bias=True),
    "wide heads": Shape(dim=80, dim_v=128, rotated=80, heads=2, kv_heads=1, n_embd=96),
    "far gates": Shape(gain=60.0),
    "gemma4": Shape(
        interleaved=False,
        head_norm=True,
        keys_as_values=True,
        normalised_values=True,
        output_scale=0.75,
    ),
    "normalised values": Shape(normalised_values=True, dim_v=24, output_scale=-1.5),
    "f16 cache": Shape(cache="F16"),
    "bf16 cache": Shape(cache="BF16", interleaved=False),
}
STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
NUMBERS = ("q", "k", "v", "o", "gate", "up", "down")


def seen(visible: npt.NDArray[np.bool_]) -> tuple[Any, ...]:
    """Lists of what each token sees, one list per token."""
    lists = [np.flatnonzero(row) for row in visible]
    count = np.array([len(x) for x in lists], np.int64)
    start = np.concatenate(([0], count.cumsum()))
    cells = np.concatenate(lists).astype(np.int32)
    return cells, start, np.arange(len(lists), dtype=np.int32), count, None


class Model:
    """Random weights, the native step over them, and the same computed in float64."""

    def __init__(self, s: Shape) -> None:
        self.s = s
        rng = np.random.default_rng(5)
        sizes = {
            "q": (s.heads * s.dim, s.n_embd),
            "k": (s.kv_heads * s.dim, s.n_embd),
            "v": (s.kv_heads * s.dim_v, s.n_embd),
            "o": (s.n_embd, s.heads * s.dim_v),
            "gate": (s.ff, s.n_embd),
            "up": (s.ff, s.n_embd),
            "down": (s.n_embd, s.ff),
        }

        def matrix(out: int, n: int) -> Floats:
            values: Floats = (rng.standard_normal((out, n)) / np.sqrt(n)).astype(np.float32)
            return values

        def vector(n: int) -> Floats:
            values: Floats = (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)
            return values

        self.embedding = matrix(s.vocab, s.n_embd) * np.float32(np.sqrt(s.n_embd))
        self.output, self.output_norm = matrix(s.vocab, s.n_embd), vector(s.n_embd)
        self.layers = []
        for _ in range(s.layers):
            layer: dict[str, Any] = {name: matrix(*sizes[name]) for name in NUMBERS}
            layer["gate"] *= np.float32(s.gain)
            for name in "qkv":
                layer[name + "_bias"] = vector(sizes[name][0]) if s.bias else None
            for name, n in (("attn", s.n_embd), ("ffn", s.n_embd), ("q", s.dim), ("k", s.dim)):
                has = s.head_norm or n == s.n_embd
                layer[name + "_norm"] = vector(n) if has else None
            self.layers.append(layer)
        self.frequencies = 100.0 ** (-np.arange(s.rotated // 2) * 2.0 / s.rotated)
        self.scale = s.dim**-0.5
        shape = (s.layers, s.n_cells, s.kv_heads)
        self.keys: npt.NDArray[Any] = np.zeros((*shape, s.dim), STORED[s.cache])
        self.values: npt.NDArray[Any] = np.zeros((*shape, s.dim_v), STORED[s.cache])
        self.step = self._native()

    def _native(self) -> Any:
        def memory(cells: npt.NDArray[Any]) -> Any:
            data = cells.reshape(-1).view(np.uint8)
            return _native.CacheMemory(data, self.s.cache, *cells.shape)

        step = decoder_step(
            self.frequencies,
            self.s.interleaved,
            embedding=[weight(self.embedding)],
            output=[weight(self.output)],
            output_norm=self.output_norm,
            eps=EPS,
            attention_scale=self.scale,
            head_norm="head" if self.layers[0]["q_norm"] is not None else "",
        )
        for i, layer in enumerate(self.layers):
            matrices = {name: weight(layer[name], layer.get(name + "_bias")) for name in NUMBERS}
            ffn = SimpleNamespace(
                gate_up=[matrices["gate"], matrices["up"]], down=[matrices["down"]], gated=True
            )
            block = attention(
                qkv=[matrices[name] for name in ("qk" if self.s.keys_as_values else "qkv")],
                output=[matrices["o"]],
                ffn=ffn,
                **{f"{name}_norm": layer[name + "_norm"] for name in ("attn", "ffn", "q", "k")},
                v_norm=np.ones(self.s.dim_v, np.float32) if self.s.normalised_values else None,
                output_scale=np.array([self.s.output_scale], np.float32),
            )
            step.add_attention(block, memory(self.keys[i]), memory(self.values[i]))
        return step

    def run(self, ids: Any, positions: Any, cells: Any, visible: Any, threads: int = 1) -> Floats:
        """Native logits of every token."""
        ids = np.asarray(ids)
        logits = np.full((len(ids), self.s.vocab), np.nan, np.float32)
        tokens, vectors = (ids.astype(np.int64), None) if ids.ndim == 1 else (None, ids)
        self.step.run(
            thread_pool(threads),
            tokens,
            vectors,
            np.asarray(positions, np.int32),
            np.asarray(cells, np.int64),
            *seen(np.asarray(visible, bool)),
            np.arange(len(ids)),
            logits,
        )
        return logits

    def reference(
        self, ids: Any, positions: Any, cells: Any, visible: Any, keys: Doubles, values: Doubles
    ) -> Doubles:
        """The same in float64; keys and values [layers, cells, heads, dim] are written too."""
        s, visible = self.s, np.asarray(visible, bool)
        x = self.embedding.astype(np.float64)[ids]
        t, n = len(ids), visible.shape[1]
        for i, w in enumerate(self.layers):
            h = rms_norm(x, w["attn_norm"])
            bias = {name: 0.0 if w[name + "_bias"] is None else w[name + "_bias"] for name in "qkv"}
            q, k, v = (h @ w[name].T.astype(np.float64) + bias[name] for name in "qkv")
            q, k = q.reshape(t, s.heads, s.dim), k.reshape(t, s.kv_heads, s.dim)
            v = k.copy() if s.keys_as_values else v.reshape(t, s.kv_heads, s.dim_v)
            if s.normalised_values:
                v = rms_norm(v, np.ones(s.dim_v, np.float32))
            if s.head_norm:
                q, k = rms_norm(q, w["q_norm"]), rms_norm(k, w["k_norm"])
            q, k = self.turn(q, positions), self.turn(k, positions)
            keys[i, cells] = rounded(k, s.cache)
            values[i, cells] = rounded(v, s.cache)
            group = np.arange(s.heads) // (s.heads // s.kv_heads)
            scores = np.einsum("thd,nhd->thn", q, keys[i, :n][:, group]) * self.scale
            scores[~np.repeat(visible[:, None], s.heads, 1)] = -np.inf
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            mixed = np.einsum("thn,nhd->thd", p, values[i, :n][:, group]).reshape(t, -1)
            x = x + mixed @ w["o"].T.astype(np.float64)
            h = rms_norm(x, w["ffn_norm"])
            gate, up = h @ w["gate"].T.astype(np.float64), h @ w["up"].T.astype(np.float64)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"].T.astype(np.float64)
            x = x * s.output_scale
        logits: Doubles = rms_norm(x, self.output_norm) @ self.output.T.astype(np.float64)
        return logits

    def turn(self, x: Doubles, positions: Any) -> Doubles:
        r, x = self.s.rotated, x.copy()
        angle = np.asarray(positions)[:, None, None] * self.frequencies
        a, b = slice(r // 2), slice(r // 2, r)
        if self.s.interleaved:
            a, b = slice(0, r, 2), slice(1, r, 2)
        first, second = x[..., a].copy(), x[..., b].copy()
        x[..., a] = first * np.cos(angle) - second * np.sin(angle)
        x[..., b] = first * np.sin(angle) + second * np.cos(angle)
        return x


def rms_norm(x: Doubles, weight: Floats) -> Doubles:
    y: Doubles = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight
    return y


def rounded(x: Doubles, kind: str) -> Doubles:
    """Numbers as a cache of that type keeps them."""
    if kind != "BF16":
        return x.astype(np.float32).astype(STORED[kind]).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32)
    return exact(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))


def exact(stored: npt.NDArray[Any]) -> Doubles:
    """What a cache's numbers stand for."""
    if stored.dtype == np.uint16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


# Token ids, positions, cells, and the cells each token sees: a prefill over scattered cells, one
# token, and two sequences at once which see nothing of each other.
STEPS: list[tuple[list[int], list[int], list[int], list[list[int]]]] = [
    (
        [3, 1, 4, 1, 5],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 5, 6],
        [[0], [0, 1], [0, 1, 2], [0, 1, 2, 5], [0, 1, 2, 5, 6]],
    ),
    ([9], [5], [30], [[0, 1, 2, 5, 6, 30]]),
    ([2, 6, 5], [6, 900, 901], [7, 38, 39], [[0, 1, 2, 5, 6, 30, 7], [38], [38, 39]]),
]


def steps() -> Iterator[tuple[list[int], list[int], list[int], npt.NDArray[np.bool_]]]:
    for ids, positions, cells, seen in STEPS:
        visible = np.zeros((len(ids), 40), bool)
        for row, columns in zip(visible, seen, strict=True):
            row[columns] = True
        yield ids, positions, cells, visible


# Rounding to the cache's type may fall to the other side of a tie when the float32 sum differs in its last bit.
TOLERANCE = {"F32": 2e-6, "F16": 3e-4, "BF16": 3e-3}


@pytest.mark.parametrize("name", SHAPES)
def test_step_against_float64(name: str) -> None:
    model = Model(SHAPES[name])
    keys, values = (np.zeros(t.shape) for t in (model.keys, model.values))
    for ids, positions, cells, visible in steps():
        expected = model.reference(ids, positions, cells, visible, keys, values)
        got = model.run(ids, positions, cells, visible)
        error = np.abs(got - expected).max() / np.ptp(expected)
        assert error < TOLERANCE[model.s.cache]
    for stored, wanted in ((model.keys, keys), (model.values, values)):
        tolerance = {"F32": 1e-5, "F16": 2e-3, "BF16": 2e-2}[model.s.cache]
        np.testing.assert_allclose(exact(stored), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["llama", "odd", "qwen3"])
@pytest.mark.parametrize("tokens", [8, 9, 33, 40])
def test_long_micro_batches_against_float64(name: str, tokens: int) -> None:
    rows = []
    for threads in (1, 2, 3):
        model = Model(SHAPES[name])
        rng = np.random.default_rng(tokens)
        ids = rng.integers(0, model.s.vocab, tokens)
        cells = rng.permutation(40)[:tokens]
        visible = np.zeros((tokens, 40), bool)
        visible[:, cells] = np.tri(tokens, dtype=bool)
        step = (ids, np.arange(tokens), cells, visible)
        rows.append(model.run(*step, threads=threads))
    keys, values = (np.zeros(t.shape) for t in (model.keys, model.values))
    expected = model.reference(*step, keys, values)
    assert np.abs(rows[0] - expected).max() < 2e-6 * np.ptp(expected)
    assert rows[0].tobytes() == rows[1].tobytes() == rows[2].tobytes()


def test_bits_do_not_depend_on_threads_or_company() -> None:
    runs = []
    for threads in (1, 2, 3):
        model = Model(SHAPES["qwen3"])
        runs.append([model.run(*step, threads=threads).tobytes() for step in steps()])
    assert runs[0] == runs[1] == runs[2]
    together = Model(SHAPES["llama"])
    alone = Model(SHAPES["llama"])
    ids, positions, cells, visible = next(steps())
    rows = together.run(ids, positions, cells, visible)
    for i in range(len(ids)):
        part = slice(i, i + 1)
        row = alone.run(ids[part], positions[part], cells[part], visible[part])
        assert row.tobytes() == rows[part].tobytes()


@pytest.mark.parametrize("shape", [SHAPES["odd"], Shape(n_embd=1024, ff=1024)])
def test_bits_of_products_and_norms_do_not_depend_on_a_large_batch(shape: Shape) -> None:
    """Tokens that see only themselves: 40 together, 7 together and alone; with rows 4 KiB apart, too."""
    ids = np.random.default_rng(3).integers(0, shape.vocab, 40)
    places, own = np.arange(40), np.eye(40, dtype=bool)
    together = Model(shape).run(ids, places, places, own, threads=2)
    for first, n in ((0, 7), (7, 1), (39, 1)):
        part = slice(first, first + n)
        rows = Model(shape).run(ids[part], places[part], places[part], own[part])
        assert rows.tobytes() == together[part].tobytes()


def test_input_vectors_are_as_good_as_tokens() -> None:
    by_token, by_vector = Model(SHAPES["llama"]), Model(SHAPES["llama"])
    ids, positions, cells, visible = next(steps())
    expected = by_token.run(ids, positions, cells, visible)
    got = by_vector.run(by_vector.embedding[ids], positions, cells, visible)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ids": [37]}, "token 37"),
        ({"ids": [-1]}, "token -1"),
        ({"cells": [40]}, "cell 40"),
        ({"cells": [-1]}, "cell -1"),
        ({"cells": [1, 2]}, "cells, seen_list"),
        ({"visible": np.ones((2, 4))}, "cells, seen_list"),
        ({"visible": np.ones((1, 41))}, "seen cell 40"),
        ({"positions": [1, 2]}, "positions"),
        ({"ids": np.zeros((1, 47), np.float32)}, "positions"),
    ],
)
def test_bad_arguments_change_nothing(change: dict[str, Any], match: str) -> None:
    model = Model(SHAPES["llama"])
    arguments = {"ids": [1], "positions": [0], "cells": [0], "visible": np.ones((1, 1)), **change}
    with pytest.raises(ValueError, match=match):
        model.run(**arguments)
    assert not model.keys.any()


def test_shapes_that_disagree_are_named() -> None:
    model = Model(SHAPES["llama"])
    model.layers[0]["up"] = model.layers[0]["up"][:-1].copy()
    with pytest.raises(ValueError, match=r"blk\.0\.ffn_up\.weight is \[79, 48\], not \[80, 48\]"):
        model._native()
    model = Model(SHAPES["llama"])
    model.layers[1]["attn_norm"] = model.layers[1]["attn_norm"][:-1].copy()
    with pytest.raises(ValueError, match=r"blk\.1\.attn_norm\.weight has 47 elements, not 48"):
        model._native()
    with pytest.raises(ValueError, match="is not"):
        _native.CacheMemory(np.zeros(100, np.uint8), "F16", 5, 2, 4)


def test_a_layer_that_is_refused_changes_nothing() -> None:
    """Nor is what it takes in place of x counted among what enters."""
    e, wide, dim, ff = 16, 24, 8, 5
    one = np.ones((1, e), np.float32)
    step: Any = decoder_step(np.zeros(0), True, embedding=[weight(one)], output_norm=one[0], eps=EPS,
                             attention_scale=1.0)  # fmt: skip
    memory = [_native.CacheMemory(np.zeros(4 * dim, np.uint8), "F32", 1, 1, dim) for _ in range(2)]

    def add(n_in: int) -> None:
        def matrix(out: int, n: int) -> list[SimpleNamespace]:
            return [weight(np.zeros((out, n), np.float32))]

        ffn = SimpleNamespace(gate_up=matrix(ff, n_in), down=matrix(e, ff))
        block = attention(wide=wide, qkv=3 * matrix(dim, wide), output=matrix(e, dim), attn_norm=None,
                          ffn_norm=one[0], ffn=ffn)  # fmt: skip
        step.add_attention(block, *memory)

    with pytest.raises(ValueError, match=r"blk\.0\.ffn_up\.weight is \[5, 17\], not \[5, 16\]"):
        add(e + 1)
    add(e)
    zero, given, made = np.zeros(1, np.int64), np.ones((1, e + wide), np.float32), 2 * one
    step.run(thread_pool(1), None, given, np.zeros(1, np.int32), zero, *seen(np.ones((1, 1), bool)), zero,
             made)  # fmt: skip
    assert np.allclose(made, 1)


# Through Context


def test_raw_keys_far_from_the_first_position_take_no_more_than_near(tmp_path: Any) -> None:
    spec = replace(SPECS["llama"], type="F32", context=2**20 + 64)
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", spec)))
    make = partial(Context, decoder, n_ctx=32, type_k="f32", type_v="f32")
    far, plain = make(k_storage="raw"), make()
    before = resident()
    for start in (2**20, 12):
        for pos in range(start, start + 8):
            got, expected = (c.decode(Batch.one([pos % 7], pos)) for c in (far, plain))
            assert np.abs(got - expected).max() < 1e-3 * (expected.max() - expected.min())
        for context in (far, plain):
            context.cache.seq_rm(0, -1, -1)
    assert resident() - before < 2**24  # a table of all positions before them: 64 MiB of angles


def resident() -> int:
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0


@pytest.mark.parametrize("threads", [1, 2])
def test_many_tokens_meet_the_keys_of_their_own_layer_and_step(
    tmp_path: Path, threads: int
) -> None:
    """Layers with one head and steps over the same cells: nothing of their keys is left from before."""
    spec = replace(SPECS["llama"], n_kv_heads=1, type="F32")
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", spec)))
    together, alone = (Context(decoder, n_ctx=128, n_threads=n) for n in (threads, 1))
    for first in (3, 5):  # the second text's keys in the cells of the first one's
        text = [(first * i) % spec.n_vocab for i in range(100)]
        got = together.decode(Batch.one(text, 0))
        for pos, token in enumerate(text):
            expected = alone.decode(Batch.one([token], pos))
        assert got.tobytes() == expected.tobytes()
        for context in (together, alone):
            context.cache.seq_rm(0, -1, -1)


def test_the_number_of_threads_does_not_change_logits(make_decoder: Any) -> None:
    rows = []
    for threads in (1, 2):
        ctx = Context(make_decoder("llama"), n_ctx=64, n_threads=threads)
        rows.append(ctx.decode(Batch.one([3, 1, 4, 1, 5], 0, logits=True)))
        rows[-1] = np.concatenate((rows[-1], ctx.decode(Batch.one([9], 5))))
    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_token_s_matrices_are_read_in_several_streams_and_in_order(
    kind: str, tmp_path: Path
) -> None:
    """Steps of one token try both ways in turns; these matrices are large enough for both."""
    spec = replace(SPECS["llama"], type=kind, n_layers=1, n_embd=512, n_ff=1024)
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", spec)))
    together, alone = (Context(decoder, n_ctx=32, n_threads=2) for _ in range(2))
    text = [(5 * i) % spec.n_vocab for i in range(24)]
    expected = together.decode(Batch.one(text, 0, logits=True))
    for pos, token in enumerate(text):
        assert alone.decode(Batch.one([token], pos)).tobytes() == expected[pos].tobytes()
