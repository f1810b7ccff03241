from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import FileFormatError, ModelNotFound, TokenizerError, UnsupportedModel
from aleator.models.files.gguf import GGUFFile
from aleator.text import (
    SpecialTokens,
    TokenAttribute,
    Tokenizer,
    Vocabulary,
    gguf_vocabulary,
    special_tokens,
)
from tests.models.builders import model_metadata, write_gguf
from tests.text import vocabularies
from tests.text.vocabularies import byte_level, sentencepiece

GGML = "tokenizer.ggml."

# As llama.cpp 0.5 loads them: bos, eos, eot, add_bos, ends.
LLAMA_CPP = {
    "llama-spm": (1, 2, None, True, {2}),
    "llama-bpe": (128000, 128001, 128009, True, {128001, 128009}),
    "qwen2": (151643, 151643, 151645, False, {151643, 151645, 128247}),
    "gpt-2": (50256, 50256, 50256, False, {50256}),
}


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_specials_are_llama_cpps(name: str, tokenizer: Callable[[str], Tokenizer]) -> None:
    vocab = tokenizer(name).vocab
    found = (vocab.bos, vocab.eos, vocab.eot, vocab.add_bos, set(vocab.eog))
    assert found == LLAMA_CPP[name]
    assert not vocab.add_eos


def test_sizes_and_attributes(tokenizer: Callable[[str], Tokenizer]) -> None:
    spm = tokenizer("llama-spm").vocab
    assert (len(spm), spm.unk, spm.pad) == (32000, 0, None)
    assert [spm.attribute(i) for i in (0, 1, 3, 15043)] == [
        TokenAttribute.UNKNOWN,
        TokenAttribute.CONTROL,
        TokenAttribute.BYTE,
        TokenAttribute.NORMAL,
    ]
    assert (spm.text(15043), spm.token_bytes(15043)) == ("▁Hello", b" Hello")
    assert (spm.text(13), spm.token_bytes(13)) == ("<0x0A>", b"\n")
    assert spm.token_bytes(1) == b"<s>"
    bpe = tokenizer("qwen2").vocab
    assert (len(bpe), bpe.pad) == (151936, 151643)
    assert bpe.token_bytes(np.int64(151645)) == b"<|im_end|>"
    assert bpe.chat_template is not None


def test_byte_level_tokens_are_the_256_bytes() -> None:
    vocab = Vocabulary.from_metadata(byte_level())
    assert [vocab.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


def test_every_byte_has_a_character_that_can_be_seen() -> None:
    seen = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in seen]
    expected = {b: chr(b) for b in seen} | {b: chr(256 + i) for i, b in enumerate(others)}
    assert expected == special_tokens.BYTE_CHARACTERS


def test_scores_are_numbers_of_any_type() -> None:
    mixed = Vocabulary.from_metadata(sentencepiece(scores=[1, *[0.5] * 263]))
    assert mixed.scores is not None
    assert mixed.scores[:2].tolist() == [1.0, 0.5]


def test_unused_tokens_have_no_bytes() -> None:
    vocab = Vocabulary.from_metadata(byte_level(("[PAD0]",), vocabularies.UNUSED))
    assert vocab.token_bytes(258) == b""


