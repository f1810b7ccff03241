"""The samplers in Triton, on a row's list of candidates; contracts: docs/numerics.md and aleator.samplers.

A list is a block of keys in the order, a mask of which of them are still candidates, and the pending
temperature.  ``outside`` says that the row holds candidates after the list's last, of which only the mass is
known: then a sampler returns whether the list was enough to tell what it keeps.  A sampler's ``place`` is its
tensors by name (``DeviceSampler.rows``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.core import contract
from aleator.device.backends.triton import lists
from aleator.device.backends.triton.numerics import (
    BEYOND,
    COLDEST,
    DEPTH_UNIT,
    NOTHING,
    Q32,
    ceil_fraction,
    ceil_product,
    entropy_of,
    exp2_double,
    key_id,
    key_value,
    log2_double,
    log2_q32,
    philox_uniform,
    sort_descending,
)
from aleator.device.backends.triton.sparse import penalise
from aleator.samplers import synthid
from aleator.samplers import watermark as watermark_words

(
    GREEDY, DIST, GUMBEL, MIROSTAT_V2, TEMPERATURE, SOFTMAX, TOP_K, TOP_P, MIN_P, TYPICAL_P, TOP_N_SIGMA,
    P_LESS, TOP_H, MIN_K, XTC, LOGIT_BIAS, PENALTIES, TOKEN_MASK, SKIPPED, WATERMARK, SYNTHID, BAN,
    SMOOTHING, EPSILON_CUTOFF, ETA_CUTOFF, ADAPTIVE_P, MIROSTAT,
) = (tl.constexpr(i) for i in range(27))  # fmt: skip
WINDOW_CHUNK = tl.constexpr(8)
SEEN_CHUNK = tl.constexpr(128)
HASH, DRAWN = tl.constexpr(watermark_words.HASH), tl.constexpr(watermark_words.DRAWN)
MOST_NUMBERS = tl.constexpr(watermark_words.MOST_NUMBERS)
MULTIPLIER = tl.constexpr(synthid.MULTIPLIER % synthid.TABLE_SIZE)  # coins are named by 16 bits
WEIGHT_BITS = tl.constexpr(contract.WEIGHT_BITS)
ROUND = tl.constexpr(contract.ROUND)
SIGMA_LEAST = tl.constexpr(contract.SIGMA_LEAST)
SIGMA_UNIT = tl.constexpr(contract.SIGMA_UNIT)
MU_LIMIT = tl.constexpr(contract.MU_LIMIT)


@triton.jit
def uniform(place, row, position):
    """One 64-bit uniform of a place that draws."""
    return philox_uniform(
        tl.zeros([], tl.int32), tl.load(place.seed + row), position, tl.load(place.stream + row)
    )


@triton.jit
def last_tokens(place, row, history, length, position, max_tokens):
    """Whether the last n tokens key a draw: they are there, and new; the place of the first, and n, or 0."""
    n = tl.load(place.ngram + row)
    tokens = history.tokens + row * max_tokens
    marked = (position >= n) & (length >= n)
    starts = tl.where(marked, length - n, 0)  # before these places an earlier run may begin
    at = tl.arange(0, SEEN_CHUNK)
    seen = tl.zeros([SEEN_CHUNK], tl.int32)
    for first in range(0, starts, SEEN_CHUNK):
        same = first + at < starts
        for i in range(0, n):
            earlier = tl.load(tokens + first + at + i, mask=same, other=-1)
            same = same & (earlier == tl.load(tokens + starts + i))
        seen = seen | same.to(tl.int32)
    marked = marked & (tl.max(seen, axis=0) == 0)
    return marked, tokens + starts, tl.where(marked, n, 0)


@triton.jit
def watermark(place, row, history, length, position, max_tokens):
    """What a watermark's race is keyed by, as seed, position and stream."""
    marked, tokens, n = last_tokens(place, row, history, length, position, max_tokens)
    own = tl.load(place.key + row)
    hashed = n
    for i in range(0, n):
        token = tl.load(tokens + i)
        word = tl.zeros([], tl.int64) + HASH
        hashed = philox_uniform(token, own, hashed, word).to(tl.int64, bitcast=True)
    seed = tl.where(marked, own, tl.load(place.seed + row))
    return (
        seed,
        tl.where(marked, hashed, position),
        tl.where(marked, DRAWN, tl.load(place.stream + row)),
    )


