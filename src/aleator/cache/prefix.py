"""Prefix reuse: texts whose keys and values lie in the cache already, found by their tokens.

A text that was computed is *kept* by a sequence of its own, beyond those that users number, so its
cells stay when the sequence that computed them goes.  A text is cut into blocks; a block's digest
covers all tokens up to its end, so equal digests mean equal beginnings, and the tokens are compared
as well.  Cells are single tokens here: a text that ends or parts within a block is shared up to that
very token, without copying anything.

When cells run out, kept texts are shortened block by block from their ends, the one whose last
block was not used for the longest time first; what is pinned stays.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError
from aleator.core.integers import integer_in, token_ids

Tokens = npt.NDArray[np.int32]

REMEMBERED_EVICTIONS = 4096
"""Digests of evicted blocks that are remembered, to say why a text was not found."""


class Owners(Protocol):
    """What the index needs of the cells: sequences that share and leave them."""

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let ``dst`` own the cells of ``src`` too."""

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Let ``seq`` leave its cells."""


@dataclass(frozen=True)
class PrefixConfig:
    """How texts are kept.

    Args:
        block: tokens of a block, 1 to 4,096: the unit in which kept texts are found and shortened.
        texts: how many texts are kept at most, 1 to 1,024.
        spacing: recurrent layers keep a state after every so many tokens, a multiple of ``block``; twice as
            many, four times and so on of a longer text.
        bytes: memory for these states, or for more cells of window layers, at most; 0 to 2^40.

    """

    block: int = 16
    texts: int = 63
    spacing: int = 64
    bytes: int = 2**27

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, value, low, high in (
            ("block", self.block, 1, 4096),
            ("texts", self.texts, 1, 1024),
            ("spacing", self.spacing, 1, 2**20),
            ("bytes", self.bytes, 0, 2**40),
        ):
            integer_in(name, value, low, high)


@dataclass(eq=False)
class Text:
    """A kept text: the sequence that owns its cells, its tokens, and when its blocks were used."""

    seq: int
    namespace: str
    tokens: Tokens
    digests: list[bytes]  # of its full blocks
    used: list[int]  # of every block, the last of which may be shorter
    pins: list[int] = field(default_factory=list)  # leading tokens that must stay


@dataclass(frozen=True)
class Match:
    """The longest beginning of some tokens that is kept.

    Attributes:
        length: tokens that need not be computed; at most one less than asked for, since logits come
            from computing at least one.
        blocks: how many of them are whole blocks.
        why_not: why it is not longer, in words; empty if all but the last token were found.
        namespace: where it was looked for.

    """

    length: int
    blocks: int
    why_not: tuple[str, ...]
    namespace: str = ""
    text: Text | None = field(default=None, repr=False, compare=False)


class PrefixIndex:
    """Finds kept texts by their beginnings.

    Args:
        config: block size and number of texts.
        owners: the cells.
        first: number of the first of ``config.texts`` sequences that keep texts.
        serves: ``serves(seq, n)`` is how many of the first ``n`` tokens of the text that ``seq`` keeps can be
            gone on from; None: all.

    """

    def __init__(
        self,
        config: PrefixConfig,
        owners: Owners,
        first: int,
        serves: Callable[[int, int], int] | None = None,
    ) -> None:
        self.config = config
        self._owners, self._serves = owners, serves
        self._free = list(range(first + config.texts - 1, first - 1, -1))
        self._texts: dict[int, Text] = {}
        self._by_digest: dict[bytes, dict[int, Text]] = {}
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self._clock = 0
        self._log: list[tuple[Text, Tokens, list[bytes], list[int]]] | None = None

    def __len__(self) -> int:
        """How many texts are kept."""
        return len(self._texts)

    def __iter__(self) -> Iterator[Text]:
        return iter(self._texts.values())

    def match(self, tokens: Sequence[int] | Tokens, namespace: str = "") -> Match:
        """Find the longest kept beginning of ``tokens``; nothing is computed or changed but its age.

        Args:
            tokens: token ids, those to be computed included.
            namespace: texts of another namespace are never found.

        """
        wanted = checked_text(tokens, namespace)
        limit = len(wanted) - 1
        if limit <= 0:
            return Match(0, 0, ("the only token is always computed",), namespace)
        block = self.config.block
        digests = list(_digests(wanted, block, namespace))
        depth = 0
        while depth < len(digests) and digests[depth] in self._by_digest:
            depth += 1
        candidates = (
            list(self._by_digest[digests[depth - 1]].values())
            if depth and self._serves is None
            else [t for t in self._texts.values() if t.namespace == namespace]
        )
        best, length, served = None, 0, 0
        for text in candidates:
            common = usable = _common(text.tokens, wanted)
            if self._serves is not None and common > served:
                usable = self._serves(text.seq, min(common, limit))
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
        """Whether what a match found is still there."""
        text = match.text
        return (
            text is not None
            and self._texts.get(text.seq) is text
            and len(text.tokens) >= match.length
        )

    def keep(self, seq: int, tokens: Sequence[int] | Tokens, namespace: str = "") -> bool:
        """Keep the text that sequence ``seq`` holds at positions 0, 1, ...

        Texts that are its beginning are given up: it covers them.

        Returns:
            Whether it is kept: not if all texts are pinned.

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
        if not self._free:
            oldest = min(
                (t for t in self._texts.values() if not t.pins),
                key=lambda t: max(t.used),
                default=None,
            )
            if oldest is None:
                return False
            self._forget(oldest, 0)
        self._clock += 1
        blocks = -(-len(kept) // self.config.block)
        text = Text(self._free.pop(), namespace, kept, digests, [self._clock] * blocks)
        self._owners.seq_cp(seq, text.seq, 0, len(kept))
        self._texts[text.seq] = text
        for digest in digests:
            self._by_digest.setdefault(digest, {})[text.seq] = text
            self._evicted.pop(digest, None)
        return True

    def pin(self, match: Match) -> None:
        """Keep what was found from being evicted until :meth:`unpin`."""
        if match.text is None or not self.holds(match):
            raise ParameterError("match", "the match holds nothing any more: match again")
        match.text.pins.append(match.length)

    def unpin(self, match: Match) -> None:
        """Take one :meth:`pin` of the same length back."""
        if match.text is None or match.length not in match.text.pins:
            raise ParameterError("match", f"no pin of {match.length} tokens is held on the text")
        match.text.pins.remove(match.length)

    def evict_block(self) -> bool:
        """Give up the last block of the text whose last block was unused for longest.

        Returns:
            False if there is nothing left to give up.

        """
        block = self.config.block
        oldest = min(
            (t for t in self if max(t.pins, default=0) <= (len(t.used) - 1) * block),
            # The number decides between equals: a plan's trial and the step must choose alike.
            key=lambda t: (t.used[-1], t.seq),
            default=None,
        )
        if oldest is None:
            return False
        self._forget(oldest, (len(oldest.used) - 1) * block)
        return True

    def shorten(self, seq: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of the text that sequence ``seq`` keeps."""
        text = self._texts.get(seq)
        if text is not None and length < len(text.tokens):
            self._forget(text, length)

    def clear(self) -> None:
        """Forget every text, pinned ones too."""
        for text in list(self._texts.values()):
            text.pins.clear()
            self._forget(text, 0)

    # A step that fails takes back what was evicted for it; the cells have a journal of their own.

    def begin(self) -> None:
        """From here on evictions can be taken back with :meth:`rollback`."""
        self._log = []

    def commit(self) -> None:
        """Make the evictions since :meth:`begin` final."""
        self._log = None

    def rollback(self) -> None:
        """Take the evictions since :meth:`begin` back; the cells' own journal restores the cells."""
        log, self._log = self._log or [], None
        for text, tokens, digests, used in reversed(log):
            text.tokens, text.digests, text.used = tokens, digests, used
            if text.seq not in self._texts:
                self._free.remove(text.seq)
                self._texts[text.seq] = text
            for digest in digests:
                self._by_digest.setdefault(digest, {})[text.seq] = text

    def _forget(self, text: Text, length: int) -> None:
        """Shorten a text to ``length`` tokens; without any it is gone."""
        if self._log is not None:
            self._log.append((text, text.tokens, text.digests, text.used))
        block = self.config.block
        for digest in text.digests[length // block :]:
            holders = self._by_digest[digest]
            del holders[text.seq]
            if not holders:
                del self._by_digest[digest]
                self._evicted[digest] = None
        while len(self._evicted) > REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)
        self._owners.seq_rm(text.seq, length, -1)
        text.tokens = text.tokens[:length]
        text.digests = text.digests[: length // block]
        text.used = text.used[: -(-length // block)]
        if length == 0:
            del self._texts[text.seq]
            self._free.append(text.seq)

    def _touch(self, text: Text, length: int) -> None:
        """Note the use of a text's beginning, in every text that has it too."""
        self._clock += 1
        block = self.config.block
        blocks = -(-length // block)
        text.used[:blocks] = [self._clock] * blocks
        for i, digest in enumerate(text.digests[:blocks]):
            for other in self._by_digest[digest].values():
                other.used[i] = self._clock

    def _why_nothing(self, digests: list[bytes], namespace: str) -> str:
        if digests and digests[0] in self._evicted:
            return "it was evicted to make room"
        if not any(t.namespace == namespace for t in self._texts.values()):
            return f"no text is kept in namespace {namespace!r}"
        return "no kept text begins with its first token"

    def _why_not_longer(
        self, text: Text, length: int, wanted: Tokens, digests: list[bytes]
    ) -> tuple[str, ...]:
        if length == len(wanted):
            return ()
        after = length // self.config.block
        if after < len(digests) and digests[after] in self._evicted:
            return (f"what followed the first {length} tokens was evicted to make room",)
        if length == len(text.tokens):
            return (
                (f"the kept text ends after {length} tokens",) if length < len(wanted) - 1 else ()
            )
        return (f"token {length} is {wanted[length]} and in the kept text {text.tokens[length]}",)


def require_config(prefix: object) -> None:
    """Raise ParameterError unless ``prefix`` is a PrefixConfig, or None."""
    if not (prefix is None or isinstance(prefix, PrefixConfig)):
        raise ParameterError("prefix", f"prefix must be a PrefixConfig or None, not {prefix!r}")


def checked_text(tokens: Sequence[int] | Tokens, namespace: object) -> Tokens:
    """Return a text's tokens, int32 [n]; ParameterError unless they are ids, and the namespace a str."""
    if not isinstance(namespace, str):
        raise ParameterError("namespace", f"namespace must be a str, not {namespace!r}")
    return token_ids(tokens)


def _digests(tokens: Tokens, block: int, namespace: str) -> Iterator[bytes]:
    """Per full block a digest of everything up to its end."""
    digest = hashlib.blake2b(namespace.encode(), digest_size=16).digest()
    for end in range(block, len(tokens) + 1, block):
        piece = tokens[end - block : end].tobytes()
        digest = hashlib.blake2b(digest + piece, digest_size=16).digest()
        yield digest


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    first = int(different.argmax()) if n else 0
    return first if n and different[first] else n
