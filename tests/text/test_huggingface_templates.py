"""Chat templates of Hugging Face's directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aleator.core.errors import FileFormatError
from aleator.models.files.fields import Fields
from aleator.text import Vocabulary, huggingface
from aleator.text.huggingface import chat_templates

from .test_huggingface import byte_level_backend, write


def test_chat_templates(tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    write(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": named})
    assert Vocabulary.from_directory(tmp_path).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("j")
    assert Vocabulary.from_directory(tmp_path).chat_template == "j"
    further = tmp_path / "additional_chat_templates"
    further.mkdir()
    (further / "rag.jinja").write_text("r")
    config = Fields(tmp_path, {"chat_template": named})
    assert chat_templates(tmp_path, config) == {"tools": "t", "default": "j", "rag": "r"}
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        Vocabulary.from_directory(tmp_path)


def test_the_chat_template_of_a_processor(tmp_path: Path) -> None:
    write(tmp_path, byte_level_backend())
    path = tmp_path / "chat_template.json"
    path.write_text(json.dumps({"chat_template": "p"}))
    assert Vocabulary.from_directory(tmp_path).chat_template == "p"
    write(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": "d"})
    assert Vocabulary.from_directory(tmp_path).chat_template == "d"
    write(tmp_path, byte_level_backend(), tokenizer_config={})
    path.write_text('{"chat_template": 3}')
    with pytest.raises(
        FileFormatError, match=r"chat_template\.json: chat_template|must be a string"
    ):
        Vocabulary.from_directory(tmp_path)


def test_the_length_of_a_template_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write(tmp_path, byte_level_backend())
    monkeypatch.setattr(huggingface, "_MAX_TEMPLATE", 5)
    (directory / "chat_template.jinja").write_text("12345")
    assert Vocabulary.from_directory(directory).chat_template == "12345"
    (directory / "chat_template.jinja").write_text("123456")
    with pytest.raises(FileFormatError, match="a chat template of more than 5 bytes"):
        Vocabulary.from_directory(directory)
