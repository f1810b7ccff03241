from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_models
import numpy as np
import pytest
import torch

from aleator.core.errors import AleatorError, FileFormatError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder
from aleator.models.files.safetensors import read_file
from aleator.models.layers.linear import tensor as in_torch
from aleator.models.weights import Weights, open_weights
from tests.drawn import differences
from tests.models.builders import hugging_face_tensors, model_json, model_tensors, write_directory


@pytest.mark.parametrize("shards", [1, 3])
def test_directory(tmp_path: Path, shards: int) -> None:
    weights = open_weights(write_directory(tmp_path / "model", shards=shards))
    expected = model_tensors()
    assert weights.kind == "safetensors"
    assert weights.gguf is None
    assert weights.config.rope.style == "neox"
    assert set(weights.names()) == set(expected)
    assert weights.n_parameters == sum(values.size for values in expected.values())
    assert weights.size_bytes == 4 * weights.n_parameters
    for name, values in expected.items():
        np.testing.assert_array_equal(weights.floats(name), values)
        stored = weights.stored(name)
        assert stored.type == "F32"
        assert not stored.data.flags.writeable


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    tensors = {name: values.to(dtype) for name, values in hugging_face_tensors().items()}
    weights = open_weights(write_directory(tmp_path / "model", tensors=tensors))
    assert weights.stored("blk.1.attn_v.weight").type == kind
    expected = tensors["model.layers.1.self_attn.v_proj.weight"]
    assert torch.equal(in_torch(weights, "blk.1.attn_v.weight", dtype), expected)
    assert np.array_equal(weights.floats("blk.1.attn_v.weight"), expected.float().numpy())


def test_names_of_each_architecture(tmp_path: Path) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}
    qwen2 = write_directory(
        tmp_path / "qwen2", model_json(model_type="qwen2"), hugging_face_tensors() | bias
    )
    assert "blk.0.attn_q.bias" in open_weights(qwen2)
    norm = {"model.layers.1.self_attn.k_norm.weight": torch.ones(128)}
    qwen3 = write_directory(
        tmp_path / "qwen3", model_json(model_type="qwen3"), hugging_face_tensors() | norm
    )
    assert "blk.1.attn_k_norm.weight" in open_weights(qwen3)
    llama = write_directory(tmp_path / "llama", None, hugging_face_tensors() | norm)
    with pytest.raises(UnsupportedModel, match=r"k_norm\.weight' is not part of .*'llama'"):
        open_weights(llama)


def test_tied_embeddings(tmp_path: Path) -> None:
    tensors, ones = hugging_face_tensors(), torch.ones(24, 32)
    same = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    tied = open_weights(write_directory(tmp_path / "tied", None, tensors | same))
    assert tied.config.tied
    assert "output.weight" not in tied
    for tie in (False, True):  # as in transformers, a matrix that differs is not tied
        path = write_directory(
            tmp_path / str(tie),
            model_json(tie_word_embeddings=tie),
            tensors | {"lm_head.weight": ones},
        )
        untied = open_weights(path)
        assert not untied.config.tied
        assert np.array_equal(untied.floats("output.weight"), ones)


def test_old_frequency_tensors_are_passed_over(tmp_path: Path) -> None:
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    weights = open_weights(write_directory(tmp_path / "m", None, hugging_face_tensors() | old))
    assert len(weights.names()) == len(hugging_face_tensors())


def test_tensors_beyond_the_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"layers\.1\..* with 1 layers"):
        open_weights(write_directory(tmp_path / "m", model_json(num_hidden_layers=1)))


def test_tensors_that_are_not_finite(tmp_path: Path) -> None:
    tensors = hugging_face_tensors()
    tensors["model.norm.weight"][7] = float("nan")
    weights = open_weights(write_directory(tmp_path / "m", None, tensors))
    with pytest.raises(FileFormatError, match=r"'output_norm\.weight' holds NaN"):
        weights.floats("output_norm.weight")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float8_e4m3fn])
