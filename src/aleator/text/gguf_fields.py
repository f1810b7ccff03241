"""A vocabulary of a Hugging Face directory as fields of GGUF's metadata.

The pre-tokenizer is found by trying: it must cut texts as the directory's tokenizer.json does,
whose names say nothing.  llama.cpp's conversion has a table of hashes.  At the end both
tokenizers must give the same ids.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aleator.core.errors import UnsupportedModel
from aleator.models.files.fields import Fields, Value, read_json
from aleator.models.files.gguf_writer import field
from aleator.text.gguf_vocabulary import GGML, GGUF_SPECIALS, pair_of
from aleator.text.huggingface import MAX_TOKENS, chat_templates, optional, steps_of
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
_MOST_TRIED = 16
"""User-defined tokens with spaces that are tried in texts."""


def vocabulary_fields(
    vocab: Vocabulary, directory: Path, architecture: str, n_vocab: int
) -> tuple[list[bytes], list[str]]:
    """Make the fields of the tokenizer and the chat template.

    Args:
        vocab: the directory's vocabulary.
        directory: the Hugging Face directory.
        architecture: GGUF's name of the model's architecture.
        n_vocab: rows of the embedding, for each of which there must be a token.

    Returns:
        The entries of the metadata, and what GGUF cannot say, for warnings.

    Raises:
        ModelNotFound, FileFormatError: a file is missing or damaged.
        UnsupportedModel: a tokenizer that GGUF cannot hold.
    """
    if n_vocab > MAX_TOKENS:
        raise UnsupportedModel(f"{directory}: {n_vocab} tokens; at most {MAX_TOKENS} are converted")
    original = Tokenizer(vocab)
    values, left_out = _common(vocab, n_vocab)
    values |= _named_templates(directory, vocab.rerank_template)
    if vocab.tokenizer_json is None:
        forms = [_as_read(vocab, n_vocab)]
    else:
        file = read_json(vocab.tokenizer_json)
        left_out += _spaces(file) + _composed(file)
        forms = [*_forms(file, vocab, architecture, n_vocab)]
    marked = _marked(vocab, n_vocab)
    strict = (True, False) if vocab.kind == "spm" else (True,)
    for form, prefix in ((form, prefix) for prefix in strict for form in forms):
        found = [
            (made, read, _agreeing(original, Tokenizer(read), marked))
            for made in _with_marked(values | form, marked)
            if _same(original, Tokenizer(read := Vocabulary.from_metadata(made, directory)), prefix)
        ]
        if found:
            made, read, agreeing = max(found, key=lambda each: each[2])
            left_out += _ends(vocab, read, made) + _pairs(vocab, read, made)
            left_out += _in_front(original, Tokenizer(read))
            if agreeing < (texts := tuple(map(len, _around(vocab, marked)))):
                left_out.append(
                    f"how texts beside tokens such as {vocab.tokens[marked[0]]!r:.60} are cut "
                    f"({sum(texts) - sum(agreeing)} of {sum(texts)} differ)"
                )
            return [field(key, value) for key, value in made.items()], left_out
    raise UnsupportedModel(
        f"{directory}: GGUF's tokenizers cut or merge texts in another way than its tokenizer "
        f"({len(forms)} tried): a converted file would read texts as other tokens than the model was trained "
        "with"
    )


def _as_read(vocab: Vocabulary, n_vocab: int) -> dict[str, Value]:
    """The fields of a vocabulary that was read as GGUF's metadata."""
    how = vocab.normalisation
    if vocab.kind == "bpe":
        return {f"{GGML}model": "gpt2", f"{GGML}merges": [*vocab.merges], f"{GGML}pre": vocab.pre}
    if vocab.pieces == "wordpiece":
        return _words(vocab, vocab.unk, how["lowercase"], how["strip_accents"])
    scores = _of_all([] if vocab.scores is None else vocab.scores.tolist(), n_vocab)
    if vocab.pieces == "unigram-bytes":
        return {f"{GGML}model": "plamo2", f"{GGML}scores": scores, f"{GGML}add_space_prefix": False}
    if vocab.pieces:
        return _unigram(scores, how["charsmap"], how["one_space"], vocab.add_space_prefix)
    if TokenAttribute.BYTE not in vocab.attributes:
        raise UnsupportedModel(
            f"{vocab.source}: a BPE model without tokens of bytes: llama.cpp ends at the first character "
            "that is no token"
        )
    return {
        f"{GGML}model": "llama",
        f"{GGML}scores": scores,
        f"{GGML}add_space_prefix": vocab.add_space_prefix,
    }


