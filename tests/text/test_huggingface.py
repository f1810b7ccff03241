from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from aleator.core.errors import FileFormatError, ModelNotFound, UnsupportedModel
from aleator.text import TokenAttribute, Tokenizer, Vocabulary, huggingface
from aleator.text.special_tokens import Pair
from tests.text.vocabularies import byte_level, sentencepiece

TEXTS = ["", "abc ab", " cab  é🦙\n", "<|im_end|>ab<u>c", "<s>ab</s> ab"]


def ids_of(metadata: dict[str, Any]) -> dict[str, int]:
    return {text: i for i, text in enumerate(metadata["tokenizer.ggml.tokens"])}


def write(directory: Path, backend: tokenizers.Tokenizer, **configs: Any) -> Path:
    """A directory with tokenizer.json, and <name>.json for each of ``configs``."""
    backend.save(str(directory / "tokenizer.json"))
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config))
    return directory


def byte_level_backend() -> tokenizers.Tokenizer:
    model = models.BPE(ids_of(byte_level()), [("a", "b"), ("ab", "c")])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_end|>", "<s>"])  # 258, 259
    backend.add_tokens(["<u>"])  # 260
    return backend


def sentencepiece_backend() -> tokenizers.Tokenizer:
    merges = [("a", "b"), ("▁", "ab")]
    model = models.BPE(ids_of(sentencepiece()), merges, unk_token="<unk>", byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return backend


def test_byte_level(tmp_path: Path) -> None:
    backend = byte_level_backend()
    vocab = Vocabulary.from_directory(
        write(
            tmp_path,
            backend,
            tokenizer_config={"eos_token": {"content": "<|im_end|>"}, "bos_token": None},
            config={"vocab_size": 300},
        )
    )
    assert (vocab.kind, len(vocab), vocab.eos, vocab.bos) == ("bpe", 300, 258, None)
    assert vocab.eog == {258}
    assert not vocab.add_bos
    assert vocab.attribute(259) == TokenAttribute.CONTROL
    assert vocab.attribute(260) == TokenAttribute.USER_DEFINED
    assert vocab.attribute(299) == TokenAttribute.UNUSED
    assert (vocab.token_bytes(299), vocab.token_bytes(0x0A)) == (b"", b"\n")
    tok = Tokenizer(vocab)
    for text in TEXTS:
        assert tok.encode(text, parse_special=True) == backend.encode(text).ids
        assert tok.decode(tok.encode(text)) == text
    assert 258 not in tok.encode("<|im_end|>")
    assert 260 in tok.encode("<u>")


def test_sentencepiece(tmp_path: Path) -> None:
    backend = sentencepiece_backend()
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocab = Vocabulary.from_directory(write(tmp_path, backend, tokenizer_config=config))
    assert (vocab.kind, vocab.bos, vocab.eos, vocab.unk) == ("spm", 1, 2, 0)
    assert (vocab.add_bos, vocab.add_eos, vocab.add_space_prefix) == (True, False, True)
    assert vocab.attribute(3) == TokenAttribute.BYTE
    assert vocab.attribute(0) == TokenAttribute.UNKNOWN
    tok = Tokenizer(vocab)
    for text in TEXTS[1:]:
        assert tok.encode(text, parse_special=True) == backend.encode(text).ids
        assert tok.decode(tok.encode(text), skip_special=True) == text


def test_same_ids_as_from_gguf(tmp_path: Path) -> None:
    directory = write(tmp_path, sentencepiece_backend(), tokenizer_config={"bos_token": "<s>"})
    theirs = Tokenizer(Vocabulary.from_directory(directory))
    ours = Tokenizer(Vocabulary.from_metadata(sentencepiece()))
    for text in ("ab ab", "abé  \n a", "<s>"):
        assert theirs.encode(text) == ours.encode(text)


def test_user_defined_tokens_may_be_text_too(tmp_path: Path) -> None:
    tok = Tokenizer(Vocabulary.from_directory(write(tmp_path, byte_level_backend())))
    assert tok.encode("a<u><s>") == [97, 260, *b"<s>"]
    assert tok.encode("a<u><s>", unread=["<u>"]) == [97, *b"<u><s>"]
    assert tok.encode("a<u><s>", parse_special=True, unread=["<u>"]) == [97, 260, 259]
    assert tok.encode("a<u>") == [97, 260]


def test_configuration_overrides_the_post_processor(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    config["add_eos_token"] = True
    directory = write(tmp_path, sentencepiece_backend(), tokenizer_config=config)
    vocab = Vocabulary.from_directory(directory)
    assert (vocab.add_bos, vocab.add_eos) == (False, True)
    assert Tokenizer(vocab).encode("ab") == [263, 2]


def test_all_ends_of_the_generation_config_count(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        byte_level_backend(),
        special_tokens_map={"bos_token": "<s>"},
        generation_config={"eos_token_id": [257, 260], "bos_token_id": 259},
        config={"eos_token_id": 5},
    )
    vocab = Vocabulary.from_directory(directory)
    assert (vocab.bos, vocab.eos) == (259, 257)
    assert vocab.eog == {257, 258, 260}


def test_saved_truncation_and_padding_do_nothing(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    tok = Tokenizer(Vocabulary.from_directory(write(tmp_path, backend)))
    assert tok.encode("xyz") == [ord("x"), ord("y"), ord("z")]


def change(path: Path, *keys: str | int, value: Any) -> None:
    """Set a field of tokenizer.json."""
    document = json.loads(path.read_text())
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(document))


BAD_FIELDS: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("model",), None, "model"),
    (("model", "vocab"), {}, "out of vocabulary"),
    (("model", "vocab", "a"), -1, "the id -1"),
    (("model", "vocab", "a"), 1 << 60, "the id 1152921504606846976"),
    (("model", "vocab", "a"), 98, "both have the id 98"),
    (("model", "vocab", "\ud800"), 400, "surrogate"),
    (("model", "merges"), [["a", "x"]], "tokenizers"),
    (("added_tokens", 0), 3, "content"),
    (("added_tokens", 0, "id"), None, "id"),
    (("added_tokens", 0, "id"), 1000, "'<|im_end|>' has the id 1000"),
    (("added_tokens", 0, "id"), 99, "both have the id 99"),
    (("added_tokens", 0, "content"), "a", "the token 'a' has two ids"),
    (("pre_tokenizer",), {"type": "Nonsense"}, "tokenizers"),
    (("decoder", "type"), [], "type must be a string"),
    (("post_processor",), {"type": "TemplateProcessing"}, "single"),
    (("post_processor",), {"type": "TemplateProcessing", "single": [{}]}, "malformed"),
]


