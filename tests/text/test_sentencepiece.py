"""Models of SentencePiece, sound and hostile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.core.errors import AleatorError, FileFormatError, ModelNotFound, UnsupportedModel
from aleator.text import sentencepiece
from aleator.text.gguf_vocabulary import GGML
from tests.text.sentencepiece_models import (
    BPE,
    BYTE,
    CONTROL,
    UNIGRAM,
    UNKNOWN,
    entry,
    llama,
    model,
    piece,
    unigram,
)


def read(folder: Path, data: bytes) -> SimpleNamespace:
    path = folder / "tokenizer.model"
    path.write_bytes(data)
    fields, special = sentencepiece.read(path)
    of = {key.removeprefix(GGML): value for key, value in fields.items()}
    assert of["model"] in ("llama", "t5")
    return SimpleNamespace(
        texts=of["tokens"],
        scores=of["scores"],
        attributes=of["token_type"],
        unigram=of["model"] == "t5",
        charsmap=of["precompiled_charsmap"],
        add_space_prefix=of["add_space_prefix"],
        one_space=of["remove_extra_whitespaces"],
        special=special,
    )


def test_unigram(tmp_path: Path) -> None:
    found = read(tmp_path, unigram(b"map"))
    assert found.texts == ["<unk>", "<s>", "</s>", *(text for text, _ in UNIGRAM)]
    assert found.scores == [0.0, 0.0, 0.0, *(score for _, score in UNIGRAM)]
    assert found.attributes == [2, 3, 3, *[1] * len(UNIGRAM)]
    assert (found.unigram, found.charsmap) == (True, b"map")
    assert (found.add_space_prefix, found.one_space) == (True, True)
    assert found.special == {"unk": 0, "bos": 1, "eos": 2}


def test_merges(tmp_path: Path) -> None:
    found = read(tmp_path, llama())
    assert (found.unigram, found.charsmap) == (False, b"")
    assert (found.add_space_prefix, found.one_space) == (True, False)
    assert found.attributes[3:259] == [BYTE] * 256
    found = read(tmp_path, model(piece("a"), {3: 2}, {3: 0, 4: 0}))
    assert not found.add_space_prefix


def test_special_tokens_have_the_names_that_the_model_gives_them(tmp_path: Path) -> None:
    more = piece("[B]", kind=CONTROL) + piece("<pad>", kind=CONTROL) + piece("[E]")
    found = read(tmp_path, model(more, {46: "[B]", 47: "[E]"}))
    assert found.special == {"unk": 0, "bos": 3, "pad": 4}  # [E] is text


def test_other_fields_are_passed_over(tmp_path: Path) -> None:
    odd = entry(9, 1 << 63) + entry(10, 1.5) + bytes([11 << 3 | 1, *range(8)]) + entry(12, b"x")
    data = unigram()
    assert read(tmp_path, data + odd) == read(tmp_path, data)
    told = entry(1, entry(1, "q") + entry(9, b"x") + entry(2, -1.0))
    assert read(tmp_path, data + told).texts[-1] == "q"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model(piece("a") + piece("a")), "'a' is there twice"),
        (model(piece("x", kind=UNKNOWN)), "2 unknown tokens"),
        (entry(1, entry(1, "a")), "0 unknown tokens"),
        (model(piece("")), "piece 3 has no text"),
        (model(piece("a", float("nan"))), "piece 3 has a score that is not a number"),
        (model(piece("a", kind=7)), "piece 3 has the type 7"),
        (model(piece("<0x4G>", kind=BYTE)), "piece 3 is a byte"),
        (model(entry(1, entry(1, b"\xff"))), "piece 3 is not UTF-8"),
        (model(b"", {46: b"\xff"}), "the bos token is not UTF-8"),
        (entry(1, 5), "a number where a message belongs"),
        (model(b"", {}, {2: 7}), "is a number"),
        (b"\x0a\x05abc", "damaged"),
        (b"\xff" * 10, "damaged"),
    ],
)
def test_damaged_models(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("trainer", "normaliser", "message"),
    [
        ({3: 3}, {}, "type 3"),
        ({24: 1}, {}, "treat_whitespace_as_suffix"),
        ({35: 1}, {}, "byte_fallback"),
        ({}, {5: 0}, "escape_whitespaces"),
        ({}, {3: 0}, "extra spaces"),
        ({3: 2}, {4: 1}, "changes a text"),
        ({3: 2}, {4: 0, 2: b"map"}, "changes a text"),
    ],
)
def test_what_gguf_cannot_say(trainer: Any, normaliser: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path, model(piece("a"), trainer, normaliser))
    read(tmp_path, model(piece("a"), {35: 1} | BPE[0], BPE[1]))


def test_truncated_and_changed_models_are_errors_or_models(tmp_path: Path) -> None:
    data = unigram(b"map")
    for at in range(1, len(data), 3):
        for made in (data[:at], data[: at - 1] + bytes([data[at - 1] ^ 0x81]) + data[at:]):
            try:
                read(tmp_path, made)
            except AleatorError:
                continue


def test_a_file_of_more_bytes_than_any_model(tmp_path: Path, monkeypatch: Any) -> None:
    data = unigram()
    monkeypatch.setattr(sentencepiece, "MAX_BYTES", len(data))
    read(tmp_path, data)
    monkeypatch.setattr(sentencepiece, "MAX_BYTES", len(data) - 1)
    with pytest.raises(FileFormatError, match="at most"):
        read(tmp_path, data)
    with pytest.raises(ModelNotFound):
        sentencepiece.read(tmp_path / "none")
