"""WordPiece and unigram vocabularies, of GGUF files and Hugging Face directories, against `tokenizers`."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from aleator.core.errors import FileFormatError, TokenizerError, UnsupportedModel
from aleator.text import Tokenizer, Vocabulary
from aleator.text.special_tokens import SpecialTokens
from aleator.text.word_pieces import WordPieces
from tests.text.vocabularies import byte_level

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "lov",
    "##ing",
    "##s",
    "a",
    "##a",
    "##b",
    "b",
    ",",
    "cafe",
    "中",
    "##9",
    "9",
    "love",
]
TEXTS = (
    "The cafés,loving a b",
    "aab  baa\tbbaa\n中a中 9999",
    "qqq the aaz",
    "[CLS] the [SEP]",
    "",
    "   ",
    "a" * 90 + " b",
)
NAMES = "tokenizer.ggml."


def wordpiece() -> Backend:
    tokens = [*SPECIAL, *WORDS]
    made = Backend(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def bert_metadata(**fields: Any) -> dict[str, Any]:
    tokens = [*SPECIAL, *(w[2:] if w.startswith("##") else f"▁{w}" for w in WORDS)]
    return {
        NAMES + "model": "bert",
        NAMES + "tokens": tokens,
        NAMES + "token_type": [3, 2, 3, 3, 3] + [1] * len(WORDS),
        NAMES + "bos_token_id": 2,
        NAMES + "seperator_token_id": 3,
        NAMES + "unknown_token_id": 1,
    } | {NAMES + key: value for key, value in fields.items()}


def in_directory(backend: Backend, folder: Path, **config: Any) -> Tokenizer:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(Vocabulary.from_directory(folder))


def plain(backend: Backend, text: str) -> list[int]:
    """Ids with the tokens around them, names of special tokens being text."""
    backend.encode_special_tokens = True
    ids: list[int] = backend.encode(text).ids
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_word_pieces_are_those_of_tokenizers(text: str, tmp_path: Path) -> None:
    wanted = plain(wordpiece(), text)
    assert Tokenizer(Vocabulary.from_metadata(bert_metadata())).encode(text) == wanted
    assert in_directory(wordpiece(), tmp_path).encode(text) == wanted


@pytest.mark.parametrize("part", [1, 5, 1 << 14])
def test_random_texts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.text.word_pieces.PART", part)
    rng, backend = random.Random(5), wordpiece()
    tokenizer = Tokenizer(Vocabulary.from_metadata(bert_metadata()))
    for _ in range(300):
        text = "".join(rng.choice("abls, 中éÉ\u00a0\u200b.q9\n") for _ in range(rng.randint(0, 30)))
        assert tokenizer.encode(text) == plain(backend, text), repr(text)


def test_words_of_any_length_are_cut() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(bert_metadata()))
    ids = tokenizer.encode("a" * 300, add_special=False)
    assert len(ids) == 300
    assert tokenizer.encode("a" * 300 + "z", add_special=False) == [1]


def test_case_and_accents_stay_if_the_file_says_so() -> None:
    metadata = bert_metadata(**{"normalizer.lowercase": False, "normalizer.strip_accents": False})
    tokenizer = Tokenizer(Vocabulary.from_metadata(metadata))
    assert tokenizer.encode("The cafe café", add_special=False) == [1, 14, 1]


def test_pieces_are_decoded_with_their_spaces(tmp_path: Path) -> None:
    ids = [2, 6, 7, 8, 9, 3]
    for tokenizer in (
        Tokenizer(Vocabulary.from_metadata(bert_metadata())),
        in_directory(wordpiece(), tmp_path),
    ):
        assert tokenizer.decode(ids, skip_special=True) == "lovings a"


def test_special_tokens_are_read_where_that_is_asked_for() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(bert_metadata()))
    assert tokenizer.encode("[SEP] the", add_special=False, parse_special=True) == [3, 5]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, [2, 5, 3, 9]),
        ({"add_eos_token": True, "add_sep_token": False}, [2, 5, 3, 9, 3]),
        ({"add_bos_token": False, "add_eos_token": True}, [5, 3, 3, 9, 3]),
    ],
)
def test_pairs_are_those_of_llama_server(fields: dict[str, Any], wanted: list[int]) -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(bert_metadata(**fields)))
    assert tokenizer.encode_pair("the", "a") == (wanted, None)
    assert tokenizer.encode("the") == [2, 5, 3]


def test_pairs_of_a_directory_are_those_of_its_post_processor(tmp_path: Path) -> None:
    backend = wordpiece()
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    roberta = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    for processor in (backend.post_processor, template, roberta):
        backend.post_processor = processor
        ids, second = in_directory(backend, tmp_path).encode_pair("the", "a b")
        wanted = backend.encode("the", "a b")
        assert ids == wanted.ids
        assert (second or len(ids)) == wanted.type_ids.index(1) if second else len(ids)
        assert (second is None) == (processor is roberta)
        names = {"model_input_names": ["input_ids", "attention_mask"]}
        assert in_directory(backend, tmp_path, **names).encode_pair("the", "a b") == (ids, None)


def test_a_document_is_cut_to_leave_room(tmp_path: Path) -> None:
    tokenizer = in_directory(wordpiece(), tmp_path)
    ids, _ = tokenizer.encode_pair("the", "a b a b", 7)
    assert ids == [2, 5, 3, 9, 12, 9, 3]
    assert tokenizer.encode_pair("the the", "a b", 3)[0] == [2, 5, 5, 3, 3]


PIECES = [
    ("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("▁the", -2.0), ("a", -4.0),
    ("b", -4.5), ("ab", -6.0), ("▁a", -3.5), ("ba", -5.0), ("s", -4.0), ("<", -7.0), ("/", -7.0), (">", -7.0),
]  # fmt: skip


def unigram() -> Backend:
    made = Backend(models.Unigram(PIECES, 3, False))
    made.normalizer = normalizers.Replace(" +", " ")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


def t5_metadata(**fields: Any) -> dict[str, Any]:
    return {
        NAMES + "model": "t5",
        NAMES + "tokens": [text for text, _ in PIECES],
        NAMES + "token_type": [3, 3, 3, 2] + [1] * (len(PIECES) - 4),
        NAMES + "scores": [score for _, score in PIECES],
        NAMES + "bos_token_id": 0,
        NAMES + "eos_token_id": 2,
        NAMES + "seperator_token_id": 2,
        NAMES + "unknown_token_id": 3,
        NAMES + "add_bos_token": True,
        NAMES + "add_sep_token": True,
        NAMES + "remove_extra_whitespaces": True,
    } | {NAMES + key: value for key, value in fields.items()}


@pytest.mark.parametrize("text", ["the abba", "  a  the  b ", "zz a zz", "aabbaabb", "", "  "])
def test_unigram_pieces_are_those_of_tokenizers(text: str, tmp_path: Path) -> None:
    wanted = plain(unigram(), text)
    assert Tokenizer(Vocabulary.from_metadata(t5_metadata())).encode(text) == wanted
    assert in_directory(unigram(), tmp_path).encode(text) == wanted


def test_names_of_control_tokens_are_text() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(t5_metadata()))
    ids = tokenizer.encode("a<s>", add_special=False)
    assert ids == [9, 12, 11, 14]
    assert tokenizer.encode("a<s>", add_special=False, parse_special=True) == [9, 0]


def test_unigram_pairs(tmp_path: Path) -> None:
    wanted = unigram().encode("the", "a").ids
    for tokenizer in (
        Tokenizer(Vocabulary.from_metadata(t5_metadata())),
        in_directory(unigram(), tmp_path),
    ):
        assert tokenizer.encode_pair("the", "a") == (wanted, None)
        assert tokenizer.decode(tokenizer.encode("the a"), skip_special=True) == "the a"


def test_spaces_stay_where_the_file_says_so() -> None:
    metadata = t5_metadata(remove_extra_whitespaces=False)
    tokenizer = Tokenizer(Vocabulary.from_metadata(metadata))
    assert tokenizer.encode("a  a", add_special=False) == [9, 4, 9]
    assert tokenizer.encode("   ", add_special=False) == [4, 4, 4]


@pytest.mark.parametrize("charsmap", [[1, 2, 3], [2, *[0] * 67], ["a"], [1 << 70]])
def test_damaged_tables_of_characters_are_refused(charsmap: list[Any]) -> None:
    with pytest.raises(FileFormatError, match="precompiled_charsmap"):
        Vocabulary.from_metadata(t5_metadata(precompiled_charsmap=charsmap))


def test_unknown_text_without_an_unknown_token() -> None:
    vocab = replace(Vocabulary.from_metadata(t5_metadata()), special=SpecialTokens())
    tokenizer = Tokenizer(vocab)
    assert tokenizer.encode("ab", add_special=False) == [9, 7]
    with pytest.raises(TokenizerError, match="cannot be encoded"):
        tokenizer.encode("z", add_special=False)


def test_long_words_are_not_remembered() -> None:
    words = WordPieces(Vocabulary.from_metadata(bert_metadata()))
    assert len(words.encode("a" * 64 + " " + "b" * 65)) == 129
    assert words.cut.cache_info().currsize == 1


def test_what_a_vocabulary_lacks_is_named(tmp_path: Path) -> None:
    metadata = bert_metadata()
    del metadata[NAMES + "unknown_token_id"]
    with pytest.raises(FileFormatError, match="unknown_token_id"):
        Tokenizer(Vocabulary.from_metadata(metadata))
    metadata = bert_metadata()
    del metadata[NAMES + "bos_token_id"]
    with pytest.raises(FileFormatError, match="bos_token_id"):
        Vocabulary.from_metadata(metadata)
    backend = unigram()
    backend.save(str(tmp_path / "tokenizer.json"))
    file = json.loads((tmp_path / "tokenizer.json").read_text())
    for vocab in ([["a"], 3], [["a", 0], ["a", 1]], [[3, 1]]):
        file["model"]["vocab"] = vocab
        (tmp_path / "tokenizer.json").write_text(json.dumps(file))
        with pytest.raises(FileFormatError, match="vocab"):
            Vocabulary.from_directory(tmp_path)
    file["model"]["type"] = "WordLevel"
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(UnsupportedModel, match="WordLevel"):
        Vocabulary.from_directory(tmp_path)


def test_directories_of_qwen3_reranker_have_its_template(tmp_path: Path) -> None:
    named = tmp_path / "Qwen3-Reranker-0.6B"
    named.mkdir()
    template = in_directory(unigram(), named).vocab.rerank_template
    assert template is not None
    assert "{query}" in template
    assert "{document}" in template
    assert in_directory(unigram(), tmp_path).vocab.rerank_template is None
    (tmp_path / "README.md").write_text("# Qwen3-Reranker-0.6B\n")
    assert in_directory(unigram(), tmp_path).vocab.rerank_template == template


def test_what_a_t5_file_does_not_say() -> None:
    """No BOS, an EOS, and spaces as they are."""
    silent = ("add_bos_token", "add_sep_token", "remove_extra_whitespaces")
    metadata = {k: v for k, v in t5_metadata().items() if k.removeprefix(NAMES) not in silent}
    tokenizer = Tokenizer(Vocabulary.from_metadata(metadata))
    assert tokenizer.encode("a  a") == [9, 4, 9, 2]
    assert tokenizer.encode_pair("a", "a") == ([9, 2, 9, 2], None)


def test_a_named_end_is_not_replaced_by_the_separator() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(bert_metadata(eos_token_id=4)))
    assert tokenizer.encode("the") == [2, 5, 4]


def test_unknown_characters_are_no_tokens_of_their_bytes() -> None:
    tokens = [text for text, _ in PIECES]
    tokens[11] = "<0x7A>"  # of "z"
    tokenizer = Tokenizer(Vocabulary.from_metadata(t5_metadata(tokens=tokens)))
    assert tokenizer.encode("az", add_special=False) == [9, 3]


def test_a_user_defined_piece_costs_nothing() -> None:
    """It is as good as pieces whose scores come to 0, whatever its own score is, and as text no better."""
    scores = [score for _, score in PIECES]
    scores[6], scores[7] = 0.25, 0.25  # a and b
    types = [3, 3, 3, 2] + [1] * (len(PIECES) - 4)
    types[8] = 4  # ab
    fields = {"scores": scores, "token_type": types, "add_space_prefix": False}
    vocab = Vocabulary.from_metadata(t5_metadata(**fields, remove_extra_whitespaces=False))
    tokenizer = Tokenizer(vocab)
    assert tokenizer.encode("ab", add_special=False) == [8]
    assert tokenizer.encode("ab", add_special=False, unread=["ab"]) == [6, 7]


@pytest.mark.parametrize(("texts", "sound"), [(1, True), (0, True), (-1, False)])
def test_tables_of_characters_end_where_they_say(texts: int, sound: bool) -> None:
    charsmap = [*(64).to_bytes(4, "little"), *[7] * 64, *[0] * max(texts, 0)][: 68 + texts]
    metadata = t5_metadata(precompiled_charsmap=charsmap)
    if sound:
        assert Vocabulary.from_metadata(metadata).normalisation["charsmap"] == bytes(charsmap)
    else:
        with pytest.raises(FileFormatError, match="67 bytes, and a table that ends at byte 68"):
            Vocabulary.from_metadata(metadata)


@pytest.mark.parametrize(
    ("pre", "separators"), [("roberta-bpe", 1), ("jina-v1-en", 1), ("gpt-2", 0)]
)
def test_pairs_of_byte_level_vocabularies(pre: str, separators: int) -> None:
    metadata = byte_level(("<s>", "</s>"), pre=pre, bos_token_id=258, seperator_token_id=259)
    tokenizer = Tokenizer(Vocabulary.from_metadata(metadata))
    assert tokenizer.encode_pair("x", "y") == ([120, *[259] * separators, 121], None)