@triton.jit
def coin_hash(h, number):
    """The 16 bits of SynthID's hash that coins depend on."""
    return ((h + number) * MULTIPLIER + 1) & 0xFFFF


@triton.jit
def tournament(place, row, keys, w, history, length, position, max_tokens):
    """The shares of the weights after SynthID's layers; the weights where the draw is ordinary."""
    marked, tokens, n = last_tokens(place, row, history, length, position, max_tokens)
    h = tl.full([], 1, tl.int64)
    for i in range(0, n):
        h = coin_hash(h, tl.load(tokens + i).to(tl.int64))
    h = coin_hash(h, key_id(keys))
    bits = tl.arange(0, 16) + WEIGHT_BITS  # a list's mass is below 2^51
    shift = tl.sum((tl.sum(w, axis=0) >> bits.to(tl.int64) > 0).to(tl.int64), axis=0)
    shares = tl.where(marked, w >> shift, w)
    for layer in range(0, tl.where(marked, tl.load(place.layers + row), 0)):
        keyed = coin_hash(h, tl.load(place.keys + row * MOST_NUMBERS + layer))
        coins = tl.load(place.coins + keyed).to(tl.int64)
        total = tl.sum(shares, axis=0)
        rest = total - tl.sum(shares * coins, axis=0)
        total = tl.maximum(total, 1)
        # floor(rest * 2^40 / total) and floor(share * factor / 2^40), by halves of 20 bits.
        high = (rest << 20) // total
        low = (((rest << 20) % total) << 20) // total
        factor = (high << 20) + low
        high, low = factor >> 20, factor & 0xFFFFF
        shares = coins * shares + ((shares * high + ((shares * low) >> 20)) >> 20)
    return shares


@triton.jit
def apply_temperature(keys, alive, temperature, full, factor):
    """Multiplies the temperature; at 1e-5 or less only the first candidate stays."""
    product = temperature * factor
    cold = product <= COLDEST
    alive = tl.where(cold, lists.keep_first(alive, 1), alive)
    full = tl.where(factor == 1.0, full, 0)
    return alive, tl.where(cold, tl.full([], 1, tl.float64), product), full


@triton.jit
def dynamic_temperature(keys, alive, temperature, low, high, exponent):
    """The temperature between low and high that the entropy asks for."""
    count = lists.size_of(alive)
    bits, _, _ = lists.entropy(keys, alive, temperature)
    level = tl.minimum(bits / log2_double(tl.maximum(count, 2).to(tl.float64)), 1.0)
    one = tl.full([], 1, tl.float64)
    power = exp2_double(exponent * log2_double(tl.where(level > 0, level, one)))
    level = tl.where((level > 0) & (exponent != 1), power, level)
    level = tl.where(exponent == 0, one, level)
    level = tl.where(count > 1, level, one - one)
    return low + (high - low) * level


@triton.jit
def top_p(place, row, keys, alive, temperature, full, outside, total):
    """Keeps the shortest beginning of the order with the mass; ``total`` is the row's where outside."""
    w = lists.weights_of(keys, alive, temperature)
    mass = tl.sum(w, axis=0)
    total = tl.where(outside, total, mass)
    total = tl.where(tl.load(place.full + row) != 0, full, total)
    wanted = ceil_fraction(tl.load(place.m + row), tl.load(place.s + row), total)
    least = tl.maximum(tl.load(place.min_keep + row), 1)
    enough = (outside == 0) | ((mass >= wanted) & (lists.size_of(alive) >= least))
    return lists.keep_mass(alive, w, wanted) | lists.keep_first(alive, least), enough


@triton.jit
def min_p(place, row, keys, alive, temperature, outside):
    """Keeps what is within a distance of the largest logit."""
    bound = (temperature * tl.load(place.log + row)).to(tl.float32)
    least = tl.load(place.min_keep + row)
    kept = lists.keep_near(keys, alive, bound)
    all_kept = lists.size_of(kept) == lists.size_of(alive)
    enough = (outside == 0) | ((all_kept == 0) & (lists.size_of(alive) >= least))
    few = lists.size_of(kept) < least
    return tl.where(few, lists.keep_first(alive, least), kept), enough


