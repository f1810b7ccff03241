"""Log-probabilities of the given logits in Triton: what ``Report.before`` computes in PyTorch."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton.candidates import first_keys, plain_source
from aleator.device.backends.triton.numerics import key_id, key_value
from aleator.device.backends.triton.rows import AT_TILES
from aleator.device.backends.triton.tiles import STEP, WIDTH


@triton.jit
def exp_sums(
    logits, work, sizes, BLOCK_T: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Float64 sums of exp(logit - largest) over each WIDTH tokens; with a +inf, the number of +inf."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    t = tl.arange(0, BLOCK_T)
    delegates = tl.load(work.maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
    top = tl.max(delegates, axis=0)
    infinite = top == float("inf")
    top = tl.where(infinite | (top == float("-inf")), 0.0, top).to(tl.float64)
    groups = tl.program_id(1) * (TILES // STEP) + tl.arange(0, TILES // STEP)
    ids = groups[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(
        logits.data + row * logits.stride + ids, mask=ids < n_vocab, other=float("-inf")
    ).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    finite = tl.where(infinite, float("-inf"), x).to(tl.float64)
    e = tl.exp(finite - top)
    e = tl.where(infinite, (x == float("inf")).to(tl.float64), e)
    tl.store(work.sums + row * n_groups + groups, tl.sum(e, axis=1), mask=groups < n_groups)


@triton.jit
def log_probability(z, top, log_sum):
    """The natural-log probability of a logit, float64."""
    x = tl.where(z == float("inf"), 0.0, float("-inf")).to(tl.float64)
    x = tl.where(top == float("inf"), x, z.to(tl.float64) - top.to(tl.float64))
    return tl.where(z > float("-inf"), x - log_sum, float("-inf"))


@triton.jit
def describe(
    logits, work, tokens, logprobs, top_ids, top_logprobs, sizes, n, TOP: tl.constexpr,
    SIZE: tl.constexpr, CAP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Describes one row: its token, and the first ``n`` tokens (if TOP), masked ones last, by id."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, BLOCK_T)
    g = tl.arange(0, BLOCK_G)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    own = logits.data + row * logits.stride
    delegates = tl.load(work.maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
    top = tl.max(delegates, axis=0)
    each = tl.load(work.sums + row * n_groups + g, mask=g < n_groups, other=0.0)
    log_sum = tl.log(tl.sum(each, axis=0))
    token = tl.load(tokens + row)
    z = tl.load(own + token, mask=token >= 0, other=float("-inf")).to(tl.float32)
    z = tl.where(z == z, z, float("-inf"))
    tl.store(logprobs + row, log_probability(z, top, log_sum))
    if TOP:
        # Without bits and table: nothing is left out, and a +inf is the largest logit.
        source = plain_source(own, work.tiles + row * n_tiles, n_vocab, top, False)
        keys, count = first_keys(
            source, delegates, n, n_tiles, work.buffers + row * CAP, work.paths, AT_TILES, 0, SIZE, CAP,
            BLOCK_T,
        )  # fmt: skip
        at = tl.arange(0, SIZE)
        column = row * n + at
        found = at < tl.minimum(count, n)
        tl.store(top_ids + column, key_id(keys), mask=found)
        z = tl.where(found, key_value(keys), float("-inf"))
        tl.store(top_logprobs + column, log_probability(z, top, log_sum), mask=at < n)
        if count < n:  # then those at -inf; enough of them are among the first 2 n tokens
            ids = tl.arange(0, 2 * SIZE)
            x = tl.load(own + ids, mask=ids < n_vocab, other=0.0).to(tl.float32)
            masked = (ids < n_vocab) & ((x == float("-inf")) | (x != x))
            place = count + tl.cumsum(masked.to(tl.int32), axis=0) - 1
            tl.store(top_ids + row * n + place, ids.to(tl.int64), mask=masked & (place < n))
