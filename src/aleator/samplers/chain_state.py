r"""A chain's state as bytes, from which another process can continue.

Layout, little endian: magic ``ALCHAIN\0``; u32 version; 16 bytes BLAKE2b of all that follows; u32 length of
the header; the header, JSON in UTF-8; then what native/samplers/state.hpp describes.  The header holds the
chain's configuration, so that only an equal chain reads the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from aleator.core.digests import new_digest
from aleator.core.errors import ParameterError, StateError
from aleator.core.json_text import loads
from aleator.core.records import dataclass
from aleator.samplers.base import Place, Sampler

MAGIC = b"ALCHAIN\0"
VERSION = 1
_DIGEST = 16
_HEAD = len(MAGIC) + 4 + _DIGEST + 4


@dataclass(frozen=True)
class Configuration:
    """What makes two chains equal apart from their state.

    ``samplers`` holds for each sampler, the grammar first, its description and a digest of its parameters and
    of the seed that it draws with.
    """

    numerics: str
    completion: int
    samplers: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, numerics: str, completion: int, pairs: Iterable[tuple[Sampler, Place]]
    ) -> Configuration:
        """The configuration of a chain of these samplers."""
        samplers = ((s.describe(), _digest_of(s.configured(place, numerics))) for s, place in pairs)
        return cls(numerics, completion, tuple(samplers))

    def require(self, other: Configuration) -> None:
        """Refuse a state of a chain with another configuration; StateError says where they differ."""
        for name in ("numerics", "completion"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise _other_chain(f"its {name} is {there!r}, and here it is {here!r}")
        here, there = ([name for name, _ in each.samplers] for each in (self, other))
        if here != there:
            raise _other_chain(
                f"it has {' -> '.join(there) or 'nothing'}, and this one {' -> '.join(here) or 'nothing'}"
            )
        for (name, here), (_, there) in zip(self.samplers, other.samplers, strict=True):
            if here != there:
                raise _other_chain(
                    f"its {name} has other parameters, another seed, or the arithmetic of another version "
                    "of the numerics (docs/numerics.md)"
                )


def pack(configuration: Configuration, text_start: int, state: bytes) -> bytes:
    """Wrap a native chain's state in its envelope.

    ``text_start`` is the index in the history where the constraints began.
    """
    fields = {**vars(configuration), "text_start": text_start}
    header = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    body = len(header).to_bytes(4, "little") + header + state
    return MAGIC + VERSION.to_bytes(4, "little") + new_digest(_DIGEST, body).digest() + body


def unpack(data: object) -> tuple[Configuration, int, bytes]:
    """Return the configuration, the index where the constraints began, and the native state.

    Raises:
        ParameterError: ``data`` is not bytes.
        StateError: ``data`` is not a state, is damaged, or is from a later version.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ParameterError(f"state={data!r:.60} is not bytes: give what state_write() gave")
    blob = bytes(data)
    if blob[:8] != MAGIC:
        raise StateError("not the state of a chain")
    if len(blob) < _HEAD:
        raise _unsound("it is cut short")
    version = int.from_bytes(blob[8:12], "little")
    if version != VERSION:
        raise StateError(
            f"the state of a chain is of version {version}, and only {VERSION} can be read: make it anew"
        )
    body = blob[12 + _DIGEST :]
    if new_digest(_DIGEST, body).digest() != blob[12 : 12 + _DIGEST]:
        raise _unsound("it is cut short or damaged")
    end = 4 + int.from_bytes(body[:4], "little")
    if end > len(body):
        raise _unsound("its header is longer than all of it")
    try:
        fields = loads(body[4:end])
        configuration = Configuration(
            _checked(fields["numerics"], str),
            _checked(fields["completion"], int),
            tuple(
                (_checked(name, str), _checked(digest, str)) for name, digest in fields["samplers"]
            ),
        )
        text_start = _checked(fields["text_start"], int)
    except (ValueError, KeyError, TypeError):
        raise _unsound("its header is not what it should be") from None
    return configuration, text_start, body[end:]


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _unsound(what: str) -> StateError:
    return StateError(f"not a sound state of a chain: {what}")


def _other_chain(difference: str) -> StateError:
    return StateError(
        f"the state is of another chain: {difference}; make the chain as the one that wrote it"
    )


def _digest_of(value: object) -> str:
    digest = new_digest(_DIGEST)
    for piece in _pieces(value):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def _pieces(value: object) -> Iterable[bytes]:
    """The value as bytes, different for different values; of unknown types, only the type counts."""
    if isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for pair in sorted(value.items(), key=repr):
            yield from _pieces(pair)
    elif isinstance(value, list | tuple):
        yield f"sequence {len(value)}".encode()
        for each in value:
            yield from _pieces(each)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        yield f"{type(value).__name__} {value!r}".encode(errors="surrogatepass")
    else:
        yield f"object {type(value).__module__}.{type(value).__qualname__}".encode()