def _forms(
    file: Fields, vocab: Vocabulary, architecture: str, n_vocab: int
) -> Iterator[dict[str, Value]]:
    """The fields by which GGUF may say what a tokenizer.json does, the likeliest first."""
    model = Fields(file.path, file.require("model", dict))
    if model.get("type") == "WordPiece":
        how = _normaliser(file, "BertNormalizer")
        lower = how.get("lowercase") is True
        strip = how.get("strip_accents")
        unk = model.require("vocab", dict).get(model.get("unk_token", "[UNK]"))
        yield _words(vocab, unk, lower, lower if strip is None else strip is True)
        return
    if model.get("type") == "Unigram":
        scores = _of_all([float(score) for _, score in model.require("vocab", list)], n_vocab)
        charsmap, strips = _charsmap(file), vocab.add_space_prefix
        for one_space, prefix in ((True, strips), (False, strips), (False, not strips)):
            made = _unigram(scores, charsmap, one_space, prefix)
            unk = model.get("unk_id", kind=int)
            yield made | ({} if unk is None else {f"{GGML}unknown_token_id": unk})
        return
    merges = [_merge(file, each) for each in model.get("merges", kind=list) or []]
    if vocab.kind == "bpe":
        for pre in _pre_tokenizers(file, architecture):
            yield {f"{GGML}model": "gpt2", f"{GGML}merges": merges, f"{GGML}pre": pre}
    elif architecture == "gemma4":
        yield {f"{GGML}model": "gemma4", f"{GGML}merges": merges} | _scores(vocab, n_vocab, merges)
    else:
        begin = {f"{GGML}add_space_prefix": vocab.add_space_prefix}
        yield {f"{GGML}model": "llama"} | begin | _scores(vocab, n_vocab, merges)


def _of_all(scores: list[float], n_vocab: int) -> list[float]:
    """The scores of so many tokens; those that have none get 0."""
    return [*scores, *[0.0] * (n_vocab - len(scores))][:n_vocab]


def _words(
    vocab: Vocabulary, unk: int | None, lowercase: bool, strip_accents: bool
) -> dict[str, Value]:
    """The fields of WordPiece, at the end of whose texts llama.cpp puts the separator."""
    sep = vocab.eos if vocab.special.sep is None else vocab.special.sep
    named = {"unknown": unk, "seperator": sep}
    ids = {f"{GGML}{name}_token_id": token for name, token in named.items() if token is not None}
    return {
        f"{GGML}model": "bert",
        f"{GGML}normalizer.lowercase": lowercase,
        f"{GGML}normalizer.strip_accents": strip_accents,
        **ids,
    }


def _unigram(
    scores: list[float], charsmap: bytes, one_space: bool, prefix: bool
) -> dict[str, Value]:
    """The fields of a vocabulary whose best sum of scores counts."""
    made: dict[str, Value] = {
        f"{GGML}model": "t5",
        f"{GGML}scores": scores,
        f"{GGML}add_space_prefix": prefix,
        f"{GGML}remove_extra_whitespaces": one_space,
    }
    return made | ({f"{GGML}precompiled_charsmap": charsmap} if charsmap else {})


def _normaliser(file: Fields, kind: str) -> Fields:
    """The first step of the normaliser of a type; no fields if there is none."""
    steps = steps_of(file, "normalizer")
    return next((step for step in steps if step.get("type") == kind), Fields(file.path, {}))


