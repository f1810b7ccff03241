"""Read the vocabulary of a Hugging Face directory.

tokenizer.json has the tokens; tokenizer_config.json, special_tokens_map.json, generation_config.json and
config.json say which are special and how many logits the model has.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aleator.core.arrays import Bytes
from aleator.core.errors import FileFormatError, ModelNotFound, UnsupportedModel
from aleator.models.files.fields import Fields, read_json
from aleator.text.gguf_vocabulary import is_byte_token
from aleator.text.special_tokens import SPACE, Pair, TokenAttribute, resolve

log = logging.getLogger(__name__)

MAX_TOKENS = 1 << 24
_MAX_TEMPLATE = 1 << 20  # bytes
# Names in the configurations -> fields of SpecialTokens.
_NAMES = {f"{name}_token": name for name in ("bos", "eos", "unk", "sep", "pad", "mask")}


def read_fields(directory: Path) -> dict[str, Any]:
    """The fields of a :class:`~aleator.text.vocabulary.Vocabulary`; errors as its ``from_directory``."""
    if not directory.is_dir():
        raise ModelNotFound(directory)
    path = directory / "tokenizer.json"
    if not path.is_file():
        other = next(directory.glob("*tiktoken*"), None)
        if other is not None:
            raise UnsupportedModel(
                f"{other}: a vocabulary of tiktoken, whose file does not say how it cuts texts, is not read: "
                "take a GGUF file of the model, or one with tokenizer.json"
            )
        raise FileFormatError(
            directory,
            "the directory has no tokenizer.json, tokenizer.model or vocab.txt; save the model's tokenizer "
            "again with transformers, which writes the first",
            field="tokenizer.json",
        )
    file = read_json(path)
    config = optional(directory / "tokenizer_config.json")
    tokens, attributes, ids = _tokens(file, optional(directory / "config.json"))
    named, ends = special_tokens(directory, config, ids, len(tokens))
    kind = _kind(file)
    around, second = _around(file, 2, len(tokens))
    second &= "token_type_ids" in config.get("model_input_names", ["token_type_ids"])
    before, between, after = map(tuple, around)
    add_bos, add_eos = _added(file, config, named, len(tokens))
    special, eog, changed = resolve(named, ids, ends)
    if special.unk is not None and attributes[special.unk] != TokenAttribute.NORMAL:
        attributes[special.unk] = TokenAttribute.UNKNOWN
    attributes[list(changed)] = list(changed.values())
    if file.require("model", dict).get("type") == "WordPiece":
        words = Fields(path, file.require("model", dict))
        tokens = as_words(tokens, attributes, words.get("continuing_subword_prefix", "##"))
        ids = {tokens[i]: i for i in ids.values()}  # only added tokens are looked up by their texts
    elif kind == "spm":
        for i, text in enumerate(tokens):
            if attributes[i] == TokenAttribute.NORMAL and is_byte_token(text):
                attributes[i] = TokenAttribute.BYTE
    return {
        "kind": kind,
        "tokens": tokens,
        "ids": ids,
        "attributes": attributes,
        "special": special,
        "eog": eog,
        "add_bos": add_bos,
        "add_eos": add_eos,
        "add_space_prefix": _strips_space(file),
        "pair": Pair(before, between, after, second),
        "rerank_template": _rerank_template(directory),
        "chat_template": chat_template(directory, config),
        "source": directory,
        "tokenizer_json": path,
    }


def optional(path: Path) -> Fields:
    """The fields of a JSON file; none if there is no file."""
    return read_json(path) if path.is_file() else Fields(path, {})


def special_tokens(
    directory: Path, config: Fields, ids: Mapping[str, int], n_tokens: int
) -> tuple[dict[str, int], list[int]]:
    """The special tokens that the configurations name, by SpecialTokens' names, and the ends of a generation.

    Args:
        directory: the Hugging Face directory.
        config: the fields of tokenizer_config.json.
        ids: the id of each token.
        n_tokens: the number of ids.
    """
    named = _named(ids, (config, optional(directory / "special_tokens_map.json")))
    ends: list[int] = []
    for name in ("generation_config.json", "config.json"):
        source = optional(directory / name)
        begin = _id_list(source, "bos_token_id", n_tokens)
        if "bos" not in named and begin:
            named["bos"] = begin[0]
        ends = ends or _id_list(source, "eos_token_id", n_tokens)
    if "eos" not in named and ends:
        named["eos"] = ends[0]
    return named, ends


def _tokens(file: Fields, model: Fields) -> tuple[list[str], Bytes, dict[str, int]]:
    """Return texts by id, their attributes, and ids by text.

    Ids without a token, up to the number of the model's logits, are unused.
    """
    description = Fields(file.path, file.require("model", dict))
    kind = description.get("type", "BPE")
    if kind not in ("BPE", "WordPiece", "Unigram"):
        raise UnsupportedModel(
            f"{file.path}: a tokenizer of type {kind!r}; supported are BPE, WordPiece and Unigram"
        )
    by_text = (
        _unigram(description) if kind == "Unigram" else dict(description.require("vocab", dict))
    )
    added: dict[str, TokenAttribute] = {}
    for entry in file.get("added_tokens", None, list) or []:
        token = Fields(file.path, entry if isinstance(entry, dict) else {})
        text = token.require("content", str)
        if by_text.setdefault(text, token.require("id", int)) != token.require("id", int):
            raise file.error("added_tokens", f"the token {text!r} has two ids")
        special = token.get("special", False)
        added[text] = TokenAttribute.CONTROL if special else TokenAttribute.USER_DEFINED
    for text, token_id in by_text.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
            raise file.error("model.vocab", f"the token {text!r} has the id {token_id!r}")
    if not by_text:
        raise file.error("model.vocab", "the vocabulary has no tokens")
    try:
        "".join(by_text).encode()
    except UnicodeEncodeError:
        raise file.error("model.vocab", "a token has a lone surrogate") from None
    texts: dict[int, str] = {}
    for text, token_id in by_text.items():
        if texts.setdefault(token_id, text) != text:
            raise file.error(
                "model.vocab", f"{texts[token_id]!r} and {text!r} both have the id {token_id}"
            )
    n_tokens = max(max(texts) + 1, model.integer("vocab_size", 0, MAX_TOKENS, 0))
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(n_tokens)]
    attributes = np.full(n_tokens, TokenAttribute.UNUSED, np.uint8)
    attributes[list(texts)] = TokenAttribute.NORMAL
    for text, attribute in added.items():
        attributes[by_text[text]] = attribute
    return tokens, attributes, by_text


def _unigram(description: Fields) -> dict[str, Any]:
    """The ids of pieces that are listed with their scores."""
    listed = description.require("vocab", list)
    texts = [each[0] for each in listed if isinstance(each, list) and each]
    if len(texts) != len(listed) or not all(isinstance(text, str) for text in texts):
        raise description.error("vocab", "model.vocab must list pieces with their scores")
    if len(set(texts)) != len(texts):
        raise description.error("vocab", "model.vocab lists a piece twice")
    return {text: i for i, text in enumerate(texts)}


def as_words(
    tokens: Sequence[str], attributes: Sequence[int] | Bytes, mark: str = "##"
) -> list[str]:
    """A WordPiece vocabulary with a space before what begins a word, and no mark before what continues one."""
    return [
        text
        if attributes[i] != TokenAttribute.NORMAL
        else text.removeprefix(mark)
        if mark and text.startswith(mark)
        else SPACE + text
        for i, text in enumerate(tokens)
    ]


def _named(ids: Mapping[str, int], sources: tuple[Fields, ...]) -> dict[str, int]:
    """The special tokens that the configurations name; the first source that names one counts."""
    named: dict[str, int] = {}
    for source in sources:
        for key, name in _NAMES.items():
            token = source.values.get(key)
            text = token.get("content") if isinstance(token, dict) else token
            if text is None or name in named:
                continue
            if not isinstance(text, str):
                raise source.error(key, f"{key} must be a string, not {text!r}")
            if text in ids:
                named[name] = ids[text]
            elif name in ("bos", "eos"):
                raise source.error(key, f"{key} is {text!r}, which is not in the vocabulary")
    return named


def _id_list(source: Fields, key: str, n_tokens: int) -> list[int]:
    """A configuration's ids of a special token, without those that no token has."""
    value = source.values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or token < 0:
            raise source.error(key, f"{key} has {token!r}; ids are 0 to {n_tokens - 1}")
        if token >= n_tokens:
            log.info("%s: no token has the id %d (%s)", source.path, token, key)
    return [token for token in ids if token < n_tokens]