@pytest.mark.parametrize(("keys", "value", "message"), BAD_FIELDS)
def test_bad_fields_are_named(
    keys: tuple[str | int, ...], value: Any, message: str, tmp_path: Path
) -> None:
    change(write(tmp_path, byte_level_backend()) / "tokenizer.json", *keys, value=value)
    with pytest.raises(FileFormatError, match=message):
        Tokenizer(Vocabulary.from_directory(tmp_path))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("model", "type"), "WordLevel", "BPE, WordPiece and Unigram"),
        (("decoder",), None, "neither byte-level nor SentencePiece"),
    ],
)
def test_other_tokenizers_are_refused(
    keys: tuple[str | int, ...], value: Any, message: str, tmp_path: Path
) -> None:
    change(write(tmp_path, byte_level_backend()) / "tokenizer.json", *keys, value=value)
    with pytest.raises(UnsupportedModel, match=message):
        Vocabulary.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("tokenizer_config", {"eos_token": "</x>"}, "eos_token is '</x>', which is not in"),
        ("tokenizer_config", {"eos_token": ["a"]}, "must be a string"),
        ("tokenizer_config", {"chat_template": 3}, "chat_template"),
        ("tokenizer_config", {"add_bos_token": "yes"}, "add_bos_token"),
        ("generation_config", {"eos_token_id": [1, "x"]}, "eos_token_id has 'x'"),
        ("config", {"vocab_size": 1 << 40}, "vocab_size"),
    ],
)
def test_bad_configurations_are_named(
    name: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, byte_level_backend(), **{name: config})
    with pytest.raises(FileFormatError, match=message) as caught:
        Vocabulary.from_directory(tmp_path)
    assert f"{name}.json" in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        Vocabulary.from_directory(tmp_path / "none")
    with pytest.raises(FileFormatError, match=r"no tokenizer\.json"):
        Vocabulary.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(FileFormatError, match="JSON"):
        Vocabulary.from_directory(tmp_path)


