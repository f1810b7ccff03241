"""The protocol of pools.

A pool holds what one kind of layers stores of sequences.  Its callers check the arguments; a pool refuses only
what its contents do not allow.  All changes are made within a frame of its journal, so a pool never undoes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from aleator.cache.batches import Cuts, Tokens
from aleator.cache.devices import Device
from aleator.cache.journal import Journal
from aleator.cache.options import HoldsCells
from aleator.cache.prefix_index import PrefixIndex
from aleator.core.arrays import Int32s, UInt64s


class Pool(HoldsCells, ABC):
    """What one kind of layers stores of up to ``n_seq_max`` sequences.

    Ranges of positions are [p0, p1) with 0 <= p0 and p1 at most :data:`END`.

    Attributes:
        journal: the journal that records changes.
        n_seq_max: sequence ids lie in [0, n_seq_max); higher ones hold cached prefixes.
        architecture: the model's, as state files name it.
        texts: the cached prefixes; None if they are not cached.
    """

    journal: Journal
    n_seq_max: int
    architecture: str
    texts: PrefixIndex | None

    # Verbs

    @abstractmethod
    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Remove positions of a sequence (-1: of every one); CannotRewind if the rest cannot be continued."""

    @abstractmethod
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let ``dst`` also hold what ``src``, another sequence, holds in a range."""

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
        """The lowest position held; -1 if the sequence is empty."""

    @abstractmethod
    def seq_pos_max(self, seq: int) -> int:
        """The highest position; -1 if the sequence is empty."""

    @abstractmethod
    def unshare(self, seq: int, p0: int, p1: int) -> None:
        """Stop sharing a range with other sequences; CacheFull or CannotShift if that is not possible."""

    @abstractmethod
    def clear(self, data: bool) -> None:
        """Remove every sequence; with ``data`` also zero the memory when the outermost step ends."""

    # What rewinds and shifts are possible

    @abstractmethod
    def oldest_rewind(self, seq: int) -> int:
        """The lowest position above 0 from which ``seq_rm(seq, position, END)`` works."""

    @property
    @abstractmethod
    def rewindable(self) -> int:
        """The number of last tokens of one micro-batch that can always be removed from a sequence."""

    @abstractmethod
    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are possible."""

    @abstractmethod
    def has_exactly(self, seq: int, n: int) -> bool:
        """Whether a sequence has exactly the positions 0 to ``n`` - 1."""

    @abstractmethod
    def checkpoint(self, seq: int) -> Any:
        """Copy what is needed to rewind a non-empty sequence later."""

    @abstractmethod
    def restore(self, seq: int, mark: Any) -> None:
        """Rewind a sequence to what :meth:`checkpoint` copied."""

    # Plan and step

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that differs after every change."""

    @abstractmethod
    def plan(self, batch: Tokens, cuts: Cuts) -> Any:
        """Check a batch, cut it and choose where its tokens go, without changing anything.

        The plan's length is its number of tokens.  It has the ``version`` of the pool, whose next change makes
        it void, and ``rows``: int64, for each output in batch order its row in the concatenated parts;
        None: same order.
        """

    @abstractmethod
    def prepare(self, plan: Any) -> None:
        """Prepare for a plan's micro-batches; CacheError if it is void, CacheFull without room."""

    @abstractmethod
    def micro_batches(self, plan: Any) -> Iterator[Any]:
        """The micro-batches of a prepared plan, each placed when it is yielded.

        Each has ``positions``, int32 [T]; ``tokens``, its indices in the batch (a slice, or int64 [T]); and
        ``outputs``, int64, the indices within the micro-batch of tokens whose logits are computed.
        """

    @abstractmethod
    def place(self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True) -> Any:
        """Place T tokens without a plan.

        Args:
            positions: int32 [T].
            seqs: int32 [T], each one's first sequence.
            owners: uint64 [T, words], all its sequences as bits.
            causal: whether a token sees its sequence's positions only up to its own.
        """

    # Cached prefixes

    @abstractmethod
    def hold(self, seq: int, text: int, length: int) -> None:
        """Let sequence ``text`` hold a sequence's first ``length`` tokens."""

    @abstractmethod
    def shorten(self, text: int, length: int) -> None:
        """Let sequence ``text`` hold no more than its first ``length`` tokens."""

    @abstractmethod
    def holds(self, seq: int, length: int) -> bool:
        """Whether a sequence's first ``length`` tokens can be held; ParameterError if it has fewer."""

    @abstractmethod
    def usable_length(self, text: int, length: int) -> int:
        """The longest prefix of ``text``, of at most ``length`` tokens, that a sequence can continue from."""

    @abstractmethod
    def reuse_prefix(self, text: int, seq: int, length: int) -> None:
        """Let an empty sequence hold the first ``length`` tokens of ``text``."""

    # Rows, bytes and state

    @property
    def leaves(self) -> list[Pool]:
        """The pools that this one is made of, in the order of their states in files."""
        return [self]

    @abstractmethod
    def addresses(self) -> list[int]:
        """Memory addresses of what layers store."""

    @property
    @abstractmethod
    def sides(self) -> list[tuple[Device, int, int]]:
        """Each layer's device, its bytes for keys or convolutions, and its bytes for values or states."""

    @property
    def layer_bytes(self) -> list[tuple[Device, int]]:
        """Each layer's device, and the bytes allocated there."""
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
        """Record changes in the journal of the whole pool that this becomes a part of."""

    def require_complete(self) -> None:
        """Raise Corrupt unless next tokens see all they must in a state just read; one pool is complete."""

    def apply_shifts(self) -> None:
        """Apply pending shifts before decoding; without cells there are none."""

    def defrag_if_asked(self) -> None:
        """Defragment if that was requested; without cells there is nothing to do."""
