from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from aleator.core.errors import FileFormatError, TokenizerError, UnsupportedModel
from aleator.text import Tokenizer, Vocabulary
from aleator.text.pretokenizers import PRE_TOKENIZERS
from aleator.text.special_tokens import SPACE
from aleator.text.word_pieces import refusals
from tests.text.conftest import DATA, VOCABULARIES
from tests.text.vocabularies import CONTROL, USER_DEFINED, byte_level, sentencepiece


def build(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer(Vocabulary.from_metadata(metadata, path="model.gguf"))


def lines(name: str) -> list[tuple[str, list[int]]]:
    text = (DATA / "strings.inp").read_bytes().decode()
    *strings, rest = text.split("\n__ggml_vocab_test__\n")
    assert rest == ""
    ids = [list(map(int, line.split())) for line in (DATA / f"{name}.out").read_text().splitlines()]
    return list(zip(strings, ids, strict=True))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpps_test_strings(name: str, tokenizer: Callable[[str], Tokenizer]) -> None:
    tok = tokenizer(name)
    cases = lines(name)
    assert len(cases) == 46
    for text, ids in cases:
        assert tok.encode(text, add_special=False) == ids, text
        assert tok.decode(ids) == text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_golden_strings(name: str, tokenizer: Callable[[str], Tokenizer]) -> None:
    tok = tokenizer(name)
    for line in (DATA / "golden.jsonl").read_text().splitlines():
        case = json.loads(line)
        ids = tok.encode(case["text"], case["add_special"], case["parse_special"])
        assert ids == case[name], case["text"]
        # SentencePiece cannot tell a space from the character that stands for it.
        if not case["parse_special"] and not (name == "llama-spm" and SPACE in case["text"]):
            assert tok.decode(ids, skip_special=True) == case["text"]


def test_empty_text(tokenizer: Callable[[str], Tokenizer]) -> None:
    assert tokenizer("llama-spm").encode("") == [1]
    assert tokenizer("gpt-2").encode("") == []


def test_long_text_is_its_parts(tokenizer: Callable[[str], Tokenizer]) -> None:
    for name in VOCABULARIES:
        tok = tokenizer(name)
        word = tok.encode(" ab\n", add_special=False)
        word = word[1:] if name == "llama-spm" else word
        long = tok.encode(" ab\n" * 3000, add_special=False)
        assert long[-len(word) :] == word
        assert tok.decode(long) == " ab\n" * 3000


def test_special_texts_are_read_only_when_asked(tokenizer: Callable[[str], Tokenizer]) -> None:
    tok = tokenizer("llama-bpe")
    text = "<|eot_id|>x"
    assert tok.encode(text, add_special=False, parse_special=True) == [128009, 87]
    plain = tok.encode(text, add_special=False)
    assert 128009 not in plain
    assert tok.decode(plain) == text


def test_user_defined_tokens_are_always_read() -> None:
    tok = build(byte_level(("a b c",), USER_DEFINED))
    assert tok.encode("xa b cy") == [ord("x"), 258, ord("y")]


def test_longest_special_text_is_cut_out_first() -> None:
    tok = build(byte_level(("<a>", "a>bbb")))
    assert tok.encode("<a>bbb", parse_special=True) == [ord("<"), 259]
    assert tok.encode("<a>bb", parse_special=True) == [258, ord("b"), ord("b")]


def test_special_tokens_of_phi_3_take_the_white_space_after_them() -> None:
    added = (("<|user|>", CONTROL), ("<|endoftext|>", CONTROL), ("<x>", USER_DEFINED))
    for name in ("Phi-3 Mini", "my-PHI3", "other"):
        tok = build(sentencepiece(added=added) | {"general.name": name})
        strips = name != "other"
        text = "ab <|user|> \n\tab <|user|>\u00a0<|endoftext|>\nab"
        blank = [259, ord("\n") + 3, ord("\t") + 3, 262] if not strips else [263]
        first = [1, 263, 259, 264, *([259, *blank] if not strips else blank), 259, 264]
        rest = [259, 0xC2 + 3, 0xA0 + 3, 265, 259, ord("\n") + 3, 262]
        assert tok.encode(text, parse_special=True) == [*first, *rest]
        assert (266 in tok.vocab.strip_after) == strips
        assert tok.encode("<x>\nab") == [1, 266, *([263] if strips else [259, 13, 262])]


@pytest.mark.parametrize(
    ("mask", "more"),
    [
        ("[MASK]", {"general.name": "Modern-BERT base"}),
        ("<mask>", {"tokenizer.ggml.pre": "jina-v2-de"}),
        ("<mask>", {"general.architecture": "jina-bert-v3"}),
    ],
)
def test_masks_of_some_encoders_take_the_white_space_before_them(
    mask: str, more: dict[str, str]
) -> None:
    tok = build(byte_level((mask,)) | more)
    assert tok.encode(f" {mask}ab \n{mask} ", parse_special=True) == [258, 256, 258, 32]
    assert build(byte_level((mask,))).encode(f" {mask}", parse_special=True) == [32, 258]


def test_space_prefix_comes_after_special_tokens_too() -> None:
    tok = build(sentencepiece(added=(("<x>", CONTROL),)))
    assert tok.encode("ab<x>ab", parse_special=True) == [1, 263, 264, 263]
    plain = build(sentencepiece(added=(("<x>", CONTROL),), add_space_prefix=False))
    assert plain.encode("ab<x>ab", parse_special=True) == [1, 262, 264, 262]
    assert plain.decode([263]) == " ab"


def test_best_score_is_merged_first() -> None:
    scores = {"ab": 1.0, "bc": 2.0, "abc": 3.0}
    pieces = ("▁", "a", "b", "c", *scores)
    values = [0.0] * 263 + list(scores.values())
    tok = build(sentencepiece(pieces, scores=values, add_space_prefix=False))
    assert [tok.vocab.text(i) for i in tok.encode("abab", add_special=False)] == ["ab", "ab"]
    assert [tok.vocab.text(i) for i in tok.encode("abc", add_special=False)] == ["abc"]
    pieces = ("▁", "a", "b", "c", "ab", "bc")
    tok = build(sentencepiece(pieces, scores=values[:-1], add_space_prefix=False))
    assert [tok.vocab.text(i) for i in tok.encode("abc", add_special=False)] == ["a", "bc"]


def test_tokens_with_a_space_within_are_merged_across_words() -> None:
    pieces = ("▁", "a", "b", "a▁", "a▁b")
    tok = build(sentencepiece(pieces, add_space_prefix=False))
    assert [tok.vocab.text(i) for i in tok.encode("a b", add_special=False)] == ["a▁b"]


def test_bytes_stand_in_for_missing_characters() -> None:
    tok = build(sentencepiece(add_space_prefix=False))
    assert tok.encode("é", add_special=False) == [3 + 0xC3, 3 + 0xA9]


def test_eos_is_added_where_the_vocabulary_says() -> None:
    tok = build(sentencepiece(add_eos_token=True))
    assert tok.encode("ab") == [1, 263, 2]
    assert tok.encode("ab", add_special=False) == [263]


def test_merges_on_whole_words_only_when_not_ignored() -> None:
    # "cab" is a token that no merges lead to: Llama 3's rule takes whole words as they are.
    assert build(byte_level(("cab",), 1)).encode("cab") == [ord("c"), 256]
    assert build(byte_level(("cab",), 1, pre="llama-bpe")).encode("cab") == [258]


def test_first_of_equal_merges_counts() -> None:
    tok = build(byte_level(("bc",), 1, merges=["a b", "b c", "a b"]))
    assert tok.encode("abc") == [256, ord("c")]


def test_digits_are_grouped_as_each_pre_tokenizer_does() -> None:
    added = ("12", "123", "1234")
    merges = ["1 2", "12 3", "123 4"]
    ids = {pre: build(byte_level(added, 1, merges=merges, pre=pre)) for pre in PRE_TOKENIZERS}
    assert ids["gpt-2"].encode("1234") == [260]
    assert ids["llama-bpe"].encode("1234") == [259, ord("4")]
    assert ids["qwen2"].encode("12") == [ord("1"), ord("2")]
    assert ids["smollm"].encode("12") == [ord("1"), ord("2")]
    assert ids["default"].encode("1234") == [259, ord("4")]


def test_unknown_pre_tokenizers_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"'kimi-k9'.*supported are .*gpt-2.*qwen2"):
        build(byte_level(pre="kimi-k9"))


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        (["a b", "x y"], "merge 1, 'x y', needs the token 'xy'"),
        (["zz b"], "merge 0, 'zz b', needs the token 'zz'"),
        (["ab"], "merge 0, 'ab', is not two tokens"),
        ([""], "merge 0, '', is not two tokens"),
        (["a b", "x\ud800 y"], "merge 1, .*, needs the token"),
        (["zz b", "x\ud800 y"], "merge 0, 'zz b', needs the token 'zz'"),
    ],
)
def test_bad_merges_name_the_field(merges: list[str], message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        build(byte_level(merges=merges))
    assert caught.value.field == "tokenizer.ggml.merges"


@pytest.mark.parametrize("metadata", [byte_level(("a\ud800",), 1), sentencepiece(("▁", "a\ud800"))])
def test_tokens_with_lone_surrogates_are_refused(metadata: dict[str, object]) -> None:
    with pytest.raises(FileFormatError, match="has a lone surrogate") as caught:
        build(metadata)
    assert caught.value.field == "tokenizer.ggml.tokens"


def test_surrogates_are_refused() -> None:
    with pytest.raises(TokenizerError, match=r"lone surrogate.*index 1"):
        build(byte_level()).encode("a\ud800")


def test_characters_without_tokens_are_refused() -> None:
    metadata = byte_level()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[ord("z")] = "zz"
    tok = build(metadata)
    assert tok.encode("y") == [ord("y")]
    with pytest.raises(TokenizerError, match="'z'"):
        tok.encode("xyz")


def test_unknown_token_stands_for_what_has_no_bytes() -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a"]
    fields: dict[str, Any] = {
        "tokens": tokens,
        "token_type": [2, 3, 3, 1, 1],
        "scores": [0.0] * 5,
        "add_space_prefix": False,
    }
    assert build(sentencepiece(**fields)).encode("aé") == [1, 4, 0]


def test_decode_refuses_ids_outside_the_vocabulary() -> None:
    with pytest.raises(TokenizerError, match="258 is outside"):
        build(byte_level()).decode([1, 258])


def test_threads_share_a_tokenizer(tokenizer: Callable[[str], Tokenizer]) -> None:
    tok = tokenizer("llama-spm")
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: tuple(tok.encode("Hello world " * 20)), range(40)))
    assert len(found) == 1


