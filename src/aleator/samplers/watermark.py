"""Watermarks: draws keyed by a secret and the last n tokens, and the test that finds them in a text.

Draw      S. Aaronson's (2022): the tokens' uniform numbers come from a key and a hash of the last
          ``watermark_ngram`` tokens, instead of seed and position; the token with the largest u^(1/p)
          wins, as in the race of ``draw="gumbel"``.  Over keys the distribution is the model's.
Hash      h = n; then for each of the n tokens, the oldest first, h = Philox(index=token, position=h,
          ordinal 0).  u(id) = Philox(index=id, position=h, ordinal 1).  Purpose 8, completion 0; the seed is
          64 bits of the key's BLAKE2b.
Ordinary  draws, as ``draw="gumbel"`` by seed and position, happen if fewer than n tokens were generated or
          accepted, or if the same n tokens occur earlier in the history, prompt included.  So no keyed draw
          happens twice.
Test      sum of -ln(1 - u) over the text's distinct n-grams, each at its first place.  Without the key's
          watermark the terms are independent with mean 1, so the sum of m has the Erlang distribution.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from aleator.core.contract import Purpose
from aleator.core.errors import ParameterError
from aleator.core.integers import MAX_TOKEN
from aleator.core.json_text import loads
from aleator.core.parameter import Parameter
from aleator.core.philox import stream, uniform64
from aleator.core.records import dataclass

KEYED = ("watermark", "synthid")
"""Draws that need a key."""
VARIABLE = "ALEATOR_WATERMARK_KEY"
LEAST_BYTES, MOST_BYTES = 16, 4096
FINGERPRINT = "fingerprint:"
MOST_NUMBERS, DERIVED_NUMBERS = 64, 30
_uniforms: Any = uniform64
"""``uniform64``, typed to take arrays of 64-bit integers, too."""
HASH, DRAWN = stream(Purpose.WATERMARK, 0), stream(Purpose.WATERMARK, 1)
_REMEDY = f"give {LEAST_BYTES} to {MOST_BYTES} random bytes, such as those of: openssl rand -hex 32"


class WatermarkKey(str):
    """A secret key.  As text it is its fingerprint, which may be shown; the secret itself is not stored.

    A pickle holds the fingerprint; unpickling needs a process that has the key.

    Args:
        secret: 16 to 4,096 bytes; line breaks at the end do not count.  A JSON list of 1 to 64 integers gives
            SynthID's keys as transformers has them; pad a shorter list with spaces to 16 bytes.

    Attributes:
        seed: The 64 bits of the secret that draws are keyed by; as secret as the key.
        numbers: SynthID's keys, one per layer, from the list or else 30 made from the secret; the 16 bits of
            each that count.

    Raises:
        ParameterError: The secret is too short or too long, or a list of something else.
    """

    seed: int
    numbers: tuple[int, ...]

    def __new__(cls, secret: bytes) -> WatermarkKey:
        """Make a key from a secret."""
        if not isinstance(secret, bytes):
            raise ParameterError("key", f"a watermark's key is bytes: {_REMEDY}")
        return cls._made(secret, "key")

    @classmethod
    def _made(cls, secret: bytes, where: str) -> WatermarkKey:
        secret = secret.rstrip(b"\r\n")
        if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
            n = len(secret) if len(secret) <= MOST_BYTES else f"more than {MOST_BYTES:,}"
            raise ParameterError(f"{where}: the key has {n} bytes: {_REMEDY}")
        made = super().__new__(cls, FINGERPRINT + _digest(secret, b"aleator name").hex())
        made.seed = int.from_bytes(_digest(secret, b"aleator draw"), "little")
        made.numbers = _numbers(secret, where)
        return _KNOWN.setdefault(str(made), made)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> WatermarkKey:
        """The key in a file.  Errors do not show the path, which may be the key by mistake."""
        try:
            with open(path, "rb") as file:
                secret = file.read(MOST_BYTES + 3)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not a path"
            raise ParameterError(
                f"{KEY_FILE}: the file cannot be read ({why}): give the path of the key's file"
            ) from None
        return cls._made(secret, KEY_FILE)

    @classmethod
    def from_environment(cls) -> WatermarkKey:
        """The key in the environment variable ``ALEATOR_WATERMARK_KEY``."""
        secret = os.environ.get(VARIABLE)
        if secret is None:
            raise ParameterError(
                KEY_FILE, f"a watermark needs a key: give {KEY_FILE}, or set {VARIABLE} ({_REMEDY})"
            )
        return cls._made(os.fsencode(secret), VARIABLE)

    @classmethod
    def of_fingerprint(cls, fingerprint: str) -> WatermarkKey:
        """The key with this fingerprint, if this process has it."""
        found = _KNOWN.get(fingerprint)
        if found is None and VARIABLE in os.environ:
            own = cls.from_environment()
            found = own if own == fingerprint else None
        if found is None:
            raise ParameterError(
                f"{KEY_FILE}={fingerprint[:40]!r}: this process has no such key: give its file, or set "
                f"{VARIABLE}"
            )
        return found

    @classmethod
    def of(cls, value: Any) -> WatermarkKey:
        """The key of a ``WatermarkKey``, the path of a file, or a fingerprint that this process knows.

        A path must be a ``pathlib.Path``, because text may come over a network and must not name local files.
        """
        if isinstance(value, WatermarkKey):
            return value
        if isinstance(value, os.PathLike):
            return cls.from_file(value)
        if isinstance(value, str) and value.startswith(FINGERPRINT):
            return cls.of_fingerprint(value)
        raise ParameterError(
            f"{KEY_FILE}: give the key's file as a pathlib.Path, or the fingerprint of a key that this "
            f"process has ({FINGERPRINT}...)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles; a copy is the same object."""
        return WatermarkKey.of_fingerprint, (str(self),)


