"""Downloads models of the hub into the hub's own cache on this machine, with huggingface_hub.

All programs with that library share the cache (``HF_HOME``, ``HF_HUB_CACHE``) and the settings
(``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``).  This module adds what the library lacks: an interrupted
download continues where it stopped, and a file whose SHA-256 differs from the hub's is refused.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from aleator.core.errors import FileFormatError, HubError, ParameterError
from aleator.core.large_pages import LARGE_PAGE, append_in_large_pages
from aleator.models.hub import choice
from aleator.models.hub.names import HubName

log = logging.getLogger(__name__)

LARGEST = 50_000_000_000
"""The most bytes that the hub serves over plain HTTP; larger files are left to its library."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK = 1 << 22
_MODULES = ("constants", "errors", "utils")
"""Modules of huggingface_hub, which does not import them by itself."""
_MOST_TYPES = 20
"""The most types that a message lists."""


def required_hub(what: str) -> ModuleType:
    """The package huggingface_hub, imported now; ImportError says how to install it."""
    try:
        for each in _MODULES:
            import_module(f"huggingface_hub.{each}")
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            f'{what} needs huggingface_hub: pip install "aleator[hub]"', name=error.name
        ) from error


def fetched(name: HubName, *, token: str | None = None, offline: bool = False) -> Path:
    """A model's first file, or its directory; missing files are fetched unless ``offline``.

    Without a ``token`` the library finds one.  HubError: there is no such model, this user has no access, or
    the hub cannot be reached and the model was not fetched before.  FileFormatError: the received bytes are
    not the hub's.
    """
    hub = required_hub(f"model={str(name)!r}")
    offline = offline or bool(hub.constants.HF_HUB_OFFLINE)
    files = None if offline else _listed(hub, name, token)
    if files is None:
        snapshot = cached_snapshot(hub, name)
        if snapshot is None:
            why = "offline, and" if offline else "the hub cannot be reached, and"
            raise HubError(f"{name}: {why} it was not fetched before")
        here = sorted(str(p.relative_to(snapshot).as_posix()) for p in snapshot.rglob("*"))
        wanted = chosen(name, here)
        return snapshot / wanted[0] if wanted[0].endswith(".gguf") else snapshot
    wanted = chosen(name, files)
    with one_line(hub, name):
        places = [_fetch(hub, name, file, token) for file in wanted]
    if wanted[0].endswith(".gguf"):
        return places[0]
    return places[0].parents[len(PurePosixPath(wanted[0]).parts) - 1]


def chosen(name: HubName, files: Sequence[str]) -> list[str]:
    """The repository's files to fetch; if nothing fits, HubError lists the choices."""
    if name.file:
        wanted = choice.parts_of(files, name.file) if name.file in files else []
    else:
        wanted = choice.gguf_files(files, name.quant)
        if not wanted and not name.quant and not choice.types_of(files):
            wanted = choice.safetensors_files(files)
    for each in wanted:
        if not choice.is_inside(each):
            raise HubError(
                f"{name}: the repository lists {each!r}, which is no path of a file in it"
            )
    if missing := choice.missing_parts(wanted):
        raise HubError(f"{name}: {missing}")
    if wanted:
        return wanted
    types = choice.types_of(files)
    if types:
        named = ", ".join(types[:_MOST_TYPES]) + ", ..." * (len(types) > _MOST_TYPES)
        raise HubError(f"{name}: there is no such file; there are {named}")
    raise HubError(
        f"{name}: the repository has neither a GGUF file nor config.json and safetensors"
    )


def cached_snapshot(hub: ModuleType, name: HubName) -> Path | None:
    """The folder with a revision's fetched files; None: there are none."""
    folder = repository_folder(hub, name)
    reference = folder / "refs" / name.revision
    commit = reference.read_text().strip() if reference.is_file() else name.revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def repository_folder(hub: ModuleType, name: HubName) -> Path:
    """The cache's folder for a repository."""
    return Path(hub.constants.HF_HUB_CACHE) / f"models--{name.repo.replace('/', '--')}"


def _listed(hub: ModuleType, name: HubName, token: str | None) -> list[str] | None:
    """The repository's files, in the order of their names; None: the hub cannot be reached."""
    try:
        with one_line(hub, name):
            return _names(hub, name, token)
    except Unreachable as error:
        log.warning("%s; looking for what was fetched before", error)
        return None


def _names(hub: ModuleType, name: HubName, token: str | None) -> list[str]:
    """The result of :func:`_listed`, or the library's errors.

    The answer may come from another server, or be a login page.
    """
    try:
        about = hub.HfApi().model_info(name.repo, revision=name.revision, token=token)
        files = [each.rfilename for each in about.siblings or ()]
    except hub.errors.HFValidationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"what answers at {hub.constants.ENDPOINT} is no hub ({_first_line(error)})"
        raise Unreachable(f"{name}: {why}") from None
    if not all(isinstance(each, str) for each in files):
        raise HubError(f"{name}: the hub's list of files holds what is no name")
    return sorted(files)


class Unreachable(HubError):
    """The server does not answer, or reports an error of its own."""


