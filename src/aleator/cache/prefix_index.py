"""Prefix reuse: texts whose keys and values are already in the cache, found by their tokens.

A computed text is *kept* by a sequence of its own, beyond those that users number, so its cells stay when the
sequence that computed them goes.  A text is cut into blocks.  A block's digest covers all tokens up to its end,
so equal digests mean equal prefixes; the tokens are compared as well.  A cell holds a single token: a text that
ends or differs within a block is shared up to that token, without copying.

When cells run out, cached prefixes are shortened block by block from their ends, the one whose last block was
unused for longest first.  Pinned blocks stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Protocol
from weakref import WeakMethod, ref

from aleator.cache.journal import Journal, atomic
from aleator.core.arrays import Int32s
from aleator.core.digests import new_digest
from aleator.core.errors import ParameterError
from aleator.core.integers import integer_in, token_ids
from aleator.core.records import dataclass


@dataclass(frozen=True)
class PrefixConfig:
    """The configuration of cached prefixes.

    Args:
        block: tokens per block, 1 to 4,096: the unit in which cached prefixes are found and shortened.
        texts: maximum number of cached prefixes, 1 to 1,024.
        spacing: tokens between the states that recurrent layers keep, a multiple of ``block``; it doubles as
            the text gets longer.
        bytes: maximum memory for these states, or for more cells of window layers; 0 to 2^40.
    """

    block: int = 16
    texts: int = 63
    spacing: int = 64
    bytes: int = 2**27

    def __post_init__(self) -> None:
        """Check the ranges."""
        integer_in("block", self.block, 1, 4096)
        integer_in("texts", self.texts, 1, 1024)
        integer_in("spacing", self.spacing, 1, 2**20)
        integer_in("bytes", self.bytes, 0, 2**40)


def kept_texts(prefix: PrefixConfig | None) -> int:
    """The number of cached prefixes; ParameterError unless ``prefix`` is a PrefixConfig or None."""
    if not (prefix is None or isinstance(prefix, PrefixConfig)):
        raise ParameterError(f"prefix must be a PrefixConfig or None, not {prefix!r}")
    return 0 if prefix is None else prefix.texts


REMEMBERED_EVICTIONS = 4096
"""Minimum number of evicted blocks whose digests are remembered, to say why a text was not found."""


class Owners(Protocol):
    """The holder of prefixes; see :class:`aleator.cache.pools.pool.Pool`."""

    def hold(self, seq: int, text: int, length: int) -> None:
        """Let sequence ``text`` hold a sequence's first ``length`` tokens."""

    def shorten(self, text: int, length: int) -> None:
        """Let sequence ``text`` hold no more than its first ``length`` tokens."""


@dataclass(eq=False)
class Text:
    """A cached prefix: the sequence that owns its cells, its tokens, and when its blocks were used."""

    seq: int
    namespace: str
    tokens: Int32s
    digests: list[bytes]  # of its full blocks
    used: list[int]  # of every block; the last may be shorter
    pins: tuple[int, ...] = ()  # leading tokens that must stay


@dataclass(frozen=True)
class Match:
    """The longest cached prefix of some tokens.

    Attributes:
        length: tokens that need not be computed; at least one token must be, for its logits.
        blocks: number of whole blocks found.
        why_not: why it is not longer, in words; empty if all but the last token were found.
        namespace: the namespace of the search.
    """

    length: int
    blocks: int
    why_not: tuple[str, ...]
    namespace: str = ""
    text: Text | None = field(default=None, repr=False, compare=False)