@triton.jit
def typical_p(place, row, keys, alive, temperature, SIZE: tl.constexpr):
    """Keeps the shortest beginning, by distance from the mean surprise and then the order, with the mass."""
    w = lists.weights_of(keys, alive, temperature)
    _, depth, mass = lists.entropy(keys, alive, temperature)
    mean = tl.floor(depth * DEPTH_UNIT + 0.5).to(tl.int64)
    distance = tl.abs(lists.depths_of(keys, alive, temperature) - mean)
    i = tl.arange(0, SIZE).to(tl.int64)
    # Distances are below 2^24, and lists below 2^11: one key says all, the nearest largest.
    near = tl.where(alive, -((distance << 11) | i), -(tl.full([], 1, tl.int64) << 40) - i)
    nearest = sort_descending(near, SIZE)
    sorted_w = tl.gather(w, ((-nearest) & 2047).to(tl.int32), 0)
    wanted = ceil_fraction(tl.load(place.m + row), tl.load(place.s + row), mass)
    before = tl.cumsum(sorted_w, axis=0) - sorted_w
    least = tl.maximum(tl.load(place.min_keep + row), 1)
    last = tl.min(tl.where((before < wanted) | (i < least), nearest, BEYOND), axis=0)
    return alive & (near >= last)


@triton.jit
def top_n_sigma(place, row, keys, alive):
    """Keeps logits within some standard deviations of the largest; moments are exact integers."""
    d = key_value(keys) - lists.top_of(keys, alive)
    rounded = tl.maximum(d, SIGMA_LEAST) * SIGMA_UNIT
    q = ((rounded + ROUND) - ROUND).to(tl.int64)
    q = tl.where(alive, q, 0)
    count, total, squares = lists.size_of(alive), tl.sum(q, axis=0), tl.sum(q * q, axis=0)
    spread = (count * squares - total * total).to(tl.float64)  # a list's are below 2^62
    sigma = tl.sqrt(spread) / tl.maximum(count, 1).to(tl.float64) / SIGMA_UNIT
    return alive & (d >= (-(tl.load(place.n + row) * sigma)).to(tl.float32))


@triton.jit
def xtc(place, row, keys, alive, temperature, position):
    """Sometimes removes the leading candidates above a threshold but the last of them."""
    u = uniform(place, row, position)
    falls = (u < tl.load(place.coin + row).to(tl.uint64, bitcast=True)) | (
        tl.load(place.always + row) != 0
    )
    w = lists.weights_of(keys, alive, temperature)
    bound = ceil_fraction(tl.load(place.m + row), tl.load(place.s + row), tl.sum(w, axis=0))
    run = lists.keep_run(alive, w >= bound)
    length = lists.size_of(run)
    enough = lists.size_of(alive) - (length - 1) >= tl.load(place.min_keep + row)
    stays = (run == 0) | (lists.rank_of(alive) >= length - 1)
    return tl.where(falls & (length >= 2) & enough, alive & stays, alive)


@triton.jit
def mirostat_v2(place, row, keys, alive, temperature, position, mus):
    """Truncates at mu bits of surprise, draws, and notes where mu goes if the token is accepted."""
    mu = tl.load(place.mu + row * mus + position)
    q = tl.floor(tl.minimum(tl.maximum(mu, -MU_LIMIT), MU_LIMIT) * 4294967296.0).to(tl.int64)
    w = lists.weights_of(keys, alive, temperature)
    level = log2_q32(tl.maximum(tl.sum(w, axis=0), 1).to(tl.uint64)) - q
    surprising = (w > 0) & (log2_q32(tl.maximum(w, 1).to(tl.uint64)) >= level)
    run = lists.keep_run(alive, surprising)
    alive = alive & (run | lists.keep_first(alive, 1) | (level <= 0))
    return alive, draw_and_move(place, row, keys, alive, temperature, position, mu)


@triton.jit
def draw_and_move(place, row, keys, alive, temperature, position, mu):
    """Draws for mirostat, and notes where mu goes if the token is accepted."""
    w = lists.weights_of(keys, alive, temperature)
    token = lists.draw(keys, w, uniform(place, row, position))
    chosen = tl.maximum(tl.sum(tl.where(key_id(keys) == token, w, 0), axis=0), 1)
    mass = tl.maximum(tl.sum(w, axis=0), 1)
    bits = log2_q32(mass.to(tl.uint64)) - log2_q32(chosen.to(tl.uint64))
    surprise = bits.to(tl.float64) * Q32
    moved = mu - tl.load(place.eta + row) * (surprise - tl.load(place.tau + row))
    tl.store(place.next_mu + row, moved)
    return token


