"""What sentence-transformers adds to a directory: pooling, the longest text, changes of texts."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from aleator.core.errors import FileFormatError
from aleator.core.json_text import loads
from aleator.models.files.fields import MAX_LENGTH, Fields, read_json

MODULES = "modules.json"
_MODES = {
    "mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls", "lasttoken": "last",
}  # fmt: skip
_MODE = "pooling_mode_"
_MOST = 1 << 16  # most bytes of modules.json


def pooling_of_directory(directory: Path) -> str:
    """How sentence-transformers pools hidden states, by the directory's modules.json.

    "": it does not say; "other": its vectors are made in a way that is not here.

    Raises:
        FileFormatError: a file is damaged.
    """
    path = directory / MODULES
    if not path.is_file():
        return ""
    try:
        if path.stat().st_size > _MOST:
            raise ValueError
        modules = loads(path.read_text("utf-8"))
        paths = [str(m["path"]) for m in modules if str(m["type"]).endswith("Pooling")]
        kinds = [str(m["type"]).rpartition(".")[2] for m in modules]
    except (ValueError, TypeError, KeyError):
        raise FileFormatError(path, "must be a list of modules with type and path") from None
    if not set(kinds) <= {"Transformer", "Pooling", "Normalize"}:
        return "other"
    # By its name: the hub's cache links to files that lie elsewhere.
    if not paths or ".." in PurePosixPath(paths[0]).parts or PurePosixPath(paths[0]).is_absolute():
        return ""
    fields = read_json(directory / paths[0] / "config.json")
    mode = fields.get("pooling_mode")
    on = [key for key, value in fields.values.items() if key.startswith(_MODE) and value is True]
    chosen = [key.removeprefix(_MODE) for key in on] or [str(mode)]
    return _MODES.get(chosen[0], "other") if len(chosen) == 1 else "other"


def changes_of_directory(directory: Path) -> list[str]:
    """What sentence-transformers does to each text before its tokenizer, unasked, and nobody here.

    Raises:
        FileFormatError: a file is damaged.
    """

    def read(name: str) -> Fields:
        path = directory / name
        return read_json(path) if path.is_file() else Fields(path, {})

    fields = read("config_sentence_transformers.json")
    prompts = fields.get("prompts", None, dict) or {}
    before = prompts.get(fields.get("default_prompt_name"))
    lowered = read("sentence_bert_config.json").values.get("do_lower_case") is True
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
        path = directory / name
        fields = read_json(path) if path.is_file() else Fields(path, {})
        longest = fields.values.get(key)
        if type(longest) is int and 0 < longest <= MAX_LENGTH:
            return longest
    return 0