_KNOWN: WeakValueDictionary[str, WatermarkKey] = WeakValueDictionary()
KEY_FILE = "watermark_key_file"
WATERMARK_KEY_FILE = Parameter(
    KEY_FILE, object, None,
    f"file with the key of draw=watermark or synthid, {LEAST_BYTES} bytes or more; without it the environment "
    f"variable {VARIABLE} has the key",
    optional=True, checker=WatermarkKey.of, reader=WatermarkKey.from_file, flags=("--watermark-key-file",),
    metavar="FILE", annotation="PathLike[str] | str | None", schema={"type": ["string", "null"]},
)  # fmt: skip
WATERMARK_NGRAM = Parameter(
    "watermark_ngram", int, 4,
    "tokens before a token that its draw is keyed by with draw=watermark or synthid; fewer survive more "
    "edits, more repeat less",
    low=1, high=16, flags=("--watermark-ngram",),
)  # fmt: skip


def new_context(history: Sequence[int], position: int, n: int) -> list[int] | None:
    """The last n tokens, which key the next draw; None if it is an ordinary one."""
    context = list(history[len(history) - n :])
    if position < n or len(history) < n:
        return None
    if any(list(history[i : i + n]) == context for i in range(len(history) - n)):
        return None
    return context


def context_hash(history: Sequence[int], position: int, key: WatermarkKey, n: int) -> int | None:
    """The hash that replaces the position in the next draw; None if it is an ordinary one."""
    context = new_context(history, position, n)
    return None if context is None else hash_of(context, key)


def hash_of(context: Sequence[int], key: WatermarkKey) -> int:
    """The hash of tokens, the oldest first."""
    h = len(context)
    for token in context:
        h = uniform64(key.seed, token, h, HASH)
    return h


@dataclass(frozen=True)
class WatermarkTest:
    """The result of :func:`detect_watermark`.

    Attributes:
        n_tokens: Tokens of the text.
        n_scored: Draws that were scored: distinct n-grams with a token after them.
        score: Sum of -ln(1 - u) over these; about ``n_scored`` without a watermark, more with one.
        p_value: Probability of at least this score in a text made without the key; exact.
        log10_p: Its logarithm, as p itself may be too small for a float.
        fingerprint: The key's fingerprint.
    """

    n_tokens: int
    n_scored: int
    score: float
    p_value: float
    log10_p: float
    fingerprint: str