def steps_of(file: Fields, key: str) -> Iterator[Fields]:
    """The steps of the normaliser, decoder or post-processor in their order, with sequences flattened."""
    pending = [file.get(key, None, dict)]
    while pending:
        part = pending.pop(0)
        if not isinstance(part, dict):
            continue
        for inner in ("normalizers", "decoders", "processors"):
            nested = part.get(inner)
            pending[:0] = nested if isinstance(nested, list) else []
        yield Fields(file.path, part)


def _kind(file: Fields) -> Literal["spm", "bpe"]:
    types = {part.get("type", "") for part in steps_of(file, "decoder")}
    if "ByteLevel" in types:
        return "bpe"
    if {"Metaspace", "ByteFallback", "WordPiece"} & types:
        return "spm"
    raise UnsupportedModel(
        f"{file.path}: its decoder is neither byte-level nor SentencePiece's nor WordPiece's; only these are "
        "supported"
    )


def _strips_space(file: Fields) -> bool:
    """Whether decoding removes the first space, so that encoding must add one."""
    for part in steps_of(file, "decoder"):
        kind = part.values.get("type")
        if kind == "Strip" and part.values.get("start"):
            return True
        if kind == "WordPiece":
            return True
        if kind == "Metaspace":
            return part.get("prepend_scheme", "always") != "never"
    return False


