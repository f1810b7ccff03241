"""Vocabularies of directories without tokenizer.json: tokenizer.model and vocab.txt."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from aleator.core.errors import AleatorError, FileFormatError, UnsupportedModel
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.gguf_writer import beginning
from aleator.text import TokenAttribute, Tokenizer, Vocabulary
from aleator.text.gguf_fields import vocabulary_fields
from tests.text.sentencepiece_models import UNIGRAM, character_map, entry, llama, piece, unigram
from tests.text.test_gguf_fields import CHARACTERS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "##a", "##b", "b", ",", "cafe", "The", "café"]


def opened(folder: Path, file: str, data: bytes, **others: Any) -> Tokenizer:
    """A directory with a file of tokens, and JSON files by their names."""
    (folder / file).write_bytes(data)
    for name, value in others.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return Tokenizer(Vocabulary.from_directory(folder))


def words(folder: Path, **config: Any) -> Tokenizer:
    data = "\n".join([*SPECIAL, *WORDS]).encode() + b"\n"
    return opened(folder, "vocab.txt", data, tokenizer_config=config)


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
def test_unigram(name: str, tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, name, unigram(character_map({"ﬁ": "ab"})))
    vocab = tokenizer.vocab
    assert (vocab.pieces, vocab.bos, vocab.eos, vocab.unk) == ("unigram", 1, 2, 0)
    assert (vocab.add_bos, vocab.add_eos) == (False, True)
    assert tokenizer.encode("  the  ﬁ z") == [4, 8, 6, 3, 0, 2]
    assert tokenizer.encode_pair("a", "b") == ([8, 2, 3, 6, 2], None)
    assert tokenizer.decode([4, 8], skip_special=True) == "the a"


def test_llamas_tokenizer_ends_no_text_whatever_its_model(tmp_path: Path) -> None:
    config: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer"}
    tokenizer = opened(tmp_path, "tokenizer.model", unigram(), tokenizer_config=config)
    assert tokenizer.encode("the") == [1, 4]
    config |= {"add_bos_token": False, "add_eos_token": True}
    tokenizer = opened(tmp_path, "tokenizer.model", unigram(), tokenizer_config=config)
    assert tokenizer.encode("the") == [4, 2]


def test_merges(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, "tokenizer.model", llama())
    vocab = tokenizer.vocab
    assert (vocab.kind, vocab.pieces, vocab.add_bos, vocab.add_eos) == ("spm", "", True, False)
    assert tokenizer.encode("ab a\n") == [1, 264, 263, 13]
    assert vocab.source == tmp_path


XLMR = {"config": {"model_type": "xlm-roberta", "vocab_size": 14}}
NAMES = {
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
}


def shifted(model: str, charsmap: bytes) -> tokenizers.Tokenizer:
    """The tokenizer.json that transformers makes of sentencepiece.bpe.model."""
    names = NAMES[model]
    firsts = ((name, -100.0 if name == "<unk>NOTUSED" else 0.0) for name in names)
    pieces = [*firsts, *UNIGRAM, ("<mask>", 0.0)]
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    made.normalizer = normalizers.Precompiled(charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([*names, "<mask>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, names.index(name)) for name in ("<s>", "</s>")],
    )
    return made


def test_camembert_has_other_ids_than_its_file(tmp_path: Path) -> None:
    charsmap = character_map(CHARACTERS)
    config = {"model_type": "camembert"}
    tokenizer = opened(tmp_path, "sentencepiece.bpe.model", unigram(charsmap), config=config)
    vocab, backend = tokenizer.vocab, shifted("camembert", charsmap)
    assert [*vocab.tokens] == [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    assert vocab.scores is not None
    assert vocab.scores.tolist()[3:7] == [0, -100, 0, 0]
    assert (vocab.special.bos, vocab.special.eos, vocab.special.mask) == (5, 6, 14)
    for text in ("  the \n ﬁ z", "ab a", "a", ""):
        assert tokenizer.encode(text) == backend.encode(text).ids
    assert tokenizer.encode_pair("a", "b") == (backend.encode("a", "b").ids, None)


def test_xlm_roberta_has_other_ids_than_its_file(tmp_path: Path) -> None:
    charsmap = character_map(CHARACTERS)
    tokenizer = opened(tmp_path, "sentencepiece.bpe.model", unigram(charsmap), **XLMR)
    vocab, special, backend = (
        tokenizer.vocab,
        tokenizer.vocab.special,
        shifted("xlm-roberta", charsmap),
    )
    assert [*vocab.tokens] == [
        "<s>", "<pad>", "</s>", "<unk>", *(text for text, _ in UNIGRAM), "<mask>", "[PAD12]", "[PAD13]",
    ]  # fmt: skip
    assert vocab.scores is not None
    assert vocab.scores.tolist() == [0.0] * 4 + [score for _, score in UNIGRAM] + [0.0] * 3
    assert vocab.attributes.tolist() == [3, 3, 3, 2, *[1] * len(UNIGRAM), 3, 5, 5]
    assert (special.bos, special.pad, special.eos, special.unk) == (0, 1, 2, 3)
    assert (special.sep, special.mask) == (2, 11)
    for text in ("  the \n ﬁ z", "ab a", "a", ""):
        assert tokenizer.encode(text) == backend.encode(text).ids
    assert tokenizer.encode("a<mask>", parse_special=True) == [0, 9, 11, 2]
    assert tokenizer.encode_pair("a", "b") == (backend.encode("a", "b").ids, None)


@pytest.mark.parametrize("model", NAMES)
def test_shifted_ids_convert_as_with_a_tokenizer_json(model: str, tmp_path: Path) -> None:
    charsmap = character_map(CHARACTERS)
    found = []
    for name in ("model", "json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps(XLMR["config"] | {"model_type": model, "vocab_size": 17})
        )
        if name == "model":
            (folder / "sentencepiece.bpe.model").write_bytes(unigram(charsmap))
        else:
            shifted(model, charsmap).save(str(folder / "tokenizer.json"))
            about = {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
            (folder / "tokenizer_config.json").write_text(json.dumps(about))
        fields, left_out = vocabulary_fields(Vocabulary.from_directory(folder), folder, "bert", 17)
        assert not left_out
        found.append({each for each in fields if b"seperator" not in each})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("data", "others", "words"),
    [
        (unigram(), {"config": {"model_type": "mbart"}}, "ids of 'mbart'"),
        (unigram(), {}, "ids of 'an unknown tokenizer'"),
        (unigram(), XLMR | {"tokenizer_config": {"tokenizer_class": "MBartTokenizer"}}, "ids of 'MBart"),
        (llama(), XLMR, "theirs are unigram models"),
        (unigram()[len(piece("<unk>", kind=2)):], XLMR, "instead of one"),
        (piece("q") + unigram(), XLMR, r"begins with \['q', '<unk>', '<s>'\]"),
    ],
)  # fmt: skip
def test_shifted_ids_that_are_not_known(
    data: bytes, others: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(AleatorError, match=words):
        opened(tmp_path, "sentencepiece.bpe.model", data, **others)


def test_a_tokenizer_of_xlm_roberta_is_enough(tmp_path: Path) -> None:
    about = {"tokenizer_class": "XLMRobertaTokenizerFast"}
    tokenizer = opened(
        tmp_path, "sentencepiece.bpe.model", unigram(), tokenizer_config=about, config={"model_type": "x"}
    )  # fmt: skip
    assert tokenizer.encode("a") == [0, 9, 2]


def test_configurations_count(tmp_path: Path) -> None:
    tokenizer = opened(
        tmp_path,
        "tokenizer.model",
        llama(),
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "add_bos_token": False,
            "add_eos_token": True,
            "chat_template": "{{ messages }}",
            "added_tokens_decoder": {
                "0": {"content": "<unk>", "special": True},
                "265": {"content": "<|im_end|>", "special": True},
                "267": {"content": "<x y>"},
            },
        },
        added_tokens={"<|im_end|>": 265, "<q>": 266},
        generation_config={"eos_token_id": [2, 265]},
        config={"vocab_size": 270},
    )
    vocab = tokenizer.vocab
    assert len(vocab) == 270
    assert vocab.eog == {2, 265}
    assert vocab.chat_template == "{{ messages }}"
    kinds = [vocab.attribute(i) for i in (0, 1, 265, 266, 267, 268)]
    types = TokenAttribute
    assert kinds == [
        types.UNKNOWN,
        types.CONTROL,
        types.CONTROL,
        types.USER_DEFINED,
        types.USER_DEFINED,
        types.UNUSED,
    ]
    assert tokenizer.encode("ab<q>") == [264, 266, 2]


def backend(lower: bool) -> tokenizers.Tokenizer:
    ids = {text: i for i, text in enumerate([*SPECIAL, *WORDS])}
    made = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


@pytest.mark.parametrize("lower", [True, False])
def test_words(lower: bool, tmp_path: Path) -> None:
    tokenizer = words(tmp_path, **({} if lower else {"do_lower_case": False}))
    for text in ("The café,aab", "the b zz", "", "中a"):
        assert tokenizer.encode(text) == backend(lower).encode(text).ids
    pair = backend(lower).encode("the", "a b")
    assert tokenizer.encode_pair("the", "a b") == (pair.ids, pair.type_ids.index(1))
    vocab = tokenizer.vocab
    special = vocab.special
    assert (special.unk, special.sep, special.pad, special.mask) == (1, 3, 0, 4)
    assert all(vocab.is_special(i) == (i < 5) for i in range(len(vocab)))
    assert tokenizer.decode([2, 6, 7, 8, 9], skip_special=True) == "aab b"


def test_accents_stay_where_the_configuration_says_so(tmp_path: Path) -> None:
    assert words(tmp_path, strip_accents=False).encode("café", add_special=False) == [13]


def test_lines_of_other_systems(tmp_path: Path) -> None:
    data = "\r\n".join([*SPECIAL, *WORDS]).encode()
    assert opened(tmp_path, "vocab.txt", data).vocab.tokens[-1] == "▁café"


@pytest.mark.parametrize(
    ("file", "data", "others", "message"),
    [
        ("vocab.txt", b"[UNK]\nthe\n", {}, "bos_token"),
        ("vocab.txt", b"\xff", {}, "UTF-8"),
        ("vocab.txt", "\n".join([*SPECIAL, "a", "a"]).encode(), {}, "are both"),
        ("tokenizer.model", b"\xff", {}, "no model of SentencePiece"),
        ("tokenizer.model", llama(), {"added_tokens": {"<q>": -1}}, "must be between"),
        ("tokenizer.model", llama(), {"added_tokens": {"<q>": 1 << 24}}, "must be between"),
        ("tokenizer.model", llama(), {"added_tokens": {"<s>": 300}}, "are both"),
        ("tokenizer.model", llama(), {"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "no id"),
        ("tokenizer.model", llama(), {"tokenizer_config": {"added_tokens_decoder": {"9" * 9: {}}}}, "no id"),
        ("tokenizer.model", llama(), {"tokenizer_config": {"added_tokens_decoder": {"3": 1}}}, "content"),
        ("tokenizer.model", llama(), {"config": {"vocab_size": 1 << 30}}, "must be between"),
        ("tokenizer.model", llama(), {"tokenizer_config": {"add_bos_token": 1}}, "add_bos_token"),
    ],
)  # fmt: skip
def test_damaged_files(file: str, data: bytes, others: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        opened(tmp_path, file, data, **others)


@pytest.mark.parametrize("key", ["do_basic_tokenize", "tokenize_chinese_chars"])
def test_words_that_are_cut_in_another_way(key: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        words(tmp_path, **{key: False})


@pytest.mark.parametrize(
    ("lacks", "data", "needed"),
    [(46, llama(), "bos"), (47, llama(), "eos"), (47, unigram(), "eos"), (46, unigram(), "")],
)
def test_models_without_a_begin_or_an_end(
    lacks: int, data: bytes, needed: str, tmp_path: Path
) -> None:
    """GGUF would take token 1 or 2 for it, whatever that is."""
    data = data + entry(2, entry(3, 2 if data == llama() else 1) + entry(lacks, "none"))
    if not needed:
        assert opened(tmp_path, "tokenizer.model", data).vocab.bos is None
        return
    with pytest.raises(UnsupportedModel, match=f"no {needed} token"):
        opened(tmp_path, "tokenizer.model", data)
    vocab = opened(
        tmp_path, "tokenizer.model", data, tokenizer_config={f"{needed}_token": "ab"}
    ).vocab
    assert vocab.tokens[getattr(vocab.special, needed)] == "ab"


def test_a_list_of_more_bytes_than_any_model(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("aleator.text.sentencepiece.MAX_BYTES", 20)
    with pytest.raises(FileFormatError, match="at most 20"):
        words(tmp_path)


@pytest.mark.parametrize(
    ("line", "number"),
    [("IQ== 7", 1), ("IQ==", 1), ("IQ 0", 1), ("I Q== 0", 1), ("IQ== x", 1), (" 0", 1), ("IQ== 0\nIQ== 1", 2),
     (f"{'QUFB' * 43} 0", 1), ("IQ== 0\n\nIg== 2", 3)],
)  # fmt: skip
def test_damaged_ranks(line: str, number: int, tmp_path: Path) -> None:
    config = {"tokenizer_class": "TikTokenTokenizer"}
    with pytest.raises(FileFormatError, match=f"line {number}, .*is not a new token of 1 to 128 b"):
        opened(tmp_path, "tiktoken.model", line.encode(), tokenizer_config=config)


def test_ranks_whose_tokens_are_made_in_too_many_ways(tmp_path: Path) -> None:
    lines = [base64.b64encode(b"a" * n) + b" %d" % (n - 1) for n in range(1, 33)]
    config = {"tokenizer_class": "TikTokenTokenizer"}
    with pytest.raises(FileFormatError, match="more than 8 pairs of tokens for each"):
        opened(tmp_path, "tiktoken.model", b"\n".join(lines), tokenizer_config=config)


def test_a_directory_without_any(tmp_path: Path) -> None:
    with pytest.raises(AleatorError, match=r"no tokenizer\.json, tokenizer\.model or vocab\.txt"):
        Vocabulary.from_directory(tmp_path)


PLAMO: list[Any] = [
    ["<|plamo:unk|>", 0.0, "UNKNOWN"], ["<|plamo:bos|>", 0.0, "CONTROL"], ["<|plamo:eos|>", 0.0, "CONTROL"],
    ["<|plamo:pad|>", 0, "CONTROL"], ["<|plamo:op|>", 0.0, "NORMAL", 1],
    *([f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256)),
    ["a", -2.0], ["b", -3.0, "NORMAL"], ["ab", -5.0], ["ba", -4.99996], ["aba", -7.00004], ["▁", -1.0],
    ["é", -2000], ["東京", -1e9], ["xy", -1000.0], ["x", -1.0], ["y", -1.0],
]  # fmt: skip


def plamo(folder: Path, lines: list[Any], **config: Any) -> Tokenizer:
    data = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    names = {f"{name}_token": f"<|plamo:{name}|>" for name in ("bos", "eos", "unk", "pad")}
    config |= {"tokenizer_config": names | {"add_bos_token": True}}
    return opened(folder, "tokenizer.jsonl", data, config={"vocab_size": 274}, **config)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ab", [263]),  # of equal sums the longest first
        ("aba", [265]),  # sums of whole ten-thousandths: 2 + 5 are no more than 7
        ("▁ é", [266, 37, 200, 174]),  # scores of -2000 and less are never taken
        ("東京", [235, 162, 182, 233, 191, 177]),
        ("\ufeffa\ufeff", [261, 244, 192, 196]),
        ("bxy", [103, 269]),  # llama.cpp's: xy costs as much as bytes do
        ("x[PAD1]", [125, 272]),
        ("a<|plamo:eos|>", [261, 2]),
        ("", []),
    ],
)
def test_plamo(text: str, wanted: list[int], tmp_path: Path) -> None:
    tokenizer = plamo(tmp_path, PLAMO)
    fields, left_out = vocabulary_fields(tokenizer.vocab, tmp_path, "plamo3", 274)
    converted = Vocabulary.from_gguf(GGUFFile(tmp_path, beginning(fields, [])[0]))
    assert left_out == []
    assert converted.special == tokenizer.vocab.special
    assert sorted(converted.eog) == [2, 4]
    for each in (tokenizer, Tokenizer(converted)):
        assert each.encode(text) == wanted
        assert each.decode(wanted) == text.removeprefix("\ufeff")
        assert each.encode("<|plamo:eos|>", parse_special=True) == [2]


@pytest.mark.parametrize(
    "line",
    ["{}", "[", '"ab"', "[]", '["z"]', '["z", "1"]', '["z", true]', '["z", NaN]', '["z", -Infinity]',
     '["z", 1e39]', '["z", 1, 3]', '[7, 1]', '["\\ud800", 1]', "[" * 999, f'["z", {"9" * 9999}]',
     f'["z", {"9" * 99}]'],
)  # fmt: skip
def test_damaged_lines_of_plamo(line: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"line 273, .* is not a list of a text, a finite s"):
        plamo(tmp_path, [*PLAMO, line])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*PLAMO, ["ab", 1.0]], "are both 'ab'"),
        ([*PLAMO, ["ab", 1.0, "BYTE"], ["c", 1.0]], "ab"),
        ([*PLAMO[:9], *PLAMO[10:]], "255 tokens of bytes, not 256"),
        ([*PLAMO, ["z" * (1 << 15), 1.0]], "suffixes of more than"),
    ],
)
def test_vocabularies_that_plamo_cannot_have(
    lines: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match=message):
        plamo(tmp_path, lines)
