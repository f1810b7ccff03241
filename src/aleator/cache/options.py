"""Which options of a cache are in range and go together."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.core.integers import integer_in


def check_options(
    n_cells: int,
    n_seq_max: int,
    *,
    k_storage: str,
    policy: str,
    compat: str | None,
    pad: int | None,
    n_pos_per_embd: int,
    turns: bool,
    keeps: bool,
) -> None:
    """Raise ParameterError unless a cache can have these options of :class:`KVCache`.

    ``turns``: it can turn keys; ``keeps``: it keeps texts.
    """
    integer_in("n_ctx", n_cells, 1, 2**31 - 1)
    integer_in("n_seq_max", n_seq_max, 1, 4096)
    if k_storage not in ("rotated", "raw"):
        raise ParameterError("k_storage", f"k_storage must be rotated or raw, not {k_storage!r}")
    if k_storage == "raw" and not turns:
        raise ParameterError("k_storage", "k_storage='raw' needs a model whose keys can be turned")
    if policy not in ("unified", "streams"):
        raise ParameterError("policy", f"policy must be unified or streams, not {policy!r}")
    if compat not in (None, "llama-2024"):
        raise ParameterError("compat", f"compat must be None or 'llama-2024', not {compat!r}")
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
    if n_pos_per_embd == 4 and (keeps or turns):
        raise ParameterError(
            "n_pos_per_embd", "n_pos_per_embd=4 has neither prefix nor rotate: its cells stay"
        )
    if pad is not None:
        integer_in("pad", pad, 1, 2**20)
