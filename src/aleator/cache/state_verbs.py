"""What a cache holds, as bytes and back, and checkpoints of sequences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aleator.cache.arguments import check_sequence_or_all
from aleator.cache.formats import llama
from aleator.cache.formats.source import require_format
from aleator.cache.formats.state_file import Buffer, pack_state, read_state_file, write_state_file
from aleator.cache.journal import atomic
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.pool import AnyPool
from aleator.cache.sequence_verbs import SequenceVerbs
from aleator.core.errors import FileFormatError, Incompatible, ParameterError


class Restored(NamedTuple):
    """What :meth:`Sequence.load` found: the text, if it was saved, and positions restored."""

    tokens: tuple[int, ...]
    usable: int


class StateVerbs(SequenceVerbs):
    """State of a pool; see aleator.cache.formats."""

    @property
    def followers(self) -> list[AnyPool]:
        """The pools beside the first one."""
        return self.pool.leaves[1:]

    def checkpoint(self, seq: int) -> Any:
        """Copy what layers with windows or states hold of a sequence; None where no layer forgets."""
        self._check("seq", seq)
        if self.pool.seq_pos_max(seq) < 0 and not isinstance(self.pool, AttentionPool):
            raise ParameterError("seq", f"sequence {seq} is empty: there is nothing to keep")
        return self.pool.checkpoint(seq)

    @atomic
    def restore(self, seq: int, checkpoint: Any) -> None:
        """Rewind a sequence to what :meth:`checkpoint` copied, however far that is.

        Positions up to the checkpoint must be as they were then.

        Raises:
            CannotRewind: they are not held any more.
            ParameterError: a checkpoint of another kind of cache.

        """
        self._check("seq", seq)
        self.pool.restore(seq, checkpoint)
        self._edited([seq], self.pool.seq_pos_max(seq) + 1)

    @atomic
    def state_write(self, seq: int = -1, *, format: str = "llama", partial: bool = False) -> bytes:
        """What the cache holds, as bytes for :meth:`state_read` here or in llama.cpp.

        Args:
            seq: one sequence; -1: everything.
            format: "llama", llama.cpp's own layout (``llama_state_get_data``,
                ``llama_state_seq_get_data``).  Pending shifts are applied in what is written.
            partial: of one sequence, only what layers with windows or states hold, if others do not
                (``LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY``): a checkpoint, for the same text.

        """
        require_format(format)
        if partial:
            self._check("seq", seq)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.write(self.pool, seq, partial and bool(self.followers))

    @atomic
    def state_read(
        self,
        blob: bytes | memoryview,
        seq: int = -1,
        *,
        format: str = "llama",
        partial: bool = False,
    ) -> int:
        """Restore what :meth:`state_write` gave, or llama.cpp; returns how many cells or states it fills.

        Args:
            blob: the bytes.
            seq: the sequence that a sequence's state replaces, which need not be the one it was (that of an
                empty one replaces nothing, as in llama.cpp); -1: a whole state, which replaces everything.
            format: "llama".
            partial: the bytes were written so; the sequence is rewound to where they end.

        Raises:
            Corrupt: the bytes are damaged or no state; says where.
            Incompatible: a state of another kind of cache; says how they differ.
            CacheFull: it has more cells than are free.

        """
        require_format(format)
        if partial:
            self._check("seq", seq)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        partial = partial and bool(self.followers)
        if seq == -1 and self.prefix is not None:
            self.prefix.clear()
        cells = llama.read(self.pool, blob, seq, partial)
        if partial:
            self._edited([seq], self.pool.seq_pos_max(seq) + 1)
        else:
            self._edited(None if seq == -1 else [seq], 0)
        return cells

    @atomic
    def session_write(
        self, tokens: Sequence[int], seq: int = -1, *, format: str = "llama"
    ) -> bytes:
        """A session file's bytes: ``tokens``, the text, and the state of everything or one sequence.

        As ``llama_state_save_file`` and ``llama_state_seq_save_file`` write them.
        """
        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.write_session(self.pool, tokens, seq)

    @atomic
    def session_read(
        self, data: bytes | memoryview, seq: int = -1, *, format: str = "llama"
    ) -> list[int]:
        """Restore a session file's bytes as :meth:`state_read` does; returns its tokens."""
        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        if seq == -1 and self.prefix is not None:
            self.prefix.clear()
        tokens = llama.read_session(self.pool, data, seq)[0]
        self._edited(None if seq == -1 else [seq], 0)
        return tokens

    @atomic
    def save_sequence(
        self, seq: int, path: str | os.PathLike[str] | None, tokens: Sequence[int], model: str
    ) -> bytes | None:
        """See :meth:`aleator.cache.Sequence.save`."""
        n = self.pool.seq_pos_max(seq) + 1
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
            "rows": llama.write(self.pool, seq),
        }
        if path is None:
            return b"".join(pack_state(header, sections))
        write_state_file(path, header, sections)
        return None

    @atomic
    def load_sequence(
        self, seq: int, source: str | os.PathLike[str] | Buffer, model: str
    ) -> Restored:
        """See :meth:`aleator.cache.Sequence.load`."""
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
        cells = llama.read(self.pool, sections["rows"], seq)
        if cells == 0 or self.pool.seq_pos_max(seq) + 1 != n:
            raise FileFormatError(state.name, f"its rows do not end before {n}", field="rows")
        self._edited([seq], 0)
        return Restored(tuple(tokens.tolist()), n)
