"""The protocol of pools.

A pool holds what a kind of layers remembers of sequences.  Arguments are checked above it; what it refuses
depends on what it holds.  All changes are made within a frame of its journal, so a pool never undoes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from aleator.cache.batches import Cuts, Tokens
from aleator.cache.devices import Device
from aleator.cache.journal import Journal
from aleator.cache.options import Uncopyable
from aleator.cache.prefix_index import PrefixIndex
from aleator.core.arrays import Int32s, UInt64s


class Pool(Uncopyable, ABC):
    """What a kind of layers remembers of up to ``n_seq_max`` sequences.

    Ranges of positions are [p0, p1) with 0 <= p0 and p1 at most :data:`END`.

    Attributes:
        journal: what changes are recorded in.
        n_seq_max: sequence ids lie in [0, n_seq_max); those beyond hold cached prefixes.
        architecture: the model's, as state files name it.
        texts: the cached prefixes; None: there are none.
    """

    journal: Journal
    n_seq_max: int
    architecture: str
    texts: PrefixIndex | None

    # Verbs

    @abstractmethod
    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Remove positions of a sequence (-1: of every one); CannotRewind if the rest cannot go on."""

    @abstractmethod
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let ``dst`` hold what ``src``, another sequence, holds in a range too."""

    @abstractmethod
    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence."""

    @abstractmethod
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to positions; CannotShift if that is not possible."""

    @abstractmethod
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide positions, rounding down; CannotShift if that is not possible."""

    @abstractmethod
    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that is held; -1 if the sequence is empty."""

    @abstractmethod
    def seq_pos_max(self, seq: int) -> int:
        """The highest position; -1 if the sequence is empty."""

    @abstractmethod
    def unshare(self, seq: int, p0: int, p1: int) -> None:
        """Let a sequence share nothing of a range with others; CacheFull or CannotShift if it must."""

    @abstractmethod
    def clear(self, data: bool) -> None:
        """Remove every sequence; with ``data`` zero what is stored, once the outermost step is over."""

    # What rewinds and shifts are possible

    @abstractmethod
    def oldest_rewind(self, seq: int) -> int:
        """The lowest position, but 0, from which ``seq_rm(seq, position, END)`` works."""

    @property
    @abstractmethod
    def rewindable(self) -> int:
        """Tokens of one micro-batch by which a sequence can be rewound at least."""

    @abstractmethod
    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are possible."""

    @abstractmethod
    def stands_for(self, seq: int, n: int) -> bool:
        """Whether a sequence stands for just the positions below ``n``."""

    @abstractmethod
    def checkpoint(self, seq: int) -> Any:
        """What must be copied of a sequence that is not empty to rewind it later."""

    @abstractmethod
    def restore(self, seq: int, mark: Any) -> None:
        """Rewind a sequence to what :meth:`checkpoint` copied."""

    # Plan and step

    @property
    @abstractmethod
    def version(self) -> int:
        """Changes with every change."""

    @abstractmethod
    def plan(self, batch: Tokens, cuts: Cuts) -> Any:
        """Check a batch, cut it and choose where its tokens go, without changing anything.

        The plan has as many tokens as its length says, the ``version`` of the pool, after whose next change it
        is void, and ``rows``: int64, for each wanted token in batch order its row in the concatenated parts;
        None: as they come.
        """

    @abstractmethod
    def prepare(self, plan: Any) -> None:
        """Make ready for a plan's batches; CacheError if it is void, CacheFull without room."""

    @abstractmethod
    def carried_out(self, plan: Any) -> Iterator[Any]:
        """The micro-batches of a plan that was prepared, each placed when it is asked for.

        Each has ``positions``, int32 [T]; ``tokens``, which tokens of the batch these are (a slice, or int64
        [T]); and ``wanted``, int64, which of them want logits, counted from the start of the micro-batch.
        """

    @abstractmethod
    def place(self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True) -> Any:
        """Place T tokens without a plan.

        Args:
            positions: int32 [T].
            seqs: int32 [T], each one's first sequence.
            owners: uint64 [T, words], all its sequences as bits.
            causal: a token sees its sequence's positions up to its own, else all of them.
        """

    # Cached prefixes

    @abstractmethod
    def hold(self, seq: int, text: int, length: int) -> None:
        """Let sequence ``text`` hold a sequence's first ``length`` tokens."""

    @abstractmethod
    def give_up(self, text: int, length: int) -> None:
        """Let sequence ``text`` hold no more than its first ``length`` tokens."""

    @abstractmethod
    def holds(self, seq: int, length: int) -> bool:
        """Whether a sequence's first ``length`` tokens can be held; ParameterError if it has not so many."""

    @abstractmethod
    def serves(self, text: int, length: int) -> int:
        """The most of the first ``length`` tokens that ``text`` holds that can be gone on from."""

    @abstractmethod
    def adopt(self, text: int, seq: int, length: int) -> None:
        """Let an empty sequence hold the first ``length`` tokens of ``text``."""

    # Rows, bytes and state

    @property
    def leaves(self) -> list[Pool]:
        """The pools that this one is made of, in the order of their states in files."""
        return [self]

    @abstractmethod
    def addresses(self) -> list[int]:
        """Where what layers store begins in memory."""

    @property
    @abstractmethod
    def sides(self) -> list[tuple[Device, int, int]]:
        """Each layer's device, and the bytes there for keys or convolutions, and for values or states."""

    @property
    def layer_bytes(self) -> list[tuple[Device, int]]:
        """Each layer's device, and the bytes allocated for it there."""
        return [(device, k + v) for device, k, v in self.sides]

    @property
    def bytes_k(self) -> int:
        """Bytes allocated for keys, or for the convolutions' values."""
        return sum(k for _, k, _ in self.sides)

    @property
    def bytes_v(self) -> int:
        """Bytes allocated for values, or for states."""
        return sum(v for _, _, v in self.sides)

    @abstractmethod
    def check(self) -> None:
        """Raise an error if the bookkeeping contradicts itself."""

    @abstractmethod
    def join(self, journal: Journal) -> None:
        """Record changes in the journal of the whole that this becomes a part of."""

    def require_complete(self) -> None:
        """Raise Corrupt, of a state that was read, unless next tokens see what they should: one pool's do."""

    def apply_shifts(self) -> None:
        """Do what must be done about shifts before decoding: nothing, unless there are cells."""

    def defrag_if_asked(self) -> None:
        """Fill the holes if that was asked for: nothing, unless there are cells."""
