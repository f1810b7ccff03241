"""What sentence-transformers adds to a directory: pooling, dense layers, the longest text, changes of texts."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from aleator.core.errors import FileFormatError
from aleator.core.json_text import loads
from aleator.core.records import dataclass
from aleator.models.config import DenseConfig
from aleator.models.files.fields import MAX_LENGTH, Fields, read_json, read_json_if_any

MODULES = "modules.json"
_MODES = {
    "mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls", "lasttoken": "last",
    "max_tokens": "max", "max": "max", "weightedmean_tokens": "weightedmean",
    "weightedmean": "weightedmean", "mean_sqrt_len_tokens": "mean_sqrt_len",
}  # fmt: skip
_MODE = "pooling_mode_"
_MOST = 1 << 16  # most bytes of modules.json
_ORDER = re.compile(r"(Transformer (Pooling (Dense )*)?(Normalize )*)?")
"""The modules that are here; whether vectors have length 1 is for ``embed`` to say."""
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh"}
_WHERE = "module_input_name", "module_output_name"
_VECTOR = "sentence_embedding"


@dataclass(frozen=True)
class Modules:
    """What sentence-transformers does with hidden states."""

    # How it pools; "": the directory does not say; "other": its vectors are made in a way that is not here
    pooling: str = ""
    dense: tuple[DenseConfig, ...] = ()  # the layers behind the pooling, in order
    folders: tuple[
        tuple[Path, tuple[str, ...]], ...
    ] = ()  # where their tensors are, and their names


def modules_of_directory(directory: Path) -> Modules:
    """What sentence-transformers does with hidden states, by the directory's modules.json.

    Raises:
        FileFormatError: a file is damaged.
    """
    path = directory / MODULES
    if not path.is_file():
        return Modules()
    try:
        if path.stat().st_size > _MOST:
            raise ValueError
        listed = loads(path.read_text("utf-8"))
        found = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in listed]
        # By its name: the hub's cache links to files that lie elsewhere.
        inside = [PurePosixPath(each) for _, each in found]
        if any(each.is_absolute() or ".." in each.parts for each in inside):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        message = "must be a list of modules with type and path, inside the directory"
        raise FileFormatError(path, message) from None
    if not _ORDER.fullmatch("".join(f"{kind} " for kind, _ in found)):
        return Modules("other")
    folders: dict[str, list[Path]] = {}
    for kind, below in found:
        folders.setdefault(kind, []).append(directory / below)
    layers = [(each, read_json(each / "config.json")) for each in folders.get("Dense", ())]
    dense = [_dense(fields) for _, fields in layers]
    pooling = _pooling(folders["Pooling"][0]) if "Pooling" in folders else ""
    known = tuple(each for each in dense if each is not None)
    if pooling == "other" or len(known) < len(dense):
        return Modules("other")
    parts = ("linear.weight", "linear.bias")
    named = (
        (folder, parts if fields.get("bias", True) else parts[:1]) for folder, fields in layers
    )
    return Modules(pooling, known, tuple(named))


def _pooling(folder: Path) -> str:
    fields = read_json(folder / "config.json")
    on = [key for key, value in fields.values.items() if key.startswith(_MODE) and value is True]
    chosen = fields.get("pooling_mode") or [key.removeprefix(_MODE) for key in on] or "mean"
    (mode, *others) = chosen if isinstance(chosen, list) else [chosen]
    return "other" if others else _MODES.get(str(mode), "other")


def _dense(fields: Fields) -> DenseConfig | None:
    """A layer; None: it is not here, as its activation is another, or its place."""
    kind = fields.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(kind.rpartition(".")[2])
    moved = any(fields.get(key) not in (None, _VECTOR) for key in _WHERE)
    if activation is None or moved or fields.get("use_residual", False):
        return None
    return DenseConfig(fields.width("in_features"), fields.width("out_features"), activation)


def changes_of_directory(directory: Path) -> list[str]:
    """What sentence-transformers does to each text before its tokenizer, unasked, and nobody here.

    Raises:
        FileFormatError: a file is damaged.
    """
    fields = read_json_if_any(directory / "config_sentence_transformers.json")
    prompts = fields.get("prompts", None, dict) or {}
    before = prompts.get(fields.get("default_prompt_name"))
    of_bert = read_json_if_any(directory / "sentence_bert_config.json")
    lowered = of_bert.values.get("do_lower_case") is True
    said = [f"puts {before!r:.200} before each text (default_prompt_name)"] if before else []
    return said + ["makes each text lower-case (do_lower_case)"] * lowered


def longest_of_directory(directory: Path) -> int:
    """Tokens of the longest text that sentence-transformers does not cut; 0: the directory does not say.

    It is in sentence_bert_config.json, in newer directories in tokenizer_config.json.

    Raises:
        FileFormatError: a file is damaged.
    """
    if not (directory / MODULES).is_file():
        return 0
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        longest = read_json_if_any(directory / name).values.get(key)
        if type(longest) is int and 0 < longest <= MAX_LENGTH:
            return longest
    return 0
