"""The vocabulary of a directory without tokenizer.json, as GGUF's metadata.

tokenizer.model (or spiece.model) is a model of SentencePiece, and so is sentencepiece.bpe.model of XLM-RoBERTa
and CamemBERT, whose ids are others; vocab.txt lists the tokens of a WordPiece vocabulary; tiktoken.model has
the ranks of Moonshot's models, qwen.tiktoken those of the first Qwen; tokenizer.jsonl has PLaMo's pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.core.json_text import loads
from aleator.models.files.fields import Fields
from aleator.models.files.mapping import map_file
from aleator.text import ranks, sentencepiece
from aleator.text.gguf_vocabulary import GGML, GGUF_SPECIALS
from aleator.text.huggingface import MAX_TOKENS, as_words, chat_template, optional, special_tokens
from aleator.text.special_tokens import BYTE_CHARACTERS, SPACE, TokenAttribute

_BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "pad", "mask")}
_OF_PLAMO = {each: TokenAttribute[each] for each in ("UNKNOWN", "CONTROL", "BYTE")}
_TURN = "<|plamo:op|>"
_MOST_SCORE = float(np.finfo(np.float32).max)
_NORMAL, _CONTROL = int(TokenAttribute.NORMAL), int(TokenAttribute.CONTROL)
_SHIFTED = "sentencepiece.bpe.model"
_NOT_USED = {
    "<s>NOTUSED": 0.0,
    "<pad>": 0.0,
    "</s>NOTUSED": 0.0,
    "<unk>": 0.0,
    "<unk>NOTUSED": -100.0,
}
_FIRST = {
    ("XLMRoberta", "xlm-roberta"): dict.fromkeys(("<s>", "<pad>", "</s>", "<unk>"), 0.0),
    ("Camembert", "camembert"): _NOT_USED | {"<s>": 0.0, "</s>": 0.0},
}
"""The beginning of a tokenizer's class, and a model's type -> the first tokens, where the file has <unk>, <s>
and </s>, and their scores."""
_OF_QWEN = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)),
)  # fmt: skip
_RANKED: Mapping[str, tuple[str, Sequence[str]]] = {
    "TikTokenTokenizer": ("kimi-k2", ()),
    "QWenTokenizer": ("qwen2", _OF_QWEN),
}
"""The class of a tokenizer with ranks -> how texts are cut, and the special tokens behind those of the file, of
which the first ends a text."""
_FILES = (
    "tokenizer.model", "spiece.model", _SHIFTED, "vocab.txt", "tokenizer.jsonl", "tiktoken.model",
    "qwen.tiktoken",
)  # fmt: skip


def metadata(directory: Path) -> tuple[dict[str, Any], list[int]] | None:
    """Read the vocabulary.

    Returns:
        The fields of GGUF's metadata, and the ids that end a generation; None: there is none of these files.

    Raises:
        FileFormatError: a file is damaged; names file and field.
        UnsupportedModel: a tokenizer that GGUF cannot describe.
    """
    config = optional(directory / "tokenizer_config.json")
    path = next((path for name in _FILES if (path := directory / name).is_file()), None)
    if path is None:
        return None
    if path.suffix == ".txt":
        config = config.over(_BERT)
        config = config.changed(bos_token=config.values["cls_token"])
        made, named = _words(path, config), dict[str, int]()
    elif path.suffix == ".jsonl":
        made, named = _plamo(path)
    elif path.name in _FILES[-2:]:
        made, named = _ranks(path, config)
    else:
        made, named = sentencepiece.read(path)
        if path.name == _SHIFTED:
            named = _shift(path, made, config)
    tokens, types = made[f"{GGML}tokens"], made[f"{GGML}token_type"]
    _add(made, directory, config)
    ids = {text: i for i, text in enumerate(tokens)}
    more, ends = special_tokens(directory, config, ids, len(tokens))
    named |= more
    for i, kind in enumerate(types):  # user-defined ones are looked for before spaces are replaced
        if kind == TokenAttribute.USER_DEFINED and SPACE in tokens[i] and path.suffix != ".jsonl":
            types[i] = _NORMAL
    if path.suffix == ".txt":
        for token in named.values():
            types[token] = _CONTROL
        made[f"{GGML}tokens"] = as_words(tokens, types)
    elif made[f"{GGML}model"] != "gpt2":
        _check_ends(path, made, named)
    for gguf, own in GGUF_SPECIALS.items():
        if own in named:
            made[f"{GGML}{gguf}_token_id"] = named[own]
    # Llama's ends are not those of other unigram models.
    llama = config.get("tokenizer_class", "").startswith("Llama")
    for key, usual in (("add_bos_token", True), ("add_eos_token", False)):
        if key in config or llama:
            made[GGML + key] = config.get(key, usual)
    template = chat_template(directory, config)
    return made | ({} if template is None else {"tokenizer.chat_template": template}), ends


def _shift(path: Path, made: dict[str, Any], config: Fields) -> dict[str, int]:
    """Give the tokens their model's ids, which are fairseq's; returns its special tokens."""
    kind = config.get("tokenizer_class", "")
    model = optional(path.parent / "config.json").get("model_type", "")
    first = next(
        (f for (c, m), f in _FIRST.items() if (kind.startswith(c) if kind else model == m)), None
    )
    if first is None:
        raise UnsupportedModel(
            f"{path}: the ids of {kind or model or 'an unknown tokenizer'!r:.60}, which are not the file's; "
            "XLM-RoBERTa's and CamemBERT's are known: save the tokenizer again with transformers, as "
            "tokenizer.json"
        )
    tokens, types, scores = (made[f"{GGML}{each}"] for each in ("tokens", "token_type", "scores"))
    if made[f"{GGML}model"] != "t5" or tokens[:3] != ["<unk>", "<s>", "</s>"]:
        raise UnsupportedModel(
            f"{path}: a model that begins with {tokens[:3]!r:.80}: theirs are unigram models that begin "
            "with <unk>, <s> and </s>"
        )
    tokens[:3], types[:3] = first, [_CONTROL] * len(first)
    types[3] = int(TokenAttribute.UNKNOWN)
    made[f"{GGML}scores"] = [*first.values(), *scores[3:], 0.0]
    tokens.append("<mask>")
    types.append(_CONTROL)
    for each in ("bos", "eos", "sep"):
        made[f"{GGML}add_{each}_token"] = True
    bos, eos = tokens.index("<s>"), tokens.index("</s>")
    return {"bos": bos, "pad": 1, "eos": eos, "sep": eos, "unk": 3, "mask": len(tokens) - 1}


def _check_ends(path: Path, made: dict[str, Any], named: dict[str, int]) -> None:
    """UnsupportedModel where GGUF would take an ordinary token for one that the model lacks."""
    for name in ("eos",) if made[f"{GGML}model"] == "t5" else ("bos", "eos"):
        if name not in named:
            raise UnsupportedModel(
                f"{path}: no {name} token: name one as {name}_token in tokenizer_config.json; GGUF files "
                "always have one"
            )


def _plamo(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The fields of PLaMo's pieces, a list of text, score and type a line, and the token that ends a turn."""
    n_vocab = optional(path.parent / "config.json").integer("vocab_size", 0, MAX_TOKENS, 0)
    tokens, types, scores = list[str](), list[int](), list[float]()
    for i, line in enumerate(_lines(path)):
        if not line.strip():
            continue
        try:
            text, score, kind = [*loads(line), "NORMAL"][:3]
            text.encode()  # lone surrogates are a ValueError
        except (ValueError, TypeError, AttributeError):
            text = score = kind = None
        of_kinds = isinstance(text, str) and isinstance(kind, str) and type(score) in (int, float)
        if not of_kinds or not abs(score) <= _MOST_SCORE:
            raise FileFormatError(
                path,
                f"line {i + 1}, {line!r:.60}, is not a list of a text, a finite score and a type",
            )
        usual = _CONTROL if text.startswith("<|plamo:") and text.endswith("|>") else _NORMAL
        tokens.append(text)
        scores.append(float(score))
        types.append(int(_OF_PLAMO.get(kind, usual)))
    more = range(1, n_vocab - len(tokens) + 1)  # numbered and scored as llama.cpp's conversion does
    made = {
        f"{GGML}model": "plamo2",
        f"{GGML}tokens": [*tokens, *(f"[PAD{i}]" for i in more)],
        f"{GGML}token_type": [*types, *[int(TokenAttribute.UNUSED)] * len(more)],
        f"{GGML}scores": [*scores, *[-1000.0] * len(more)],
    }
    return made, {"eot": tokens.index(_TURN)} if _TURN in tokens else {}


