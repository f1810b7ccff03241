"""Reads safetensors files: ``model.safetensors``, or several and their index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.files.json_object import read_json
from aleator.models.files.mapping import map_file
from aleator.models.files.tensor_types import StoredTensor

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TYPES = ("F32", "F16", "BF16")


def read_directory(directory: Path) -> Iterator[tuple[Path, str, StoredTensor]]:
    """Read the list of tensors of a model, in one file or several.

    Args:
        directory: holds ``model.safetensors``, or ``model.safetensors.index.json`` and its shards.

    Yields:
        The file, the tensor's name in it, and the tensor, its data still on disk.

    Raises:
        FileFormatError: a file, or a tensor that the index names, is missing or damaged.
        UnsupportedModel: a tensor of a type that is not supported.
    """
    index = directory / _INDEX
    if not index.exists():
        file = directory / _SINGLE
        if not file.exists():
            raise FileFormatError(directory, f"the directory has neither {_SINGLE} nor {_INDEX}")
        for name, tensor in _read_file(file).items():
            yield file, name, tensor
        return
    fields = read_json(index)
    shards: dict[str, list[str]] = {}
    for name, shard in fields.require("weight_map", dict).items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise fields.error(
                "weight_map", f"{shard!r} is not the name of a file beside the index"
            )
        shards.setdefault(shard, []).append(name)
    for shard, wanted in shards.items():
        file = directory / shard
        if not file.exists():
            raise FileFormatError(file, f"the shard is missing; {_INDEX} names it")
        found = _read_file(file)
        for name in wanted:
            if name not in found:
                raise FileFormatError(
                    file, f"the tensor {name!r} is missing; {_INDEX} places it here", field=name
                )
            yield file, name, found[name]


def _is_plain_name(name: str) -> bool:
    """Whether ``name`` stays inside the directory that it is joined to."""
    return (
        name not in ("", ".", "..")
        and not set(name) & {"/", "\\", ":", "\0"}
        and (os.path.basename(name) == name)
    )


def _read_file(file: Path) -> dict[str, StoredTensor]:
    """All tensors of one file; the safetensors package checks its header and maps the data."""
    import torch
    from safetensors import SafetensorError, safe_open

    map_file(file)  # refuses pipes, empty and unreadable files, with the reason
    tensors: dict[str, StoredTensor] = {}
    try:
        handle: Any
        with safe_open(str(file), framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - it is no dict
                part = handle.get_slice(name)
                kind, shape = part.get_dtype(), tuple(part.get_shape())
                if kind not in _TYPES:
                    raise UnsupportedModel(
                        f"{file}: tensor {name!r} has the type {kind}, which is not supported; "
                        f"supported are {', '.join(_TYPES)}"
                    )
                if not shape or 0 in shape:
                    raise FileFormatError(file, f"has the shape {list(shape)}", field=name)
                data = handle.get_tensor(name).reshape(-1).view(torch.uint8).numpy()
                data.flags.writeable = False
                tensors[name] = StoredTensor(kind, shape, data)
    except (SafetensorError, OSError) as error:
        raise FileFormatError(file, f"not a sound safetensors file: {error}") from None
    return tensors
