"""Converting a Hugging Face directory into a GGUF file; the architectures' own tests compare logits."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aleator.core.errors import (
    AleatorError,
    FileFormatError,
    ModelNotFound,
    ParameterError,
    UnsupportedModel,
)
from aleator.models import open_weights
from aleator.models.config import RopeConfig
from aleator.models.conversion import convert
from aleator.models.conversion.convert import ConvertedDirectory
from aleator.models.conversion.quantise import Quantisation
from aleator.models.conversions import otherwise_rotated
from aleator.models.delta_net import DeltaNetConfig
from aleator.models.directory import Directory
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.layers.rotation import frequencies
from tests.models.builders import (
    N_EMBD,
    N_FF,
    hugging_face_tensors,
    model_json,
    model_tensors,
    write_directory,
)
from tests.models.check_converted import NO_VOCABULARY, check_converted, converted

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def qwen2(path: Path, kind: str = "BF16", shards: int = 1, **changes: Any) -> Path:
    """A directory whose rows keep their order in GGUF."""
    tensors = hugging_face_tensors()
    for layer in range(2):
        for part, rows in (("q", 32), ("k", 16), ("v", 16)):
            name = f"model.layers.{layer}.self_attn.{part}_proj.bias"
            tensors[name] = torch.linspace(-1, 1, rows)
    stored = {name: values.to(TYPES[kind]) for name, values in tensors.items()}
    return write_directory(path, model_json(model_type="qwen2", **changes), stored, shards)


@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("shards", [1, 3])
def test_every_type_and_shards(kind: str, shards: int, tmp_path: Path) -> None:
    folder = qwen2(tmp_path / "m", kind, shards)
    check_converted(folder, [5, 3, 1, 9])
    file, directory = GGUFFile(folder / "converted.gguf"), open_weights(folder)
    assert set(file.tensors) == set(directory.names())
    for name in file.tensors:
        stored = file.stored(name)
        assert stored.type == ("F32" if len(stored.shape) == 1 else kind), name
        assert np.array_equal(stored.floats(), directory.floats(name))
    assert file.get("general.file_type", -1) == {"F32": 0, "F16": 1, "BF16": 32}[kind]
    assert file.get("general.quantization_version", 0) == 2


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "Q4_K_M"])
def test_a_directory_is_quantised_as_its_converted_file(kind: str, tmp_path: Path) -> None:
    folder = qwen2(tmp_path / "m", shards=2)
    whole, direct, after = (tmp_path / name for name in ("whole.gguf", "direct.gguf", "after.gguf"))
    converted(folder, whole)
    converted(folder, direct, kind)
    Quantisation(whole, kind).write(after, 1)
    assert direct.read_bytes() == after.read_bytes()


def test_rows_that_llama_cpp_rotates_together_become_neighbours(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    converted(write_directory(tmp_path / "m"), out)
    theirs, ours = model_tensors(), GGUFFile(out)
    for name, heads in (("blk.1.attn_q.weight", 4), ("blk.0.attn_k.weight", 2)):
        before = theirs[name].reshape(heads, 8, N_EMBD)
        after = ours.stored(name).floats().reshape(heads, 8, N_EMBD)
        assert np.array_equal(after[:, ::2], before[:, :4])
        assert np.array_equal(after[:, 1::2], before[:, 4:])
    assert np.array_equal(
        ours.stored("blk.0.attn_v.weight").floats(), theirs["blk.0.attn_v.weight"]
    )


def test_experts_become_one_tensor(tmp_path: Path) -> None:
    tensors, stacks = hugging_face_tensors(), {}
    for layer in range(2):
        at = f"model.layers.{layer}."
        for stem in ("gate", "up", "down"):
            del tensors[f"{at}mlp.{stem}_proj.weight"]
        tensors[f"{at}block_sparse_moe.gate.weight"] = torch.randn(3, N_EMBD)
        for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
            shape = (3, N_EMBD, N_FF) if ours == "down" else (3, N_FF, N_EMBD)
            stack = stacks[f"blk.{layer}.ffn_{ours}_exps.weight"] = torch.randn(shape)
            for i, matrix in enumerate(stack):
                tensors[f"{at}block_sparse_moe.experts.{i}.{theirs}.weight"] = matrix.clone()
    config = model_json(model_type="mixtral", num_local_experts=3, num_experts_per_tok=2)
    folder = write_directory(tmp_path / "m", config, tensors)
    check_converted(folder, [5, 3, 1, 9])
    file = GGUFFile(folder / "converted.gguf")
    for name, stack in stacks.items():
        assert np.array_equal(file.stored(name).floats(), stack.numpy())
    assert not any(".ffn_up.0." in name for name in file.tensors)
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    for changed, message in (
        (tensors | {name: torch.ones(3, 5)}, "differ in shape or type"),
        ({each: tensors[each] for each in tensors if each != name}, "expert 2 has no matrix"),
    ):
        with pytest.raises(FileFormatError, match=message):
            ConvertedDirectory(
                Directory(write_directory(tmp_path / "n", config, changed)), NO_VOCABULARY
            )


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.0, 2.0, 3.0, 4.0],
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_rotary_scaling(scaling: dict[str, Any], tmp_path: Path) -> None:
    folder = write_directory(tmp_path / "m", model_json(rope_scaling=scaling))
    check_converted(folder, [5, 3, 1, 9] * 4)
    file = open_weights(folder / "converted.gguf")
    assert file.config.rope.style == "norm"
    if scaling["rope_type"] == "llama3":
        wanted, _ = frequencies(open_weights(folder).config.rope)
        divisors = file.floats("rope_freqs.weight").astype(np.float64)
        found, _ = frequencies(file.config.rope, divisors)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    if scaling["rope_type"] == "longrope":
        assert file.floats("rope_factors_long.weight").tolist() == scaling["long_factor"]


def test_recommended_sampling_goes_along(tmp_path: Path) -> None:
    folder, out = qwen2(tmp_path / "m"), tmp_path / "out.gguf"
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}))
    converted(folder, out)
    wanted = {"temp": pytest.approx(0.6), "top_k": 20, "penalty_repeat": pytest.approx(1.1)}
    assert open_weights(out).recommended_sampling() == wanted | {"penalty_last_n": -1}
    path.write_text(json.dumps({"top_k": 1 << 40}))
    with pytest.raises(FileFormatError, match=r"top_k would be .* no number of 32 bits"):
        converted(folder, out)
    path.write_text(json.dumps({"num_beams": 4}))
    assert "num_beams" in converted(folder, out).left_out[0]
    assert open_weights(out).recommended_sampling() == {}


def test_windows_that_llama_cpp_does_without_are_told(tmp_path: Path) -> None:
    folder = write_directory(tmp_path / "m", model_json(model_type="mistral", sliding_window=48))
    left_out = converted(folder, tmp_path / "out.gguf").left_out
    assert left_out == ["windows of 48 positions: in longer texts all layers see all positions"]


def test_one_tensor_after_the_other(tmp_path: Path) -> None:
    """Every matrix of the gpt-oss directory is copied, and never two at once."""
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GptOssConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    folder = tmp_path / "m"
    transformers.GptOssForCausalLM(config).save_pretrained(folder)
    largest = 4 * 8 * 128 * 512
    tracemalloc.start()
    converted(folder, tmp_path / "out.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "out.gguf").stat().st_size > 8 * largest
    assert peak < 4 * largest


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_a_tensor(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.0.self_attn.q_proj.other"] = (
        "model-00001-of-00002.safetensors"
    )
    path.write_text(json.dumps(index))


def left_from_the_index(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.layers.0.self_attn.q_proj.weight"]
    path.write_text(json.dumps(index))


def hostile(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "shard is missing"),
        (without_a_tensor, "is missing; model.safetensors.index.json places it here"),
        (left_from_the_index, r"the tensor 'blk\.0\.attn_q\.weight' is missing"),
        (hostile, "its header of .* bytes is longer than the file"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: edit(folder, model_type="rwkv5"), "'rwkv5' is not supported"),
        (lambda folder: edit(folder, hidden_size=64), r"is of shape \[24, 32\]; .* \[24, 64\]"),
        (lambda folder: edit(folder, num_hidden_layers=3), r"'blk\.2\..*' is missing"),
        (lambda folder: edit(folder, intermediate_size=96), r"is of shape"),
        (
            lambda folder: edit(folder, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
            r"GGUF files cannot hold this model: .*'dynamic'",
        ),
        (
            lambda folder: edit(
                folder,
                rope_scaling={"rope_type": "llama3", "factor": 2.0}
                | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
            ),
            r"GGUF files cannot hold this model: .*'llama3'",
        ),
    ],
)  # fmt: skip
def test_refused_before_anything_is_written(
    change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    folder = qwen2(tmp_path / "m", shards=2)
    change(folder)
    with pytest.raises(AleatorError, match=message):
        converted(folder, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_where_it_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = qwen2(tmp_path / "m"), tmp_path / "out.gguf"
    plan = Quantisation(ConvertedDirectory(Directory(folder), NO_VOCABULARY), None)
    before = sorted((path.name, path.stat().st_size) for path in folder.iterdir())
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ParameterError, match="is the file that is read"):
            plan.write(folder / name)
    with pytest.raises(ParameterError, match="is no file"):
        plan.write(folder)

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    out.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        plan.write(out, 1, interrupted)
    assert out.read_bytes() == b"before"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ParameterError, match="1,000 are free on its disk"):
        plan.write(out)
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "out.gguf"]
    assert before == sorted((path.name, path.stat().st_size) for path in folder.iterdir())


def test_a_tensor_by_two_names_is_refused(tmp_path: Path) -> None:
    """Names with and without the prefix of models with pictures are the same tensor."""
    tensors = hugging_face_tensors()
    tensors["language_model.model.norm.weight"] = torch.ones(N_EMBD)
    folder = write_directory(tmp_path / "m", model_json(model_type="qwen2_vl"), tensors)
    for opened in (open_weights, lambda path: ConvertedDirectory(Directory(path), NO_VOCABULARY)):
        with pytest.raises(FileFormatError, match="is there twice, also as"):
            opened(folder)


def test_a_norm_with_a_number_too_many_is_refused(tmp_path: Path) -> None:
    """It is divided among groups; the rest must not push the tensors after it aside."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "num_hidden_layers": 1}
    config = transformers.Mamba2Config(vocab_size=96, hidden_size=32, **sizes)
    model = transformers.Mamba2ForCausalLM(config)
    norm = model.backbone.layers[0].mixer.norm
    norm.weight = torch.nn.Parameter(torch.ones(65))
    model.save_pretrained(tmp_path)
    with pytest.raises(AleatorError, match=r"ssm_norm.weight' is of shape \[65\]"):
        ConvertedDirectory(Directory(tmp_path), NO_VOCABULARY)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="none: no such file"):
        ConvertedDirectory(Directory(tmp_path / "none"), NO_VOCABULARY)