def _words(path: Path, config: Fields) -> dict[str, Any]:
    """The fields of a list of tokens, one a line."""
    tokens = _lines(path)
    lower = config.get("do_lower_case", True)
    for key in ("do_basic_tokenize", "tokenize_chinese_chars"):
        if not config.get(key, True):
            raise UnsupportedModel(
                f"{path}: words that are cut in another way ({key}): GGUF cannot say that"
            )
    return {
        f"{GGML}model": "bert",
        f"{GGML}tokens": tokens,
        f"{GGML}token_type": [_NORMAL] * len(tokens),
        f"{GGML}normalizer.lowercase": lower,
        f"{GGML}normalizer.strip_accents": config.get("strip_accents", lower),
        # A pair has the separator between and after its texts.
        f"{GGML}add_eos_token": True,
        f"{GGML}add_sep_token": False,
    }


def _lines(path: Path) -> list[str]:
    data = map_file(path)
    if data.size > sentencepiece.MAX_BYTES:
        raise FileFormatError(
            path, f"{data.size} bytes; at most {sentencepiece.MAX_BYTES} are read"
        )
    try:
        lines = bytes(data).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(path, f"is not UTF-8: {error.reason}") from None
    return [line.removesuffix("\r") for line in lines]


def _ranks(path: Path, config: Fields) -> tuple[dict[str, Any], dict[str, int]]:
    """The fields of ranks of tiktoken, and the token that ends a text.

    How texts are cut is what the tokenizer's class does.  That Qwen's composes letters and accents (NFC) is
    left out, as in llama.cpp.
    """
    kind = config.get("tokenizer_class", "")
    if kind not in _RANKED:
        raise UnsupportedModel(
            f"{path}: how texts are cut is known of {' and '.join(_RANKED)}, and tokenizer_config.json has "
            f"tokenizer_class={kind!r:.60}: take a GGUF file of the model, or one with tokenizer.json"
        )
    pre, special = _RANKED[kind]
    tokens, merges = ranks.read(path)
    texts = ["".join([BYTE_CHARACTERS[byte] for byte in token]) for token in tokens]
    of = dict(zip(tokens, texts, strict=True))
    made = {
        f"{GGML}model": "gpt2",
        f"{GGML}pre": pre,
        f"{GGML}tokens": [*texts, *special],
        f"{GGML}token_type": [_NORMAL] * len(texts) + [_CONTROL] * len(special),
        f"{GGML}merges": [f"{of[left]} {of[right]}" for left, right in merges],
    }
    return made, dict.fromkeys(("bos", "eos"), len(texts)) if special else {}