def _charsmap(file: Fields) -> bytes:
    """How characters are replaced, compiled; empty if they are not."""
    found = _normaliser(file, "Precompiled")
    try:
        return base64.b64decode(found.get("precompiled_charsmap") or "", validate=True)
    except (ValueError, TypeError):
        raise file.error("normalizer", "its precompiled_charsmap is not base64") from None


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
    values: dict[str, Value] = {
        f"{GGML}tokens": tokens,
        f"{GGML}token_type": types,
        f"{GGML}add_bos_token": vocab.add_bos,
        f"{GGML}add_eos_token": vocab.add_eos,
    }
    for name, own in GGUF_SPECIALS.items():
        token = getattr(vocab.special, own)
        if token is not None and token < n_vocab:
            values[f"{GGML}{name}_token_id"] = token
    if vocab.chat_template is not None:
        values["tokenizer.chat_template"] = vocab.chat_template
    return values, left_out


def _named_templates(directory: Path, rerank: str | None) -> dict[str, Value]:
    """The chat templates beside the default one, such as "tool_use", in llama.cpp's fields."""
    found = chat_templates(directory, optional(directory / "tokenizer_config.json"))
    found |= {} if rerank is None else {"rerank": rerank}
    named = {
        re.sub("[^a-zA-Z0-9]", "_", name): text for name, text in found.items() if name != "default"
    }
    made: dict[str, Value] = {
        f"tokenizer.chat_template.{name}": text for name, text in named.items()
    }
    return made | ({"tokenizer.chat_templates": [*named]} if named else {})


def _marked(vocab: Vocabulary, n_vocab: int) -> list[int]:
    """The user-defined tokens with a space of SentencePiece's in them."""
    if vocab.kind != "spm" or vocab.pieces == "unigram-bytes":
        return []
    defined = np.flatnonzero(vocab.attributes[:n_vocab] == TokenAttribute.USER_DEFINED).tolist()
    return [i for i in defined if SPACE in vocab.tokens[i]]


def _with_marked(made: dict[str, Value], marked: Sequence[int]) -> Iterator[dict[str, Value]]:
    """The ways in which GGUF may hold these tokens, of equal ones the better first.

    llama.cpp looks for user-defined tokens in a text as it is, and shows them as they are.  Others it merges,
    and shows with spaces.
    """
    tokens, types = (list[Any](made[f"{GGML}{each}"]) for each in ("tokens", "token_type"))  # type: ignore[arg-type]
    spaced, ordinary = list(tokens), list(types)
    for i in marked:
        spaced[i] = tokens[i].replace(SPACE, " ")
        ordinary[i] = int(TokenAttribute.NORMAL)
    if not marked or len(set(spaced)) == len(spaced):
        yield made | {f"{GGML}tokens": spaced}
    if marked:
        yield made | {f"{GGML}token_type": ordinary}
    if marked and all(tokens[i].strip(SPACE) for i in marked):  # marks would be shown for spaces
        yield made


def _around(vocab: Vocabulary, marked: Sequence[int]) -> tuple[list[str], list[str]]:
    """Texts with such tokens, with spaces and with their own marks."""
    own = [vocab.tokens[i] for i in marked[:_MOST_TRIED]]
    of_all = [own, [text.replace(SPACE, " ") for text in own]]
    marks, spaces = (
        [
            f"{a}{text}{b}"
            for text in texts
            for a in ("", "x", "a ")
            for b in ("", "y", "a", " a", text)
        ]
        for texts in of_all
    )
    return spaces, marks


def _agreeing(one: Tokenizer, other: Tokenizer, marked: Sequence[int]) -> tuple[int, ...]:
    """How many texts of each kind get the same ids."""
    return tuple(
        sum(one.encode(text) == other.encode(text) for text in texts)
        for texts in _around(one.vocab, marked)
    )


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


def _composed(file: Fields) -> list[str]:
    """What is left out about letters and their accents, which llama.cpp takes as they come."""
    if all(step.get("type") != "NFC" for step in steps_of(file, "normalizer")):
        return []
    return ["that a letter and an accent behind it are read as one character (NFC)"]


