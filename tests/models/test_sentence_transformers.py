"""Directories of sentence-transformers: how vectors are pooled, and which texts are too long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.cli import main
from aleator.core.errors import ContextFull, FileFormatError, ParameterError, UnsupportedModel
from aleator.models import open_weights
from tests.models.check_transformers import relative

from .test_encoders import SIZES, encoders, saved

transformers: Any = pytest.importorskip("transformers")


def test_sentence_transformers_directories_say_how_they_pool(tmp_path: Path) -> None:
    few = {**SIZES, "max_position_embeddings": 64}
    folder = saved(transformers.BertModel(transformers.BertConfig(**few)), tmp_path)
    (folder / "1_Pooling").mkdir()

    def chosen(modules: Any, **pooling: Any) -> str:
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return aleator.load(folder).pooling

    kind = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{kind}Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}Pooling"},
    ]
    assert chosen(modules, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False) == "cls"
    assert chosen(modules, pooling_mode="mean") == "mean"
    assert chosen(modules, pooling_mode_lasttoken=True) == "last"
    assert chosen(modules, pooling_mode_max_tokens=True) == "max"
    assert chosen(modules, pooling_mode_max_tokens=True, pooling_mode="cls") == "cls"
    assert chosen(modules, pooling_mode_cls_token=False) == "mean"
    assert chosen(modules, pooling_mode=["cls", "mean"]) == "other"
    assert chosen(modules, pooling_mode=3) == "other"
    assert chosen(modules, pooling_mode_cls_token=True, pooling_mode_mean_tokens=True) == "other"
    with pytest.raises(
        ParameterError, match="pooling=None: the model's files ask for another kind"
    ):
        aleator.load(folder).embed("a")
    for more in ("LayerNorm", "WeightedLayerPooling"):
        other = [*modules, {"idx": 2, "name": "2", "path": "2", "type": f"{kind}{more}"}]
        assert chosen(other, pooling_mode_mean_tokens=True) == "other"
    with pytest.raises(FileFormatError, match="list of modules"):
        chosen([3])
    (folder / "modules.json").write_text("[" * 20_000)
    with pytest.raises(FileFormatError, match="list of modules"):
        open_weights(folder)


def with_dense(folder: Path, *layers: dict[str, Any]) -> None:
    """Write modules.json with these dense layers, which have "weight" and perhaps "bias"."""
    from safetensors.numpy import save_file

    kinds = ["", "1_Pooling", *(f"{i + 2}_Dense" for i in range(len(layers))), "9_Normalize"]
    modules = [{"path": each, "type": each[2:] or "Transformer"} for each in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    for each in kinds[1:]:
        (folder / each).mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    for name, layer in zip(kinds[2:], layers, strict=False):
        fields = {k: v for k, v in layer.items() if k not in ("weight", "bias")}
        out, wide = layer["weight"].shape
        fields = {"in_features": wide, "out_features": out, "bias": "bias" in layer, **fields}
        (folder / name / "config.json").write_text(json.dumps(fields))
        tensors = {f"linear.{k}": v for k, v in layer.items() if k in ("weight", "bias")}
        save_file(tensors, folder / name / "model.safetensors")


def dense(out: int, wide: int, **fields: Any) -> dict[str, Any]:
    draw = np.random.default_rng(out)
    weight = draw.normal(0, 0.3, (out, wide)).astype(np.float32)
    return {"weight": weight, "activation_function": "torch.nn.modules.linear.Identity", **fields}


def test_dense_layers_behind_the_pooling_make_the_vectors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a directory, and in the file that it becomes; llama.cpp 2026-11 has the file's vectors within 2e-6."""
    folder = saved(encoders()["gemma-embedding"](), tmp_path / "m")
    texts = ["the queen is loving a king", "a", "b , a king"]
    states = [each.mean(0) for each in aleator.load(folder).embed_tokens(texts)]
    first, second = dense(48, 32), dense(32, 48)
    with_dense(folder, first, second)
    model = aleator.load(folder)
    wanted = np.stack(states) @ first["weight"].T @ second["weight"].T
    assert relative(model.embed(texts, normalize=False), wanted) < 2e-6
    assert all(map(np.array_equal, model.embed(texts), map(model.embed, texts)))
    assert relative(model.embed_tokens(texts)[0].mean(0), wanted[0]) < 2e-6
    assert main(["convert", str(folder), str(tmp_path / "m.gguf")]) == 0
    assert "llama.cpp" not in capsys.readouterr().err
    file = aleator.load(tmp_path / "m.gguf")
    assert file.weights.config.dense == model.weights.config.dense
    assert relative(file.embed(texts, normalize=False), wanted) < 2e-4  # GELU's table
    for key, size in ("dense_2_feat_out", 48), ("dense_3_feat_in", 48), ("dense_3_feat_out", 32):
        assert file.weights.gguf is not None
        assert file.weights.gguf.fields.get(f"gemma-embedding.{key}") == size
    bias = np.arange(20, dtype=np.float32) / 20
    only = dense(20, 32, bias=bias, activation_function="torch.nn.modules.activation.Tanh")
    with_dense(folder, only)
    model = aleator.load(folder)
    wanted = np.tanh(np.stack(states) @ only["weight"].T + bias)
    assert relative(model.embed(texts, normalize=False), wanted) < 2e-6
    assert model.embed(texts, dimensions=20).shape == (3, 20)
    with pytest.raises(ParameterError, match="dimensions=21: give 1 to 20"):
        model.embed(texts, dimensions=21)
    assert main(["convert", str(folder), str(tmp_path / "n.gguf")]) == 3
    assert "cannot say all about this model: dense" in capsys.readouterr().err
    config = folder / "2_Dense" / "config.json"
    fields = json.loads(config.read_text())
    with_dense(folder, dense(20, 32))
    for biased in ({"bias": True}, {}):
        config.write_text(json.dumps({k: v for k, v in fields.items() if k != "bias"} | biased))
        with pytest.raises(
            FileFormatError, match=r"2_Dense: the tensor 'linear.bias' .* is missing"
        ):
            aleator.load(folder)
    with_dense(folder, only)
    config.write_text(json.dumps(fields | {"bias": False}))
    with pytest.raises(UnsupportedModel, match=r"'linear\.bias' is not one of the dense layer"):
        aleator.load(folder)


