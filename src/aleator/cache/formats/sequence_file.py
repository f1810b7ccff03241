"""One sequence in a file of ours: its rows as llama.cpp writes them, its tokens, and whose they are."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from aleator.cache.formats import llama
from aleator.cache.formats.state_file import (
    Buffer,
    pack_state,
    read_state_file,
    write_state_file,
)
from aleator.cache.handle.sequence import Restored
from aleator.cache.pools.pool import AnyPool
from aleator.core.errors import FileFormatError, Incompatible, ParameterError


def save_sequence(
    pool: AnyPool,
    seq: int,
    path: str | os.PathLike[str] | None,
    tokens: Sequence[int],
    model: str,
) -> bytes | None:
    """See :meth:`aleator.cache.Sequence.save`."""
    n = pool.seq_pos_max(seq) + 1
    if n == 0:
        raise ParameterError("seq", f"sequence {seq} is empty: there is nothing to save")
    if len(tokens) not in (0, n):
        raise ParameterError(
            "tokens",
            f"{len(tokens)} tokens for a sequence whose next position is {n}: give all or none",
        )
    header = {"kind": "sequence", "model": model, "next": n}
    sections = {
        "tokens": np.asarray(tokens, "<i4").tobytes(),
        "rows": llama.write(pool, seq),
    }
    if path is None:
        return b"".join(pack_state(header, sections))
    write_state_file(path, header, sections)
    return None


def load_sequence(
    pool: AnyPool, seq: int, source: str | os.PathLike[str] | Buffer, model: str
) -> Restored:
    """See :meth:`aleator.cache.Sequence.load`; within a frame."""
    state = read_state_file(source)
    header, sections = state.header, state.sections
    if header.get("kind") != "sequence" or not {"tokens", "rows"} <= sections.keys():
        raise FileFormatError(state.name, "the file holds no sequence", field="kind")
    n, made_with = header.get("next"), header.get("model")
    if model and made_with and made_with != model:
        raise Incompatible("model", made_with, model)
    if type(n) is not int or len(sections["tokens"]) not in (0, 4 * n):
        raise FileFormatError(state.name, f"next is {n!r}", field="next")
    tokens = np.frombuffer(sections["tokens"], "<i4")
    if len(tokens) and tokens.min() < 0:
        raise FileFormatError(state.name, "there are tokens below 0", field="tokens")
    # Rows of nothing would leave the sequence as it is, which may end there too.
    cells = llama.read(pool, sections["rows"], seq)
    if cells == 0 or pool.seq_pos_max(seq) + 1 != n:
        raise FileFormatError(state.name, f"its rows do not end before {n}", field="rows")
    return Restored(tuple(tokens.tolist()), n)
