"""Directories of sentence-transformers: how vectors are pooled, and which texts are too long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import ContextFull, FileFormatError, ParameterError
from aleator.models import open_weights

from .test_encoders import SIZES, saved

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
    assert chosen(modules, pooling_mode_max_tokens=True) == "other"
    with pytest.raises(
        ParameterError, match="pooling=None: the model's files ask for another kind"
    ):
        aleator.load(folder).embed("a")
    dense = [*modules, {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{kind}Dense"}]
    assert chosen(dense, pooling_mode_mean_tokens=True) == "other"
    with pytest.raises(FileFormatError, match="list of modules"):
        chosen([3])
    (folder / "modules.json").write_text("[" * 20_000)
    with pytest.raises(FileFormatError, match="list of modules"):
        open_weights(folder)


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
