"""The options of a cache, and checks of its methods' arguments before anything changes."""

from __future__ import annotations

from typing import Any

from aleator.core.errors import ParameterError, Uncopyable
from aleator.core.integers import exact, integer, integer_in
from aleator.core.options import Options, declarations, host_option, option
from aleator.core.records import dataclass

STORAGE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types that keys and values are stored in (cache/storage/layer.py says how)."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options):
    """The options of a cache."""

    n_ctx: int = option(
        "cells, shared by all sequences; 0: as many as the model was trained with",
        0, low=0, high=2**31 - 1,
    )  # fmt: skip
    n_seq_max: int = option("sequence ids lie in [0, n_seq_max)", 1, low=1, high=4096)
    n_ubatch: int = host_option(
        "tokens computed at once; at most n_batch",
        512, low=1, high=2**31 - 1, flags=("-ub", "--ubatch-size"),
    )  # fmt: skip
    flash_attn: bool = host_option(
        "fused attention for several tokens, which never holds the scores; values are laid out for it",
        True, flags=("-fa", "--flash-attn"), valued=True,
    )  # fmt: skip
    type_k: str = host_option(
        "type that keys are stored in",
        "f16", choices=STORAGE_TYPES, flags=("-ctk", "--cache-type-k"),
    )  # fmt: skip
    type_v: str = host_option(
        "type that values are stored in",
        "f16", choices=STORAGE_TYPES, flags=("-ctv", "--cache-type-v"),
    )  # fmt: skip
    offload_kqv: bool = host_option(
        "keep the cache on the device that computes, and do attention there; otherwise on the CPU",
        True, off_flags=("-nkvo", "--no-kv-offload"),
        off_help="keep the cache in the host's memory",
    )  # fmt: skip
    v_layout: str | None = host_option(
        "how values are laid out",
        None, choices=("token", "channel"),
        shown="llama.cpp's choice: token with flash_attn and for types of blocks, else channel",
    )  # fmt: skip
    k_storage: str = host_option(
        "raw: keys are rotated when they are read: shifts are exact for any type, each token costs more time",
        "rotated", choices=("rotated", "raw"),
    )  # fmt: skip
    policy: str = host_option(
        "unified: all sequences share one pool of cells; streams: each has an equal share",
        "unified", choices=("unified", "streams"),
    )  # fmt: skip
    compat: str | None = host_option(
        "llama-2024: tokens of a micro-batch lie in a row, as in llama.cpp's cache of that year",
        None, choices=("llama-2024",),
    )  # fmt: skip
    swa_full: bool = host_option(
        "window layers keep every position, for any rewind and shift; otherwise they have llama.cpp's number "
        "of cells, and use them again as it does",
        False, flags=("--swa-full",),
    )  # fmt: skip
    swa_sinks: int = option(
        "first positions that window layers keep and every token sees (attention sinks); only for models "
        "with windows",
        0, low=0, high=2**31 - 1,
    )  # fmt: skip
    n_rollback: int = host_option(
        "tokens by which a sequence of a recurrent model can be rewound (others: any number)",
        0, low=0, high=4096, flags=("--n-rollback",), shown="0; of a loaded model 8 or what 64 MiB hold",
    )  # fmt: skip


def checked(name: str, value: object) -> Any:
    """Check a value as the option ``name`` of :class:`CacheOptions` and return it."""
    return declarations(CacheOptions)[name].check(value)


END = 2**31 - 1
"""One more than the highest position."""


def check_sequence(name: str, seq: object, n_seq_max: int) -> None:
    """Raise ParameterError unless ``seq`` is the id of a sequence, an integer in [0, n_seq_max)."""
    number = exact(seq)
    if number is None:
        raise ParameterError(
            f"{name} must be an integer in [0, {n_seq_max}), not {seq!r}: it is a sequence's id"
        )
    if not 0 <= number < n_seq_max:
        raise ParameterError(
            f"{name} must lie in [0, {n_seq_max}), not {number}: create the context "
            "with a larger n_seq_max for more sequences"
        )


def check_sequence_or_all(name: str, seq: object, n_seq_max: int) -> None:
    """Check as :func:`check_sequence`, but allow -1, which stands for every sequence."""
    if exact(seq) != -1:
        check_sequence(name, seq, n_seq_max)


def position_range(p0: object, p1: object) -> tuple[int, int]:
    """Return positions [p0, p1): p0 < 0 is 0, p1 < 0 is infinity; both are at most :data:`END`."""
    first, end = integer("p0", p0), integer("p1", p1)
    return min(max(first, 0), END), END if end < 0 else min(end, END)


def checked_delta(delta: object) -> int:
    """Return the distance that positions move, an integer in (-2^31, 2^31)."""
    return integer_in("delta", delta, 1 - 2**31, 2**31 - 1)


def checked_divisor(divisor: object) -> int:
    """Return the divisor of positions, an integer in [1, 2^31)."""
    return integer_in("divisor", divisor, 1, 2**31 - 1)


class HoldsCells(Uncopyable):
    """Base of classes that hold a cache's memory, which is not copied."""

    _instead = (
        "write its state with state_write(), and read it into another of the same kind with "
        "state_read()"
    )
