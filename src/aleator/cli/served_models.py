"""``aleator serve --models``: the models of a directory or a TOML file, and the options of each."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aleator.cli.terminal import note
from aleator.core.errors import AleatorError, ParameterError
from aleator.core.options import resolved
from aleator.core.parameter import Parameter
from aleator.core.records import dataclass
from aleator.models import refused
from aleator.models.files.gguf import GGUFFile
from aleator.models.hub.names import HUB

MOST_BYTES = 2**20
"""Bytes of a file of models."""
SIZES = ("cache_ram", "cache_disk")
"""Options whose value may be a text such as "2G"."""
FOUND = {"path": None, "keep_loaded": False}
"""Keys beside the options, with their defaults."""
_PART = re.compile(r"(.+)-(\d{5})-of-\d{5}")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model of a directory or a file, with the options that are given there, which are checked."""

    name: str
    path: str
    aliases: tuple[str, ...] = ()
    keep_loaded: bool = False
    options: Mapping[str, Any]


def found_models(where: str, known: Mapping[str, Parameter]) -> list[Found]:
    """The models of ``--models``; ``known`` are the options that a file may give.

    Raises:
        ParameterError: There is no such directory or file, it has no model, or the file is wrong; names the
            model and the key.
    """
    path = Path(where)
    if path.is_dir():
        found, remedy = list(_of_directory(path)), "a GGUF file, or a directory with config.json"
    elif path.is_file():
        found = list(_of_file(path, known))
        remedy = 'a table such as [small] with path = "small.gguf"'
    else:
        raise ParameterError("models", f"--models {where}: there is no such directory or file")
    if not found:
        raise ParameterError("models", f"--models {where}: there is no model: put {remedy} there")
    return found


def _of_directory(folder: Path) -> Iterator[Found]:
    """The models in a directory: GGUF files, and directories that hold one model each, in order."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and (path / "config.json").is_file():
            yield Found(name=path.name, path=str(path), options={})
        elif path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if _is_model(file)]
            if len(inside) == 1:
                yield Found(name=path.name, path=str(inside[0]), options={})
        elif _is_model(path):
            part = _PART.fullmatch(path.stem)
            name = path.stem if part is None else part[1]
            yield Found(name=name, path=str(path), aliases=(path.name,), options={})


def _is_model(path: Path) -> bool:
    """Whether a file is a GGUF model, or the first part of one."""
    part = _PART.fullmatch(path.stem)
    first = part is None or int(part[2]) == 1
    beside = any(word in path.name for word in ("mmproj", "imatrix"))
    if path.suffix != ".gguf" or not path.is_file() or not first or beside:
        return False
    try:
        kind = GGUFFile(path).get("general.type", "model")
    except AleatorError:
        return True  # what is wrong is told when it is loaded
    if kind in refused.KINDS:
        note(f"aleator: {path}: left out of --models: of the type {kind}, no model")
    return kind not in refused.KINDS


def _of_file(path: Path, known: Mapping[str, Parameter]) -> Iterator[Found]:
    """The models in a file of TOML, a table each."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        tables = tomllib.loads(data.decode()) if len(data) <= MOST_BYTES else None
    except (ValueError, RecursionError) as error:  # also numbers of too many digits
        raise ParameterError("models", f"{path} is not TOML: {error}") from None
    if tables is None:
        raise ParameterError("models", f"{path} has more than {MOST_BYTES} bytes")
    for name, table in tables.items():
        try:
            yield _of_table(path.parent, name, table, known)
        except ParameterError as error:
            raise ParameterError("models", f"{path}: [{name:.80}]: {error}") from None


def _of_table(folder: Path, name: str, table: Any, known: Mapping[str, Parameter]) -> Found:
    if not isinstance(table, dict):
        raise ParameterError(name, f"{table!r:.80} is not a table: write [{name:.80}] and its path")
    given = dict(table)
    path, keep = (given.pop(key, default) for key, default in FOUND.items())
    if not isinstance(path, str) or not path:
        raise ParameterError("path", f"path={path!r:.80}: give a file, a directory or hf:ORG/NAME")
    if not isinstance(keep, bool):
        raise ParameterError("keep_loaded", f"keep_loaded={keep!r:.80}: give true or false")
    options = {
        key: _checked(folder, known[key], value)
        for key, value in resolved(given, known, FOUND).items()
    }
    if "model_draft" in options:
        options.setdefault("spec_type", "draft")
    aliases = options.pop("alias", ())
    own = _located(folder, path)
    return Found(name=name, path=own, aliases=aliases, keep_loaded=keep, options=options)


def _checked(folder: Path, parameter: Parameter, value: Any) -> Any:
    """A value of a table; texts of sizes and adapters are read as on the command line."""
    word = isinstance(value, str)
    words = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if word and parameter.name in FILES:
        value = FILES[parameter.name](folder, value)
    elif (word and parameter.name in SIZES) or (words and parameter.name == "adapters"):
        value = parameter.read(value)
    made = parameter.check(value)
    if parameter.name == "adapters":
        return tuple((name, str(folder / file), scale) for name, file, scale in made)
    return made


def _located(folder: Path, name: str) -> str:
    """A path relative to the file of models; names of the hub and of packages stay as they are."""
    path = str(folder / name)
    a_file = "/" in name or name.endswith(".gguf") or os.path.exists(path)
    return path if a_file and not name.startswith(HUB) else name


FILES: dict[str, Callable[[Path, str], Any]] = {
    "model_draft": _located,
    "cache_dir": lambda folder, name: str(folder / name),
    "watermark_key_file": lambda folder, name: folder / name,
}
"""Options whose value is a path, and what makes it relative to the file of models."""