def test_ids_and_sizes_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (huggingface.MAX_TOKENS, huggingface._MAX_TEMPLATE) == (1 << 24, 1 << 20)
    monkeypatch.setattr(huggingface, "MAX_TOKENS", 300)
    directory = write(tmp_path, byte_level_backend(), config={"vocab_size": 300})
    vocab = Vocabulary.from_directory(directory)
    assert (len(vocab), vocab.attribute(299)) == (300, TokenAttribute.UNUSED)
    (directory / "config.json").write_text(json.dumps({"vocab_size": 301}))
    with pytest.raises(FileFormatError, match="vocab_size is 301; it must be between 0 and 300"):
        Vocabulary.from_directory(directory)
    (directory / "config.json").unlink()
    for token_id, fits in ((299, True), (300, False), (-1, False)):
        change(directory / "tokenizer.json", "model", "vocab", "abc", value=token_id)
        if fits:
            assert len(Vocabulary.from_directory(directory)) == 300
            continue
        with pytest.raises(FileFormatError, match=f"'abc' has the id {token_id}"):
            Vocabulary.from_directory(directory)


def test_named_ids_are_within_the_vocabulary(tmp_path: Path) -> None:
    directory = write(tmp_path, byte_level_backend())
    for token_id in (0, 260, 261, -1, True):
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": token_id}))
        if token_id in (0, 260, 261):  # no token has 261: GPT-2's 50256 in a smaller model
            ends = Vocabulary.from_directory(directory).eog
            assert (token_id in ends, 261 in ends) == (token_id != 261, False)
            continue
        with pytest.raises(FileFormatError, match=r"eos_token_id has .*; ids are 0 to 260"):
            Vocabulary.from_directory(directory)


@pytest.mark.parametrize(
    ("decoder", "strips"),
    [
        ({"type": "Strip", "content": " ", "start": 1, "stop": 0}, True),
        ({"type": "Strip", "content": " ", "start": 0, "stop": 1}, False),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, True),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, False),
        ({"type": "Metaspace", "replacement": "▁"}, True),
        ({"type": "Fuse"}, False),
    ],
)
def test_whether_a_first_space_is_added(
    decoder: dict[str, Any], strips: bool, tmp_path: Path
) -> None:
    steps = [{"type": "ByteFallback"}, decoder]
    directory = write(tmp_path, sentencepiece_backend())
    change(directory / "tokenizer.json", "decoder", value={"type": "Sequence", "decoders": steps})
    assert Vocabulary.from_directory(directory).add_space_prefix is strips


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([0], None),
        ([260], None),
        ([261], "adds the token 261"),
        ([-1], "adds the token -1"),
        ([True], "adds the token True"),
        ([259, 259], "adds the tokens"),
    ],
)
def test_tokens_that_the_post_processor_adds(
    ids: list[int], error: str | None, tmp_path: Path
) -> None:
    step = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"x": {"id": "x", "ids": ids}},
    }
    directory = write(tmp_path, byte_level_backend(), generation_config={"bos_token_id": ids})
    (directory / "generation_config.json").unlink()
    change(directory / "tokenizer.json", "post_processor", value=step)
    if error is None:
        vocab = Vocabulary.from_directory(directory)
        assert (vocab.bos, vocab.add_bos, vocab.add_eos) == (ids[0], True, False)
    else:
        with pytest.raises((FileFormatError, UnsupportedModel), match=error):
            Vocabulary.from_directory(directory)


def test_another_token_at_the_end_takes_the_place_of_the_named_eos(tmp_path: Path) -> None:
    """As in Qwen3-Embedding, whose texts for vectors end otherwise than its answers."""
    step = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "x"}}],
        "special_tokens": {"x": {"id": "x", "ids": [258]}},
    }
    directory = write(tmp_path, byte_level_backend(), config={"eos_token_id": 259})
    assert Vocabulary.from_directory(directory).eos == 259
    change(directory / "tokenizer.json", "post_processor", value=step)
    vocab = Vocabulary.from_directory(directory)
    assert (vocab.eos, vocab.add_eos, vocab.special.eot) == (258, True, 259)
    assert vocab.eog >= {258, 259}


