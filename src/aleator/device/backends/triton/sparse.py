"""Logits that a row's first samplers change: few tokens, so they are kept beside the logits.

Biases, penalties and masks that stand before all else of a chain touch only some tokens.  ``mark`` puts
these into a hash table per row and takes them out of the row's bits; ``masked_maxima`` reads the logits once
and sees only tokens whose bit is set; ``settle`` then gives each token of the table its value.  All other
tokens keep the logit they came with.  Flags per tile would need the samplers' arithmetic in that sweep; a copy
of the row would double the bytes read.

A table has ``H`` slots, a power of two: ``ids`` (-1: empty), ``values`` (canonical logits), and for each
writer of the chain ``data`` of two int32: a bias's bits, or how often the token occurs and was generated.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton.numerics import canonical

NOTHING_TO_DO, BIAS, PENALTIES, MASK = (tl.constexpr(i) for i in range(4))
INFINITE, DEAD = tl.constexpr(1), tl.constexpr(2)
"""Flags of a row: it holds a +inf; no token outside the table is a candidate any more."""
CHUNK = tl.constexpr(1024)


@triton.jit
def insert(ids, tokens, valid, H: tl.constexpr):
    """The slots of a block of tokens; puts those that are not there yet.  Says which are new."""
    slot = ((tokens.to(tl.uint32) * 0x9E3779B1) >> 12).to(tl.int32) & (H - 1)
    pending = valid
    new = valid & (valid == 0)
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        # No slot holds -2
        old = tl.atomic_cas(ids + slot, tl.where(pending, -1, -2), tl.where(pending, tokens, -2))
        new = new | (pending & (old == -1))
        pending = pending & (old != -1) & (old != tokens)
        slot = tl.where(pending, (slot + 1) & (H - 1), slot)
    return slot, new


@triton.jit
def take_out(words, tokens, new):
    """Clears the bits of tokens."""
    bit = tl.full([], 1, tl.int32) << (tokens & 31)
    tl.atomic_and(words + tokens // 32, ~bit, mask=new)


@triton.jit
def acts(place, i: tl.constexpr, row, start):
    """Whether place ``i`` of the chain is active in a row and comes before all that truncates."""
    return (tl.load(place.active + row) != 0) & (i < start)


@triton.jit
def mark(
    places, wanted, history, allowed, work, sizes, WRITERS: tl.constexpr, ALLOWED: tl.constexpr,
    BIASES: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """One row: its table without values, and the bits of all other tokens that may be chosen."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_words, max_batch = sizes.n_vocab, sizes.n_words, sizes.max_batch
    data = work.table_data
    start = tl.load(wanted.start + row)
    tl.store(work.flags + row, 0)
    ids = work.table_ids + row * H
    words = work.words + row * n_words
    for first in range(0, H, CHUNK):
        at = first + tl.arange(0, CHUNK)
        tl.store(ids + at, -1, mask=at < H)
        for i in tl.static_range(len(WRITERS)):
            own = data + ((i * max_batch + row) * H + at) * 2
            tl.store(own, 0, mask=at < H)
            tl.store(own + 1, 0, mask=at < H)
    for first in range(0, n_words, CHUNK):
        at = first + tl.arange(0, CHUNK)
        bits = tl.full([CHUNK], -1, tl.int32)
        if ALLOWED:
            bits = tl.load(allowed + row * n_words + at, mask=at < n_words, other=0)
        for i in tl.static_range(len(WRITERS)):
            if WRITERS[i] == MASK:
                own = tl.load(places[i].words + row * n_words + at, mask=at < n_words, other=0)
                bits = tl.where(acts(places[i], i, row, start), bits & own, bits)
        tl.store(words + at, bits, mask=at < n_words)
    tl.debug_barrier()
    for i in tl.static_range(len(WRITERS)):
        own = data + (i * max_batch + row) * H * 2
        if WRITERS[i] == BIAS:
            if acts(places[i], i, row, start):
                for first in range(0, BIASES, CHUNK):
                    at = row * BIASES + first + tl.arange(0, CHUNK)
                    tokens = tl.load(places[i].tokens + at).to(tl.int32)
                    valid = tokens < n_vocab
                    slot, new = insert(ids, tokens, valid, H)
                    take_out(words, tokens, new)
                    bias = tl.load(places[i].biases + at).to(tl.int32, bitcast=True)
                    tl.store(own + slot * 2, bias, mask=valid)
                    tl.store(own + slot * 2 + 1, 1, mask=valid)
        if WRITERS[i] == PENALTIES:
            if acts(places[i], i, row, start):
                length = tl.load(history.length + row)
                window = tl.minimum(tl.load(places[i].window + row), length).to(tl.int32)
                for first in range(0, window, CHUNK):
                    at = first + tl.arange(0, CHUNK)
                    valid = at < window
                    at = row * sizes.max_tokens + length - window + at
                    tokens = tl.load(history.tokens + at, mask=valid, other=0)
                    slot, new = insert(ids, tokens, valid, H)
                    take_out(words, tokens, new)
                    drawn = tl.load(history.generated + at, mask=valid, other=0).to(tl.int32)
                    tl.atomic_add(own + slot * 2, 1, mask=valid)
                    tl.atomic_add(own + slot * 2 + 1, drawn, mask=valid)