def test_unsupported_types(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = hugging_face_tensors() | {"model.norm.weight": torch.ones(32).to(dtype)}
    with pytest.raises(UnsupportedModel, match=r"'model\.norm\.weight' has the type .*BF16"):
        open_weights(write_directory(tmp_path / "m", None, tensors))


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_empty_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = hugging_face_tensors() | {"model.norm.weight": torch.ones(shape)}
    with pytest.raises(FileFormatError, match=r"shape \["):
        open_weights(write_directory(tmp_path / "m", None, tensors))


def edit_index(directory: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    index = directory / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    edit(values)
    index.write_text(json.dumps(values))


def first_to(shard: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda index: index["weight_map"].update({"model.norm.weight": shard})


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..",
        ".",
        "",
        "C:x",
        "a\0b",
        "a" * 256,
        5,
        None,
    ],
)
def test_shards_stay_in_the_directory(tmp_path: Path, shard: Any) -> None:
    directory = write_directory(tmp_path / "m", shards=2)
    edit_index(directory, first_to(shard))
    with pytest.raises(FileFormatError, match="not the name of a file beside the index") as caught:
        open_weights(directory)
    assert caught.value.field == "weight_map"


def test_missing_shards_and_tensors(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "m", shards=2)
    edit_index(directory, lambda index: index["weight_map"].update({"lm_head.weight": "x.st"}))
    with pytest.raises(FileFormatError, match=r"x\.st: the shard is missing"):
        open_weights(directory)
    edit_index(
        directory,
        lambda index: index["weight_map"].update(
            {"lm_head.weight": "model-00001-of-00002.safetensors"}
        ),
    )
    with pytest.raises(FileFormatError, match=r"'lm_head\.weight' is missing"):
        open_weights(directory)
    edit_index(directory, lambda index: index.pop("weight_map"))
    with pytest.raises(FileFormatError, match="weight_map"):
        open_weights(directory)
    (directory / "model.safetensors.index.json").unlink()
    with pytest.raises(FileFormatError, match=r"neither model\.safetensors nor"):
        open_weights(directory)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"hidden_size": ' + b"9" * 10_000 + b"}",
        b"null",
    ],
    ids=["empty", "cut", "list", "string", "utf-16", "deep", "digits", "null"],
)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_damaged_json(tmp_path: Path, file: str, text: bytes) -> None:
    directory = write_directory(tmp_path / "m", shards=2)
    (directory / file).write_bytes(text)
    with pytest.raises(FileFormatError, match=file.replace(".", r"\.")):
        open_weights(directory)


def read_all(directory: Path) -> Weights:
    weights = open_weights(directory)
    for name in weights.names():
        weights.floats(name)
    return weights


def test_truncated_or_mutated_files(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "m")
    file, rng = directory / "model.safetensors", random.Random(3)
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for place in [rng.randrange(len(data)) for _ in range(50)] + [rng.randrange(header), 0, 8]:
        file.write_bytes(data[:place])
        with pytest.raises(FileFormatError):
            open_weights(directory)
    refused = 0
    for _ in range(200):
        changed = bytearray(data)
        changed[rng.randrange(header)] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        try:
            read_all(directory)
        except AleatorError:
            refused += 1
    assert refused > 100


PLAIN = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}