def test_types_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    tensors = hugging_face_tensors()
    tensors["model.norm.weight"] = torch.ones(N_EMBD, dtype=torch.int8)
    with pytest.raises(UnsupportedModel, match=r"'model\.norm\.weight' has the type I8"):
        ConvertedDirectory(Directory(write_directory(tmp_path / "m", None, tensors)), NO_VOCABULARY)


def numbers(*shape: int) -> StoredTensor:
    return StoredTensor.of(np.random.default_rng(shape).standard_normal(shape, np.float32))


@pytest.mark.parametrize(
    ("stem", "rows", "heads", "latent_dim", "fits"),
    [
        ("attn_q.weight", 24, 3, 0, True), ("attn_k.weight", 16, 2, 0, True), ("attn_q.bias", 24, 3, 0, True),
        ("attn_q.weight", 25, 3, 0, False), ("attn_q.weight", 24, 0, 0, False),
        ("attn_q.weight", 15, 3, 0, False), ("attn_q_b.weight", 24, 3, 4, True),
        ("attn_q_b.weight", 24, 3, 8, True), ("attn_q_b.weight", 24, 3, 10, False),
        ("attn_kv_a_mqa.weight", 9, 1, 4, True), ("attn_q_b.weight", 24, 3, 3, False),
    ],
)  # fmt: skip
def test_rows_of_rotated_heads(
    stem: str, rows: int, heads: int, latent_dim: int, fits: bool
) -> None:
    """The last ``dim`` rows of each head: those that are half of it apart become neighbours."""
    other = heads + 5
    config: Any = SimpleNamespace(
        n_heads=(9, heads if stem.startswith("attn_q") else other),
        n_kv_heads=(9, other if stem.startswith("attn_q") else heads),
        latent=object() if latent_dim else None, rope=SimpleNamespace(dim=latent_dim or 99),
    )  # fmt: skip
    values = np.arange(rows) if stem.endswith("bias") else np.arange(3 * rows).reshape(rows, 3)
    found = otherwise_rotated(values, stem, 1, config)
    if not fits:
        assert found is values
        return
    size = rows // heads
    dim = latent_dim or size
    order = np.arange(rows).reshape(heads, size).copy()
    last = order[:, size - dim :].reshape(heads, 2, dim // 2)
    order[:, size - dim :] = last.swapaxes(1, 2).reshape(heads, dim)
    assert np.array_equal(found, values[order.reshape(-1)])
    back = otherwise_rotated(found, stem, 1, config, neighbours=False)
    assert np.array_equal(back, values)


def test_gate_and_up_of_experts_are_divided_in_halves() -> None:
    whole = numbers(3, 6, 2)
    (first, gate), (second, up) = convert._halves(whole)
    assert (first, second) == ("gate", "up")
    assert np.array_equal(gate.floats(), whole.floats()[:, :3])
    assert np.array_equal(up.floats(), whole.floats()[:, 3:])
    odd = numbers(3, 5, 2)
    assert convert._halves(odd) == [("gate_up", odd)]


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_heads_of_values_in_llama_cpp_s_order(shared: int) -> None:
    """First the first head of each key head, then the second of each."""
    delta = DeltaNetConfig(2, 2 * shared, 4, 3, 4, 1e-6)
    config: Any = SimpleNamespace(delta=delta)
    heads = np.arange(2 * shared).reshape(2, shared).T.reshape(-1)
    rows = (heads[:, None] * 3 + np.arange(3)).reshape(-1)
    n, keys = 6 * shared, np.arange(16)
    for stem, size, order, axis in (
        ("attn_gate.weight", n, rows, 0), ("ssm_beta.weight", 2 * shared, heads, 0),
        ("ssm_a", 2 * shared, heads, 0), ("ssm_dt.bias", 2 * shared, heads, 0), ("ssm_out.weight", n, rows, 1),
        ("attn_qkv.weight", 16 + n, np.concatenate((keys, 16 + rows)), 0),
        ("ssm_conv1d.weight", 16 + n, np.concatenate((keys, 16 + rows)), 0),
        ("attn_norm.weight", n, np.arange(n), 0), ("ssm_norm.weight", n, np.arange(n), 0),
    ):  # fmt: skip
        tensor = (
            numbers(5, size)
            if axis
            else numbers(size)
            if stem in ("ssm_a", "ssm_dt.bias")
            else numbers(size, 5)
        )
        found = convert._tiled(config, stem, tensor)
        assert np.array_equal(found.floats(), np.take(tensor.floats(), order, axis)), stem
        longer = numbers(5, size + 1) if axis else numbers(size + 1, 5)
        assert convert._tiled(config, stem, longer) is longer


@pytest.mark.parametrize(
    ("rope", "architecture", "wanted"),
    [
        (RopeConfig(dim=8), "llama", {}),
        (RopeConfig(dim=8, style="none", scaling="llama3", factor=4.0), "llama", {}),
        (
            RopeConfig(dim=4, scaling="longrope", short_factors=(1.0, 2.0), long_factors=(3.0, 4.0)),
            "phi3", {"rope_factors_short": [1.0, 2.0], "rope_factors_long": [3.0, 4.0]},
        ),
        (RopeConfig(dim=8, factor=2.0), "gemma4", {"rope_freqs": [2.0] * 4}),
        (
            RopeConfig(dim=8, factor=2.0, scaling="proportional", n_rotated=3),
            "gemma4", {"rope_freqs": [2.0] * 3 + [float(np.float32(1e30))]},
        ),
    ],
)  # fmt: skip
def test_divisors_that_llama_cpp_wants(
    rope: RopeConfig, architecture: str, wanted: dict[str, list[float]]
) -> None:
    config: Any = SimpleNamespace(rope=rope, architecture=architecture)
    made = convert._computed(config)
    assert {name: each.floats().tolist() for name, each in made.items()} == {
        f"{name}.weight": values for name, values in wanted.items()
    }
