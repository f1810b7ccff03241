"""What a cache is made of: its options, and which of them go together."""

from __future__ import annotations

from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.integers import integer_in
from aleator.core.options import Options, declarations, option
from aleator.core.records import dataclass

STORAGE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types that keys and values are stored in (cache/storage/types.py says how)."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options):
    """What a cache is made of."""

    n_ctx: int = option(
        "cells, shared by all sequences; 0: as many as the model was trained with",
        0,
        low=0,
        high=2**31 - 1,
    )
    n_seq_max: int = option("sequence ids lie in [0, n_seq_max)", 1, low=1, high=4096)
    n_ubatch: int = option(
        "tokens computed at once; at most n_batch",
        512,
        low=1,
        high=2**31 - 1,
        flags=("-ub", "--ubatch-size"),
        portable=False,
    )
    flash_attn: bool = option(
        "fused attention for several tokens, which never holds the scores; values are laid out for it",
        True,
        flags=("-fa", "--flash-attn"),
        valued=True,
        portable=False,
    )
    type_k: str = option(
        "type that keys are stored in",
        "f16",
        choices=STORAGE_TYPES,
        flags=("-ctk", "--cache-type-k"),
        portable=False,
    )
    type_v: str = option(
        "type that values are stored in",
        "f16",
        choices=STORAGE_TYPES,
        flags=("-ctv", "--cache-type-v"),
        portable=False,
    )
    offload_kqv: bool = option(
        "keep the cache on the device that computes, and do attention there; otherwise on the CPU",
        True,
        off_flags=("-nkvo", "--no-kv-offload"),
        off_help="keep the cache in the host's memory",
        portable=False,
    )
    v_layout: str | None = option(
        "how values are laid out",
        None,
        choices=("token", "channel"),
        portable=False,
        shown="llama.cpp's choice: token with flash_attn and for types of blocks, else channel",
    )
    k_storage: str = option(
        "raw: keys are rotated when they are read: shifts are exact for any type, each token costs more time",
        "rotated",
        choices=("rotated", "raw"),
        portable=False,
    )
    policy: str = option(
        "unified: all sequences share one pool of cells; streams: each has an equal share",
        "unified",
        choices=("unified", "streams"),
        portable=False,
    )
    compat: str | None = option(
        "llama-2024: tokens of a micro-batch lie in a row, as in llama.cpp's cache of that year",
        None,
        choices=("llama-2024",),
        portable=False,
    )
    swa_full: bool = option(
        "window layers keep every position, for any rewind and shift; otherwise they have llama.cpp's number "
        "of cells, and use them again as it does",
        False,
        flags=("--swa-full",),
        portable=False,
    )
    swa_sinks: int = option(
        "first positions that window layers keep and every token sees (attention sinks); only for models "
        "with windows",
        0,
        low=0,
        high=2**31 - 1,
    )
    n_rollback: int = option(
        "tokens by which a sequence of a recurrent model can be rewound (others: any number)",
        0,
        low=0,
        high=4096,
        portable=False,
    )


def checked(name: str, value: object) -> Any:
    """Check a value as the option ``name`` of :class:`CacheOptions` and return it."""
    return declarations(CacheOptions)[name].check(value)


def check_options(
    n_cells: int,
    n_seq_max: int,
    *,
    k_storage: str,
    policy: str,
    compat: str | None,
    pad: int | None,
    n_pos_per_embd: int,
    rotates: bool,
    keeps: bool,
) -> None:
    """Check the options of a cache of cells, and which of them go together.

    ``pad``: cells that are read are rounded up to a multiple of it; ``rotates``: keys can be rotated to other
    positions; ``keeps``: prefixes are cached.
    """
    integer_in("n_ctx", n_cells, 1, 2**31 - 1)
    checked("n_seq_max", n_seq_max)
    checked("k_storage", k_storage)
    checked("policy", policy)
    checked("compat", compat)
    if k_storage == "raw" and not rotates:
        raise ParameterError("k_storage", "k_storage='raw' needs a model whose keys can be rotated")
    if policy == "streams" and (keeps or compat is not None):
        raise ParameterError("policy", "policy='streams' has neither prefix nor compat")
    if policy == "streams" and n_cells % n_seq_max:
        raise ParameterError(
            "n_ctx",
            f"with policy='streams' n_ctx must be a multiple of n_seq_max = {n_seq_max}, not {n_cells}",
        )
    if n_pos_per_embd not in (1, 4):
        raise ParameterError(
            "n_pos_per_embd", f"n_pos_per_embd must be 1 or 4, not {n_pos_per_embd}"
        )
    if n_pos_per_embd == 4 and (keeps or rotates):
        raise ParameterError(
            "n_pos_per_embd", "n_pos_per_embd=4 has neither prefix nor rotate: its cells stay"
        )
    if pad is not None:
        integer_in("pad", pad, 1, 2**20)
