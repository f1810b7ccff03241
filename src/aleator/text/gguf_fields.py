"""A vocabulary of a Hugging Face directory as fields of GGUF's metadata.

The pre-tokenizer is found by trying: it must cut texts as the directory's tokenizer.json does,
whose names say nothing.  llama.cpp's conversion has a table of hashes.  At the end both
tokenizers must give the same ids.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aleator.core.errors import UnsupportedModel
from aleator.models.files.fields import Fields, Value, read_json
from aleator.models.files.gguf_writer import field
from aleator.text.gguf_vocabulary import GGUF_SPECIALS
from aleator.text.huggingface import MAX_TOKENS
from aleator.text.pretokenizers import PRE_TOKENIZERS, WHOLE_WORDS
from aleator.text.special_tokens import SPACE, TokenAttribute
from aleator.text.tokenizer import Tokenizer, splits
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

_TEXTS = (
    "The quick brown fox can't jump; they'LL say I'm don'T, it's 12:30 or 3.14159 or 1234567!",
    "\n \n\n\n \t\t\tif (x_1 == 42) {\r\n    return a[i]->b + C++;  // www.Example.com/~x?y=Z\r\n}\n\n",
    "  two   three    four\u3000ideographic \xa0nbsp  end  ",
    "ΑΒΓ αβγ Привет, мир! ÀÉÎ straße İstanbul 'Tis ''quoted'' \"double\" «guillemets»",
    "我想在apple工作1314151天～ こんにちは、世界。カタカナ 한국어 ภาษาไทย हिन्दी १२३ عربي ١٢٣",
    "🚀 (normal) 😶\u200d🌫️ ✅ 🦙🦙 é̀ =+-*/^%$#@!&|\\~`<>[]{} ---___...!!! ½²³ ⅷ ①",
    "CamelCaseHTTPServer snake_case XMLHttpRequest iPhone9s A1b2C3 \ufffd word.Word,word;word/word",
)
"""Texts on which tokenizers differ."""


def vocabulary_fields(
    directory: Path, architecture: str, n_vocab: int
) -> tuple[list[bytes], list[str]]:
    """Make the fields of the tokenizer and the chat template.

    Args:
        directory: the Hugging Face directory.
        architecture: GGUF's name of the model's architecture.
        n_vocab: rows of the embedding, for each of which there must be a token.

    Returns:
        The entries of the metadata, and what GGUF cannot say, for warnings.

    Raises:
        ModelNotFound, FileFormatError: a file is missing or damaged.
        UnsupportedModel: a tokenizer that GGUF cannot hold.
    """
    vocab = Vocabulary.from_directory(directory)
    theirs = Tokenizer(vocab)
    file = read_json(directory / "tokenizer.json")
    if n_vocab > MAX_TOKENS:
        raise UnsupportedModel(f"{directory}: {n_vocab} tokens; at most {MAX_TOKENS} are converted")
    values, left_out = _common(vocab, n_vocab)
    left_out += _spaces(file)
    merges = [_merge(file, each) for each in file.require("model", dict).get("merges") or []]
    if vocab.kind == "bpe":
        values |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": merges}
        tried = [
            values | {"tokenizer.ggml.pre": name} for name in _pre_tokenizers(file, architecture)
        ]
    elif architecture == "gemma4":
        values |= {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": merges}
        tried = [values | _scores(vocab.tokens[:n_vocab], merges)]
    else:
        values["tokenizer.ggml.add_space_prefix"] = vocab.add_space_prefix
        tried = [
            values | {"tokenizer.ggml.model": "llama"} | _scores(vocab.tokens[:n_vocab], merges)
        ]
    for each in tried:
        if _same(theirs, Tokenizer(Vocabulary.from_metadata(each, directory))):
            left_out += _ends(vocab, each, directory)
            return [field(key, value) for key, value in each.items()], left_out
    raise UnsupportedModel(
        f"{directory / 'tokenizer.json'}: GGUF's tokenizers cut or merge texts in another way "
        f"({len(tried)} tried): a converted file would read texts as other tokens than the model was trained "
        "with"
    )


def _common(vocab: Vocabulary, n_vocab: int) -> tuple[dict[str, Value], list[str]]:
    """The fields that every kind of tokenizer has."""
    left_out = []
    tokens, types = list(vocab.tokens), vocab.attributes.tolist()
    if len(tokens) > n_vocab:
        left_out.append(
            f"the last {len(tokens) - n_vocab} tokens, such as {tokens[n_vocab]!r}: the model has no "
            "embeddings of them"
        )
    more = range(len(tokens), n_vocab)
    tokens = [*tokens, *(f"[PAD{i}]" for i in more)][:n_vocab]
    types = [*types, *(int(TokenAttribute.UNUSED) for _ in more)][:n_vocab]
    if vocab.kind == "spm":
        # llama.cpp looks for these in texts before spaces are replaced.
        for i, kind in enumerate(types):
            if kind == TokenAttribute.USER_DEFINED:
                tokens[i] = tokens[i].replace(SPACE, " ")
    values: dict[str, Value] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": vocab.add_bos,
        "tokenizer.ggml.add_eos_token": vocab.add_eos,
    }
    for name, ours in GGUF_SPECIALS.items():
        token = getattr(vocab.special, ours)
        if token is not None and token < n_vocab:
            values[f"tokenizer.ggml.{name}_token_id"] = token
    if vocab.chat_template is not None:
        values["tokenizer.chat_template"] = vocab.chat_template
    return values, left_out


def _spaces(file: Fields) -> list[str]:
    """What is left out about the texts beside added tokens."""
    found = [
        token["content"]
        for token in file.get("added_tokens", None, list) or []
        if any(token.get(rule) for rule in ("lstrip", "rstrip", "single_word"))
    ]
    if not found:
        return []
    return [
        f"that added tokens such as {found[0]!r:.60} take the spaces beside them or must be "
        "whole words (lstrip, rstrip, single_word)"
    ]


def _merge(file: Fields, merge: Any) -> str:
    """A merge as GGUF has it: two tokens with a space between."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if len(parts) != 2 or any(" " in part for part in parts):
        raise file.error("model.merges", f"{merge!r:.80} is not two tokens without spaces")
    return " ".join(parts)


