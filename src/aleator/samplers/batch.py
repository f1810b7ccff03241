"""Many chains over many rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.core import host
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.threads import pool
from aleator.samplers.chain import SamplerChain


def sample_batch(
    chains: Sequence[SamplerChain], logits: Any, n_threads: int | None = None
) -> list[int]:
    """Sample one token per row, each with its own chain, on several threads.

    The tokens are those that ``chains[i].sample(logits[i])`` gives one by one.

    Parameters
    ----------
    chains
        One per row, all different, with portable numerics.
    logits
        Shape ``[B, V]``, float32, float16 or bfloat16, on the CPU, each row contiguous; not copied.
    n_threads
        1 to 256; ``None`` is the number of processors.

    Raises
    ------
    LogitsError
        Names the row; then no chain has changed.
    """
    threads = pool(n_threads)
    natives = []
    for chain in chains:
        if not isinstance(chain._native, host.Chain):
            raise ParameterError("chains", "sample_batch needs chains with numerics='portable'")
        natives.append(chain._native)
    if len({id(native) for native in natives}) < len(natives):
        raise ParameterError("chains", "a chain is given for two rows: clone() it")
    try:
        return host.sample_batch(natives, logits, threads)
    except TypeError:
        raise LogitsError(
            "logits must be [B, V] of float32, float16 or bfloat16 on the CPU, rows contiguous"
        ) from None
