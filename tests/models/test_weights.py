from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from model_file import write_model
from wide_models import SMALL

from aleator.core.errors import FileFormatError, ModelNotFound, ParameterError, UnsupportedModel
from aleator.models.build import build_decoder
from aleator.models.files.mapping import lock
from aleator.models.weights import open_weights
from tests.models.builders import model_metadata, model_tensors, raw_gguf, tensor, write_gguf


def test_gguf_weights(tmp_path: Path) -> None:
    tensors = model_tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors=tensors)
    weights = open_weights(str(path))
    assert (weights.kind, weights.path) == ("gguf", path)
    assert weights.gguf is not None
    assert weights.config.n_embd == 32
    assert weights.names() == list(tensors)
    assert "blk.0.attn_q.weight" in weights
    assert "output.weight" not in weights
    assert weights.n_parameters == sum(values.size for values in tensors.values())
    assert weights.size_bytes == 4 * weights.n_parameters
    for name, values in tensors.items():
        np.testing.assert_array_equal(weights.floats(name), values)
        weights.expect(name, values.shape)


def test_rotary_divisors_are_no_parameters(tmp_path: Path) -> None:
    tensors = model_tensors() | {"rope_freqs.weight": np.ones(4, np.float32)}
    weights = open_weights(write_gguf(tmp_path / "m.gguf", tensors=tensors))
    assert "rope_freqs.weight" in weights
    assert weights.n_parameters == sum(values.size for values in model_tensors().values())


def test_stored_types(tmp_path: Path) -> None:
    tensors = model_tensors()
    kinds = {
        "blk.0.attn_q.weight": GGMLQuantizationType.Q8_0,
        "blk.0.attn_k.weight": GGMLQuantizationType.Q4_0,
        "blk.1.attn_q.weight": GGMLQuantizationType.F16,
        "blk.1.attn_k.weight": GGMLQuantizationType.BF16,
    }
    raw = {name: gguf.quants.quantize(tensors[name], kind) for name, kind in kinds.items()}
    weights = open_weights(write_gguf(tmp_path / "m.gguf", None, tensors | raw, kinds))
    for name, kind in kinds.items():
        stored = weights.stored(name)
        assert (stored.type, stored.shape) == (kind.name, tensors[name].shape)
        expected = gguf.quants.dequantize(raw[name], kind)
        np.testing.assert_array_equal(weights.floats(name), expected)
    assert weights.stored("blk.0.attn_q.weight").data.size == 32 * 34
    assert weights.size_bytes == sum(weights.stored(name).data.size for name in weights.names())


def test_missing_tensors_and_wrong_shapes_are_named(tmp_path: Path) -> None:
    weights = open_weights(write_gguf(tmp_path / "m.gguf"))
    for call in (weights.floats, weights.stored, weights.check_finite):
        with pytest.raises(FileFormatError, match=r"'output\.weight' is missing"):
            call("output.weight")
    with pytest.raises(FileFormatError, match="missing"):
        weights.expect("output.weight", (24, 32))
    with pytest.raises(FileFormatError, match=r"shape \[24, 32\].*asks for \[32, 24\]") as caught:
        weights.expect("token_embd.weight", (32, 24))
    assert caught.value.field == "token_embd.weight"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("jamba", "blk.0.ssm_b_norm.weight"), ("jamba", "blk.1.attn_q.weight"),
        ("jamba", "blk.2.ffn_up.weight"), ("gpt-oss", "blk.1.attn_sinks.weight"),
        ("gpt-oss", "blk.1.ffn_down_exps.bias"), ("gpt-oss", "blk.1.ffn_gate_inp.bias"),
        ("qwen2moe", "blk.1.ffn_gate_inp.weight"),
        ("qwen2moe", "blk.1.ffn_up_exps.weight"), ("qwen2moe", "blk.1.ffn_down_shexp.weight"),
        ("qwen35", "blk.0.ssm_beta.weight"), ("qwen35", "blk.0.ssm_a"), ("qwen35", "blk.1.attn_q.weight"),
    ],
)  # fmt: skip
def test_a_model_names_the_tensor_that_it_lacks(model: str, name: str, tmp_path: Path) -> None:
    spec: Any = SMALL[model]
    tensors = dict(spec.each_tensor())
    del tensors[name]
    path = write_model(tmp_path / "m.gguf", spec, tensors)
    with pytest.raises(FileFormatError, match=re.escape(name.removesuffix(".weight"))):
        build_decoder(open_weights(path))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16]
)
def test_weights_that_are_not_finite(
    tmp_path: Path, value: float, kind: GGMLQuantizationType
) -> None:
    tensors = model_tensors()
    name = "blk.1.ffn_up.weight"
    tensors[name][63, 5] = value
    raw = {name: gguf.quants.quantize(tensors[name], kind)}
    weights = open_weights(write_gguf(tmp_path / "m.gguf", None, tensors | raw, {name: kind}))
    with pytest.raises(FileFormatError, match=rf"NaN or an infinity, near element {63 * 32 + 5}"):
        weights.floats(name)
    with pytest.raises(FileFormatError, match=r"blk\.1\.ffn_up"):
        weights.check_finite(name)
    weights.check_finite("blk.0.ffn_up.weight")


