"""llama.cpp's operations on sequences, cached prefixes, checkpoints, and a cache's state as bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from aleator.cache import options
from aleator.cache.cell_verbs import CellVerbs
from aleator.cache.formats import llama
from aleator.cache.formats.state_file import Buffer, pack_state, read_state_file, write_state_file
from aleator.cache.journal import atomic
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.pool import Pool
from aleator.cache.prefix_index import Match, PrefixIndex, checked_text
from aleator.core.arithmetic import FIRST_VERSION
from aleator.core.errors import CacheError, FileFormatError, Incompatible, ParameterError
from aleator.core.forwarded import forwarded


class Checkpoint:
    """A point that a sequence can go back to while everything before it stays unchanged.

    Attributes:
        seq: the sequence.
        length: its next position at that point.
        valid_to: positions from here on have changed since.
        copy: what layers with windows or states held at that point; None if no layer forgets.
    """

    def __init__(self, seq: int, length: int, copy: Any = None) -> None:
        self.seq, self.length, self.valid_to, self.copy = seq, length, length, copy

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self.copy is None else int(self.copy.nbytes)


class Restored(NamedTuple):
    """The result of :meth:`Sequence.load`: the tokens, if they were saved, and the positions restored."""

    tokens: tuple[int, ...]
    usable: int


class SequenceVerbs(CellVerbs):
    """Sequences in a pool, and its state; ``prefix`` is the index of cached prefixes, if there are any."""

    arithmetic = FIRST_VERSION
    """Version of the decoder's arithmetic that computes what is stored."""
    prefix: PrefixIndex | None
    n_seq_max: int = forwarded("pool.n_seq_max", "Sequence ids lie in [0, n_seq_max).")

    def __init__(self, pool: Pool) -> None:
        self.pool, self.journal = pool, pool.journal
        self._marks: WeakSet[Checkpoint] = WeakSet()

    @atomic
    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Remove positions of a sequence (-1: of every one); always returns True.

        Raises:
            CannotRewind: layers with windows or states no longer hold what the rest needs; names the oldest
                legal position.
        """
        options.check_sequence_or_all("seq", seq, self.n_seq_max)
        p0, p1 = options.position_range(p0, p1)
        self.pool.seq_rm(seq, p0, p1)
        self._edited(None if seq == -1 else [seq], p0)
        return True

    @atomic
    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``dst`` also hold what ``src`` holds in a range; no data moves.

        With ``policy="streams"`` cells cannot be shared, so ``dst`` becomes a copy of ``src`` at once.

        Raises:
            CannotRewind: a window or a state no longer holds what the next token of ``dst`` must see.
            ParameterError: the range is not all of ``src``, with ``policy="streams"`` or states.

        """
        self._check("src", src)
        self._check("dst", dst)
        p0, p1 = options.position_range(p0, p1)
        if src != dst:
            self.pool.seq_cp(src, dst, p0, p1)
            self._edited([dst], p0)

    @atomic
    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence and all cached prefixes."""
        self._check("seq", seq)
        if self.prefix is not None:
            self.prefix.clear()
        self.pool.seq_keep(seq)
        self._edited([s for s in range(self.n_seq_max) if s != seq], 0)

    @atomic
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions in a range; a cell moved below 0 is freed.

        A cell that several sequences own moves for all of them.  The stored keys are rotated at the next
        decode.  A state's newest position moves, if it is in the range, for all sequences that share it.

        Raises:
            CannotShift: keys cannot be rotated, or the next token would see what has left a window.
        """
        self._check("seq", seq)
        p0, p1 = options.position_range(p0, p1)
        delta = options.checked_delta(delta)
        moved = self._sharers(seq, p0, p1) if delta else []
        self.pool.seq_add(seq, p0, p1, delta)
        self._edited(moved, min(p0, p0 + delta))

    @atomic
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in a range by ``divisor`` (1 or more), rounding down.

        Raises:
            CannotShift: keys cannot be rotated, or the next token would see what has left a window.
        """
        self._check("seq", seq)
        p0, p1 = options.position_range(p0, p1)
        divisor = options.checked_divisor(divisor)
        moved = self._sharers(seq, p0, p1) if divisor > 1 else []
        self.pool.seq_div(seq, p0, p1, divisor)
        self._edited(moved, p0 // divisor)

    def _sharers(self, seq: int, p0: int, p1: int) -> list[int]:
        """The sequences whose positions move with those of ``seq``."""
        return [seq, *self.first.cells.sharers(seq, p0, p1)]

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that every pool holds, or -1 if the sequence is empty."""
        self._check("seq", seq)
        return self.pool.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The sequence's highest position, or -1 if it is empty."""
        self._check("seq", seq)
        return self.pool.seq_pos_max(seq)

    @atomic
    def unshare(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Copy the cells in a range that a sequence shares with others; cached prefixes release theirs instead.

        Raises:
            CacheFull: no cells for the copies.
            CannotShift: its recurrent state is another sequence's too.
        """
        self._check("seq", seq)
        p0, p1 = options.position_range(p0, p1)
        self.pool.unshare(seq, p0, p1)

    @atomic
    def clear(self, data: bool = True) -> None:
        """Remove every sequence; with ``data`` also zero what is stored, when the outermost step ends."""
        if self.prefix is not None:
            self.prefix.clear()
        self.pool.clear(data)
        self._edited(None, 0)

    # Rewinds

    def oldest_rewind(self, seq: int) -> int:
        """The lowest position above 0 that ``seq_rm(seq, position, -1)`` can rewind to."""
        self._check("seq", seq)
        return self.pool.oldest_rewind(seq)

    rewindable: int = forwarded(
        "pool.rewindable", "Tokens of one micro-batch by which a sequence can be rewound at least."
    )

    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are allowed."""
        return self.pool.can_shift()

    def has_exactly(self, seq: int, n: int) -> bool:
        """Whether a sequence has exactly the positions 0 to ``n`` - 1."""
        return self.pool.has_exactly(seq, n)

    # Checkpoints

    def remember(self, mark: Checkpoint) -> None:
        """Record later changes in a checkpoint."""
        self._marks.add(mark)

    def remembers(self, mark: Checkpoint) -> bool:
        """Whether a checkpoint belongs to this cache."""
        return mark in self._marks

    def _edited(self, seqs: Sequence[int] | None, p0: int) -> None:
        """Record in checkpoints that sequences (None: all) have changed from position ``p0`` on."""
        for mark in self._marks:
            if mark.length > p0 and (seqs is None or mark.seq in seqs):
                self.journal.set(mark, "valid_to", min(mark.valid_to, p0))

    # Cached prefixes; see aleator.cache.prefix_index

    @atomic
    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """Find the longest cached prefix of ``tokens``, and why it is not longer."""
        text = checked_text(tokens, namespace)
        if self.prefix is None:
            return Match(
                0,
                0,
                ("this cache caches no prefixes: create it with prefix=PrefixConfig()",),
                namespace,
            )
        return self.prefix.match(text, namespace)

    @atomic
    def reuse_prefix(self, seq: int, match: Match) -> None:
        """Let an empty sequence hold a match, at positions 0 to ``match.length`` - 1."""
        self._check("seq", seq)
        if self.pool.seq_pos_max(seq) >= 0:
            raise CacheError(f"sequence {seq} is not empty: remove it with seq_rm first")
        if match.length == 0:
            return
        text, n = match.text, match.length
        held = self.prefix is not None and self.prefix.holds(match)
        if text is None or not held or self.pool.usable_length(text.seq, n) != n:
            raise CacheError("what was matched is not kept any more: match again")
        self.pool.reuse_prefix(text.seq, seq, n)

    @atomic
    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """Call :meth:`match` and :meth:`reuse_prefix`; return how many tokens need not be computed."""
        match = self.match(tokens, namespace)
        self.reuse_prefix(seq, match)
        return match.length

    @atomic
    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the text that a sequence holds, for later ones with the same prefix.

        It stays, even after ``seq_rm``, until its room is needed.

        Args:
            seq: the sequence.
            tokens: the tokens that positions 0, 1, ... were computed from; the sequence must be one from which
                nothing earlier was removed.
            namespace: texts of one namespace are never found in another.

        Returns:
            Whether it is kept: not without ``prefix``, if all cached texts are pinned, or if recurrent layers
            hold no state after exactly these tokens.
        """
        self._check("seq", seq)
        text = checked_text(tokens, namespace)
        if self.prefix is None or len(text) == 0 or not self.pool.holds(seq, len(text)):
            return False
        return self.prefix.keep(seq, text, namespace)

    @atomic
    def forget_namespace(self, namespace: str) -> int:
        """Forget the texts kept in a namespace, except pinned ones; sequences keep what they hold.

        Returns:
            The number of cached prefixes that were forgotten.
        """
        checked_text((), namespace)
        return 0 if self.prefix is None else self.prefix.forget_namespace(namespace)

    def _check(self, parameter: str, seq: int) -> None:
        options.check_sequence(parameter, seq, self.n_seq_max)

    # State; see aleator.cache.formats

    @property
    def followers(self) -> list[Pool]:
        """The pools other than the first one."""
        return self.pool.leaves[1:]

    def checkpoint(self, seq: int) -> Any:
        """Copy what layers with windows or states hold of a sequence; None if no layer forgets."""
        self._check("seq", seq)
        if self.pool.seq_pos_max(seq) < 0 and not isinstance(self.pool, AttentionPool):
            raise ParameterError("seq", f"sequence {seq} is empty: there is nothing to keep")
        return self.pool.checkpoint(seq)

    @atomic
    def restore(self, seq: int, checkpoint: Any) -> None:
        """Rewind a sequence to what :meth:`checkpoint` copied, however far back that is.

        Positions up to the checkpoint must be unchanged.

        Raises:
            CannotRewind: they are no longer held.
            ParameterError: the checkpoint is of another kind of cache.
        """
        self._check("seq", seq)
        self.pool.restore(seq, checkpoint)
        self._edited([seq], self.pool.seq_pos_max(seq) + 1)

    @atomic
    def state_write(self, seq: int = -1, *, format: str = "llama", partial: bool = False) -> bytes:
        """Return what the cache holds as bytes, for :meth:`state_read` here or in llama.cpp.

        Args:
            seq: one sequence; -1: everything.
            format: "llama", llama.cpp's own layout (``llama_state_get_data``,
                ``llama_state_seq_get_data``).  Pending shifts are applied to the output.
            partial: of one sequence, write only what layers with windows or states hold beside the others
                (``LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY``): a checkpoint, for the same text.
        """
        self._check_state(seq, format, partial)
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
        """Restore what :meth:`state_write` or llama.cpp wrote; return the number of cells or states filled.

        Args:
            blob: the bytes.
            seq: the sequence to replace by a sequence's state, whatever its id was (the state of an empty
                sequence replaces nothing, as in llama.cpp); -1 replaces everything by a whole state.
            format: "llama".
            partial: whether the bytes were written so; the sequence is rewound to where they end.

        Raises:
            Corrupt: the bytes are damaged or not a state; says where.
            Incompatible: the state is of another kind of cache; says how they differ.
            CacheFull: the state has more cells than are free.
        """
        self._check_state(seq, format, partial)
        partial = partial and bool(self.followers)
        if seq == -1 and self.prefix is not None:
            self.prefix.clear()
        cells = llama.read(self.pool, blob, seq, partial)
        from_position = self.pool.seq_pos_max(seq) + 1 if partial else 0
        self._edited(None if seq == -1 else [seq], from_position)
        return cells

    @atomic
    def session_write(
        self, tokens: Sequence[int], seq: int = -1, *, format: str = "llama"
    ) -> bytes:
        """Return a session file's bytes: ``tokens`` and the state of everything or one sequence.

        The bytes are those of ``llama_state_save_file`` and ``llama_state_seq_save_file``.
        """
        self._check_state(seq, format)
        return llama.write_session(self.pool, tokens, seq)

    @atomic
    def session_read(
        self, data: bytes | memoryview, seq: int = -1, *, format: str = "llama"
    ) -> list[int]:
        """Restore a session file's bytes as :meth:`state_read` does; return its tokens."""
        self._check_state(seq, format)
        if seq == -1 and self.prefix is not None:
            self.prefix.clear()
        tokens = llama.read_session(self.pool, data, seq)
        self._edited(None if seq == -1 else [seq], 0)
        return tokens

    def _check_state(self, seq: int, format: str, partial: bool = False) -> None:
        if format != "llama":
            raise ParameterError(f"format must be llama, not {format!r}")
        if partial:
            self._check("seq", seq)
        options.check_sequence_or_all("seq", seq, self.n_seq_max)

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
        header = {"kind": "sequence", "model": model, "arithmetic": self.arithmetic, "next": n}
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
        then = header.get("arithmetic", FIRST_VERSION)
        if then != self.arithmetic:
            raise Incompatible(
                "arithmetic",
                then,
                self.arithmetic,
                f"{state.name}: its keys and values are of version {then} of the decoder's arithmetic, this is "
                f"{self.arithmetic}: decode the text again",
            )
        if type(n) is not int or len(sections["tokens"]) not in (0, 4 * n):
            raise FileFormatError(state.name, f"next is {n!r}", field="next")
        tokens = np.frombuffer(sections["tokens"], "<i4")
        if len(tokens) and tokens.min() < 0:
            raise FileFormatError(state.name, "there are tokens below 0", field="tokens")
        # An empty state would leave the sequence unchanged, which may have the same end.
        cells = llama.read(self.pool, sections["rows"], seq)
        if cells == 0 or self.pool.seq_pos_max(seq) + 1 != n:
            raise FileFormatError(state.name, f"its rows do not end before {n}", field="rows")
        self._edited([seq], 0)
        return Restored(tuple(tokens.tolist()), n)
