"""Models in the hub's cache: how they are called, which are whole, and what goes when one is removed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.core.errors import HubError
from aleator.models.hub import local

SPLIT = ["q/m-Q6_K-00001-of-00002.gguf", "q/m-Q6_K-00002-of-00002.gguf"]
WHOLE = ["config.json", "model.safetensors"]
SHARDS = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]


class Cache:
    """A folder with repositories; a file's bytes are its blob's, whose name may be that of another file's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repos = folder, list[Any]()
        folder.mkdir()
        self.constants = SimpleNamespace(HF_HUB_CACHE=str(folder))

    def add(
        self, repo: str, files: list[str], refs: tuple[str, ...] = ("main",), commit: str = "c1",
        kind: str = "model", blobs: str = "b",
    ) -> None:  # fmt: skip
        at = self.folder / f"models--{repo.replace('/', '--')}"
        snapshot, listed = at / "snapshots" / commit, []
        for i, name in enumerate(files):
            place, blob = snapshot / name, at / "blobs" / f"{blobs}{i}"
            for each in (place, blob):
                each.parent.mkdir(parents=True, exist_ok=True)
                each.write_bytes(bytes(10 + i))
            listed.append(
                SimpleNamespace(file_path=str(place), blob_path=str(blob), size_on_disk=10 + i)
            )
        revision = SimpleNamespace(
            refs=frozenset(refs), commit_hash=commit, snapshot_path=str(snapshot), files=listed
        )
        same = [each for each in self.repos if each.repo_id == repo]
        if same:
            same[0].revisions.append(revision)
        else:
            self.repos.append(SimpleNamespace(repo_id=repo, repo_type=kind, revisions=[revision]))

    def scan_cache_dir(self, folder: str) -> SimpleNamespace:
        """What is there now."""
        assert folder == str(self.folder)
        left = []
        for repo in self.repos:
            revisions = []
            for each in repo.revisions:
                files = [file for file in each.files if Path(file.file_path).exists()]
                revisions.append(SimpleNamespace(**vars(each) | {"files": files}))
            left.append(SimpleNamespace(**vars(repo) | {"revisions": revisions}))
        return SimpleNamespace(repos=left)

    @property
    def blobs(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*/blobs/*"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    made = Cache(tmp_path / "cache")
    monkeypatch.setattr(local, "required_hub", lambda what: made)
    return made


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "README.md"], {":Q4_K_M": 11, ":Q8_0": 10}),
        (["m-Q8_0.gguf", "mmproj-Q8_0.gguf"], {":Q8_0": 10}),
        (["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"], {":Q8_0": 10, "/b/m-Q8_0.gguf": 11}),
        (["model.gguf"], {"/model.gguf": 10}), (SPLIT, {":Q6_K": 21}), (SPLIT[:1], {}), (SPLIT[1:], {}),
        (WHOLE, {"": 21}), (SHARDS, {}), ([*SHARDS, "model-00002-of-00002.safetensors"], {"": 46}),
        ([*WHOLE, "m-Q8_0.gguf"], {":Q8_0": 12}), (["config.json"], {}), ([], {}),
    ],
)  # fmt: skip
def test_what_files_are_called(files: list[str], names: dict[str, int], cache: Cache) -> None:
    cache.add("org/m", files)
    found = list(local.cached())
    assert {each.name: each.size for each in found} == {
        f"hf:org/m{n}": size for n, size in names.items()
    }
    for each in found:
        assert each.path.exists()
        assert each.path.is_dir() == (each.name == "hf:org/m")
        assert sum(blob.stat().st_size for _, blob in each.files) == each.size


def test_revisions_and_other_repositories(cache: Cache) -> None:
    cache.add("org/b", ["m-Q8_0.gguf"], ("v2", "v1"), "c2", blobs="x")
    cache.add("org/b", ["m-Q8_0.gguf"], ("main", "v3"), "c3", blobs="y")
    cache.add("org/b", ["m-Q8_0.gguf"], (), "c1", blobs="z")
    cache.add("org/a", ["m-Q8_0.gguf"])
    cache.add("org/data", ["m-Q8_0.gguf"], kind="dataset")
    names = ["hf:org/a:Q8_0", "hf:org/b@c1:Q8_0", "hf:org/b@v1:Q8_0", "hf:org/b:Q8_0"]
    assert [each.name for each in local.cached()] == names
    assert [each.name for each in local.remove("org/b@v1:q8_0")] == ["hf:org/b@v1:Q8_0"]
    assert [each.name for each in local.cached()] == [names[0], names[1], names[3]]
    assert [each.name for each in local.remove("hf:org/b")] == [names[1], names[3]]
    assert [each.name for each in local.cached()] == names[:1]
    assert not (cache.folder / "models--org--b").exists()


def test_bytes_that_another_model_shares_stay(cache: Cache) -> None:
    cache.add("org/m", ["m-Q8_0.gguf", "README.md"], ("main",), "c1")
    cache.add("org/m", ["m-Q8_0.gguf", "n-Q4_0.gguf"], ("old",), "c2")
    assert cache.blobs == ["b0", "b1"]
    local.remove("org/m:Q8_0")
    assert cache.blobs == ["b0", "b1"]
    local.remove("org/m@old:Q4_0")
    assert cache.blobs == ["b0"]
    local.remove("org/m@old:Q8_0")
    assert not (cache.folder / "models--org--m").exists()


@pytest.mark.parametrize("name", ["org/other", "org/m:Q4_0", "org/m@old", "org/m/x.gguf"])
def test_what_was_not_fetched(name: str, cache: Cache) -> None:
    cache.add("org/m", ["m-Q8_0.gguf"])
    with pytest.raises(HubError, match="it was not fetched"):
        local.remove(name)
    assert len(list(local.cached())) == 1


def test_what_a_broken_download_left_goes_with_its_name(cache: Cache) -> None:
    left = cache.folder / "models--org--m" / "blobs" / "x.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(7))
    with pytest.raises(HubError):
        local.remove("org/m:Q8_0")
    (gone,) = local.remove("org/m")
    assert (gone.name, gone.size) == ("hf:org/m", 7)
    assert not left.exists()


def test_without_a_cache_there_is_nothing(cache: Cache) -> None:
    cache.folder.rmdir()
    assert list(local.cached()) == []