def _add(made: dict[str, Any], directory: Path, config: Fields) -> None:
    """Put in the tokens that were added to the vocabulary, and unused ones up to the number of logits."""
    tokens, types = made[f"{GGML}tokens"], made[f"{GGML}token_type"]
    added = {token: (text, special) for token, text, special in _added(directory, config)}
    n_vocab = optional(directory / "config.json").integer("vocab_size", 0, MAX_TOKENS, 0)
    more = range(len(tokens), max(n_vocab, max(added, default=-1) + 1))
    tokens += [f"[PAD{i}]" for i in more]
    types += [int(TokenAttribute.UNUSED)] * len(more)
    if f"{GGML}scores" in made:
        made[f"{GGML}scores"] += [0.0] * len(more)
    for token, (text, special) in added.items():
        if tokens[token] != text or types[token] == _NORMAL:
            tokens[token] = text
            types[token] = _CONTROL if special else int(TokenAttribute.USER_DEFINED)


def _added(directory: Path, config: Fields) -> Iterator[tuple[int, str, bool]]:
    """The ids and texts of added tokens, and whether they are special."""
    older = optional(directory / "added_tokens.json")
    for text in older.values:
        yield older.integer(text, 0, MAX_TOKENS - 1), text, False
    listed: dict[str, Any] = config.get("added_tokens_decoder", {})
    for key, each in listed.items():
        entry = Fields(config.path, each if isinstance(each, dict) else {})
        if not key.isascii() or not key.isdecimal() or int(key[:9]) >= MAX_TOKENS:
            raise config.error("added_tokens_decoder", f"{key!r:.40} is no id of a token")
        yield int(key[:9]), entry.require("content", str), entry.get("special", False)