@triton.jit
def late_bias(
    place, row, keys, alive, temperature, n_vocab, BIASES: tl.constexpr, SIZE: tl.constexpr
):
    """Logit bias after something has truncated: every candidate looks for itself among the pairs."""
    keys, alive = lists.write(keys, alive, lists.logits_of(keys, temperature), SIZE)
    z, ids = key_value(keys), key_id(keys)
    pair = tl.arange(0, BIASES)
    there = tl.load(place.tokens + row * BIASES + pair) < n_vocab
    at = tl.arange(0, WINDOW_CHUNK)
    for first in range(0, tl.max(tl.where(there, pair + 1, 0), axis=0), WINDOW_CHUNK):
        tokens = tl.load(place.tokens + row * BIASES + first + at)
        biases = tl.load(place.biases + row * BIASES + first + at)
        same = ids[:, None] == tokens[None, :]
        found = tl.max(same.to(tl.int32), axis=1) > 0
        bias = tl.sum(tl.where(same, biases[None, :], 0.0), axis=1)
        z = tl.where(found, z + bias, z)
    return lists.write(keys, alive, z, SIZE)


@triton.jit
def late_penalties(
    place, row, keys, alive, temperature, history, length, max_tokens, SIZE: tl.constexpr
):
    """Penalties after something has truncated: every candidate counts itself in the window."""
    keys, alive = lists.write(keys, alive, lists.logits_of(keys, temperature), SIZE)
    ids = key_id(keys)
    window = tl.minimum(tl.load(place.window + row), length).to(tl.int32)
    every = tl.zeros([SIZE], tl.int32)
    drawn = tl.zeros([SIZE], tl.int32)
    at = tl.arange(0, WINDOW_CHUNK)
    for first in range(0, window, WINDOW_CHUNK):
        where = row * max_tokens + length - window + first + at
        inside = first + at < window
        tokens = tl.load(history.tokens + where, mask=inside, other=-1)
        own = tl.load(history.generated + where, mask=inside, other=0).to(tl.int32)
        same = (ids[:, None] == tokens[None, :].to(tl.int64)).to(tl.int32)
        every += tl.sum(same, axis=1)
        drawn += tl.sum(same * own[None, :], axis=1)
    z = penalise(key_value(keys), every, drawn, place, row)
    return lists.write(keys, alive, z, SIZE)


@triton.jit
def ban(place, row, keys, alive, temperature, n_words, SIZE: tl.constexpr):
    """Writes -inf to the tokens that are not allowed."""
    keys, alive = lists.write(keys, alive, lists.logits_of(keys, temperature), SIZE)
    return keys, lists.keep_allowed(keys, alive, place.words + row * n_words)


@triton.jit
def p_less(place, row, keys, alive, temperature):
    """Keeps tokens whose probability reaches the sum of all squared probabilities."""
    w = lists.weights_of(keys, alive, temperature)
    n, mass = lists.size_of(alive), tl.maximum(tl.sum(w, axis=0), 1)
    high, low = w >> 20, w & 0xFFFFF
    # high * 2^40 + middle * 2^21 + low is the sum of squares, of 128 bits.
    highs, middles = tl.sum(high * high, axis=0), tl.sum(high * low, axis=0)
    lows = tl.sum(low * low, axis=0)
    crossed = middles.to(tl.uint64) << 21
    head = (highs.to(tl.uint64) << 40) + crossed
    tail = head + lows.to(tl.uint64)
    upper = (highs >> 24) + (middles >> 43)
    upper += (head < crossed).to(tl.int64) + (tail < head).to(tl.int64)
    # A quotient in float64 is off by less than one unit.
    squares = highs.to(tl.float64) * 1099511627776.0 + middles.to(tl.float64) * 2097152.0
    bound = ((squares + lows.to(tl.float64)) / mass.to(tl.float64)).to(tl.int64)
    for _ in range(2):
        product = tl.umulhi(bound.to(tl.uint64), mass.to(tl.uint64)).to(tl.int64)
        rest = bound.to(tl.uint64) * mass.to(tl.uint64)
        bound += ((product < upper) | ((product == upper) & (rest < tail))).to(tl.int64)
    others = tl.maximum(n - 1, 1)
    normal = (n * bound - mass + others - 1) // others
    normalized = (tl.load(place.normalized + row) != 0) & (n > 1)
    return lists.keep_run(alive, w >= tl.where(normalized, normal, bound)) | lists.keep_first(
        alive, 1
    )


