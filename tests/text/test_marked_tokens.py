"""User-defined tokens with SentencePiece's mark for a space: a directory and the file made of it agree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from aleator.core.errors import UnsupportedModel
from aleator.text import TokenAttribute, Tokenizer, Vocabulary
from tests.text.sentencepiece_models import BYTES, USER_DEFINED, model, piece
from tests.text.test_gguf_fields import GGML, made
from tests.text.test_huggingface import write

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def texts(marks: bool, n: int = 150) -> list[str]:
    rng = random.Random(4)
    found = ["".join(rng.choices("abfox  ▁" if marks else "abfox   ", k=9)) for _ in range(n)]
    return [*found, *(text.replace("x", "▁foo" if marks else " foo") for text in found)]


def directory(path: Path, tokens: list[str], normalised: bool, merged: bool, prefix: bool) -> Path:
    """``merged``: runs of marks come of merges too; ``prefix``: a text gets a space in front."""
    merges = [("f", "o"), ("fo", "o"), ("▁", "a"), ("▁", "foo")]
    merges = [("▁", "▁"), *merges, ("▁▁", "▁▁")] if merged else merges
    alphabet = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *"abfo▁x"]
    ids = {text: i for i, text in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([*steps, *strip])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens([AddedToken(each, normalized=normalised) for each in tokens])
    return write(path, backend, tokenizer_config=NAMES)


RUNS = ["▁▁", "▁▁▁▁"]
OWN, SPACED, ORDINARY = ("▁", 4), (" ", 4), ("▁", 1)
"""The space in the file's text, and the kind of token."""
CASES = [
    # tokens, normalised, merged, prefix, form, whether texts with marks agree too
    (["▁foo"], False, False, True, OWN, True),
    (["▁foo"], False, True, True, OWN, True),
    (["▁foo"], False, False, False, ORDINARY, True),
    (["▁foo"], True, False, False, ORDINARY, True),
    (["▁foo"], True, True, False, SPACED, False),
    (["a▁b"], False, False, True, OWN, True),
    (["a▁b"], True, False, False, SPACED, False),
    (RUNS, False, True, False, ORDINARY, False),
    (RUNS, False, True, True, ORDINARY, False),
    (RUNS, True, True, False, ORDINARY, True),
    (RUNS, True, False, False, SPACED, False),
]


@pytest.mark.parametrize(("tokens", "normalised", "merged", "prefix", "form", "all_agree"), CASES)
def test_the_form_that_gives_the_same_ids(
    tmp_path: Path,
    tokens: list[str],
    normalised: bool,
    merged: bool,
    prefix: bool,
    form: tuple[str, int],
    all_agree: bool,
) -> None:
    """Where only texts with marks of their own differ, the command tells it."""
    folder = directory(tmp_path, tokens, normalised, merged, prefix)
    one = Tokenizer(Vocabulary.from_directory(folder))
    file, left_out = made(folder, len(one.vocab))
    vocab = Vocabulary.from_gguf(file)
    space, kind = form
    for text in tokens:
        token = one.vocab.ids[text]
        assert (vocab.tokens[token], vocab.attribute(token)) == (text.replace("▁", space), kind)
    other = Tokenizer(vocab)
    assert [one.encode(text) for text in texts(False)] == [
        other.encode(text) for text in texts(False)
    ]
    same = all(one.encode(text) == other.encode(text) for text in texts(True))
    assert same == all_agree == (not left_out)
    if left_out:
        assert left_out[0].startswith(f"how texts beside tokens such as {tokens[0]!r} are cut (")


def test_what_no_form_can_say_is_told(tmp_path: Path) -> None:
    """With a prefix a normalised token stands after two spaces; each form is wrong about some texts."""
    folder = directory(tmp_path, ["a▁b"], True, False, True)
    _, left_out = made(folder, 270)
    assert left_out == ["how texts beside tokens such as 'a▁b' are cut (20 of 30 differ)"]


def test_a_text_with_spaces_that_another_token_has(tmp_path: Path) -> None:
    """The form with spaces is passed over."""
    folder = directory(tmp_path, ["▁▁", "  "], False, True, False)
    file, _ = made(folder, 272)
    assert "▁▁" in file.metadata[GGML + "tokens"]