@triton.jit
def masked_maxima(
    logits, allowed, work, sizes, ALLOWED: tl.constexpr, MASKS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Delegates of the tokens whose bits are set; notes a +inf among those that a mask took away."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_words = sizes.n_vocab, sizes.n_tiles, sizes.n_words
    tiles = tl.program_id(1) * TILES + tl.arange(0, TILES)
    at = tiles[:, None] * 4 + tl.arange(0, 4)[None, :]
    bits = tl.load(work.words + row * n_words + at, mask=at < n_words, other=0)
    bit = tl.arange(0, 32)[None, None, :]
    ids = at[:, :, None] * 32 + bit
    x = tl.load(logits.data + row * logits.stride + ids, mask=ids < n_vocab, other=float("-inf"))
    low = tl.full([], float("-inf"), x.dtype)
    own = tl.where(((bits[:, :, None] >> bit) & 1) != 0, x, low)
    best = tl.max(tl.max(own, axis=2), axis=1).to(tl.float32)
    best = tl.where(best == best, best, float("-inf")) + 0.0
    tl.store(work.maxima + row * n_tiles + tiles, best, mask=tiles < n_tiles)
    if MASKS:  # a +inf counts even if the chain's own mask removes it
        most = tl.max(tl.max(tl.max(x, axis=2), axis=1), axis=0)
        if most == float("inf"):  # rare, so word by word
            for i in range(tl.program_id(1) * TILES * 4, (tl.program_id(1) + 1) * TILES * 4):
                j = tl.arange(0, 32)
                inside = i * 32 + j < n_vocab
                y = tl.load(logits.data + row * logits.stride + i * 32 + j, mask=inside, other=0.0)
                found = y == float("inf")
                if ALLOWED:
                    entry = tl.load(allowed + row * n_words + i, mask=i < n_words, other=0)
                    found = found & (((entry >> j) & 1) != 0)
                if tl.max(found.to(tl.int32), axis=0) > 0:
                    tl.atomic_or(work.flags + row, INFINITE)


@triton.jit
def repeat(z, repetition):
    """The repetition penalty, once."""
    return tl.where(z > 0, tl.div_rn(z, tl.zeros_like(z) + repetition), z * repetition)


@triton.jit
def penalise(z, every, drawn, place, row):
    """Penalties from counts of all and of the generated occurrences, before the canonical form."""
    repetition = tl.load(place.repetition + row)
    repeated = tl.where(tl.load(place.repeat_all + row) != 0, every, drawn)
    counted = tl.where(tl.load(place.count_all + row) != 0, every, drawn)
    z = tl.where(repeated > 0, repeat(z, repetition), z)
    if tl.load(place.each + row) != 0:  # rounded each time, so one after the other
        for i in range(1, tl.max(repeated, axis=0)):
            z = tl.where(repeated > i, repeat(z, repetition), z)
    penalty = counted.to(tl.float32) * tl.load(place.frequency + row)
    penalty = penalty + tl.load(place.presence + row)
    return tl.where(counted > 0, z - penalty, z)


@triton.jit
def bit_of(words, tokens, valid):
    """Whether the bits of tokens are set."""
    word = tl.load(words + tokens // 32, mask=valid, other=0)
    return ((word >> (tokens & 31)) & 1) != 0


@triton.jit
def settle(
    logits, places, wanted, allowed, work, sizes, WRITERS: tl.constexpr, ALLOWED: tl.constexpr,
    H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One row: values of the table, the row's flags and its largest logit."""
    row = tl.program_id(0).to(tl.int64)
    n_tiles, n_words, max_batch = sizes.n_tiles, sizes.n_words, sizes.max_batch
    data = work.table_data
    start = tl.load(wanted.start + row)
    ids = work.table_ids + row * H
    values = work.table_logits + row * H
    t = tl.arange(0, BLOCK_T)
    delegates = tl.load(work.maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
    top = tl.max(delegates, axis=0)
    infinite = (top == float("inf")) | ((tl.load(work.flags + row) & INFINITE) != 0)
    for first in range(0, H, CHUNK):
        at = first + tl.arange(0, CHUNK)
        token = tl.load(ids + at, mask=at < H, other=-1)
        x = tl.load(logits.data + row * logits.stride + token, mask=token >= 0, other=float("-inf"))
        x = x.to(tl.float32)
        if ALLOWED:
            x = tl.where(bit_of(allowed + row * n_words, token, token >= 0), x, float("-inf"))
        tl.store(values + at, x, mask=at < H)
        infinite = infinite | (tl.max((x == float("inf")).to(tl.int32), axis=0) > 0)
    tl.debug_barrier()
    for first in range(0, H, CHUNK):
        at = first + tl.arange(0, CHUNK)
        x = tl.load(values + at, mask=at < H, other=float("-inf"))
        tl.store(values + at, canonical(x, infinite, True), mask=at < H)
    tl.debug_barrier()
    dead = infinite & (top < float("inf"))
    for i in tl.static_range(len(WRITERS)):
        if WRITERS[i] != NOTHING_TO_DO:
            if acts(places[i], i, row, start):
                spoilt = dead & (dead == 0)
                own = data + (i * max_batch + row) * H * 2
                for first in range(0, H, CHUNK):
                    at = first + tl.arange(0, CHUNK)
                    token = tl.load(ids + at, mask=at < H, other=-1)
                    z = tl.load(values + at, mask=at < H, other=float("-inf"))
                    if WRITERS[i] == MASK:
                        kept = bit_of(places[i].words + row * n_words, token, token >= 0)
                        written = tl.where(kept, z, float("-inf"))
                    else:
                        a = tl.load(own + at * 2, mask=at < H, other=0)
                        b = tl.load(own + at * 2 + 1, mask=at < H, other=0)
                        if WRITERS[i] == BIAS:
                            biased = z + a.to(tl.float32, bitcast=True)
                            written = tl.where(b != 0, biased, z)
                        else:
                            written = penalise(z, a, b, places[i], row)
                    written = tl.where(z > float("-inf"), written, float("-inf"))
                    tl.store(values + at, canonical(written, False, True), mask=at < H)
                    most = tl.max((written == float("inf")).to(tl.int32), axis=0)
                    spoilt = spoilt | (most > 0)
                tl.debug_barrier()
                if spoilt:  # only the tokens at +inf remain
                    for first in range(0, H, CHUNK):
                        at = first + tl.arange(0, CHUNK)
                        z = tl.load(values + at, mask=at < H, other=float("-inf"))
                        tl.store(values + at, canonical(z, True, True), mask=at < H)
                    tl.debug_barrier()
                dead = dead | spoilt
    best = tl.full([], float("-inf"), tl.float32)
    for first in range(0, H, CHUNK):
        at = first + tl.arange(0, CHUNK)
        z = tl.load(values + at, mask=at < H, other=float("-inf"))
        best = tl.maximum(best, tl.max(z, axis=0))
    clean = tl.where(infinite, 0.0, top)
    best = tl.where(dead, best, tl.maximum(best, clean))
    tl.store(work.tops + row, best)
    tl.store(work.flags + row, tl.where(infinite, INFINITE, 0) | tl.where(dead, DEAD, 0))
