from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aleator.core.errors import TokenizerError
from aleator.text import Tokenizer, Vocabulary
from aleator.text.tokenizer import StreamDecoder
from tests.text.vocabularies import byte_level, sentencepiece

BPE = Tokenizer(Vocabulary.from_metadata(byte_level(("<|im_end|>", "<x>"))))
SPM = Tokenizer(Vocabulary.from_metadata(sentencepiece()))
SPECIALS = {BPE: (258, 259), SPM: (0, 1, 2)}


def whole(tok: Tokenizer, ids: list[int], skip: bool) -> str:
    kept = [i for i in ids if not (skip and i in SPECIALS[tok])]
    data = b"".join(tok.vocab.token_bytes(i) for i in kept)
    if tok.vocab.add_space_prefix:
        data = data.removeprefix(b" ")
    return data.decode(errors="replace")


@pytest.mark.parametrize("tok", [BPE, SPM], ids=["bpe", "spm"])
@given(data=st.data(), skip=st.booleans())
def test_pieces_join_to_the_whole(tok: Tokenizer, data: st.DataObject, skip: bool) -> None:
    # Mostly the bytes of characters, and the tokens around them.
    byte = st.sampled_from([*"é€🦙 ".encode(), 0x80, 0xC0, 0xED, 0xA0, 0xF4, 0xFF])
    first = 3 if tok is SPM else 0
    token = st.one_of(byte.map(lambda b: b + first), st.integers(0, len(tok.vocab) - 1))
    ids = data.draw(st.lists(token, max_size=30))
    stream = tok.stream(skip_special=skip)
    pieces = [stream.push(i) for i in ids]
    text = "".join(pieces) + stream.flush()
    assert text == tok.decode(ids, skip_special=skip) == whole(tok, ids, skip)


def test_never_half_a_character() -> None:
    stream = BPE.stream()
    assert [stream.push(byte) for byte in "a🦙é".encode()] == ["a", "", "", "", "🦙", "", "é"]
    assert stream.flush() == ""


def test_invalid_bytes_come_as_soon_as_they_are_known() -> None:
    stream = BPE.stream()
    assert stream.push(0xE2) == ""
    assert stream.push(ord("a")) == "\ufffda"
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_a_stream_starts_a_text_and_leaves_control_tokens_out() -> None:
    bpe = StreamDecoder(BPE.vocab)
    assert [bpe.push(i) for i in (ord("a"), 258, ord("b"))] == ["a", "", "b"]
    spm, midst = StreamDecoder(SPM.vocab), StreamDecoder(SPM.vocab, at_start=False)
    assert (spm.push(263), midst.push(263)) == ("ab", " ab")


def test_special_tokens_are_skipped_or_shown() -> None:
    assert BPE.decode([ord("a"), 258, ord("b")], skip_special=True) == "ab"
    assert BPE.decode([ord("a"), 258, ord("b")]) == "a<|im_end|>b"
    assert SPM.decode([1, 263], skip_special=True) == "ab"
    assert SPM.decode([1, 263]) == "<s> ab"


def test_first_space_goes_only_at_the_start() -> None:
    assert SPM.decode([263, 263]) == "ab ab"
    assert SPM.decode([263, 263], at_start=False) == " ab ab"
    stream = SPM.stream(at_start=False)
    assert stream.push(263) == " ab"


def test_llama_cpps_decoding(tokenizer: Callable[[str], Tokenizer]) -> None:
    tok = tokenizer("llama-spm")
    assert tok.decode([15043, 3186]) == "Hello world"
    assert tok.decode([29871, 15043]) == " Hello"
    assert tok.decode([13, 15043]) == "\n Hello"


def test_a_refused_id_changes_nothing() -> None:
    stream = BPE.stream()
    stream.push(0xC3)
    with pytest.raises(TokenizerError):
        stream.push(1000)
    assert stream.push(0xA9) == "é"


@pytest.mark.parametrize("tok", [BPE, SPM], ids=["bpe", "spm"])
@pytest.mark.parametrize("at_start", [True, False])
def test_bytes_of_the_text_before_are_left_out(tok: Tokenizer, at_start: bool) -> None:
    ids = [263, 262, 263] if tok is SPM else [257, 97, 256]
    data = b"".join(map(tok.vocab.token_bytes, ids))
    for skip in range(len(data) + 3):
        stream = tok.stream(at_start=at_start, skip=skip)
        text = "".join(map(stream.push, ids)) + stream.flush()
        cut = data.removeprefix(b" ") if at_start and not skip else data[skip:]
        assert text == cut.decode()


def test_control_tokens_that_are_shown() -> None:
    stream = BPE.stream(shown=(258,))
    assert [stream.push(i) for i in (258, 259, 97)] == ["<|im_end|>", "", "a"]
