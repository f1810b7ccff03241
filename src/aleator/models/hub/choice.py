"""Which files of a repository are the model: the rule of llama.cpp's ``common/download.cpp``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aleator.core.records import dataclass

DEFAULT_TYPES = ("Q4_K_M", "Q8_0")
"""The preferred types, in this order, if no type is asked for; then any GGUF file will do."""
NOT_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of names of GGUF files that accompany a model but are not models."""
CONFIGURATION = (
    "config.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "tiktoken.model",
    "qwen.tiktoken",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
"""Files beside the weights of a safetensors repository."""
_IN_FOLDERS = re.compile(
    r"[^/]*(Pooling|Dense)[^/]*/config\.json|[^/]*Dense[^/]*/model\.safetensors"
    r"|additional_chat_templates/[^/]+\.jinja"
)
"""How sentence-transformers pools, and what follows, in folders that modules.json names; chat templates."""
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})", re.IGNORECASE)
_TYPE = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)


@dataclass(frozen=True)
class GGUFName:
    """The parts of a GGUF file's name."""

    # The path without the number of the part and the suffix; equal for all parts of a model
    prefix: str
    type: str  # the type of its tensors, such as "Q4_K_M"; "" if the name has none
    index: int = 1  # which part it is, from 1
    count: int = 1  # how many parts the model has

    @classmethod
    def of(cls, path: str) -> GGUFName:
        """Read a path that ends in ``.gguf``."""
        prefix, index, count = path.removesuffix(".gguf"), 1, 1
        if split := _SPLIT.fullmatch(prefix):
            prefix, index, count = split[1], int(split[2]), int(split[3])
        named = _TYPE.search(prefix)
        return cls(prefix, named[1].upper() if named else "", index, count)


def is_model(path: str) -> bool:
    """Whether a path is that of a GGUF model, or of a part of one."""
    name = path.rpartition("/")[2]
    return path.endswith(".gguf") and not any(part in name for part in NOT_MODELS)


def gguf_files(files: Sequence[str], quant: str = "") -> list[str]:
    """The GGUF file that is the model, followed by its other parts; empty if nothing fits.

    Its type is ``quant`` in upper or lower case, or by default Q4_K_M, else Q8_0, else the first file's.
    """
    first = [each for each in files if is_model(each) and GGUFName.of(each).index == 1]
    for wanted in (quant,) if quant else DEFAULT_TYPES:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for each in first:
            if pattern.search(each):
                return parts_of(files, each)
    return parts_of(files, first[0]) if first and not quant else []


def parts_of(files: Sequence[str], first: str) -> list[str]:
    """A GGUF file and the other parts of its model, in their order."""
    about = GGUFName.of(first)
    if about.count == 1:
        return [first]
    named = {each: GGUFName.of(each) for each in files if each.endswith(".gguf")}
    parts = [
        each for each, n in named.items() if (n.prefix, n.count) == (about.prefix, about.count)
    ]
    return sorted(parts, key=lambda each: named[each].index)


def safetensors_files(files: Sequence[str]) -> list[str]:
    """The files of a safetensors model at the top of a repository; empty if it has no such model."""
    weights = [each for each in files if each.endswith(".safetensors") and "/" not in each]
    indexed = "model.safetensors.index.json" in files
    numbered = "model-", "model.safetensors-"
    shards = [each for each in weights if each.startswith(numbered)] if indexed else []
    chosen = shards or [each for each in weights if each == "model.safetensors"]
    if "config.json" not in files or not chosen:
        return []
    below = [each for each in files if _IN_FOLDERS.fullmatch(each)]
    return [each for each in CONFIGURATION if each in files] + below + chosen


def missing_parts(files: Sequence[str]) -> str:
    """What a model's files lack, for a message; "" if it is complete."""
    names = (each.rpartition(".")[0] for each in files)
    parts = [split for each in names if (split := _SPLIT.fullmatch(each))]
    if not parts:
        return ""
    count = int(parts[0][3])
    if sorted(int(each[2]) for each in parts) == list(range(1, count + 1)):
        return ""
    return f"{len(parts)} of the {count} parts of {parts[0][1]} are there"


def is_inside(path: str) -> bool:
    """Whether a path from a repository's list stays inside the repository and is safe to print."""
    steps = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and not any(each in ("", ".", "..") for each in steps)
    )


def types_of(files: Sequence[str]) -> list[str]:
    """The types of the repository's GGUF models, for a message."""
    found = (GGUFName.of(each) for each in files if is_model(each))
    return list(dict.fromkeys(each.type for each in found if each.type and each.index == 1))