def detect_watermark(
    tokens: Sequence[int] | NDArray[np.integer],
    key: bytes | WatermarkKey | None = None,
    *,
    ngram: int = WATERMARK_NGRAM.neutral,
) -> WatermarkTest:
    """Test whether a text was drawn with ``draw="watermark"`` and a key.

    Args:
        tokens: Token ids of the text, 0 to 2^24 - 1, without its prompt.
        key: The key's bytes, or a :class:`WatermarkKey`; None takes that of ``ALEATOR_WATERMARK_KEY``.
        ngram: ``watermark_ngram`` of the draws, 1 to 16.

    Raises:
        ParameterError: There is no key, it is too short, or tokens or ``ngram`` are out of range.
    """
    ids, own, n = checked(tokens, key, ngram)
    drawn = ids[n:]
    h = np.full(len(drawn), n, np.uint64)
    for i in range(n if len(drawn) else 0):
        h = _uniforms(own.seed, ids[i : i + len(drawn)], h, HASH)
    _, first = np.unique(h, return_index=True)
    u = _uniforms(own.seed, drawn[first], h[first], DRAWN)
    # 1 - u with u = x / 2^64 is (2^64 - x) / 2^64, never 0.
    score = float(0.0 - np.log((~u).astype(np.float64) / 2**64 + 2.0**-64).sum())
    log_p = log_erlang_tail(len(first), score)
    return WatermarkTest(
        len(ids), len(first), score, math.exp(log_p), log_p / math.log(10), str(own)
    )


def checked(
    tokens: Sequence[int] | NDArray[np.integer], key: bytes | WatermarkKey | None, ngram: int
) -> tuple[NDArray[np.uint64], WatermarkKey, int]:
    """Return the checked arguments of a test: ids, key and n."""
    n = WATERMARK_NGRAM.check(ngram)
    if key is None:
        key = WatermarkKey.from_environment()
    own = key if isinstance(key, WatermarkKey) else WatermarkKey(key)
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (
        ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > MAX_TOKEN)
    ):
        raise ParameterError(f"tokens must be a sequence of token ids, 0 to {MAX_TOKEN}")
    return ids.astype(np.uint64), own, n


def log_erlang_tail(m: int, x: float) -> float:
    """Natural logarithm of P(X >= x) for a sum X of m independent exponential numbers of mean 1.

    The tail is e^-x times the sum of x^k / k! for k < m.
    """
    if m == 0 or x <= 0:
        return 0.0
    factorials = np.fromiter(map(math.lgamma, range(1, m + 1)), np.float64)
    terms = np.arange(m) * math.log(x) - factorials
    top = float(terms.max())
    return min(0.0, top + math.log(np.exp(terms - top).sum()) - x)


def _numbers(secret: bytes, where: str) -> tuple[int, ...]:
    """SynthID's keys.  Random bytes that happen to begin like a list are an ordinary secret."""
    try:
        given = loads(secret) if secret.lstrip()[:1] == b"[" else None
    except ValueError:
        given = None if secret.translate(None, b"0123456789[],.-+eE \t\r\n") else []
    if given is None:
        made = _digest(secret, b"aleator synthid", 2 * DERIVED_NUMBERS)
        return tuple(int.from_bytes(made[i : i + 2], "little") for i in range(0, len(made), 2))
    if not 1 <= len(given) <= MOST_NUMBERS or not all(
        type(each) is int and 0 <= each < 2**63 for each in given
    ):
        raise ParameterError(
            f"{where}: a key that is a list has SynthID's keys as JSON: give 1 to {MOST_NUMBERS} whole "
            "numbers, each 0 to 2^63 - 1"
        )
    return tuple(each & 0xFFFF for each in given)


def _digest(secret: bytes, person: bytes, size: int = 8) -> bytes:
    from hashlib import blake2b  # loads OpenSSL, which only watermarks need

    return blake2b(secret, digest_size=size, person=person).digest()