def raw_safetensors(header: object, n: int = 12, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return size.to_bytes(8, "little") + text + bytes(n)


def small(**changes: Any) -> bytes:
    return raw_safetensors({"t": PLAIN | changes})


DAMAGED: dict[str, bytes] = {
    "7 bytes": bytes(7),
    "longer than the file": raw_safetensors({"t": PLAIN}, 0, 1 << 40),
    "one byte longer than the file": raw_safetensors(b"{}", 0, 3),
    "no JSON": raw_safetensors(b"{"),
    "no object": raw_safetensors([1]),
    "a name twice": raw_safetensors(b'{"a": 1, "a": 2}'),
    "a long name": raw_safetensors({"t" * 1001: PLAIN}),
    "no entry": raw_safetensors({"t": 5}),
    "no type": small(dtype=7),
    "another type": small(dtype="I64"),
    "no shape": small(shape=5),
    "a shape of text": small(shape=["2"]),
    "a shape of booleans": small(shape=[True, 6]),
    "a negative shape": small(shape=[-2, -3]),
    "a large shape": small(shape=[1 << 62]),
    "nine dimensions": small(shape=[1] * 8 + [6]),
    "no dimensions": small(shape=[], data_offsets=[0, 2]),
    "zero": small(shape=[0, 3], data_offsets=[0, 0]),
    "three places": small(data_offsets=[0, 12, 12]),
    "a place beyond the file": small(data_offsets=[2, 14]),
    "a place that is too short": small(data_offsets=[0, 10]),
    "a place turned round": small(data_offsets=[12, 0]),
    "a gap": raw_safetensors({"t": PLAIN, "u": PLAIN | {"data_offsets": [14, 26]}}, 26),
    "a gap at the begin": raw_safetensors({"t": PLAIN | {"data_offsets": [2, 14]}}, 14),
    "bytes twice": raw_safetensors({"t": PLAIN, "u": PLAIN}, 24),
    "bytes at the end": raw_safetensors({"t": PLAIN}, 13),
}


def test_messages_of_damaged_files_are_on_record(tmp_path: Path) -> None:
    file, said = tmp_path / "f.safetensors", {}
    for name, data in DAMAGED.items():
        file.write_bytes(data)
        with pytest.raises(AleatorError) as caught:
            read_file(file)
        said[name] = [type(caught.value).__name__, str(caught.value).replace(str(file), "FILE")]
    assert differences("damaged_safetensors", [said]) == []


def test_tensors_are_in_the_order_of_their_data(tmp_path: Path) -> None:
    file = tmp_path / "f.safetensors"
    wide: dict[str, Any] = {"dtype": "F32", "shape": [1] * 7 + [2], "data_offsets": [12, 20]}
    header = {"u": wide, "__metadata__": {"a": "b"}, "t": PLAIN}
    file.write_bytes(raw_safetensors(header, 0) + bytes(range(20)))
    found = read_file(file)
    assert [(name, each.type, each.shape) for name, each in found.items()] == [
        ("t", "F16", (2, 3)), ("u", "F32", (1,) * 7 + (2,)),
    ]  # fmt: skip
    assert [bytes(each.data) for each in found.values()] == [bytes(range(12)), bytes(range(12, 20))]
    file.write_bytes(raw_safetensors(b"{}", 0))
    assert read_file(file) == {}


def as_hugging_face(arch: str, name: str, values: Any) -> tuple[str, torch.Tensor]:
    """A tensor of make_models under its Hugging Face name and in its form."""
    tensor = torch.from_numpy(values).clone()
    _, layer, stem = name.split(".", 2) if name.startswith("blk.") else ("", "", name)
    if arch == "mamba":
        stems = {
            "token_embd.weight": "backbone.embeddings.weight",
            "output_norm.weight": "backbone.norm_f.weight",
            "attn_norm.weight": "norm.weight",
            "ssm_a": "mixer.A_log",
            "ssm_d": "mixer.D",
        }
        parts = {
            "in": "in_proj",
            "x": "x_proj",
            "dt": "dt_proj",
            "out": "out_proj",
            "conv1d": "conv1d",
        }
        stems |= {
            f"ssm_{ours}.{kind}": f"mixer.{theirs}.{kind}"
            for ours, theirs in parts.items()
            for kind in ("weight", "bias")
        }
        if stem == "ssm_a":
            tensor = (-tensor).log()
        elif stem == "ssm_conv1d.weight":
            tensor = tensor[:, None, :]
        prefix = f"backbone.layers.{layer}." if layer else ""
        return prefix + stems[stem], tensor.contiguous()
    stems = {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "attn_norm": "input_layernorm",
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
    }
    for part, theirs in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj")):
        stems[f"attn_{part}"] = f"self_attn.{theirs}"
        stems[f"attn_{part}_norm"] = f"self_attn.{part}_norm"
    stems |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    if "norm" in stem:
        tensor -= 1.0
    prefix = f"model.layers.{layer}." if layer else ""
    return f"{prefix}{stems[stem.removesuffix('.weight')]}.weight", tensor


@pytest.mark.parametrize("name", ["gemma3", "mamba"])
def test_gemma3_and_mamba_equal_their_gguf(tmp_path: Path, name: str) -> None:
    spec = make_models.SPECS[name]
    tensors = dict(spec.each_tensor())
    config: dict[str, Any] = {
        "vocab_size": spec.n_vocab,
        "hidden_size": spec.n_embd,
        "num_hidden_layers": spec.n_layers,
        "tie_word_embeddings": True,
    }
    if name == "mamba":
        config |= {"model_type": "mamba", "time_step_rank": spec.dt_rank}
    else:
        config |= {
            "model_type": "gemma3_text",
            "intermediate_size": spec.n_ff,
            "num_attention_heads": spec.n_heads,
            "num_key_value_heads": spec.n_kv_heads,
            "head_dim": spec.head_dim,
            "query_pre_attn_scalar": spec.head_dim,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": spec.context,
            "rope_scaling": {"rope_type": "linear", "factor": spec.factor},
            "sliding_window": spec.window,
        }
    named = dict(as_hugging_face(spec.arch, key, values) for key, values in tensors.items())
    rows = []
    for path in (
        make_models.write_model(tmp_path / "m.gguf", spec),
        write_directory(tmp_path / "hf", config, named),
    ):
        context = Context(build_decoder(open_weights(path)), n_ctx=64, type_k="f32", type_v="f32")
        rows.append(context.decode(Batch.one(range(30), logits=True)))
    # GELU of a GGUF file is rounded to float16, as in llama.cpp.
    tolerance = 1e-3 if name == "gemma3" else 1e-5
    assert np.abs(rows[0] - rows[1]).max() < tolerance * (rows[0].max() - rows[0].min())


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_a_header_may_fill_the_file(more: int, fits: bool, tmp_path: Path) -> None:
    header = b'{"__metadata__": {}}'
    file = tmp_path / "model.safetensors"
    file.write_bytes((len(header) + more).to_bytes(8, "little") + header)
    if fits:
        assert read_file(file) == {}
        return
    with pytest.raises(FileFormatError, match="is longer than the file"):
        read_file(file)


def test_the_fingerprint_of_a_directory_is_of_all_that_makes_the_model(tmp_path: Path) -> None:
    prints = set()
    for change in ("none", "config", "tensor"):
        tensors = hugging_face_tensors()
        if change == "tensor":
            tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
        config = model_json(**({"rope_theta": 2.0} if change == "config" else {}))
        made = [
            open_weights(write_directory(tmp_path / f"{change}{n}", config, tensors, n))
            for n in (1, 3)
        ]
        identities = [each.identity() for each in made]
        assert len({each.fingerprint for each in identities}) == 1  # however it is divided
        assert [each.path for each in identities] == [str(each.path.resolve()) for each in made]
        prints.add(identities[0].fingerprint)
    assert len(prints) == 3
