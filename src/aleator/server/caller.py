"""Who asks: known to all that is done for a request, without being handed from function to function."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass, field

from aleator.generate.generation import Generation


@dataclass
class Caller:
    """A request over the network, as far as it is not in its body.

    Attributes:
        tenant: A digest of the API key; "" where the server has no keys.
        begun: The texts that were begun for it.
    """

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

    Args:
        tenant: A digest of the API key; "" without keys.
        salt: Field ``cache_salt`` of the request.

    Returns:
        A name that no other tenant and salt have, whatever the salt is; "" without either.
    """
    if not tenant and not salt:
        return ""
    salted = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{tenant}/{salted if salt else ''}"