@pytest.mark.parametrize("normalised", [False, True])
def test_marks_are_shown_as_spaces(tmp_path: Path, normalised: bool) -> None:
    folder = directory(tmp_path, [*RUNS, "a▁b"], normalised, True, False)
    tokenizer = Tokenizer(Vocabulary.from_directory(folder))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (*RUNS, "a▁b"):
        ids = [tokenizer.vocab.ids[each] for each in ("a", text, "x")]
        assert tokenizer.decode(ids) == backend.decode(ids) == f"a{text.replace('▁', ' ')}x"


SENTENCEPIECE: dict[str, tuple[list[int], list[int]]] = {
    "ab": ([268], [4]),
    "x ab": ([265, 4], [262, 265, 4]),
    "x  ab": ([265, 3, 268], [262, 265, 3, 268]),
    "x   ab▁ab": ([265, 3, 4, 4], [262, 265, 3, 4, 4]),
    "▁▁a": ([3, 263], [3, 269]),
    "a▁▁▁ab": ([263, 3, 4], [269, 3, 4]),
    "ab<x>": ([268, 5], [4, 5]),
}
"""Ids of sentencepiece 0.2.3, without and with a space in front."""


@pytest.mark.parametrize("prefix", [False, True])
def test_pieces_of_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    """They are as good as merged ones with the best score."""
    defined = b"".join(piece(text, 0.0, USER_DEFINED) for text in ("▁▁", "▁ab", "<x>"))
    plain = b"".join(piece(text, -9.0) for text in "▁abx<>")
    merged = piece("ab", -1.0) + piece("▁a", -2.0)
    data = model(defined + BYTES + plain + merged, {3: 2, 35: 1}, {3: int(prefix), 4: 0})
    (tmp_path / "tokenizer.model").write_bytes(data)
    tokenizer = Tokenizer(Vocabulary.from_directory(tmp_path))
    file, left_out = made(tmp_path, len(tokenizer.vocab))
    other = Tokenizer(Vocabulary.from_gguf(file))
    assert not left_out
    assert tokenizer.vocab.attribute(3) == TokenAttribute.NORMAL
    assert tokenizer.vocab.attribute(5) == TokenAttribute.USER_DEFINED
    for text, wanted in SENTENCEPIECE.items():
        assert tokenizer.encode(text, add_special=False) == wanted[prefix], text
        assert other.encode(text) == tokenizer.encode(text)
    assert tokenizer.decode([263, 3, 263], at_start=False) == "a  a"


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_space_in_front_that_gguf_has_elsewhere_is_told(tmp_path: Path, scheme: str) -> None:
    """transformers 5 saves Llama's tokenizer so: it puts no space before a text that begins with one."""
    folder = directory(tmp_path, [], False, True, True)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.save(str(folder / "tokenizer.json"))
    one = Tokenizer(Vocabulary.from_directory(folder))
    file, left_out = made(folder, len(one.vocab))
    assert left_out[0] == "that a text gets no space in front where it begins with one"
    behind = ["that what follows a token such as '<s>' gets no space in front"]
    assert left_out[1:] == (behind if scheme == "first" else [])
    other = Tokenizer(Vocabulary.from_gguf(file))
    for text in texts(False):
        assert one.encode(text.lstrip()) == other.encode(text.lstrip())
    for pattern in ("\xa0", tokenizers.Regex("^  +")):
        backend.normalizer = normalizers.Replace(pattern, " ")
        backend.save(str(folder / "tokenizer.json"))
        with pytest.raises(UnsupportedModel, match="cut or merge texts in another way"):
            made(folder, len(one.vocab))


def test_a_token_that_is_found_behind_spaces_only_is_told(tmp_path: Path) -> None:
    """As ``add_tokens(["<b>"])`` makes one: the space in front is put before the token, too."""
    for normalised in (False, True):
        folder = directory(tmp_path, ["<b>"], normalised, False, True)
        _, left_out = made(folder, 270)
        told = ["that a token such as '<b>' is found behind spaces only"]
        assert left_out == (told if normalised else [])
