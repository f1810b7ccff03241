"""The tokenizer of a Hugging Face directory as fields of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.gguf_writer import beginning
from aleator.text import TokenAttribute, Tokenizer, Vocabulary
from aleator.text.gguf_fields import vocabulary_fields
from aleator.text.pretokenizers import PRE_TOKENIZERS, WHOLE_WORDS
from aleator.text.tokenizer import splits
from tests.text.conftest import DATA
from tests.text.sentencepiece_models import BPE, character_map, llama, model, piece, unigram
from tests.text.test_huggingface import (
    TEXTS,
    byte_level_backend,
    change,
    sentencepiece_backend,
    write,
)
from tests.text.test_word_pieces import PIECES, SPECIAL, wordpiece
from tests.text.test_word_pieces import unigram as unigram_backend

GGML = "tokenizer.ggml."


def made(directory: Path, n_vocab: int, architecture: str = "llama") -> tuple[GGUFFile, list[str]]:
    """The fields as a file has them, and what they leave out."""
    fields, left_out = vocabulary_fields(
        Vocabulary.from_directory(directory), directory, architecture, n_vocab
    )
    return GGUFFile(directory, beginning(fields, [])[0]), left_out


def as_backend(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer.json that transformers would have for a vocabulary of llama.cpp."""
    normal = (TokenAttribute.NORMAL, TokenAttribute.BYTE)
    ids = {
        text: i
        for i, text in enumerate(vocab.tokens)
        if vocab.attribute(i) != TokenAttribute.UNUSED
    }
    if vocab.kind == "bpe":
        merges: Any = [tuple(merge.split(" ")) for merge in vocab.merges]
        whole = vocab.pre in WHOLE_WORDS
        backend = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=whole))
        cut = splits(PRE_TOKENIZERS[vocab.pre])
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
        backend.decoder = decoders.ByteLevel()
    else:
        assert vocab.scores is not None
        listed = []
        for text, i in ids.items():
            pairs = [(text[:n], text[n:]) for n in range(1, len(text))]
            found = [(a, b) for a, b in pairs if a in ids and b in ids]
            listed += [(-float(vocab.scores[i]), ids[a], ids[b], a, b) for a, b in found]
        merges = [(a, b) for *_, a, b in sorted(listed)]
        model = models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        backend = tokenizers.Tokenizer(model)
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        backend.normalizer = normalizers.Sequence(steps)
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    for i, text in enumerate(vocab.tokens):
        kind = vocab.attribute(i)
        if kind not in normal and kind != TokenAttribute.UNUSED:
            special = kind != TokenAttribute.USER_DEFINED
            backend.add_tokens([tokenizers.AddedToken(text, special=special, normalized=False)])
    return backend