class PanicException(BaseException):
    """What tokenizers raises for a run of ten million spaces."""


def test_panics_of_the_backend_are_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        def pre_tokenize_str(self, text: str) -> None:
            raise PanicException("retry limit over")

    tok = build(byte_level())
    encoder = tok._encode_body.__self__  # type: ignore[attr-defined]
    monkeypatch.setattr(encoder.pieces.__self__, "words", Backend())
    with pytest.raises(TokenizerError, match="cannot be encoded: retry limit over"):
        tok.encode("xé")


def test_a_character_without_a_token_is_refused_unless_sentencepiece_has_an_unknown_token() -> None:
    metadata = byte_level(unknown_token_id=256)
    metadata["tokenizer.ggml.tokens"][ord("q")] = "no q"
    tok = Tokenizer(Vocabulary.from_metadata(metadata))
    assert tok.encode("abc") == [257]
    with pytest.raises(TokenizerError, match="no tokens for the character 'q'"):
        tok.encode("aq")
    metadata = sentencepiece()
    for byte in range(256):
        metadata["tokenizer.ggml.tokens"][3 + byte] = f"no {byte}"
        metadata["tokenizer.ggml.token_type"][3 + byte] = 1
    tok = Tokenizer(Vocabulary.from_metadata(metadata))
    assert tok.encode("aq", add_special=False)[-1] == 0
    vocab = replace(tok.vocab, special=replace(tok.vocab.special, unk=None))
    assert Tokenizer(vocab).encode("ab", add_special=False) == [263]
    with pytest.raises(TokenizerError, match="no tokens for the character 'q'"):
        Tokenizer(vocab).encode("aq")


def test_interrupts_of_the_backend_are_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), refusals():
        raise KeyboardInterrupt


def test_pieces_of_a_sentencepiece_vocabulary_are_merged_by_scores() -> None:
    vocab = replace(build(sentencepiece()).vocab, scores=None)
    with pytest.raises(TokenizerError, match="needs scores"):
        Tokenizer(vocab)