def _scores(tokens: Sequence[str], merges: Sequence[str]) -> dict[str, Value]:
    """The scores of a SentencePiece vocabulary, by which the merges of earlier rank come first."""
    ranks = reversed([*enumerate(merges, 1)])
    made = {merge.replace(" ", "", 1): -float(rank) for rank, merge in ranks}
    least = -float(len(merges) + 1)
    return {"tokenizer.ggml.scores": [made.get(token, least) for token in tokens]}


def _pre_tokenizers(file: Fields, architecture: str) -> Iterator[str]:
    """The names of pre-tokenizers that cut as tokenizer.json does, the likeliest first."""
    import tokenizers

    path = str(file.path)
    backend = tokenizers.Tokenizer.from_file(path)
    wanted = _cut(backend.pre_tokenizer)
    whole = bool(file.require("model", dict).get("ignore_merges"))
    fitting: dict[tuple[Any, bool], str] = {}
    for name, cuts in PRE_TOKENIZERS.items():
        kind = cuts, name in WHOLE_WORDS
        if kind in fitting:
            fitting[kind] = name if name == architecture else fitting[kind]
        elif _cut(splits(cuts)) == wanted:
            fitting[kind] = name
    yield from sorted(fitting.values(), key=lambda name: (name in WHOLE_WORDS) != whole)


def _cut(
    pre_tokenizer: tokenizers.pre_tokenizers.PreTokenizer | None,
) -> list[list[tuple[int, int]]]:
    """Where a pre-tokenizer cuts the texts."""
    if pre_tokenizer is None:
        return []
    texts = [unicodedata.normalize("NFC", text) for text in _TEXTS]
    return [[span for _, span in pre_tokenizer.pre_tokenize_str(text)] for text in texts]


def _same(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers give the same ids for the texts."""
    texts = [unicodedata.normalize("NFC", text) for text in _TEXTS]
    return all(
        one.encode(text, parse_special=special) == other.encode(text, parse_special=special)
        for text in texts
        for special in (False, True)
    )


def _ends(vocab: Vocabulary, values: dict[str, Value], directory: Path) -> list[str]:
    """Name ends of a generation that are not found by their texts; return what is left out."""
    found = Vocabulary.from_metadata(values, directory)
    missing = sorted(token for token in vocab.eog - found.eog if token < len(found))
    for name in ("eot", "eom"):
        if missing and getattr(found.special, name) is None:
            values[f"tokenizer.ggml.{name}_token_id"] = missing.pop(0)
    return [f"that the token {vocab.tokens[token]!r} ends a text" for token in missing]
