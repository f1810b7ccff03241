"""Samplers that look at a row's tokens: in every step they become token masks and logit biases.

``look_back`` has one program per row.  For each place of these samplers it writes the tensors of a token mask
(``words``) or of a logit bias (``tokens`` and ``biases``), and ``active``, whether there is anything to do.
The other kernels see only these, so a ban works wherever a mask does, and DRY wherever a bias does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aleator.device.arguments import ChainOptions
from aleator.device.backends.torch import bans
from aleator.device.backends.torch.logits import MAX_BIASES
from aleator.device.backends.triton.sparse import CHUNK, bit_of, take_out
from aleator.device.device_sampler import DeviceSampler
from aleator.samplers import plan

MIN_TOKENS, BAD_WORDS, NO_REPEAT_NGRAM, DRY = (tl.constexpr(i) for i in range(4))
PAST: dict[type[DeviceSampler], tl.constexpr] = {
    bans.DeviceMinTokens: MIN_TOKENS,
    bans.DeviceBadWords: BAD_WORDS,
    bans.DeviceNoRepeatNgram: NO_REPEAT_NGRAM,
    bans.DeviceDRY: DRY,
}
WORDS, WORD_TOKENS = tl.constexpr(plan.MAX_BAD_WORDS), tl.constexpr(plan.MAX_BAD_WORD_TOKENS)
WINDOW, BIASES = tl.constexpr(plan.MAX_DRY_WINDOW), tl.constexpr(MAX_BIASES)
BREAKERS, BREAKER_TOKENS = tl.constexpr(plan.MAX_BREAKERS), tl.constexpr(plan.MAX_BREAKER_TOKENS)
FEW = tl.constexpr(8)


def seen(place: DeviceSampler, options: ChainOptions) -> dict[str, Tensor]:
    """The tensors of a place that other kernels see: its own, or those made from it in every step."""
    kind = PAST.get(type(place))
    if kind is None:
        return {**place.rows, **place.tables}
    batch, device = options.max_batch, options.device
    active = {"active": torch.zeros(batch, dtype=torch.bool, device=device)}
    if kind == DRY:
        pairs = torch.full((batch, MAX_BIASES), options.n_vocab, device=device)
        return {**active, "tokens": pairs, "biases": torch.zeros_like(pairs, dtype=torch.float32)}
    n_words = triton.cdiv(options.n_vocab, 32)
    return {**active, "words": torch.zeros(batch, n_words, dtype=torch.int32, device=device)}


@triton.jit
def allow_others(bits, words, n_words):
    """Writes the bits of all tokens except those whose bits are set; returns whether any are set."""
    some = tl.zeros([], tl.int32)
    for first in range(0, n_words, CHUNK):
        at = first + tl.arange(0, CHUNK)
        own = tl.load(bits + at, mask=at < n_words, other=0)
        tl.store(words + at, ~own, mask=at < n_words)
        some = some | tl.max((own != 0).to(tl.int32), axis=0)
    tl.debug_barrier()
    return some


@triton.jit
def bad_words(place, words, row, tokens, length, n_words):
    """Bans the last tokens of words whose other tokens are the newest ones."""
    some = allow_others(place.single + row * n_words, words, n_words)
    at = row * WORDS + tl.arange(0, WORDS)
    lengths = tl.load(place.lengths + at)
    found = (lengths > 0) & (length >= lengths - 1)
    for i in range(1, tl.max(lengths, axis=0).to(tl.int32)):
        newest = tl.load(tokens + tl.maximum(length - i, 0))
        own = tl.load(place.tokens + at * WORD_TOKENS + i)
        found = found & ((own == newest) | (lengths <= i))
    ends = tl.load(place.tokens + at * WORD_TOKENS).to(tl.int32)
    take_out(words, ends, found)
    return some | tl.max(found.to(tl.int32), axis=0)


@triton.jit
def no_repeat_ngram(place, words, row, tokens, length, n_words):
    """Bans the tokens that followed earlier occurrences of the newest tokens."""
    for first in range(0, n_words, CHUNK):
        at = first + tl.arange(0, CHUNK)
        tl.store(words + at, tl.full([CHUNK], -1, tl.int32), mask=at < n_words)
    tl.debug_barrier()
    size = tl.load(place.size + row).to(tl.int32)
    some = tl.zeros([], tl.int32)
    for first in range(size - 1, length.to(tl.int32), CHUNK):
        at = first + tl.arange(0, CHUNK)
        found = at < length
        for i in range(1, size):
            own = tl.load(tokens + at - i, mask=found, other=-1)
            found = found & (own == tl.load(tokens + length - i))
        take_out(words, tl.load(tokens + at, mask=found, other=0), found)
        some = some | tl.max(found.to(tl.int32), axis=0)
    return some


@triton.jit
def after_breaker(place, row, newest, recent, column, inside, single, count):
    """The number of newest tokens after the nearest breaker."""
    tail = tl.where(single, 0, -1)  # tokens of a breaker after its first; -1: none begins here
    lengths = tl.load(place.lengths + row * BREAKERS + tl.arange(0, BREAKERS))
    for i in range(0, tl.sum((lengths > 0).to(tl.int32), axis=0)):
        at = row * BREAKERS + i
        length = tl.load(place.lengths + at).to(tl.int32)
        breaker = place.breakers + at * BREAKER_TOKENS
        hit = inside & (recent == tl.load(breaker)) & (column >= length - 1)
        for j in range(1, length):
            hit = hit & (tl.load(newest - column + j, mask=hit, other=-1) == tl.load(breaker + j))
        tail = tl.where(hit, tl.maximum(tail, length - 1), tail)
    first = tl.min(tl.where(tail >= 0, column, WINDOW), axis=0)
    after = tl.sum(tl.where(column == first, column - tail, 0), axis=0)
    return tl.where(first < WINDOW, after, count)


@triton.jit
def dry(place, made, row, tokens, length, n_vocab, n_words):
    """A bias for each token that would continue a repetition, by its longest; column 0 is the newest token."""
    count = tl.minimum(tl.load(place.window + row), length).to(tl.int32)
    newest = tokens + length - 1
    column = tl.arange(0, WINDOW)
    inside = column < count
    recent = tl.load(newest - column, mask=inside, other=-1)
    single = bit_of(place.single + row * n_words, recent, inside)
    limit = after_breaker(place, row, newest, recent, column, inside, single, count)
    # Of the run before the column that equals the newest tokens
    lengths = tl.zeros([WINDOW], tl.int32)
    same = column + 1 < count
    i = tl.zeros([], tl.int32)
    while (i < limit) & (tl.max(same.to(tl.int32), axis=0) > 0):
        earlier = column + 1 + i
        own = tl.load(newest - earlier, mask=same & (earlier < count), other=-1)
        same = same & (own == tl.load(newest - i))
        lengths += same.to(tl.int32)
        i += 1
    allowed = tl.load(place.allowed + row)
    found = (column + 1 < count) & (single == 0) & (lengths >= allowed)
    some = tl.max(found.to(tl.int32), axis=0)
    if some > 0:
        out = row * BIASES + column
        keys = (recent.to(tl.int64) << 32) | (lengths << 16) | (WINDOW - column)
        keys = tl.where(found, keys, -1)
        tl.store(made.tokens + out, keys)
        tl.debug_barrier()
        for first in range(0, count, FEW):
            others = tl.load(made.tokens + row * BIASES + first + tl.arange(0, FEW))[None, :]
            longer = ((others >> 32) == (keys >> 32)[:, None]) & (others > keys[:, None])
            found = found & (tl.max(longer.to(tl.int32), axis=1) == 0)
        tl.debug_barrier()
        penalty = tl.load(place.penalties + row * WINDOW + lengths, mask=found, other=0.0)
        tl.store(made.tokens + out, tl.where(found, recent, n_vocab).to(tl.int64))
        tl.store(made.biases + out, -penalty)
    return some


@triton.jit
def look_back(asked, made, history, sizes, KINDS: tl.constexpr):
    """Computes for one row what its places of these kinds do to the next token."""
    row = tl.program_id(0).to(tl.int64)
    n_words = sizes.n_words
    length = tl.load(history.length + row)
    tokens = history.tokens + row * sizes.max_tokens
    for i in tl.static_range(len(KINDS)):
        place = asked[i]
        some = tl.zeros([], tl.int32)
        if tl.load(place.active + row) != 0:
            if KINDS[i] == MIN_TOKENS:
                generated = tl.load(history.position + row) - tl.load(place.begun + row)
                if generated < tl.load(place.least + row):
                    allow_others(place.ends + row * n_words, made[i].words + row * n_words, n_words)
                    some += 1
            elif KINDS[i] == BAD_WORDS:
                words = made[i].words + row * n_words
                some = bad_words(place, words, row, tokens, length, n_words)
            elif KINDS[i] == NO_REPEAT_NGRAM:
                words = made[i].words + row * n_words
                some = no_repeat_ngram(place, words, row, tokens, length, n_words)
            else:
                some = dry(place, made[i], row, tokens, length, sizes.n_vocab, n_words)
        tl.store(made[i].active + row, some > 0)
