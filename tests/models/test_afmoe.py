"""afmoe's gates in a tensor of their own, and what files of the dense architectures lack or have too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dense_models import DENSE
from wide_models import write_model

from aleator import load
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.generate.imatrix import InputSums
from aleator.models import build_decoder, open_weights
from aleator.models.adapted import Part, behind_each_query
from aleator.models.column_orders import shared_orders
from aleator.models.config import present
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.weights import Weights, separated
from tests.models.adapters import ALPHA, RANK, write_adapter
from tests.models.check_transformers import relative
from tests.models.test_adapted import write_outer_peft
from tests.models.test_adapters import adapted, logits

Q, GATE = "blk.0.attn_q.weight", "blk.0.attn_gate.weight"


def test_gates_stand_behind_their_queries_in_any_type(tmp_path: Path) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE["afmoe"]))
    config, (n_out, n_in) = weights.config, weights.stored(Q).shape
    heads = config.n_heads[0]
    q, gate = (np.random.default_rng(i).random((n_out // 2, n_in), np.float32) for i in (1, 2))
    wanted = np.stack([each.reshape(heads, -1, n_in) for each in (q, gate)], 1)
    half = StoredTensor("F16", gate.shape, gate.astype(np.float16).view(np.uint8).reshape(-1))
    for other, tolerance in ((StoredTensor.of(gate), 0.0), (half, 1e-3)):
        given = {Q: StoredTensor.of(q), GATE: other}
        made = separated(given, weights.architecture, config)
        assert list(made) == [Q]
        assert made[Q].shape == (n_out, n_in)
        np.testing.assert_allclose(
            made[Q].floats(), wanted.reshape(n_out, n_in), rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("shapes", [[(64, 64), (1, 64)], [(64, 64), (12, 64)], [(64,), (64,)]])
def test_gates_of_another_size_are_not_joined(
    shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE["afmoe"]))
    tensors = (StoredTensor.of(np.ones(shape, np.float32)) for shape in shapes)
    given = dict(zip((Q, GATE), tensors, strict=True))
    assert separated(given, weights.architecture, weights.config) == given


@pytest.mark.parametrize("shared", [True, False])
def test_columns_in_another_order(shared: bool, tmp_path: Path) -> None:
    """All that takes attention's input has one order, or none has."""
    weights = open_weights(write_model(tmp_path / "m.gguf", replace(DENSE["afmoe"], type="Q8_0")))
    config, order = weights.config, np.arange(64, dtype=np.int32)[::-1].copy()
    names = [Q, GATE, Q.replace("_q", "_k"), Q.replace("_q", "_v")]
    given = {
        name: replace(weights.stored(names[2]), order=order if shared or name != GATE else None)
        for name in names
    }
    given[GATE] = replace(given[GATE], shape=given[Q].shape)
    made = separated(shared_orders(given, config), weights.architecture, config)
    assert list(made) == [Q, *names[2:]]
    assert all((each.order is not None) == shared for each in made.values())
    rows = given[Q].floats().reshape(config.n_heads[0], 1, -1, 64)
    gates = given[GATE].floats().reshape(rows.shape)
    both = np.concatenate([rows, gates], 1).reshape(made[Q].shape)
    np.testing.assert_allclose(made[Q].floats(), both, rtol=1e-3, atol=0)


def test_an_imatrix_has_the_gates_and_their_queries(tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "m.gguf", DENSE["afmoe"]))
    sums = InputSums(model.weights)
    list(sums.read(model.context(8), [1, 2, 3, 4], 4, 1, None))
    found = sums.found()
    for name in (Q, GATE):
        for mine, wanted in zip(found[name], found[Q.replace("_q", "_k")], strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_adapters_of_queries_and_gates_with_scales_of_their_own() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, *shape), np.float32) for shape in ((3, 8), (12, 3)))
    for scales in ((2.0, 0.5), (0.0, 3.0), (1.5, None), (None, 1.5)):
        query, gate = (
            None if scale is None else Part(StoredTensor.of(a[i]), StoredTensor.of(b[i]), scale)
            for i, scale in enumerate(scales)
        )
        made = behind_each_query(query, gate, heads=4)
        added = [np.float32(scale or 0) * (b[i] @ a[i]) for i, scale in enumerate(scales)]
        wanted = np.stack([each.reshape(4, 3, 8) for each in added], 1).reshape(24, 8)
        mine = np.float32(made.scale) * (made.b.floats() @ made.a.floats())
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)