class PrefixIndex:
    """Finds cached prefixes by their tokens.

    ``owners`` and the method ``usable_length`` are held weakly, since their pools hold the index.
    ``config.texts`` sequences from number ``first`` on cache prefixes.  ``usable_length(seq, n)`` is the
    longest prefix, of at most ``n`` tokens, from which the text that ``seq`` keeps can be continued; None: any.
    """

    def __init__(
        self,
        config: PrefixConfig,
        journal: Journal,
        owners: Owners,
        first: int,
        usable_length: Callable[[int, int], int] | None = None,
    ) -> None:
        self.config, self.journal = config, journal
        self._owners = ref(owners)
        self._usable_length = None if usable_length is None else WeakMethod(usable_length)
        self.slots = range(first, first + config.texts)  # the numbers of the texts' sequences
        # Values are replaced, not changed, so that the journal can put the old ones back.
        self._texts: dict[int, Text] = {}
        self._by_digest: dict[bytes, tuple[Text, ...]] = {}
        self._evicted: dict[bytes, int] = {}  # digest -> time
        self._clock = 0

    def __len__(self) -> int:
        """The number of cached prefixes."""
        return len(self._texts)

    def __iter__(self) -> Iterator[Text]:
        return iter(self._texts.values())

    # What pools ask

    @property
    def _holder(self) -> Owners:
        owners = self._owners()
        if owners is None:
            raise ReferenceError("the cache of these prefixes is gone")
        return owners

    def numbers(self) -> list[int]:
        """The numbers of the sequences that hold prefixes."""
        return list(self._texts)

    def used_at(self, seq: int, position: int) -> int:
        """The time at which the block with this position of a prefix was last used."""
        used = self._texts[seq].used
        return used[min(position // self.config.block, len(used) - 1)]

    def pinned(self, seq: int) -> int:
        """The number of leading tokens of a prefix that must stay."""
        return max(self._texts[seq].pins, default=0)

    @atomic
    def match(self, tokens: Sequence[int] | Int32s, namespace: str = "") -> Match:
        """Find the longest cached prefix of ``tokens``; only its time of last use changes."""
        wanted = checked_text(tokens, namespace)
        limit = len(wanted) - 1
        if limit <= 0:
            return Match(0, 0, ("the only token is always computed",), namespace)
        block = self.config.block
        known = self._texts or self._evicted
        digests = list(_digests(wanted, block, namespace)) if known else []
        depth = 0
        while depth < len(digests) and digests[depth] in self._by_digest:
            depth += 1
        usable_length = None if self._usable_length is None else self._usable_length()
        candidates = (
            list(self._by_digest[digests[depth - 1]])
            if depth and usable_length is None
            else [t for t in self._texts.values() if t.namespace == namespace]
        )
        best, length, served = None, 0, 0
        for text in candidates:
            common = usable = _common(text.tokens, wanted)
            if usable_length is not None and common > served:
                usable = usable_length(text.seq, min(common, limit))
            if (usable, common) > (served, length):
                best, length, served = text, common, usable
        if best is None:
            return Match(0, 0, (self._why_nothing(digests, namespace),), namespace)
        why = self._why_not_longer(best, length, wanted, digests)
        if served < min(length, limit):
            why = (*why, f"window or recurrent layers can go on after {served} tokens only")
        length = min(served, limit)
        self._touch(best, length)
        return Match(length, length // block, why, namespace, best)

    def holds(self, match: Match) -> bool:
        """Whether the match is still cached."""
        text = match.text
        return (
            text is not None
            and self._texts.get(text.seq) is text
            and len(text.tokens) >= match.length
        )

    @atomic
    def keep(self, seq: int, tokens: Sequence[int] | Int32s, namespace: str = "") -> bool:
        """Keep the text that sequence ``seq`` holds at positions 0, 1, ...; False if all texts are pinned.

        Texts that are its prefixes are given up, as it covers them.
        """
        kept = checked_text(tokens, namespace)
        if len(kept) == 0:
            return False
        digests = list(_digests(kept, self.config.block, namespace))
        covered = []
        for text in self._texts.values():
            if text.namespace == namespace:
                common = _common(text.tokens, kept)
                if common == len(kept):
                    self._touch(text, common)
                    return True
                if common == len(text.tokens) and not text.pins:
                    covered.append(text)
        for text in covered:
            self._forget(text, 0)
        if len(self._texts) == self.config.texts:
            oldest = min(
                (t for t in self._texts.values() if not t.pins),
                key=lambda t: max(t.used),
                default=None,
            )
            if oldest is None:
                return False
            self._forget(oldest, 0)
        clock = self._tick()
        number = next(n for n in self.slots if n not in self._texts)
        blocks = -(-len(kept) // self.config.block)
        text = Text(number, namespace, kept, digests, [clock] * blocks)
        self._holder.hold(seq, number, len(kept))
        self.journal.set(self, "_texts", {**self._texts, number: text})
        for digest in digests:
            self.journal.put(self._by_digest, digest, (*self._by_digest.get(digest, ()), text))
            self.journal.drop(self._evicted, digest)
        return True

    @atomic
    def pin(self, match: Match) -> None:
        """Protect a match from eviction until :meth:`unpin`."""
        if match.text is None or not self.holds(match):
            raise ParameterError("match", "the match holds nothing any more: match again")
        self.journal.set(match.text, "pins", (*match.text.pins, match.length))

    @atomic
    def unpin(self, match: Match) -> None:
        """Undo one :meth:`pin` of the same length."""
        if match.text is None or match.length not in match.text.pins:
            raise ParameterError("match", f"no pin of {match.length} tokens is held on the text")
        at = match.text.pins.index(match.length)
        self.journal.set(match.text, "pins", match.text.pins[:at] + match.text.pins[at + 1 :])

    @atomic
    def evict_block(self) -> bool:
        """Give up the last block that was unused for longest of all texts' last blocks; False if none."""
        block = self.config.block
        oldest = min(
            (t for t in self if max(t.pins, default=0) <= (len(t.used) - 1) * block),
            # The number breaks ties, so that a plan's trial and the step choose the same text.
            key=lambda t: (t.used[-1], t.seq),
            default=None,
        )
        if oldest is None:
            return False
        self._forget(oldest, (len(oldest.used) - 1) * block)
        return True

    @atomic
    def shorten(self, seq: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of the text that sequence ``seq`` keeps."""
        text = self._texts.get(seq)
        if text is not None and length < len(text.tokens):
            self._forget(text, length)

    @atomic
    def forget_namespace(self, namespace: str) -> int:
        """Forget every text of a namespace that is not pinned; return how many there were."""
        texts = [t for t in self._texts.values() if t.namespace == namespace and not t.pins]
        for text in texts:
            self._forget(text, 0)
        return len(texts)

    @atomic
    def clear(self) -> None:
        """Forget every text, including pinned ones."""
        for text in list(self._texts.values()):
            self.journal.set(text, "pins", ())
            self._forget(text, 0)

    def _forget(self, text: Text, length: int) -> None:
        """Shorten a text to ``length`` tokens; remove it if that is 0."""
        journal, block = self.journal, self.config.block
        for digest in text.digests[length // block :]:
            holders = tuple(t for t in self._by_digest[digest] if t is not text)
            if holders:
                journal.put(self._by_digest, digest, holders)
            else:
                journal.drop(self._by_digest, digest)
                self._remember(digest)
        self._holder.shorten(text.seq, length)
        journal.set(text, "tokens", text.tokens[:length])
        journal.set(text, "digests", text.digests[: length // block])
        journal.set(text, "used", text.used[: -(-length // block)])
        if length == 0:
            left = {number: t for number, t in self._texts.items() if t is not text}
            journal.set(self, "_texts", left)

    def _remember(self, digest: bytes) -> None:
        """Record that a block was evicted; only the latest are remembered."""
        self.journal.put(self._evicted, digest, self._tick())
        if len(self._evicted) > 2 * REMEMBERED_EVICTIONS:
            latest = sorted(self._evicted.items(), key=lambda each: each[1])
            self.journal.set(self, "_evicted", dict(latest[-REMEMBERED_EVICTIONS:]))

    def _tick(self) -> int:
        """The next time stamp."""
        self.journal.set(self, "_clock", self._clock + 1)
        return self._clock

    def _touch(self, text: Text, length: int) -> None:
        """Record the use of a text's first ``length`` tokens, in every text that has them."""
        clock = self._tick()
        blocks = -(-length // self.config.block)
        used = {text: [clock] * blocks + text.used[blocks:]}
        for i, digest in enumerate(text.digests[:blocks]):
            for other in self._by_digest[digest]:
                used.setdefault(other, list(other.used))[i] = clock
        for each, moments in used.items():
            self.journal.set(each, "used", moments)

    def _why_nothing(self, digests: list[bytes], namespace: str) -> str:
        if digests and digests[0] in self._evicted:
            return "it was evicted to make room"
        if not any(t.namespace == namespace for t in self._texts.values()):
            return f"no text is kept in namespace {namespace!r}"
        return "no cached prefix begins with its first token"

    def _why_not_longer(
        self, text: Text, length: int, wanted: Int32s, digests: list[bytes]
    ) -> tuple[str, ...]:
        if length == len(wanted):
            return ()
        after = length // self.config.block
        if after < len(digests) and digests[after] in self._evicted:
            return (f"what followed the first {length} tokens was evicted to make room",)
        if length == len(text.tokens):
            ends = (f"the cached prefix ends after {length} tokens",)
            return ends if length < len(wanted) - 1 else ()
        return (
            f"token {length} is {wanted[length]} and in the cached prefix {text.tokens[length]}",
        )


def checked_text(tokens: Sequence[int] | Int32s, namespace: object) -> Int32s:
    """Return a text's tokens, int32 [n]; ParameterError unless they are ids and the namespace is a str."""
    if not isinstance(namespace, str):
        raise ParameterError(f"namespace must be a str, not {namespace!r}")
    return token_ids(tokens)


def _digests(tokens: Int32s, block: int, namespace: str) -> Iterator[bytes]:
    """For each full block, a digest of everything up to its end."""
    if len(tokens) < block:  # a short text needs no OpenSSL
        return
    digest = new_digest(16, namespace.encode()).digest()
    for end in range(block, len(tokens) + 1, block):
        piece = tokens[end - block : end].tobytes()
        digest = new_digest(16, digest + piece).digest()
        yield digest


def _common(a: Int32s, b: Int32s) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    return int(different.argmax()) if different.any() else n
