"""Cached prefixes with tiers below them: what a pool keeps of prompts is copied down, and found there again.

A text is cut into blocks of ``BLOCK`` tokens.  A block's entry has the cells of its tokens; its key is a
keyed digest of the model and all that its bits depend on, the namespace, and every token up to its end.  What
cannot be cut (windows, recurrent states) is kept as it was after a text's last token, in an entry with the
cells of the unfinished block before it.

Cells are copied in the thread that makes steps, since nobody else may look at them; the index is looked at,
and files are read and written, in threads of their own, and what these cannot keep up with is dropped.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from hashlib import blake2b

from aleator.cache.block_store import Entry, Sections
from aleator.cache.cache import Cache
from aleator.cache.formats import pieces
from aleator.cache.formats.state_file import Buffer
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix_index import Match, checked_text
from aleator.core.arrays import Int32s
from aleator.generate.completion import OWN
from aleator.generate.context import Context, Prefixes
from aleator.generate.prefix_load import BLOCK, LEAST, MAX_WAIT, Candidate, LookUp, PrefixLoad, Wake
from aleator.generate.prompt_tiers import PromptTiers, nothing
from aleator.models.fingerprint import ModelIdentity

log = logging.getLogger(__name__)


class TieredPrefixes:
    """The cached prefixes of a context, with tiers below them.

    Whatever goes wrong in a tier is a miss: texts are what they would be without it.
    """

    def __init__(
        self,
        inner: Prefixes,  # the prefixes of the pool
        context: Context,  # whose sequences are restored and copied
        tiers: PromptTiers,  # where to
        model: ModelIdentity,  # which weights
        loading: Mapping[str, object],  # options that can change a bit of what is kept
    ) -> None:
        self._inner, self._context, self._tiers = inner, context, tiers
        self._cache: Cache = context.cache
        self._pool = pool = self._cache.pool
        self._cells, self._uncut = pieces.cells_of(pool), pieces.has_states(pool)
        self._name = model.name or os.path.basename(model.path)
        self._identity = json.dumps(
            [
                model.fingerprint,
                model.arithmetic,
                pieces.FORMAT,
                "",  # adapters are part of namespaces
                dict(loading),
                *_kind(context),
            ],
            sort_keys=True,
        )
        self._off = why_not(pool)
        if self._off:
            _say(self._off)

    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """See :meth:`Prefixes.match`: what the pool has."""
        return self._inner.match(tokens, namespace)

    def reuse(
        self,
        seq: int,
        tokens: Sequence[int],
        namespace: str = "",
        look_up: LookUp | None = None,
    ) -> int:
        """Give an empty sequence the longest cached beginning of ``tokens``; returns its length."""
        held, load = self.begin(seq, tokens, namespace, look_up=look_up)
        if load is None:
            return held
        load.go_on()
        return load.length

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the beginning that a sequence holds; returns whether the pool keeps it."""
        kept = self._inner.keep(seq, tokens, namespace)
        if self._off or namespace.startswith(OWN):
            return kept
        try:
            self._put_down(seq, checked_text(tokens, namespace), namespace)
        except Exception as error:  # a step goes on without the tiers
            self._tiers.failed(error)
        return kept

    def forget(self, namespace: str) -> None:
        """Forget what the tiers have of a namespace; waits for the disk, so not in the thread of the steps."""
        self._tiers.forget(self._root(namespace))

    # Keys

    def _digests(self, tokens: Int32s, namespace: str) -> list[bytes]:
        """The digest of nothing, and those after each whole block, which are the blocks' keys."""
        made = [self._root(namespace)]
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            made.append(self._digest(made[-1] + tokens[at : at + BLOCK].astype("<i4").tobytes()))
        return made

    def _root(self, namespace: str) -> bytes:
        return self._digest(self._identity.encode() + b"\0" + namespace.encode())

    def _end_key(self, digest: bytes, rest: Int32s) -> bytes:
        """The key of the entry at the end of a text, whose last tokens follow a block."""
        return self._digest(b"end" + digest + rest.astype("<i4").tobytes())

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, key=self._tiers.secret, digest_size=32).digest()

    # Up

    def look_up(self, tokens: Sequence[int], namespace: str = "") -> LookUp | None:
        """Have a thread look for what a tier has of a text; any thread may ask.  None: nothing can be there."""
        if self._off or namespace.startswith(OWN) or len(tokens) <= LEAST:
            return None
        try:
            digests = self._digests(checked_text(tokens, namespace), namespace)
            return LookUp(digests, self._tiers.look_up(digests))
        except Exception as error:  # a request goes on without the tiers
            self._tiers.failed(error)
            return None

    def read(self, tokens: Sequence[int], namespace: str, held: int) -> LookUp | None:
        """Look for, and read, what a tier has of a text beyond ``held`` tokens; not in the steps' thread."""
        looked = self.look_up(tokens, namespace)
        if looked is None:
            return None
        wait([looked.found], MAX_WAIT)
        came = looked.found.done() and not looked.found.cancelled()
        found = looked.found.result() if came else {}
        text = checked_text(tokens, namespace)
        best = next(iter(self._candidates(text, looked.digests, found)), None)
        if best is None or best.length - held < LEAST:
            return None
        first = min(held // BLOCK, len(best.blocks)) if self._cells is not None else 0
        read = {key: self._tiers.ask(found[key], self._name) for key in best.pieces[first:]}
        wait(read.values(), MAX_WAIT)
        come = {key: each if each.done() else nothing() for key, each in read.items()}
        at_hand: Future[Mapping[bytes, Entry]] = Future()
        at_hand.set_result(found)
        return LookUp(looked.digests, at_hand, come)

    def begin(
        self,
        seq: int,
        tokens: Sequence[int],
        namespace: str = "",
        wake: Wake | None = None,
        look_up: LookUp | None = None,
    ) -> tuple[int, PrefixLoad | None]:
        """Give an empty sequence what the pool has of ``tokens``; what a tier has beyond that arrives.

        ``wake``: see :class:`PrefixLoad`; ``look_up``: what :meth:`look_up` or :meth:`read` gave of the tokens.
        """
        held, most = self._inner.reuse(seq, tokens, namespace), len(tokens) - 1
        looked = look_up or (self.look_up(tokens, namespace) if most - held >= LEAST else None)
        if looked is None or most - held < LEAST:
            return held, None
        try:
            text = checked_text(tokens, namespace)

            def keep(length: int) -> None:
                self._inner.keep(seq, text[:length].tolist(), namespace)

            candidates = partial(self._candidates, text, looked.digests)
            load = PrefixLoad(
                self._cache,
                self._tiers,
                self._name,
                seq,
                held,
                most,
                looked,
                candidates,
                keep,
                wake,
            )
        except Exception as error:  # a step goes on without the tiers
            self._tiers.failed(error)
            return held, None
        return held, load

    def computed(self, tokens: int, seconds: float) -> None:
        """Note how long a piece of a prompt took; of a few tokens that says little about many."""
        if tokens >= LEAST:
            self._tiers.computing.observe(tokens, seconds)

    def _candidates(
        self, tokens: Int32s, digests: Sequence[bytes], found: Mapping[bytes, Entry]
    ) -> Iterator[Candidate]:
        """What could be restored, the longest first."""
        limit = len(tokens) - 1
        depth = 0
        while depth + 1 < len(digests):
            block = found.get(digests[depth + 1])
            if block is None or block.length != (depth + 1) * BLOCK:  # an index has no checksums
                break
            depth += 1
        if not self._uncut:
            for n in range(depth, 0, -1):
                yield Candidate(min(n * BLOCK, limit), digests[1 : n + 1], None)
            return
        places = {digest: i for i, digest in enumerate(digests)}
        ends = []
        for entry in found.values():
            at = places[entry.parent]
            whole = at if self._cells is not None else 0
            start = at * BLOCK
            fits = whole <= depth and start <= entry.length <= min(limit, start + BLOCK - 1)
            if fits and entry.key == self._end_key(digests[at], tokens[start : entry.length]):
                ends.append(Candidate(entry.length, digests[1 : whole + 1], entry.key))
        yield from sorted(ends, key=lambda each: each.length, reverse=True)

    # Down

    def _put_down(self, seq: int, tokens: Int32s, namespace: str) -> None:
        digests = self._digests(tokens, namespace)
        if len(digests) == 1 and (not self._uncut or len(tokens) < LEAST):
            return
        found = self._tiers.known(digests)
        entries: list[tuple[Entry, Sections]] = []
        room = self._tiers.room
        if room <= 0:  # nothing is copied in order to be dropped
            return
        if self._cells is not None:
            for at, key in enumerate(digests[1:]):
                if self._has(found, key, digests[at], (at + 1) * BLOCK):
                    continue
                sections = self._tiers.peek(key)
                if sections is None:
                    room -= self._cells.rows.row_bytes * BLOCK
                    if room <= 0:
                        self._tiers.counts.add("dropped", len(digests) - 1 - at)
                        break
                    cells = self._cells_of(seq, at * BLOCK, at * BLOCK + BLOCK)
                    if cells is None:
                        return
                    sections = {"cells": cells}
                entries.append(_entry(key, digests[at], (at + 1) * BLOCK, sections))
        if self._uncut and room > 0:
            entries += self._ends(seq, tokens, namespace, digests, found)
        if entries:
            keys = [*digests[1:], *(e.key for e, _ in entries if e.key not in digests)]
            self._tiers.put(keys, entries, self._name)

    def _has(self, found: Mapping[bytes, Entry], key: bytes, parent: bytes, length: int) -> bool:
        """Whether an entry is there, as it should be, or will be."""
        entry = found.get(key)
        is_there = entry is not None and (entry.parent, entry.length) == (parent, length)
        return is_there or self._tiers.waits(key)

    def _ends(
        self,
        seq: int,
        tokens: Int32s,
        namespace: str,
        digests: Sequence[bytes],
        found: Mapping[bytes, Entry],
    ) -> Iterator[tuple[Entry, Sections]]:
        """Entries of what cannot be cut, where enough is new to be worth their bytes.

        One is after the text's last token, and one at the last place before it that the pool can go on from,
        for this very text: of a prompt at least one token is computed.  That one serves both where it is near.
        """
        whole = len(tokens)
        before = self._cache.match(tokens.tolist(), namespace).length
        for length in (before,) if whole - before < LEAST else (whole, before):
            n, known = length // BLOCK, self._candidates(tokens, digests, found)
            longest = next((each.length for each in known if each.length <= length), 0)
            key = self._end_key(digests[n], tokens[n * BLOCK : length])
            new = not self._has(found, key, digests[n], length)
            if not new or length - longest < max(LEAST, length // 8):
                continue
            sections = self._tiers.peek(key)
            if sections is None:
                sections = self._cache.journal.attempt(
                    self._state_at, seq, tokens, namespace, length
                )
            if sections is not None:
                yield _entry(key, digests[n], length, sections)

    def _state_at(
        self, seq: int, tokens: Int32s, namespace: str, length: int
    ) -> dict[str, Buffer] | None:
        """What cannot be cut after so many tokens of a sequence, and the cells since the last whole block.

        Changes the cache; called by ``journal.attempt``, which takes that back.
        """
        cache = self._cache
        if length < len(tokens):
            cache.seq_rm(seq)
            cache.reuse(seq, [*tokens[:length].tolist(), 0], namespace)
        if not cache.has_exactly(seq, length):
            return None
        sections: dict[str, Buffer] = {"state": pieces.write_state(self._pool, seq)}
        if self._cells is not None:
            cells = pieces.write_cells(self._cells, seq, length // BLOCK * BLOCK, length)
            if cells is None:
                return None
            sections["cells"] = cells
        return sections

    def _cells_of(self, seq: int, p0: int, p1: int) -> Buffer | None:
        cells: Buffer | None = self._cache.journal.run(pieces.write_cells, self._cells, seq, p0, p1)
        return cells


def why_not(pool: Pool) -> str:
    """Why tiers can keep nothing of a pool; "" where they can."""
    cells = pieces.cells_of(pool)
    for leaf in pool.leaves:
        if isinstance(leaf, AttentionPool) and leaf.n_pos_per_embd > 1:
            return "a token has several positions here (M-RoPE)"
        if isinstance(leaf, AttentionPool) and leaf is not cells and leaf.rows.k_storage == "raw":
            return "with k_storage='raw' a state of window layers has rounded keys: leave it out"
    return ""


@cache
def _say(why: str) -> None:
    log.warning("the prompt cache keeps nothing in memory or on disk: %s", why)


def _entry(key: bytes, parent: bytes, length: int, sections: Sections) -> tuple[Entry, Sections]:
    return Entry(key, parent, length, sum(map(len, sections.values()))), sections


def _kind(context: Context) -> list[object]:
    """What the bits of a context's cache depend on beside weights and options."""
    decoder = context.decoder
    kind: list[object] = [type(decoder).__name__, decoder.rotation_identity, context.flash_attn]
    kind += [[str(place.device), str(place.dtype)] for place in decoder.places]
    if any(place.device.type != "cpu" for place in decoder.places):
        import torch  # its kernels made the rows

        kind.append(torch.__version__)
    for leaf in context.cache.pool.leaves:
        about: list[object] = [type(leaf).__name__]
        if isinstance(leaf, AttentionPool):
            rows = leaf.rows
            about += [rows.keys.type.ggml, rows.values.type.ggml, rows.values.by_channel]
            about += [leaf.cells.n_streams, rows.k_storage]
        if isinstance(leaf, WindowPool):
            about += [leaf.window, leaf.sinks, leaf.chunked]
        kind.append(about)
    return kind