def test_an_adapter_of_gates_with_one_value_a_head(tmp_path: Path) -> None:
    """spark2_5: it gives the logits of the model that has it merged."""
    path = write_model(tmp_path / "m.gguf", DENSE["spark2_5"])
    rng, weights = np.random.default_rng(0), open_weights(path)
    pair = rng.random((RANK, 64), np.float32), rng.random((4, RANK), np.float32) - 0.5
    file = write_adapter(tmp_path / "a.gguf", {GATE: pair}, architecture="spark2_5")
    gguf = present(weights.gguf)
    tensors = {name: gguf.stored(name) for name in gguf.tensors}
    merged = tensors[GATE].floats() + np.float32(ALPHA / RANK) * (pair[1] @ pair[0])
    tensors[GATE] = StoredTensor.of(merged.astype(np.float32))
    other = Weights(path, weights.architecture, weights.config, tensors, weights.gguf)
    wanted = logits(build_decoder(other))
    assert relative(logits(adapted(path, file), "a"), wanted) < 1e-5
    assert relative(logits(build_decoder(weights)), wanted) > 1e-3


def test_adapters_that_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", DENSE["afmoe"])
    at = "model.layers.0.self_attn.gate_proj.lora"
    parts = {f"{at}_A.weight": np.ones((RANK, 64), np.float32)}
    for rows, more, error, what in (
        (32, {}, FileFormatError, r"shape \[32, 64\], and the model's is \[64, 64\].*attn_gate"),
        (
            64,
            {f"{at}_magnitude_vector": np.ones(64, np.float32)},
            UnsupportedModel,
            "attn_gate.*DoRA",
        ),
    ):
        b = {f"{at}_B.weight": np.ones((rows, RANK), np.float32)}
        folder = write_outer_peft(tmp_path / str(rows), parts | b | more, use_dora=bool(more))
        with pytest.raises(error, match=what):
            adapted(model, folder)


def test_biases_of_another_size_are_refused(tmp_path: Path) -> None:
    """Those of queries, keys and values in one tensor, which files may lack."""
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE["gptneox"]))
    tensors = {name: weights.stored(name) for name in weights.names()}
    tensors = {name: each for name, each in tensors.items() if "attn_q.bias" not in name}
    tensors["blk.1.attn_qkv.bias"] = StoredTensor.of(np.ones(96, np.float32))
    given = Weights(weights.path, weights.architecture, weights.config, tensors, weights.gguf)
    with pytest.raises(FileFormatError, match=r"blk\.1\.attn_qkv\.bias.*192"):
        build_decoder(given)


def test_biases_of_gates_are_refused(tmp_path: Path) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE["spark2_5"]))
    tensors = {name: weights.stored(name) for name in weights.names()}
    tensors["blk.1.attn_gate.bias"] = StoredTensor.of(np.ones(4, np.float32))
    with pytest.raises(UnsupportedModel, match="biases of attention's gates"):
        build_decoder(Weights(weights.path, weights.architecture, weights.config, tensors))


@pytest.mark.parametrize("form", ["native", "torch"])
def test_a_norm_beside_attention_is_missed(form: str, tmp_path: Path) -> None:
    spec = replace(DENSE["gptneox"], norms=("attn_norm",))
    weights = open_weights(write_model(tmp_path / "m.gguf", spec))
    with pytest.raises(FileFormatError, match=r"blk\.0\.ffn_norm\.weight"):
        build_decoder(weights, form=form)


@pytest.mark.parametrize(
    ("key", "values", "error", "what"),
    [
        ("attention.head_count", [4, 4, 4, 4], UnsupportedModel, "a product instead of attention"),
        ("attention.head_count_kv", [2, 0, 3, 1], FileFormatError, "layer 2"),
        ("feed_forward_length", [96, 0, 96, 192], FileFormatError, r"feed_forward_length\[1\]"),
    ],
)
def test_layers_of_deci_that_are_refused(
    key: str, values: list[int], error: type[Exception], what: str, tmp_path: Path
) -> None:
    spec = replace(DENSE["deci"], meta={key: values})
    with pytest.raises(error, match=what):
        open_weights(write_model(tmp_path / "m.gguf", spec))


def test_a_dense_layer_behind_the_pooling_is_a_matrix(tmp_path: Path) -> None:
    spec = replace(DENSE["gemma"], arch="gemma-embedding", last_norm="dense_2")
    with pytest.raises(UnsupportedModel, match=r"dense_2\.weight"):
        open_weights(write_model(tmp_path / "m.gguf", spec))