def _added(file: Fields, config: Fields, named: dict[str, int], n_tokens: int) -> tuple[bool, bool]:
    """Whether encoding adds BOS and EOS; they are added to ``named`` unless they are there.

    Another token at the end than the named EOS, as Qwen3-Embedding has, takes its place, as in llama.cpp's
    conversion; the named one ends a turn.
    """
    (begin, end), _ = _around(file, 1, n_tokens)
    if len(end) == 1 and "eos" in named and named["eos"] != end[0]:
        named.setdefault("eot", named["eos"])
        named["eos"] = end[0]
    for name, ids in (("bos", begin), ("eos", end)):
        if ids and ids != [named.setdefault(name, ids[0])]:
            raise UnsupportedModel(
                f"{file.path}: its post_processor adds the tokens {ids}; supported are one BOS in "
                "front and one EOS at the end"
            )
    add_bos = config.get("add_bos_token", bool(begin))
    add_eos = config.get("add_eos_token", bool(end))
    return add_bos and "bos" in named, add_eos and "eos" in named


def _around(file: Fields, texts: int, n_tokens: int) -> tuple[list[list[int]], bool]:
    """The ids that the post-processor puts before, between and after one text or two.

    Also whether the last text is a second segment.
    """
    found: list[list[Any]] = [[] for _ in range(texts + 1)]
    second = False
    try:
        for part in steps_of(file, "post_processor"):
            kind = part.values.get("type")
            if kind in ("BertProcessing", "RobertaProcessing"):
                begin, end = (part.require(name, list)[1] for name in ("cls", "sep"))
                second = kind == "BertProcessing"
                found[0].append(begin)
                found[-1].append(end)
                if texts > 1:
                    found[1] += [end] if second else [end, end]
            if kind != "TemplateProcessing":
                continue
            steps = part.get("pair", None, list) if texts > 1 else part.require("single", list)
            named: list[str] = []
            for step in steps or []:
                if "Sequence" in step:
                    named.append(step["Sequence"]["id"])
                    second = bool(step["Sequence"].get("type_id"))
                else:
                    token = step["SpecialToken"]["id"]
                    ids = part.require("special_tokens", dict)[token]["ids"]
                    found[min(len(named), texts)] += ids
            if named and named != [*"AB"[:texts]]:
                raise UnsupportedModel(
                    f"{file.path}: its post_processor has the texts {', '.join(named)}, not "
                    f"{'A, B' if texts > 1 else 'A'}: leave it out of tokenizer.json, and write what it adds "
                    "in the prompt"
                )
    except (KeyError, TypeError, AttributeError, IndexError):
        raise file.error("post_processor", "the post_processor is malformed") from None
    for token in itertools.chain(*found):
        if type(token) is not int or not 0 <= token < n_tokens:
            raise file.error("post_processor", f"adds the token {token!r}")
    return found, second


_README = 1 << 16  # bytes of a README that are looked at
_QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt of the model's card, with its default instruction."""


def _rerank_template(directory: Path) -> str | None:
    """How Qwen3-Reranker is asked, whose name is in the directory's or at the top of its README; else None."""
    named = "qwen3-reranker" in directory.resolve().name.lower()
    readme = directory / "README.md"
    if not named and readme.is_file():
        with readme.open("rb") as file:
            named = "# qwen3-reranker" in file.read(_README).decode("utf-8", "replace").lower()
    return _QWEN3_RERANKER if named else None


def chat_template(directory: Path, config: Fields) -> str | None:
    """The chat template of a directory, or of its tokenizer_config.json ``config``."""
    return chat_templates(directory, config).get("default")


def chat_templates(directory: Path, config: Fields) -> dict[str, str]:
    """All chat templates by name; "default" is that of conversations without a special purpose."""
    given = config.values.get("chat_template")
    file = directory / "chat_template.json"  # of a processor, which has pictures too
    if given is None and file.is_file():
        config = read_json(file)
        given = config.values.get("chat_template")
    made: dict[Any, Any] = {"default": given}
    if isinstance(given, list):
        made = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        made[path.stem] = _template(path)
    path = directory / "chat_template.jinja"
    if path.is_file():
        made["default"] = _template(path)
    if not isinstance(made.get("default"), str | None):
        raise config.error("chat_template", "must be a string, or a list with one named 'default'")
    return {
        name: text for name, text in made.items() if isinstance(name, str) and isinstance(text, str)
    }


def _template(path: Path) -> str:
    if path.stat().st_size > _MAX_TEMPLATE:
        raise FileFormatError(path, f"a chat template of more than {_MAX_TEMPLATE} bytes")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(path, f"is not UTF-8: {error.reason}") from None
