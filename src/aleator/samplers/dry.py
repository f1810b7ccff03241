"""DRY, don't repeat yourself (p-e-w, 2024): penalise tokens that would continue a repeated sequence.

Effect     where the newest tokens equal an earlier run of at least ``dry_allowed_length`` tokens, the token
           that followed there loses multiplier * base^(length - allowed_length); the longest run counts.
Breakers   the newest tokens are compared only back to the nearest sequence breaker; a token that is a
           breaker by itself is never penalised.
Window     the last ``dry_penalty_last_n`` accepted tokens, prompt included; -1 means all.
Precision  the power by repeated squaring in float64, at most 1e300; the penalty is clamped to 3e38 and
           rounded to float32, then subtracted.
Masked     stay masked.  A pending temperature is materialised first.
Elsewhere  llama.cpp has pow() and clamps the exponent instead, and no -1; exllamav3 and
           text-generation-webui take single-token breakers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from aleator.core.arrays import Int64s
from aleator.core.errors import ParameterError
from aleator.samplers.base import Parameter, Place, Row, Sampler, Step, dataclass, declare, host
from aleator.samplers.token_arguments import Tokenizer, check_sequences

DRY_MULTIPLIER = Parameter(
    "dry_multiplier", float, 0.0, "strength of the penalty on repeated sequences; 0 is off",
    low=-1e6, high=1e6, flags=("--dry-multiplier",),
)  # fmt: skip
DRY_BASE = Parameter(
    "dry_base", float, 1.75, "how fast that penalty grows with the length of the repetition",
    low=1, high=1e6, flags=("--dry-base",),
)  # fmt: skip
DRY_ALLOWED_LENGTH = Parameter(
    "dry_allowed_length", int, 2, "repetitions shorter than this are not penalised",
    low=0, high=2**31 - 1, flags=("--dry-allowed-length",),
)  # fmt: skip
DRY_PENALTY_LAST_N = Parameter(
    "dry_penalty_last_n", int, 64, "window in which repetitions are sought; 0 is off, -1 is all",
    low=-1, high=2**31 - 1, flags=("--dry-penalty-last-n",),
)  # fmt: skip
MAX_BREAKER_BYTES = 40
MAX_TAIL_TOKENS = 20
MAX_PREPARED = 64  # lists of breakers cached per tokenizer


class TokenizerWithPieces(Tokenizer, Protocol):
    """A tokenizer for breakers given as text: it encodes texts and has the bytes of all tokens."""

    @property
    def vocab(self) -> Any:
        """A vocabulary with ``len`` and ``token_bytes(id)``."""


class _Pieces:
    """The concatenated bytes of all tokens of a vocabulary, and the breakers found in them."""

    def __init__(self, vocab: Any) -> None:
        pieces = [vocab.token_bytes(i) for i in range(len(vocab))]
        self.lengths = np.array([len(piece) for piece in pieces], np.int64)
        self.ends = self.lengths.cumsum()
        self.data = np.frombuffer(b"".join(pieces), np.uint8)
        self.prepared: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

    def containing(self, text: bytes) -> Int64s:
        """The tokens that contain ``text``."""
        at = np.arange(len(self.data) - len(text) + 1)
        for i, byte in enumerate(text):
            at = at[self.data[at + i] == byte]
        token = np.searchsorted(self.ends, at, side="right")
        return np.unique(token[at + len(text) <= self.ends[token]])

    def ending(self, text: bytes) -> Int64s:
        """The tokens that end with ``text``."""
        token = np.flatnonzero(self.lengths >= len(text))
        for i, byte in enumerate(text):
            token = token[self.data[self.ends[token] - len(text) + i] == byte]
        return token


_PIECES: WeakKeyDictionary[Any, _Pieces] = WeakKeyDictionary()  # by tokenizer


def prepare_breakers(
    texts: Sequence[str], tokenizer: TokenizerWithPieces
) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that spell the breakers, including those that cross token boundaries.

    A token that contains a breaker is a sequence by itself.  A token that ends with a prefix of a breaker
    makes a sequence with the tokens of the rest.  Results are cached as long as the tokenizer lives.
    """
    try:
        pieces = _PIECES.get(tokenizer)
        if pieces is None or len(pieces.ends) != len(tokenizer.vocab):
            pieces = _PIECES[tokenizer] = _Pieces(tokenizer.vocab)
    except TypeError:  # no hash, or no weak references
        pieces = _Pieces(tokenizer.vocab)
    key = tuple(texts)
    if key not in pieces.prepared:
        if len(pieces.prepared) >= MAX_PREPARED:
            pieces.prepared.clear()
        pieces.prepared[key] = _prepare(key, pieces, tokenizer)
    return pieces.prepared[key]