@pytest.mark.parametrize(
    ("single", "pair"), [("AA", "AB"), ("AxA", "AB"), ("A", "BA"), ("A", "ABA")]
)
def test_texts_that_stand_twice_or_in_another_order(single: str, pair: str, tmp_path: Path) -> None:
    """Hugging Face's tokenizers write a text as often as the template has it."""

    def steps(names: str) -> list[Any]:
        return [{"Sequence" if name in "AB" else "SpecialToken": {"id": name}} for name in names]

    step = {
        "type": "TemplateProcessing",
        "single": steps(single),
        "pair": steps(pair),
        "special_tokens": {"x": {"id": "x", "ids": [0]}},
    }
    directory = write(tmp_path, byte_level_backend())
    change(directory / "tokenizer.json", "post_processor", value=step)
    with pytest.raises(UnsupportedModel, match=r"post_processor has the texts [AB, ]*, not A"):
        Vocabulary.from_directory(directory)


def test_the_first_of_several_named_ids_begins_a_text(tmp_path: Path) -> None:
    config = {"bos_token_id": [259, 5], "eos_token_id": [258, 7]}
    vocab = Vocabulary.from_directory(write(tmp_path, byte_level_backend(), config=config))
    assert (vocab.bos, vocab.eos) == (259, 258)
    assert vocab.eog == {258, 7}


PAIRS: list[tuple[list[Any], tuple[Any, ...] | None]] = [
    ([], ((), (), (), False)),
    ([0], ((0,), (), (), False)),
    ([260], ((260,), (), (), False)),
    ([5, 6], ((5, 6), (), (), False)),
    ([261], None),
    ([-1], None),
    ([True], None),
    (["a"], None),
]


@pytest.mark.parametrize(("ids", "around"), PAIRS)
def test_tokens_that_are_put_around_two_texts(
    ids: list[Any], around: tuple[Any, ...] | None, tmp_path: Path
) -> None:
    """The texts alone have none, so only those of pairs can be wrong."""
    texts: list[Any] = [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}]
    step = {
        "type": "TemplateProcessing",
        "single": texts[:1],
        "pair": [{"SpecialToken": {"id": "x"}}, *texts],
        "special_tokens": {"x": {"id": "x", "ids": ids}},
    }
    directory = write(tmp_path, byte_level_backend())
    change(directory / "tokenizer.json", "post_processor", value=step)
    if around is None:
        with pytest.raises(FileFormatError, match=f"adds the token {ids[0]!r}"):
            Vocabulary.from_directory(directory)
        return
    vocab = Vocabulary.from_directory(directory)
    assert vocab.pair == Pair(*around)
    assert not vocab.add_bos


def test_a_pair_of_a_file_without_a_post_processor_is_one_segment(tmp_path: Path) -> None:
    tok = Tokenizer(Vocabulary.from_directory(write(tmp_path, byte_level_backend())))
    assert tok.encode_pair("x", "ab") == ([ord("x"), 256], None)


def test_an_added_token_is_text_unless_it_is_called_special(tmp_path: Path) -> None:
    directory = write(tmp_path, byte_level_backend(), config={"vocab_size": 0})
    change(directory / "tokenizer.json", "added_tokens", 1, value={"id": 259, "content": "<s>"})
    vocab = Vocabulary.from_directory(directory)
    assert len(vocab) == 261
    assert vocab.attribute(258) == TokenAttribute.CONTROL
    assert vocab.attribute(259) == TokenAttribute.USER_DEFINED


def test_a_long_text_has_the_tokens_of_its_parts(tmp_path: Path) -> None:
    tokenizer = Tokenizer(Vocabulary.from_directory(write(tmp_path, byte_level_backend())))
    part = "a b\n" * 32
    alone = tokenizer.encode(part, add_special=False)
    for times in (1, 40):
        assert tokenizer.encode(part * times, add_special=False) == alone * times