@contextmanager
def one_line(hub: ModuleType, name: HubName) -> Iterator[None]:
    """Turn the library's errors into a :class:`HubError` of one line."""
    errors = hub.errors
    try:
        yield
    except errors.HFValidationError as error:
        raise ParameterError(f"model={str(name)!r}: {_first_line(error)}") from None
    except errors.GatedRepoError:
        page = f"{hub.constants.ENDPOINT}/{name.repo}"
        raise HubError(
            f"{name}: the model is gated: accept its conditions at {page}, then give a token by HF_TOKEN, "
            "--hf-token or 'hf auth login'"
        ) from None
    except errors.RevisionNotFoundError:
        raise HubError(f"{name}: the repository has no revision {name.revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise HubError(
            f"{name}: there is no such repository, or it is private: look at its spelling, or give a token by "
            "HF_TOKEN or --hf-token"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        raise Unreachable(f"{name}: the hub cannot be reached: {_first_line(error)}") from None
    except errors.EntryNotFoundError:
        raise HubError(f"{name}: the repository lacks a file that it lists") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        kind = Unreachable if status >= 500 else HubError
        raise kind(f"{name}: the hub answers {status}: {_first_line(error)}") from None
    except (errors.HTTPError, ConnectionError) as error:
        raise Unreachable(f"{name}: the hub cannot be reached: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _fetch(hub: ModuleType, name: HubName, file: str, token: str | None) -> Path:
    """One file in the cache, fetched if it is not there."""
    _complete_blob(hub, name, file, token)
    place = hub.hf_hub_download(name.repo, file, revision=name.revision, token=token)
    return Path(place)


def _complete_blob(hub: ModuleType, name: HubName, file: str, token: str | None) -> None:
    """Download a file's bytes into the cache, continuing an earlier try, and check them.

    The library then finds them and makes the rest of the entry.
    """
    url = hub.hf_hub_url(name.repo, file, revision=name.revision)
    about = hub.get_hf_file_metadata(url, token=token)
    for each in (about.etag, about.commit_hash):  # names of files and folders in the cache
        if each is not None and (not choice.is_inside(each) or "/" in each):
            raise HubError(f"{name}: the hub tells {each!r} as the ETag or commit of {file}")
    if about.etag is None or about.size is None or about.size > LARGEST:
        return
    folder = repository_folder(hub, name)
    blob = folder / "blobs" / about.etag
    if blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    headers = hub.utils.build_hf_headers(token=token)
    if urlsplit(about.location).netloc != urlsplit(url).netloc:
        # The token is only for the hub, not for the servers that it redirects to
        headers.pop("authorization", None)
    partial = blob.with_name(f"{blob.name}.incomplete")
    lock = folder.parent / ".locks" / folder.name / f"{blob.name}.lock"  # the library's own place
    lock.parent.mkdir(parents=True, exist_ok=True)
    with hub.utils.WeakFileLock(lock):
        if blob.exists():
            return
        if partial.exists() and partial.stat().st_size > about.size:
            partial.unlink()
        with (
            partial.open("ab", buffering=LARGE_PAGE) as out,
            hub.utils.tqdm(
                desc=file[-40:],
                total=about.size,
                initial=out.tell(),
                unit="B",
                unit_scale=True,
                disable=None,  # on a terminal only
                name="aleator.models.hub.fetching",
            ) as bar,
        ):
            while out.tell() < about.size:
                _receive(hub, about.location, headers, out, bar, about.size)
        _check(name, file, partial, about.etag, about.size)
        partial.rename(blob)


def _receive(
    hub: ModuleType, url: str, headers: Mapping[str, str], out: BinaryIO, bar: Any, size: int
) -> None:
    """Append the rest of a file; stop soon after the file's ``size`` bytes.

    If the connection breaks after some bytes arrived, the caller may ask again; otherwise this raises.
    """
    errors = hub.errors
    held = out.tell()
    # So that offsets in the file and in the answer agree
    asking = {**headers, "accept-encoding": "identity"}
    if held:
        asking["range"] = f"bytes={held}-"
    seconds = hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
    try:
        with hub.get_session().stream("GET", url, headers=asking, timeout=seconds) as response:
            hub.utils.hf_raise_for_status(response)
            if held and response.status_code == 200:  # the whole file, in spite of the range
                out.seek(0)
                out.truncate()
                bar.update(-held)
            for block in response.iter_bytes():
                append_in_large_pages(out, block)
                bar.update(len(block))
                if out.tell() > size:
                    return
    except errors.HfHubHTTPError:
        raise
    except errors.HTTPError:
        out.flush()
        if out.tell() <= held:
            raise
    if out.tell() <= held:
        raise ConnectionError(f"the answer ends after {out.tell():,} of {size:,} bytes")


def _check(name: HubName, file: str, partial: Path, etag: str, size: int) -> None:
    """Refuse and delete bytes that differ from the hub's."""
    if partial.stat().st_size != size:
        partial.unlink()
        raise FileFormatError(
            f"{name}: {file}",
            f"more arrived than the {size:,} bytes that the hub tells: it is forgotten; try again",
        )
    if _SHA256.fullmatch(etag) is None:
        return  # a small file, which the hub keeps in git without a SHA-256
    digest = hashlib.sha256()
    with partial.open("rb") as data:
        while block := data.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != etag:
        partial.unlink()
        raise FileFormatError(
            f"{name}: {file}",
            f"what arrived has the SHA-256 {digest.hexdigest()}, and the hub tells {etag}: it is forgotten; "
            "try again",
        )