def _prepare(
    texts: tuple[str, ...], pieces: _Pieces, tokenizer: Tokenizer
) -> tuple[tuple[int, ...], ...]:
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        breaker = text.encode()[:MAX_BREAKER_BYTES]
        if not breaker:
            continue
        whole = pieces.containing(breaker)
        found |= dict.fromkeys((token,) for token in whole.tolist())
        for length in range(1, len(breaker)):
            rest = breaker[length:].decode(errors="ignore")
            tail = tokenizer.encode(rest, add_special=False, parse_special=False)
            heads = np.setdiff1d(pieces.ending(breaker[:length]), whole)
            if tail:
                found |= dict.fromkeys((head, *tail[:MAX_TAIL_TOKENS]) for head in heads.tolist())
    return tuple(found)


def _read_breakers(words: list[str]) -> list[str]:
    """The values of ``--dry-sequence-breaker``; "none" drops those before it."""
    last = max((i for i, word in enumerate(words) if word == "none"), default=-1)
    return words[last + 1 :]


DRY_SEQUENCE_BREAKERS = Parameter(
    "dry_sequence_breakers", tuple, ("\n", ":", '"', "*"),
    "text at which a repetition ends; may be repeated, 'none' for no breakers",
    most=128, flags=("--dry-sequence-breaker",), reader=_read_breakers, escapes=True, metavar="TEXT",
    checker=lambda value: check_sequences("dry_sequence_breakers", value, blank=True),
    annotation="Sequence[str | Sequence[int]]",
    schema={"type": "array", "items": {"type": ["string", "array"], "items": {"type": "integer"}}},
)  # fmt: skip


@dataclass(frozen=True)
class DRY(Sampler):
    """Penalise tokens that would continue a repeated sequence."""

    name = "dry"
    writes = True
    letter = "d"
    kernel = host.DRY
    llama_kernel = host.LlamaDRY
    dry_multiplier: float = declare(DRY_MULTIPLIER)
    dry_base: float = declare(DRY_BASE)
    dry_allowed_length: int = declare(DRY_ALLOWED_LENGTH)
    dry_penalty_last_n: int = declare(DRY_PENALTY_LAST_N)
    # Texts, which need ``tokenizer``, or sequences of token ids
    dry_sequence_breakers: Any = declare(DRY_SEQUENCE_BREAKERS)
    tokenizer: Any = field(default=None, repr=False, compare=False)  # has ``encode`` and ``vocab``

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = [b for b in self.dry_sequence_breakers if isinstance(b, str)]
        sequences = [b for b in self.dry_sequence_breakers if not isinstance(b, str)]
        if texts and not self.neutral:
            if self.tokenizer is None:
                raise ParameterError(
                    "dry_sequence_breakers given as text need a tokenizer: DRY(..., tokenizer=...), or "
                    "give token ids, or an empty sequence"
                )
            sequences += prepare_breakers(texts, self.tokenizer)
        object.__setattr__(self, "breakers", tuple(sequences))

    breakers: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False, default=())

    @property
    def neutral(self) -> bool:
        return self.dry_multiplier == 0 or self.dry_penalty_last_n == 0

    def configured(self, place: Place, numerics: str) -> tuple[Any, ...]:
        """As the base class, with the breakers as token sequences."""
        return (*super().configured(place, numerics), self.breakers)

    def state(self, kernel: Any, history: Sequence[int]) -> dict[str, float]:
        n = self.dry_penalty_last_n
        return {"window": len(history) if n < 0 else min(n, len(history))}

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return (*super().arguments(place)[:-1], self.breakers)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        window = step.history[-self.dry_penalty_last_n :] if self.dry_penalty_last_n > 0 else None
        recent = list(reversed(step.history if window is None else window))
        longest = self._repeats(recent)
        longest = {t: n for t, n in longest.items() if (t,) not in self.breakers}
        if longest:
            row.edit(
                lambda token, z: (
                    np.float32(z - self.penalty(longest[token])) if token in longest else z
                )
            )

    def _repeats(self, recent: list[int]) -> dict[int, int]:
        n, allowed = len(recent), self.dry_allowed_length
        limit = n
        for i in range(n):
            since = tuple(recent[i::-1])  # this token and all after it
            tails = [len(b) - 1 for b in self.breakers if since[: len(b)] == b]
            if tails:
                limit = i - max(tails)
                break
        longest: dict[int, int] = {}
        for k in range(1, n):
            length = 0
            while k + length < n and length < limit and recent[length] == recent[k + length]:
                length += 1
            if length >= allowed:
                longest[recent[k - 1]] = max(longest.get(recent[k - 1], 0), length)
        return longest

    def penalty(self, length: int) -> np.float32:
        """The penalty for a repetition of ``length`` tokens, at least ``dry_allowed_length``."""
        power, square, e = 1.0, self.dry_base, length - self.dry_allowed_length
        while e:
            if e & 1:
                power = min(power * square, 1e300)
            square, e = min(square * square, 1e300), e >> 1
        return np.float32(min(max(self.dry_multiplier * power, -3e38), 3e38))