def test_numbers_beyond_float16_are_not_made_infinite(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from aleator.models.layers.linear import tensor as in_torch

    tensors = model_tensors()
    tensors["output_norm.weight"][3] = 1e6
    weights = open_weights(write_gguf(tmp_path / "m.gguf", tensors=tensors))
    with pytest.raises(ParameterError, match=r"'output_norm\.weight'.*use dtype bfloat16"):
        in_torch(weights, "output_norm.weight", torch.float16)
    rounded = in_torch(weights, "output_norm.weight", torch.bfloat16)
    assert (rounded.dtype, float(rounded[3])) == (torch.bfloat16, 999424.0)


def test_unsupported_tensor_type_is_refused_at_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors=model_tensors() | {"t": np.ones(256, np.int32)})
    with pytest.raises(UnsupportedModel, match=r"'t' has the type I32.*F32, F16, BF16, Q4_0"):
        open_weights(path)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_weights(tmp_path / "absent.gguf")
    with pytest.raises(FileNotFoundError):
        open_weights(tmp_path / "absent.gguf")
    with pytest.raises(FileFormatError, match=r"no config\.json"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(16))
    with pytest.raises(UnsupportedModel, match="give the directory"):
        open_weights(tmp_path / "model.safetensors")
    (tmp_path / "raw.gguf").write_bytes(raw_gguf(tensors=[tensor("t", [1])], data=bytes(4)))
    with pytest.raises(FileFormatError, match=r"general\.architecture"):
        open_weights(tmp_path / "raw.gguf")


def test_metadata_only(tmp_path: Path) -> None:
    metadata = model_metadata() | {"llama.vocab_size": 24}
    weights = open_weights(write_gguf(tmp_path / "m.gguf", metadata, {}))
    assert (weights.names(), weights.n_parameters, weights.size_bytes) == ([], 0, 0)


def test_weights_are_held_in_memory_as_far_as_the_system_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = open_weights(write_gguf(tmp_path / "m.gguf"))
    assert lock(weights.stored("output_norm.weight").data) == ""
    asked: list[int] = []

    def two(data: Any) -> str:
        asked.append(data.nbytes)
        return "" if len(asked) < 3 else "no more"

    monkeypatch.setattr("aleator.models.weights.lock", two)
    sizes = [weights.stored(name).data.nbytes for name in weights.names()]
    assert weights.lock() == (sum(sizes[:2]), "no more")
    assert asked == sizes[:3]
    monkeypatch.setattr("aleator.models.weights.lock", lambda data: "")
    assert weights.lock() == (sum(sizes), "")
