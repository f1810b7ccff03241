"""Who asks: API keys, and what is known to all that is done for a request."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from aleator.core.errors import ParameterError
from aleator.generate.generation import Generation


class KeyRing:
    """API keys, compared without their time telling anything."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.encode(), b"aleator key") for key in dict.fromkeys(keys)]

    def __len__(self) -> int:
        return len(self._digests)

    @classmethod
    def of(cls, keys: Iterable[str] = (), file: str | None = None) -> KeyRing:
        """Keys that were given, and those of a file with one a line.

        Lines that are empty, or begin with #, are no keys.

        Raises:
            ParameterError: a key that no header can hold, or a file without any.  Never has a key in it.
        """
        made = list(keys)
        for number, key in enumerate(made, 1):
            _check_key("api_key", f"the {number}. key", key)
        if file is not None:
            try:
                lines = map(str.strip, Path(file).read_text(encoding="utf-8").splitlines())
            except UnicodeDecodeError:
                raise ParameterError("api_key_file", f"{file} is not a text file") from None
            found = {n: key for n, key in enumerate(lines, 1) if key and not key.startswith("#")}
            if not found:
                raise ParameterError(
                    "api_key_file", f"{file} has no key: write one on a line of its own"
                )
            for number, key in found.items():
                _check_key("api_key_file", f"{file}, line {number}", key)
            made += found.values()
        return cls(made)

    def tenant(self, key: bytes | None) -> str | None:
        """Who has a key; None: nobody.  Looks at all of them, whichever is right."""
        if not self._digests:
            return ""
        wanted = _digest(key or b"", b"aleator key")
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, wanted)
        return _digest(key, b"aleator name").hex()[:32] if found and key else None


def _check_key(parameter: str, where: str, key: str) -> None:
    if not key or not all("!" <= letter <= "~" for letter in key):
        raise ParameterError(
            parameter,
            f"{where}: a key is made of visible ASCII characters without spaces, one at least",
        )


def _digest(data: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, person=purpose).digest()


@dataclass
class Caller:
    """Who asks, as a digest of the API key ("" without keys), and the texts that were begun for the request."""

    tenant: str = ""
    begun: list[Generation] = field(default_factory=list)


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def set_caller(caller: Caller) -> None:
    """Say who asks, to everything that this task does from now on."""
    _caller.set(caller)


def current_caller() -> Caller:
    """Who asks; outside of a request nobody in particular."""
    return _caller.get() or Caller()


def own_namespace(salt: str = "") -> str:
    """The namespace of the prompt cache for what the caller asks now; see :func:`namespace_of`."""
    return namespace_of(current_caller().tenant, salt)


def namespace_of(tenant: str, salt: str = "") -> str:
    """The namespace of the prompt cache for a request.

    Prompts share what was computed only within one namespace.  So nobody can find out, by the time that a
    prompt takes, what somebody with another key or another salt has asked.

    Returns:
        A name that no other tenant and salt have, whatever the salt is; "" without either.
    """
    if not tenant and not salt:
        return ""
    salted = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{tenant}/{salted if salt else ''}"
