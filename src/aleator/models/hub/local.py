"""Lists and removes the installed and fetched models on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from aleator.core.errors import HubError
from aleator.core.records import dataclass
from aleator.models.hub import choice
from aleator.models.hub.fetching import repository_folder, required_hub
from aleator.models.hub.located import PACKAGE, models_of
from aleator.models.hub.names import HUB, HubName


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    name: str  # what ``-m`` and ``aleator.load`` take
    size: int  # bytes of its files
    path: Path  # its first file, or its directory
    # The files in the cache, and the bytes that they point to; none for a package's model
    files: tuple[tuple[Path, Path], ...] = ()


def installed() -> Iterator[LocalModel]:
    """Models in installed packages ``llm-NAME``, by name."""
    found = {}
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(PACKAGE):
            files = [file for file in models_of(each) if file.is_file()]
            if len(files) == 1:
                found[name.removeprefix(PACKAGE)] = files[0]
    for name in sorted(found):
        yield LocalModel(name, found[name].stat().st_size, found[name])


def cached() -> Iterator[LocalModel]:
    """Complete fetched models of the hub, by name."""
    hub = required_hub("the list of fetched models")
    for repo in sorted(_repositories(hub), key=lambda each: str(each.repo_id)):
        for revision in sorted(repo.revisions, key=lambda each: str(each.commit_hash)):
            names = sorted(revision.refs)
            at = "" if "main" in names else f"@{names[0] if names else revision.commit_hash}"
            yield from _of_revision(f"{HUB}{repo.repo_id}{at}", revision)


def remove(name: str) -> list[LocalModel]:
    """Remove fetched models from the hub's cache; return what was removed.

    ``name`` is a model's name from :func:`cached`, or ``hf:ORG/NAME`` for all of a repository.  HubError: no
    model of this name was fetched.
    """
    wanted = HubName.read(name)
    every = list(cached())
    if not wanted.quant and not wanted.file and wanted.revision == "main":
        gone = [each for each in every if HubName.read(each.name).repo == wanted.repo]
    else:
        gone = [each for each in every if each.name.lower() == str(wanted).lower()]
    hub = required_hub("removing a model")
    folder = repository_folder(hub, wanted)
    if not gone and str(wanted) == f"{HUB}{wanted.repo}" and folder.is_dir():
        size = sum(each.stat().st_size for each in folder.glob("blobs/*"))
        shutil.rmtree(folder)  # left by an interrupted download
        return [LocalModel(str(wanted), size, folder)]
    if not gone:
        raise HubError(f"{wanted}: it was not fetched ('aleator models' lists what was)")
    kept = {blob for each in every if each not in gone for _, blob in each.files}
    for model in gone:
        for place, blob in model.files:
            place.unlink(missing_ok=True)
            if blob not in kept:
                blob.unlink(missing_ok=True)
    if all(each in gone for each in every if HubName.read(each.name).repo == wanted.repo):
        shutil.rmtree(folder)  # small files, references
    return gone


def _repositories(hub: ModuleType) -> list[Any]:
    if not Path(hub.constants.HF_HUB_CACHE).is_dir():
        return []
    return [
        each
        for each in hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).repos
        if each.repo_type == "model"
    ]


def _of_revision(name: str, revision: Any) -> Iterator[LocalModel]:
    """The models among the fetched files of one revision of a repository."""
    folder = Path(revision.snapshot_path)
    files = {Path(each.file_path).relative_to(folder).as_posix(): each for each in revision.files}
    names = sorted(files)
    first = [
        each for each in names if choice.is_model(each) and choice.GGUFName.of(each).index == 1
    ]
    for each in first:
        about, parts = choice.GGUFName.of(each), choice.parts_of(names, each)
        by_type = about.type and choice.gguf_files(names, about.type) == parts
        called = f"{name}:{about.type}" if by_type else f"{name}/{each}"
        if len(parts) == about.count:
            yield _model(called, folder / each, [files[part] for part in parts])
    whole = [] if first else choice.safetensors_files(names)
    if whole and not choice.missing_parts(whole):
        yield _model(name, folder, [files[each] for each in whole])


def _model(name: str, path: Path, files: list[Any]) -> LocalModel:
    size = sum(int(each.size_on_disk) for each in files)
    places = tuple((Path(each.file_path), Path(each.blob_path)) for each in files)
    return LocalModel(name, size, path, places)