def test_the_template_of_a_reranker(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.6B"
    folder.mkdir()
    write(folder, backend := byte_level_backend())
    vocab = Vocabulary.from_directory(folder)
    file, _ = made(folder, backend.get_vocab_size())
    assert Vocabulary.from_gguf(file).rerank_template == vocab.rerank_template is not None


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "llama-spm"])
def test_vocabularies_of_llama_cpp(
    name: str, tokenizer: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    """There and back: the fields are those of the file that tokenizer.json was made from."""
    theirs = tokenizer(name)
    vocab = theirs.vocab
    specials = {each: getattr(vocab.special, each) for each in ("bos", "eos", "unk", "pad")}
    named = {f"{each}_token": vocab.tokens[i] for each, i in specials.items() if i is not None}
    templates = {"default": "{{ messages }}", "tool_use": "{{ tools }}", "rag-2": "{{ documents }}"}
    listed = [{"name": each, "template": text} for each, text in templates.items()]
    config = named | {"add_bos_token": vocab.add_bos, "chat_template": listed}
    write(tmp_path, as_backend(vocab), tokenizer_config=config)
    file, left_out = made(tmp_path, len(vocab))
    ours = Vocabulary.from_gguf(file)
    assert not left_out
    assert (ours.kind, ours.pre) == (vocab.kind, vocab.pre)
    assert (ours.special, ours.eog) == (vocab.special, vocab.eog)
    assert (ours.add_bos, ours.add_space_prefix) == (vocab.add_bos, vocab.add_space_prefix)
    assert ours.chat_template == "{{ messages }}"
    at = "tokenizer.chat_template"  # and the names of gguf.GGUFWriter.add_chat_template
    assert file.fields.require(f"{at}s", list) == ["tool_use", "rag_2"]
    further = [file.fields.require(f"{at}.{each}", str) for each in ("tool_use", "rag_2")]
    assert further == [templates["tool_use"], templates["rag-2"]]
    assert list(ours.tokens) == list(vocab.tokens)
    assert list(ours.merges) == list(vocab.merges)
    assert (ours.attributes == vocab.attributes).all()
    text = (DATA / "strings.inp").read_text()
    assert Tokenizer(ours).encode(text) == theirs.encode(text)


def test_byte_level(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>"}
    generation = {"eos_token_id": [258, 260]}
    write(tmp_path, byte_level_backend(), tokenizer_config=config, generation_config=generation)
    file, left_out = made(tmp_path, 263)
    vocab = Vocabulary.from_gguf(file)
    assert file.get(GGML + "model", "") == "gpt2"
    types = file.metadata.array(GGML + "token_type")
    assert types is not None
    assert types.kind == 5  # signed, as llama.cpp wants them
    assert (vocab.pre, len(vocab), vocab.eos) == ("gpt-2", 263, 258)
    assert vocab.eog == {258, 260}
    assert [vocab.text(i) for i in (260, 261, 262)] == ["<u>", "[PAD261]", "[PAD262]"]
    assert vocab.attribute(262) == TokenAttribute.UNUSED
    assert not left_out
    directory = Tokenizer(Vocabulary.from_directory(tmp_path))
    for text in TEXTS:
        assert Tokenizer(vocab).encode(text) == directory.encode(text)


def test_sentencepiece(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write(tmp_path, sentencepiece_backend(), tokenizer_config=config)
    file, left_out = made(tmp_path, 264)
    vocab = Vocabulary.from_gguf(file)
    assert file.get(GGML + "model", "") == "llama"
    assert (vocab.bos, vocab.eos, vocab.unk, vocab.add_bos) == (1, 2, 0, True)
    assert vocab.add_space_prefix
    assert not left_out
    directory = Tokenizer(Vocabulary.from_directory(tmp_path))
    for text in TEXTS:
        assert Tokenizer(vocab).encode(text) == directory.encode(text)


def test_gemma4_has_merges_of_characters(tmp_path: Path) -> None:
    backend = sentencepiece_backend()
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    write(tmp_path, backend, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    file, _ = made(tmp_path, 264, "gemma4")
    assert file.get(GGML + "model", "") == "gemma4"
    assert file.metadata[GGML + "merges"] == ["a b", "▁ ab"]
    vocab = Vocabulary.from_gguf(file)
    directory = Tokenizer(Vocabulary.from_directory(tmp_path))
    for text in TEXTS:
        assert Tokenizer(vocab).encode(text) == directory.encode(text)


def test_tokens_without_embeddings_are_told(tmp_path: Path) -> None:
    """One of them is an end."""
    write(tmp_path, byte_level_backend(), generation_config={"eos_token_id": [258, 260]})
    file, left_out = made(tmp_path, 260)
    vocab = Vocabulary.from_gguf(file)
    assert (len(vocab), vocab.eog) == (260, frozenset({258}))
    assert left_out == ["the last 1 tokens, such as '<u>': the model has no embeddings of them"]


def test_ends_that_do_not_fit_are_told(tmp_path: Path) -> None:
    generation = {"eos_token_id": [258, 97, 98, 99]}
    write(tmp_path, byte_level_backend(), generation_config=generation)
    file, left_out = made(tmp_path, 261)
    assert Vocabulary.from_gguf(file).eog == {258, 97}  # 97 as <|eom_id|>
    assert left_out == ["that the token 'b' ends a text", "that the token 'c' ends a text"]


@pytest.mark.parametrize("rule", ["lstrip", "rstrip", "single_word"])
def test_rules_about_spaces_beside_tokens_are_told(rule: str, tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.add_special_tokens([tokenizers.AddedToken("<|user|>", **{rule: True})])
    write(tmp_path, backend)
    _, left_out = made(tmp_path, 262)
    assert len(left_out) == 1
    assert "tokens such as '<|user|>' take the spaces" in left_out[0]


def digits_in_pairs(backend: tokenizers.Tokenizer) -> None:
    cut = pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{2}"), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, level])


def lower_case(backend: tokenizers.Tokenizer) -> None:
    backend.normalizer = normalizers.Lowercase()


@pytest.mark.parametrize("unknown", [digits_in_pairs, lower_case])
def test_other_tokenizers_are_refused(
    unknown: Callable[[tokenizers.Tokenizer], None], tmp_path: Path
) -> None:
    backend = byte_level_backend()
    unknown(backend)
    write(tmp_path, backend)
    with pytest.raises(UnsupportedModel, match="cut or merge texts in another way"):
        made(tmp_path, 261)


def test_what_composes_letters_is_told(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.normalizer = normalizers.Sequence([normalizers.NFC()])
    write(tmp_path, backend)
    file, left_out = made(tmp_path, 261)
    assert left_out == ["that a letter and an accent behind it are read as one character (NFC)"]
    both = (
        Tokenizer(each)
        for each in (Vocabulary.from_directory(tmp_path), Vocabulary.from_gguf(file))
    )
    read, converted = ([each.encode(text) for text in ("\xe9", "e\u0301")] for each in both)
    assert read[0] == read[1] == converted[0] != converted[1]


def test_merges_of_tokens_with_spaces_are_refused(tmp_path: Path) -> None:
    """GGUF has a space between the two tokens of a merge."""
    ids = byte_level_backend().get_vocab() | {"b c": 261, "ab c": 262}
    backend = tokenizers.Tokenizer(models.BPE(ids, [("a", "b c")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    write(tmp_path, backend)
    with pytest.raises(FileFormatError, match=r"\['a', 'b c'\] is not two tokens without spaces"):
        made(tmp_path, 263)


def test_damaged_merges(tmp_path: Path) -> None:
    write(tmp_path, byte_level_backend())
    change(tmp_path / "tokenizer.json", "model", "merges", value=["a"])
    with pytest.raises(FileFormatError, match="cannot be read by tokenizers"):
        made(tmp_path, 261)


def test_more_tokens_than_any_model_has_are_refused(tmp_path: Path) -> None:
    write(tmp_path, byte_level_backend())
    with pytest.raises(UnsupportedModel, match="at most 16777216 are converted"):
        made(tmp_path, 1 << 30)


@pytest.mark.parametrize(("n_vocab", "bos"), [(259, None), (260, 259), (261, 259)])
def test_special_tokens_without_embeddings_are_not_named(
    n_vocab: int, bos: int | None, tmp_path: Path
) -> None:
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    write(tmp_path, byte_level_backend(), tokenizer_config=config)
    vocab = Vocabulary.from_gguf(made(tmp_path, n_vocab)[0])
    assert (vocab.bos, vocab.eos) == (bos, 258)


def test_scores_have_the_order_of_the_merges(tmp_path: Path) -> None:
    """Those that no merge makes come last."""
    write(tmp_path, sentencepiece_backend())
    vocab = Vocabulary.from_gguf(made(tmp_path, 264)[0])
    assert vocab.scores is not None
    ranked = {"ab": -1.0, "▁ab": -2.0}
    assert vocab.scores.tolist() == [ranked.get(text, -3.0) for text in vocab.tokens]


@pytest.mark.parametrize(
    ("architecture", "pre"), [("llama", "smollm"), ("exaone", "exaone"), ("mellum2", "mellum2")]
)
def test_of_equal_pre_tokenizers_the_architectures_is_named(
    architecture: str, pre: str, tmp_path: Path
) -> None:
    backend = byte_level_backend()
    digits = pre_tokenizers.Digits(individual_digits=True)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    write(tmp_path, backend)
    assert Vocabulary.from_gguf(made(tmp_path, 261, architecture)[0]).pre == pre


@pytest.mark.parametrize("whole", [False, True])
def test_added_tokens_that_overlap_are_cut_in_another_way(whole: bool, tmp_path: Path) -> None:
    """`tokenizers` takes the first of two that overlap, and llama.cpp the longer.

    They overlap where control tokens are read (False), or only where they are not, as one of these holds both.
    """
    backend = byte_level_backend()
    add = backend.add_tokens if whole else backend.add_special_tokens
    add(["i]->", "->b + C"])
    if whole:
        backend.add_special_tokens(["a[i]->b + C++;"])
    write(tmp_path, backend)
    with pytest.raises(UnsupportedModel, match="cut or merge texts in another way"):
        made(tmp_path, 263 + whole)


CHARACTERS = {"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\xa0": " ", "ﬁ": "ab"}


def one_space() -> tokenizers.Tokenizer:
    """As XLM-RoBERTa's."""
    made = unigram_backend()
    made.normalizer = normalizers.Precompiled(character_map(CHARACTERS))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return made


def trimmed() -> tokenizers.Tokenizer:
    """As T5's."""
    made = unigram_backend()
    spaces = normalizers.Replace(tokenizers.Regex(" {2,}"), "▁")
    steps = [
        normalizers.Precompiled(character_map(CHARACTERS)),
        normalizers.Strip(left=False),
        spaces,
    ]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


def all_spaces() -> tokenizers.Tokenizer:
    made = unigram_backend()
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    return made


@pytest.mark.parametrize(
    ("make", "spaces", "prefix"),
    [(one_space, True, True), (trimmed, True, True), (all_spaces, False, False)],
)
def test_unigram(make: Callable[[], Any], spaces: bool, prefix: bool, tmp_path: Path) -> None:
    backend = make()
    write(tmp_path, backend, tokenizer_config={"eos_token": "</s>"})
    file, left_out = made(tmp_path, 18)
    assert not left_out
    assert file.get(GGML + "model", "") == "t5"
    assert file.get(GGML + "remove_extra_whitespaces", not spaces) == spaces
    assert file.get(GGML + "add_space_prefix", not prefix) == prefix
    kind = file.metadata.array(GGML + "precompiled_charsmap")
    assert (kind is not None and kind.kind == 0) == spaces  # bytes, as llama.cpp wants them
    vocab = Vocabulary.from_gguf(file)
    assert vocab.scores is not None
    assert vocab.scores.tolist() == [0.0] * 4 + [score for _, score in PIECES[4:]] + [0.0] * 3
    assert (vocab.unk, vocab.eos, vocab.add_bos, vocab.add_eos) == (3, 2, True, True)
    assert (vocab.tokens[15], vocab.attribute(17)) == ("[PAD15]", TokenAttribute.UNUSED)
    backend.encode_special_tokens = True
    for text in ("the ﬁ  ab ", "  a zz"):
        assert Tokenizer(vocab).encode(text) == backend.encode(text).ids
    assert vocab.pair == Vocabulary.from_directory(tmp_path).pair


def test_words(tmp_path: Path) -> None:
    for lower, strip in ((True, None), (True, False), (False, None), (False, True)):
        backend = wordpiece()
        backend.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
        write(tmp_path, backend)
        file, left_out = made(tmp_path, 21)
        assert file.get(GGML + "normalizer.lowercase", not lower) == lower
        wanted = lower if strip is None else strip
        assert file.get(GGML + "normalizer.strip_accents", not wanted) == wanted
        vocab = Vocabulary.from_gguf(file)
        assert (vocab.unk, vocab.special.sep, len(vocab)) == (1, 3, 21)
        assert left_out == ["that a document after a query is a second segment"]
        assert Tokenizer(vocab).encode_pair("the", "a")[0] == backend.encode("the", "a").ids
        assert Tokenizer(vocab).encode("The café ab") == backend.encode("The café ab").ids


def test_the_first_of_nested_steps_counts(tmp_path: Path) -> None:
    how = [
        normalizers.BertNormalizer(lowercase=lower, strip_accents=lower) for lower in (True, False)
    ]
    backend = wordpiece()
    backend.normalizer = normalizers.Sequence([normalizers.Sequence([how[0]]), how[1]])
    write(tmp_path, backend)
    file, _ = made(tmp_path, 21)
    assert file.get(GGML + "normalizer.lowercase", False)
    assert (
        Tokenizer(Vocabulary.from_gguf(file)).encode("The CAFÉ") == backend.encode("The CAFÉ").ids
    )


def test_other_pairs_are_told(tmp_path: Path) -> None:
    backend = wordpiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [MASK] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)],
    )
    write(tmp_path, backend)
    assert made(tmp_path, 19)[1] == ["the tokens (4,) between a query and a document"]


@pytest.mark.parametrize(
    ("file", "data"), [("tokenizer.model", llama()), ("tokenizer.model", unigram())]
)
def test_directories_with_a_model_of_sentencepiece(file: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(data)
    theirs = Vocabulary.from_directory(tmp_path)
    ours = Vocabulary.from_gguf(made(tmp_path, len(theirs) + 2)[0])
    assert theirs.scores is not None
    assert ours.scores is not None
    assert ours.scores.tolist() == [*theirs.scores.tolist(), 0.0, 0.0]
    told = ours.special, ours.add_bos, ours.add_eos
    assert told == (theirs.special, theirs.add_bos, theirs.add_eos)
    for text in ("ab  a the b", " z "):
        assert Tokenizer(ours).encode(text) == Tokenizer(theirs).encode(text)


def test_merges_without_tokens_of_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model(piece("a"), *BPE))
    assert Tokenizer(Vocabulary.from_directory(tmp_path)).encode("é", add_special=False)[-1] == 0
    with pytest.raises(UnsupportedModel, match="without tokens of bytes"):
        made(tmp_path, 4)


def test_directories_with_a_list_of_words(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "the", "##s", "a"]))
    ours = Tokenizer(Vocabulary.from_gguf(made(tmp_path, 8)[0]))
    assert ours.encode("Thes a z") == [2, 5, 6, 7, 1, 3]
    assert ours.encode_pair("the", "a") == ([2, 5, 3, 7, 3], None)


def test_damaged_maps_of_characters(tmp_path: Path) -> None:
    write(tmp_path, one_space())
    change(tmp_path / "tokenizer.json", "normalizer", "precompiled_charsmap", value="%%%")
    with pytest.raises(FileFormatError):
        made(tmp_path, 15)