def _merge(file: Fields, merge: Any) -> str:
    """A merge as GGUF has it: two tokens with a space between."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if len(parts) != 2 or any(" " in part for part in parts):
        raise file.error("model.merges", f"{merge!r:.80} is not two tokens without spaces")
    return " ".join(parts)


def _scores(vocab: Vocabulary, n_vocab: int, merges: Sequence[str]) -> dict[str, Value]:
    """The scores of a SentencePiece vocabulary, by which the merges of earlier rank come first."""
    ranks = reversed([*enumerate(merges, 1)])
    made = {merge.replace(" ", "", 1): -float(rank) for rank, merge in ranks}
    least = -float(len(merges) + 1)
    return {f"{GGML}scores": [made.get(token, least) for token in vocab.tokens[:n_vocab]]}


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


def _same(one: Tokenizer, other: Tokenizer, prefix: bool) -> bool:
    """Whether two tokenizers give the same ids.

    ``prefix``: also for texts that begin with a space; else the other one puts one more in front of these.
    """
    texts = [unicodedata.normalize("NFC", text) for text in _TEXTS]
    return all(
        one.encode(text, parse_special=special)
        == other.encode(text if prefix else text.removeprefix(" "), parse_special=special)
        for text in texts
        for special in (False, True)
    )


def _in_front(one: Tokenizer, other: Tokenizer) -> list[str]:
    """What is left out about the space that SentencePiece puts in front of a text."""
    vocab, told = one.vocab, []
    if vocab.kind != "spm" or vocab.pieces:
        return []
    if one.encode(" x") != other.encode(" x"):
        told.append("that a text gets no space in front where it begins with one")
    kinds = vocab.attributes[: len(other.vocab)]
    for kind, around, what in (
        (
            TokenAttribute.CONTROL,
            "{}x",
            "that what follows a token such as {!r:.60} gets no space in front",
        ),
        (
            TokenAttribute.USER_DEFINED,
            "x{}",
            "that a token such as {!r:.60} is found behind spaces only",
        ),
    ):
        tokens = [vocab.tokens[i] for i in np.flatnonzero(kinds == kind)[:_MOST_TRIED]]
        for token in (token for token in tokens if SPACE not in token):
            text = around.format(token)
            if one.encode(text, parse_special=True) != other.encode(text, parse_special=True):
                told.append(what.format(token))
                break
    return told


def _ends(vocab: Vocabulary, found: Vocabulary, made: dict[str, Value]) -> list[str]:
    """Name ends of a generation that are not found by their texts; return what is left out."""
    missing = sorted(token for token in vocab.eog - found.eog if token < len(found))
    for name in ("eot", "eom"):
        if missing and getattr(found.special, name) is None:
            made[f"{GGML}{name}_token_id"] = missing.pop(0)
    return [f"that the token {vocab.tokens[token]!r} ends a text" for token in missing]


def _pairs(vocab: Vocabulary, found: Vocabulary, made: dict[str, Value]) -> list[str]:
    """Say what stands between and after a query and a document; return what is left out."""
    wanted = vocab.pair
    if not wanted.after:
        return []
    left_out = ["that a document after a query is a second segment"] if wanted.second else []
    model, special = str(made[f"{GGML}model"]), found.special
    if special.sep is None and wanted.between:
        special = replace(special, sep=wanted.between[-1])
    # WordPiece has its separator at the end whatever add_eos_token says.
    for add_eos in (False, True) if model == "bert" else (found.add_eos,):
        for add_sep in (False, True):
            said = {f"{GGML}add_eos_token": add_eos, f"{GGML}add_sep_token": add_sep}
            pair = pair_of(Fields("", made | said), model, special, found.add_bos)
            if replace(pair, second=wanted.second) == wanted:
                made |= said
                if add_sep and special.sep is not None:
                    made[f"{GGML}seperator_token_id"] = special.sep
                return left_out
    return [*left_out, f"the tokens {wanted.between} between a query and a document"]