@triton.jit
def top_h(place, row, keys, alive, temperature):
    """Keeps the most likely tokens whose entropy is at most a share of that of all."""
    tops, gap, w, x = lists.entropy_terms(keys, alive, temperature)
    rank, n = lists.rank_of(alive), lists.size_of(alive)
    bits, _, _ = entropy_of(tl.maximum(tops, 1), gap, tl.sum(w, axis=0), tl.sum(x, axis=0))
    most = tl.load(place.share + row) * bits
    kept, unit = n * 0, tl.full([], 1 << 10, tl.int64)
    for _ in range(11):
        length = kept + unit
        weight = tl.sum(tl.where(rank < length, w, 0), axis=0)
        depth = tl.sum(tl.where(rank < length, x, 0), axis=0)
        bits, _, _ = entropy_of(tl.maximum(tl.minimum(tops, length), 1), gap, weight, depth)
        kept = tl.where((length <= n) & (bits <= most), length, kept)
        unit = unit >> 1
    return lists.keep_first(alive, tl.maximum(kept, 1))


@triton.jit
def min_k(place, row, keys, alive, SIZE: tl.constexpr):
    """Keeps what stands before the steepest fall of the logits."""
    n = lists.size_of(alive)
    at = tl.arange(0, SIZE)
    z = key_value(sort_descending(tl.where(alive, keys, NOTHING), SIZE))
    z = tl.where(at < n, z, 0.0).to(tl.float64)
    rank = at.to(tl.int64) + 1
    following = tl.gather(z, tl.minimum(at + 1, SIZE - 1), 0)
    fall = tl.where(rank < n, (z - following) / rank.to(tl.float64), -1.0)
    cliff = tl.min(tl.where(fall == tl.max(fall, axis=0), rank, SIZE), axis=0)
    first = tl.sum(tl.where(rank == 1, z, 0.0), axis=0)
    span = first - tl.sum(tl.where(rank == n, z, 0.0), axis=0)
    wanted = tl.minimum(tl.load(place.tau + row) / span, n.to(tl.float64)).to(tl.int64)
    return lists.keep_first(alive, tl.where(span > 0, tl.maximum(cliff, wanted), n))


@triton.jit
def smoothing(place, row, keys, alive, temperature, SIZE: tl.constexpr):
    """Bends the logits with the square and the cube of their distance from the best."""
    if temperature != 1.0:
        keys, alive = lists.write(keys, alive, lists.logits_of(keys, temperature), SIZE)
    top = lists.top_of(keys, alive)
    d = key_value(keys) - top
    square = d * d
    bent = top - square * tl.load(place.square + row)
    return lists.write(keys, alive, bent + square * d * tl.load(place.cube + row), SIZE)


@triton.jit
def keep_probable(keys, alive, w, bound, min_keep):
    """The run of weights that reach a bound; if too few do, the first ``min_keep`` and their ties."""
    run = lists.keep_run(alive, w >= bound)
    least = tl.minimum(tl.maximum(min_keep, 1), lists.size_of(alive))
    z = key_value(keys)
    last = alive & (lists.rank_of(alive) == least - 1)
    last = tl.max(tl.where(last, z, float("-inf")), axis=0)
    return tl.where(lists.size_of(run) < least, alive & (z >= last), run)


@triton.jit
def epsilon_cutoff(place, row, keys, alive, temperature):
    """Keeps tokens whose probability is at least a bound."""
    w = lists.weights_of(keys, alive, temperature)
    bound = ceil_fraction(tl.load(place.m + row), tl.load(place.s + row), tl.sum(w, axis=0))
    return keep_probable(keys, alive, w, bound, tl.load(place.min_keep + row))


@triton.jit
def eta_cutoff(place, row, keys, alive, temperature):
    """Keeps tokens whose probability is at least a bound, which is lower if the entropy is high."""
    bits, _, mass = lists.entropy(keys, alive, temperature)
    eta = tl.minimum(tl.load(place.root + row) * exp2_double(-bits), tl.load(place.most + row))
    bound = ceil_product(eta.to(tl.float32), mass)
    w = lists.weights_of(keys, alive, temperature)
    return keep_probable(keys, alive, w, bound, tl.load(place.min_keep + row))
