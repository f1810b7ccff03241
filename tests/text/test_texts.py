"""Texts of vocabularies where their file has them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel, _native
from aleator.core.errors import FileFormatError
from aleator.text import Tokenizer, Vocabulary
from aleator.text.gguf_vocabulary import StoredTexts, TextNumbers
from tests.models.builders import model_metadata, string, write_gguf
from tests.text.vocabularies import byte_level, sentencepiece


def stored(texts: list[str | bytes]) -> _native.StringArray:
    data = np.frombuffer(b"abc" + b"".join(map(string, texts)) + b"\xff" * 9, np.uint8)
    return _native.StringArray(data, 3, len(texts))


def test_they_are_a_sequence_and_its_numbers() -> None:
    words = ["a", "", "ß", "▁▁", "\U0001f600", "b" * 300, "a b"]
    texts = StoredTexts(stored([*words]))
    assert list(texts) == words
    assert texts[-1] == "a b"
    assert texts[1:3] == ["", "ß"]
    assert len(texts) == 7
    assert texts.stored.has_empty
    assert "ß" in texts
    assert texts.index("ß") == 2
    with pytest.raises(IndexError):
        texts[7]
    numbers = TextNumbers(texts)
    assert dict(numbers) == {word: i for i, word in enumerate(words)}
    assert numbers.get("x") is None
    assert "\ud800" not in numbers
    assert numbers.get(3) is None  # type: ignore[call-overload]
    with pytest.raises(KeyError):
        numbers["x"]
    assert texts == words
    assert texts == StoredTexts(stored([*words]))
    assert texts != words[:-1]
    assert texts != [*words[:-1], "c"]
    assert texts != 7
    assert StoredTexts(stored(["a", "b"])) != "ab"


@pytest.mark.parametrize(
    "bad",
    [b"\x80", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x96"],
)
def test_they_end_before_what_is_not_utf8(bad: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        bad.decode()
    found = stored(["ab", bad, "c"])
    assert (len(found), found.broken) == (1, 3 + 8 + 2)


def test_every_character_is_utf8_as_python_has_it() -> None:
    codes = [*range(0x80), 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    texts = [chr(code) for code in codes]
    assert list(StoredTexts(stored([*texts]))) == texts


def test_they_end_where_the_data_do() -> None:
    data = np.frombuffer(string("ab") + string("cd")[:-1], np.uint8)
    found = _native.StringArray(data, 0, 2)
    assert (len(found), found.broken) == (1, 10)
    assert len(_native.StringArray(data, 1 << 60, 1 << 60)) == 0


def test_what_occurs_twice() -> None:
    assert stored(["a", "b", "c"]).first_twice() is None
    assert stored(["a", "b", "c", "b", "a", "b"]).first_twice() == (0, 4)


@pytest.mark.parametrize("metadata", [byte_level(("<|im_end|>",)), sentencepiece()])
def test_a_file_and_its_metadata_give_equal_vocabularies(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_metadata() | metadata)
    of_file, plain = Vocabulary.from_gguf(path), Vocabulary.from_metadata(metadata)
    assert isinstance(of_file.tokens, StoredTexts)
    assert list(of_file.tokens) == list(plain.tokens)
    assert dict(of_file.ids) == plain.ids
    assert list(of_file.merges) == list(plain.merges)
    assert of_file.special == plain.special
    assert of_file.attributes.tolist() == plain.attributes.tolist()
    assert of_file.eog == plain.eog
    if of_file.scores is None or plain.scores is None:
        assert of_file.scores is plain.scores is None
    else:
        assert np.array_equal(of_file.scores, plain.scores)
    text = "abc ab\ncab"
    assert Tokenizer(of_file).encode(text) == Tokenizer(plain).encode(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"merges": ["a b", "x y"]}, "merge 1, 'x y', needs the token 'xy'"),
        ({"tokens": [*byte_level()["tokenizer.ggml.tokens"][:-1], "ab"]}, "tokens 256 and 257"),
    ],
)
def test_errors_of_a_file_are_those_of_metadata(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    metadata = byte_level(**fields)
    path = write_gguf(tmp_path / "m.gguf", model_metadata() | metadata)
    with pytest.raises(FileFormatError, match=message):
        Tokenizer(Vocabulary.from_gguf(path))
    with pytest.raises(FileFormatError, match=message):
        Tokenizer(Vocabulary.from_metadata(metadata))


def test_an_empty_token_has_a_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_metadata() | byte_level(("",)))
    assert Vocabulary.from_gguf(path).tokens[258] == "[EMPTY_258]"


def test_a_length_that_changes_later_leads_nowhere_else() -> None:
    data = np.frombuffer(string("ab") + string("cd") + b"x" * 99, np.uint8).copy()
    found = _native.StringArray(data, 0, 2)
    data[0] = data[10] = 90
    data[17] = 255
    assert list(StoredTexts(found)) == ["ab", "cd"]
    assert found.find("cd") == 1
    assert found.first_twice() is None


def test_another_process_gets_lists_and_dictionaries() -> None:
    texts = StoredTexts(stored(["a", "b"]))
    assert pickle.loads(pickle.dumps(texts)) == ["a", "b"]
    assert pickle.loads(pickle.dumps(TextNumbers(texts))) == {"a": 0, "b": 1}


def test_a_tokenizer_of_another_process_is_the_same(model: LanguageModel) -> None:
    made = pickle.loads(pickle.dumps(model.tokenizer))
    assert isinstance(made, Tokenizer)
    assert made.encode("To be, or not") == model.tokenizer.encode("To be, or not")
    assert made.vocab.tokens == model.vocab.tokens
