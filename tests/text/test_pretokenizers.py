"""Every way to cut text into words, by llama.cpp's ids over GPT-2's vocabulary."""

from __future__ import annotations

import base64
import json
import lzma
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from golden_pretokenizers import CASES, OUT, VOCABULARY, distinct, named, ranked, strings
from tokenizers import pre_tokenizers

from aleator.core.errors import UnsupportedModel
from aleator.text.pretokenizers import (
    ADDS_BOS,
    PRE_TOKENIZERS,
    WHOLE_WORDS,
    ascii_cuts,
    ascii_words,
    expressions,
)
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary
from tests.text.test_gguf_fields import made as converted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def golden() -> dict[str, npt.NDArray[np.uint16]]:
    with np.load(ROOT / OUT) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def gpt2() -> bytes:
    return lzma.decompress((ROOT / VOCABULARY).read_bytes())


@pytest.mark.parametrize("name", distinct())
def test_ids_are_llama_cpps(
    name: str, golden: dict[str, npt.NDArray[np.uint16]], gpt2: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(named(gpt2, name))
    tokenizer = Tokenizer(Vocabulary.from_gguf(path))
    ids = [[*tokenizer.encode(text, add_special=False), 65535] for text in strings(60, 5)]
    assert [i for part in ids for i in part] == golden[name].tolist()


def test_ids_of_a_directory_are_tiktokens(
    golden: dict[str, npt.NDArray[np.uint16]], gpt2: bytes, tmp_path: Path
) -> None:
    """Of ranks, in Moonshot's form; GGUF holds the same, and llama.cpp cuts no letters by their case."""
    path = tmp_path / "vocab.gguf"
    path.write_bytes(named(gpt2, "kimi-k2"))
    ranks = ranked(Vocabulary.from_gguf(path))
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (tmp_path / "tiktoken.model").write_bytes(b"".join(lines))
    end = {str(len(ranks)): {"content": "[EOS]", "special": True}}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": end}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "[EOS]"}))
    vocab = Vocabulary.from_directory(tmp_path)
    assert (vocab.pre, vocab.eos, vocab.add_bos) == ("kimi-k2", len(ranks), False)
    file, left_out = converted(tmp_path, len(vocab), "kimi-linear")
    assert left_out == []
    for made in (vocab, Vocabulary.from_gguf(path), Vocabulary.from_gguf(file)):
        tokenizer = Tokenizer(made)
        ids = [
            [*tokenizer.encode(text, add_special=False), 65535] for text in (CASES, *strings(60, 8))
        ]
        assert [i for part in ids for i in part] == golden["tiktoken"].tolist()
    assert Tokenizer(vocab).encode("a[EOS]", parse_special=True)[1:] == [len(ranks)]


def test_ids_of_the_first_qwen_are_its_later_ones(
    golden: dict[str, npt.NDArray[np.uint16]], gpt2: bytes, tmp_path: Path
) -> None:
    """Special tokens, which its file lacks, follow the others."""
    path = tmp_path / "vocab.gguf"
    path.write_bytes(named(gpt2, "qwen2"))
    ranks = ranked(Vocabulary.from_gguf(path))
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (tmp_path / "qwen.tiktoken").write_bytes(b"".join(lines))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "QWenTokenizer"}')
    vocab, n = Vocabulary.from_directory(tmp_path), len(ranks)
    assert (vocab.pre, vocab.eos, len(vocab)) == ("qwen2", n, n + 208)
    assert vocab.eog == {n, n + 2}
    file, left_out = converted(tmp_path, len(vocab), "qwen")
    assert left_out == []
    for made in (vocab, Vocabulary.from_gguf(file)):
        tokenizer = Tokenizer(made)
        ids = [[*tokenizer.encode(text), 65535] for text in strings(60, 5)]
        assert [i for part in ids for i in part] == golden["qwen2"].tolist()
        ended = tokenizer.encode("a<|im_end|><|extra_204|>", parse_special=True)
        assert ended[1:] == [n + 2, n + 207]


def test_names_that_need_a_rule_have_one() -> None:
    assert set(PRE_TOKENIZERS) >= ADDS_BOS
    assert set(PRE_TOKENIZERS) >= WHOLE_WORDS
    with pytest.raises(UnsupportedModel, match=r"kimi-k9.*supported are .*tekken"):
        expressions("kimi-k9")


PIECES = [
    *map(chr, range(128)), "  ", "\r\n", "\n\n", "I'll", "we'RE", " the", "Ab", "1234", "-->", "\t x",
]  # fmt: skip


@pytest.mark.parametrize("name", distinct())
def test_text_in_ascii_is_cut_without_tokenizers_and_alike(name: str) -> None:
    cuts = expressions(name)
    own = ascii_cuts(cuts)
    assert bool(own) == (name != "deepseek-llm")  # "$" means another thing to `re`
    theirs = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(cut), "isolated") for cut in cuts]
    )
    rng = random.Random(7)
    for _ in range(200 if own else 0):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 60)))
        assert ascii_words(own, text) == [word for word, _ in theirs.pre_tokenize_str(text)], text
