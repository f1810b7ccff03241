"""Fingerprints that tell models apart: of all bytes of their files, computed once per file.

A fingerprint is 32 hexadecimal digits: BLAKE2b of the parts' names and sizes and of XXH64 of every 4 MiB of
them.  It is remembered in ``aleator/fingerprints.json`` of the user's cache folder (``XDG_CACHE_HOME``, or
``~/.cache``) by the files' paths, sizes and times of change, so that a large model is read for it only once,
and by the types in which a directory's tensors are held, which another version of this package may change.
All bytes count, as texts depend on metadata too.  It does not protect against a deliberate collision.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from aleator.core import host
from aleator.core.arithmetic import FIRST_VERSION
from aleator.core.arrays import Bytes
from aleator.core.digests import new_digest
from aleator.core.json_text import loads
from aleator.core.records import dataclass

BLOCK = 4 << 20
MOST_REMEMBERED = 256
_RECENT = 2_000_000_000  # nanoseconds: a file may change twice within its clock's tick
_SIZE = 16

Part = tuple[str, Bytes]


@dataclass(frozen=True)
class ModelIdentity:
    """The model that something was made with."""

    fingerprint: str  # see the module
    name: str  # the model's name in its file, or ""
    path: str  # where it was
    arithmetic: int = FIRST_VERSION  # version of the rules of its logits

    def __str__(self) -> str:
        return f"{self.name} ({self.path})" if self.name else self.path


def fingerprint(parts: Iterable[Part]) -> str:
    """The fingerprint of some named parts, in their order."""
    digest = new_digest(_SIZE)
    for name, data in parts:
        digest.update(f"{len(name)} {name} {data.nbytes} ".encode())
        digest.update(host.xxh64_blocks(data, BLOCK).astype("<u8").tobytes())
    return digest.hexdigest()


def remembered(files: Sequence[Path], compute: Callable[[], str], layout: str = "") -> str:
    """The fingerprint of files: the remembered one if no file has changed since, else a computed one.

    ``layout``: how their tensors are held, where the files do not say it.
    """
    known = _read()
    key = _key(files, layout)
    found = known.get(key)
    if found is not None:
        return found
    made = compute()
    if key and key == _key(files, layout):
        kept = list({**_read(), key: made}.items())[-MOST_REMEMBERED:]
        _write(dict(kept))
    return made


def _key(files: Sequence[Path], layout: str) -> str:
    """A key for the files as they are now; "" if one has just changed or is gone."""
    digest = new_digest(_SIZE)
    digest.update(layout.encode())
    for file in files:
        try:
            about = file.stat()
        except OSError:
            return ""
        if time.time_ns() - max(about.st_mtime_ns, about.st_ctime_ns) < _RECENT:
            return ""
        place = os.fsencode(file.resolve())
        numbers = about.st_size, about.st_mtime_ns, about.st_dev, about.st_ino
        digest.update(f"{len(place)} {numbers} ".encode() + place)
    return digest.hexdigest()


def _store() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(folder) / "aleator" / "fingerprints.json"


def _read() -> dict[str, str]:
    """The remembered fingerprints; none if the file is missing or malformed."""
    try:
        known = loads(_store().read_bytes())
    except (OSError, ValueError):
        return {}
    pairs = known.items() if isinstance(known, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, str) and len(v) == 2 * _SIZE}


def _write(known: dict[str, str]) -> None:
    """Save the fingerprints; if that fails, the next use computes again."""
    store = _store()
    partial = store.with_name(f".{store.name}.{os.getpid()}.partial")
    with suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(json.dumps(known))
            partial.replace(store)
        finally:
            partial.unlink(missing_ok=True)
