"""Smoothing and the cut-offs by probability in Triton, on a row's list of candidates; see ``places``."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton import lists
from aleator.device.backends.triton.numerics import (
    ceil_fraction,
    ceil_product,
    exp2_double,
    key_value,
)


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