def test_dense_layers_that_are_wrong_are_refused(tmp_path: Path) -> None:
    folder = saved(encoders()["bert"](), tmp_path)
    hole = dense(20, 32)
    hole["weight"][3, 5] = np.nan
    for layers, said in (
        ([dense(20, 24)], r"dense_2.weight' is of shape \[20, 24\].*\[20, 32\]"),
        ([dense(20, 32), dense(32, 24)], r"dense_3.weight' is of shape \[32, 24\].*\[32, 20\]"),
        ([dense(20, 32, out_features=21)], r"\[20, 32\].*\[21, 32\]"),
        ([dense(20, 32, bias=np.zeros(3, np.float32))], r"dense_2.bias"),
        ([hole], "dense_2.weight' holds NaN"),
    ):
        with_dense(folder, *layers)
        with pytest.raises(FileFormatError, match=said):
            aleator.load(folder)
    for fields in (
        {"use_residual": True},
        {"activation_function": "torch.nn.modules.activation.ReLU"},
    ):
        with_dense(folder, dense(32, 32, **fields))
        assert aleator.load(folder).pooling == "other"
    with_dense(folder, dense(32, 32))
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"2_Dense.*neither model.safetensors"):
        aleator.load(folder)


def test_what_sentence_transformers_does_to_texts_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(transformers.BertModel(transformers.BertConfig(**SIZES)), tmp_path)
    prompts = {"query": "query: ", "document": ""}
    name = "config_sentence_transformers.json"
    for chosen, told in (("query", ["'query: '"]), ("document", []), (None, []), ("x", [])):
        fields = {"prompts": prompts, "default_prompt_name": chosen}
        (folder / name).write_text(json.dumps(fields))
        caplog.clear()
        aleator.load(folder)
        assert [each.args[1].split(" ", 1)[1][:9] for each in caplog.records] == told  # type: ignore[index, union-attr]
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    aleator.load(folder)
    assert "makes each text lower-case (do_lower_case)" in caplog.text


def test_sentence_transformers_directories_say_which_texts_are_too_long(tmp_path: Path) -> None:
    few = {**SIZES, "max_position_embeddings": 64}
    folder = saved(transformers.BertModel(transformers.BertConfig(**few)), tmp_path)

    def lengths(name: str, **fields: Any) -> list[int]:
        (folder / name).write_text(json.dumps(fields))
        return [aleator.load(folder, n_ctx=n).n_ctx for n in (None, 0, 40, 99)]

    assert lengths("sentence_bert_config.json", max_seq_length=20) == [64, 64, 40, 64]
    (folder / "modules.json").write_text("[]")
    assert lengths("sentence_bert_config.json", max_seq_length=20) == [20, 64, 40, 64]
    assert lengths("sentence_bert_config.json", max_seq_length=512) == [64, 64, 40, 64]
    assert lengths("sentence_bert_config.json", max_seq_length=None) == [64, 64, 40, 64]
    assert lengths("tokenizer_config.json", model_max_length=30) == [30, 64, 40, 64]
    model = aleator.load(folder)
    with pytest.raises(ContextFull, match="62 tokens and the context 30 positions"):
        model.embed("b " * 60)
    cut = model.embed("b " * 60, truncate=True)
    assert np.array_equal(cut, model.embed("b " * 28))
    assert lengths("tokenizer_config.json", model_max_length=int(1e30)) == [64, 64, 40, 64]