@pytest.mark.parametrize("token", [-1, 258, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    vocab = Vocabulary.from_metadata(byte_level())
    for method in (vocab.token_bytes, vocab.text, vocab.attribute):
        with pytest.raises(TokenizerError, match=f"{token} is outside the vocabulary of 258"):
            method(token)


def test_ids_must_be_integers() -> None:
    with pytest.raises(TokenizerError, match="must be an integer"):
        Vocabulary.from_metadata(byte_level()).token_bytes(1.5)  # type: ignore[arg-type]


END_TEXTS = [
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "_<EOT>", "[EOT]", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<|eom_id|>", "<|return|>",
    "<|call|>", "<|flush|>", "<|calls|>", "[EOS]", "<eos>", "</s>", "[e~[", "<｜end▁of▁sentence｜>",
    "<|fim_pad|>", "<PAD>", "<|repo_name|>", "<|file_sep|>",
]  # fmt: skip


@pytest.mark.parametrize("text", END_TEXTS)
def test_well_known_texts_end_a_generation(text: str) -> None:
    vocab = Vocabulary.from_metadata(byte_level((text,), vocabularies.NORMAL))
    assert vocab.eog == {258}
    assert vocab.attribute(258) == TokenAttribute.CONTROL


@pytest.mark.parametrize("text", ["<s>", "<|start|>", "<pad>", "<|fim_prefix|>", "<|EOT|>"])
def test_other_texts_do_not(text: str) -> None:
    assert Vocabulary.from_metadata(byte_level((text,))).eog == frozenset()


# Combinations, as llama.cpp 0.5 resolves them.
def test_end_of_a_part_is_no_end_in_gpt_oss() -> None:
    vocab = Vocabulary.from_metadata(byte_level(("<|end|>", "<|return|>", "<|call|>")))
    assert vocab.eog == {259, 260}
    assert vocab.attribute(258) == TokenAttribute.USER_DEFINED
    assert Vocabulary.from_metadata(byte_level(("<|end|>", "<|return|>"))).eog == {258, 259}
    calls = Vocabulary.from_metadata(byte_level(("<|end|>", "<|return|>", "<|calls|>")))
    assert calls.eog == {259, 260}
    for texts in (("<|return|>", "<|call|>"), ("<|end|>", "<|call|>"), ("<|end|>", "<|calls|>")):
        assert Vocabulary.from_metadata(byte_level(texts)).eog == {258, 259}


def test_html_tag_is_no_end_in_gemma4() -> None:
    vocab = Vocabulary.from_metadata(byte_level(("</s>", "<|tool_response>")))
    assert vocab.eog == {259}
    assert vocab.attribute(258) == TokenAttribute.NORMAL


def test_named_ids_end_a_generation_whatever_their_text() -> None:
    fields = {"eos_token_id": 258, "eot_token_id": 259, "eom_token_id": 260, "bos_token_id": 0}
    vocab = Vocabulary.from_metadata(byte_level(("<x>", "<y>", "<z>"), **fields))
    assert vocab.eog == {258, 259, 260}
    assert (vocab.eos, vocab.eot, vocab.special.eom) == (258, 259, 260)


def test_fill_in_the_middle_tokens_are_found() -> None:
    vocab = Vocabulary.from_metadata(byte_level(("<PRE>", "<fim_suffix>", "<|fim_middle|>")))
    assert (vocab.special.fim_pre, vocab.special.fim_suf, vocab.special.fim_mid) == (258, 259, 260)
    named = Vocabulary.from_metadata(byte_level(("<PRE>", "<x>"), fim_pre_token_id=259))
    assert named.special.fim_pre == 259


def test_chat_metadata() -> None:
    metadata = byte_level() | {"tokenizer.chat_template": "x", "aleator.chat.stop": ["\n\n", ""]}
    vocab = Vocabulary.from_metadata(metadata)
    assert (vocab.chat_template, vocab.chat_stop) == ("x", ("\n\n",))
    assert Vocabulary.from_metadata(byte_level()).chat_stop == ()


def test_bos_defaults_follow_the_tokenizer() -> None:
    assert Vocabulary.from_metadata(sentencepiece()).add_bos
    assert not Vocabulary.from_metadata(sentencepiece(add_bos_token=False)).add_bos
    assert not Vocabulary.from_metadata(byte_level(bos_token_id=0)).add_bos
    assert Vocabulary.from_metadata(byte_level(bos_token_id=0, pre="llama-bpe")).add_bos
    assert not Vocabulary.from_metadata(byte_level(pre="llama-bpe")).add_bos


def without(metadata: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in metadata.items() if k != key}


BAD = {
    "no model": (without(byte_level(), GGML + "model"), GGML + "model", "missing"),
    "no tokens": (without(byte_level(), GGML + "tokens"), GGML + "tokens", "missing"),
    "no merges": (without(byte_level(), GGML + "merges"), GGML + "merges", "missing"),
    "empty": (byte_level(tokens=[]), GGML + "tokens", "no tokens"),
    "tokens of numbers": (byte_level(tokens=[1, 2]), GGML + "tokens", "strings"),
    "duplicate": (byte_level(("a",)), GGML + "tokens", "tokens 97 and 258 are both 'a'"),
    "few types": (byte_level(token_type=[1]), GGML + "token_type", "1 values for 258 tokens"),
    "bad type": (byte_level(token_type=[1] * 257 + [7]), GGML + "token_type", "token 257 is 7"),
    "NaN score": (sentencepiece(scores=[0.0] * 263 + [float("nan")]), GGML + "scores", "token 263"),
    "byte token": (
        sentencepiece(added=(("<0xG0>", vocabularies.BYTE),)),
        GGML + "tokens",
        "'<0xG0>' is not <0xXX>",
    ),
    "bos out of range": (byte_level(bos_token_id=258), GGML + "bos_token_id", "258"),
    "eos no number": (byte_level(eos_token_id="2"), GGML + "eos_token_id", "integer"),
    "add_bos without bos": (byte_level(add_bos_token=True), GGML + "bos_token_id", "add_bos"),
    "add_bos no bool": (byte_level(add_bos_token=1), GGML + "add_bos_token", "true or false"),
    "template": (byte_level() | {"tokenizer.chat_template": 1}, "tokenizer.chat_template", "str"),
    "stop": (byte_level() | {"aleator.chat.stop": [1]}, "aleator.chat.stop", "strings"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_metadata_names_the_field(case: str) -> None:
    metadata, field, message = BAD[case]
    with pytest.raises(FileFormatError, match=message) as caught:
        Vocabulary.from_metadata(metadata, path="model.gguf")
    assert caught.value.field == field
    assert str(caught.value).startswith("model.gguf: ")


def test_other_tokenizers_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="'rwkv'; supported are 'llama', 'gpt2'"):
        Vocabulary.from_metadata(byte_level(model="rwkv"))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        Vocabulary.from_gguf(tmp_path / "none.gguf")


def test_open_files_are_taken(tokenizer: Callable[[str], Tokenizer]) -> None:
    source = tokenizer("gpt-2").vocab.source
    assert source is not None
    assert len(Vocabulary.from_gguf(GGUFFile(source))) == 50257


def test_characters_that_stand_for_no_byte_are_themselves() -> None:
    texts = ("Ġ日x", "\x80", "é", "Ā")  # a space and a CJK letter; a control; the bytes E9 and 00
    vocab = Vocabulary.from_metadata(byte_level(tuple(texts[:2]), vocabularies.NORMAL))
    assert vocab.token_bytes(258) == b" " + "日x".encode()
    assert vocab.token_bytes(259) == "\x80".encode()
    assert [vocab.token_bytes(vocab.ids[text]) for text in texts[2:]] == [b"\xe9", b"\x00"]


@pytest.mark.parametrize(
    ("text", "is_byte"),
    [("<0x00>", True), ("<0xfF>", True), ("<0xAB>", True), ("<0xaA>", True), ("<0xG0>", False),
     ("<0x0>", False), ("<0x000>", False), ("(0x00>", False), ("<0x00)", False), ("<0X00>", False)],
)  # fmt: skip
def test_texts_of_byte_tokens(text: str, is_byte: bool) -> None:
    assert gguf_vocabulary.is_byte_token(text) is is_byte
    metadata = sentencepiece(added=((text, vocabularies.BYTE),), pieces=())
    for token in range(3, 259):  # each byte once
        metadata[GGML + "tokens"][token] = f"<{token}>"
        metadata[GGML + "token_type"][token] = vocabularies.NORMAL
    if is_byte:
        assert Vocabulary.from_metadata(metadata).token_bytes(259) == bytes.fromhex(text[3:5])
    else:
        with pytest.raises(FileFormatError, match="is not <0xXX>"):
            Vocabulary.from_metadata(metadata)


def test_sentencepieces_own_numbers_need_three_tokens() -> None:
    def of(n: int) -> Vocabulary:
        tokens, scores = ["<unk>", "<s>", "</s>", "a"][:n], [0.0] * n
        return Vocabulary.from_metadata(
            {GGML + "model": "llama", GGML + "tokens": tokens, GGML + "scores": scores}
        )

    for n, expected in ((2, (None, None, None)), (3, (0, 1, 2)), (4, (0, 1, 2))):
        vocab = of(n)
        assert (vocab.unk, vocab.bos, vocab.eos) == expected


def test_without_text() -> None:
    vocab = Vocabulary.without_text(3, "model.gguf")
    assert (len(vocab), vocab.has_text, vocab.special) == (3, False, SpecialTokens())
    assert (vocab.add_bos, vocab.add_eos, vocab.add_space_prefix, len(vocab.eog)) == (0, 0, 0, 0)
    assert vocab.attribute(2) == TokenAttribute.NORMAL
    for method in (vocab.text, vocab.token_bytes):
        with pytest.raises(TokenizerError, match=r"needs text, and model\.gguf has no vocabulary"):
            method(2)
    stream = Tokenizer(vocab).stream()
    assert (stream.push(2), stream.flush()) == ("", "")
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        stream.push(3)
    assert Vocabulary.from_metadata(byte_level()).has_text


@pytest.mark.parametrize(
    ("size", "sound"), [(1, True), (1 << 20, True), (0, False), (2**31, False)]
)
def test_the_size_of_a_vocabulary_without_texts_is_bounded(
    size: int, sound: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    metadata = model_metadata() | {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": size}
    write_gguf(path, metadata, {})
    if sound:
        assert len(Vocabulary.from_gguf(path)) == size
    else:
        with pytest.raises(FileFormatError, match=r"vocab_size .* between 1 and 2147483647"):
            Vocabulary.from_gguf(path)
