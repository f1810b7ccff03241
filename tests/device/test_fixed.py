"""The device's integers against Python's."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from aleator.core import numerics
from aleator.core.philox import uniform64
from aleator.device import fixed

EDGES = [0, 1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def signed(values: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, np.uint64).view(np.int64))


def unsigned(tensor: torch.Tensor) -> list[int]:
    return [int(x) for x in tensor.numpy().view(np.uint64)]


def numbers(n: int, seed: int = 1) -> list[int]:
    random_ = random.Random(seed)
    return EDGES + [random_.getrandbits(random_.randrange(1, 65)) for _ in range(n)]


def test_products_shifts_and_comparisons() -> None:
    a, b = numbers(500, 1), numbers(500, 2)[::-1]
    assert unsigned(fixed.mul_high(signed(a), signed(b))) == [
        x * y >> 64 for x, y in zip(a, b, strict=True)
    ]
    assert fixed.less(signed(a), signed(b)).tolist() == [x < y for x, y in zip(a, b, strict=True)]
    assert fixed.bit_length(signed(a)).tolist() == [x.bit_length() for x in a]
    for n in (1, 31, 32, 63):
        assert unsigned(fixed.shift_right(signed(a), n)) == [x >> n for x in a]


def test_logarithms_and_powers() -> None:
    positive = [x for x in numbers(300) if x]
    assert fixed.log2_q32(signed(positive)).tolist() == list(map(numerics.log2_q32, positive))
    fractions = [x & fixed.MASK32 for x in numbers(300)]
    assert unsigned(fixed.exp2_q62(signed(fractions))) == list(map(numerics.exp2_q62, fractions))
    random_ = random.Random(3)
    floats = [
        math.ldexp(random_.random() + 1e-9, random_.randrange(-1000, 1000)) for _ in range(300)
    ]
    floats += [1.0, 0.5, 2.0, 5e-324, 1.7e308]
    logs = fixed.log2_double(torch.tensor(floats, dtype=torch.float64)).tolist()
    assert logs == list(map(numerics.log2_double, floats))
    powers = [random_.uniform(-1010, 1010) for _ in range(300)] + [0.0, 1.0, -1000.0, 1000.0, -0.5]
    made = fixed.exp2_double(torch.tensor(powers, dtype=torch.float64)).tolist()
    assert made == list(map(numerics.exp2_double, powers))


def test_fractions_of_a_mass() -> None:
    random_ = random.Random(4)
    parts, totals, expected = [], [], []
    for _ in range(2000):
        given = random_.random() * 10 ** -random_.randrange(0, 40)
        p = float(np.float32(given))
        total = random_.getrandbits(random_.randrange(1, 61))
        parts.append(fixed.fraction_parts(given))  # a parameter is a float64, and counts as float32
        totals.append(total)
        expected.append(math.ceil(numerics.exact(p) * total))
    m, s = (torch.tensor(column) for column in zip(*parts, strict=True))
    assert fixed.ceil_of_fraction(m, s, torch.tensor(totals)).tolist() == expected
    assert fixed.fraction_parts(0.0) == fixed.fraction_parts(1e-50) == (0, 24)
    m, s = (torch.tensor([part]) for part in fixed.fraction_parts(1 - 1e-9))
    assert fixed.ceil_of_fraction(m, s, torch.tensor([2**61 + 1])).item() == 2**61 + 1


def test_variances() -> None:
    random_ = random.Random(5)
    rows = []
    for _ in range(500):
        n = random_.randrange(1, 2**20)
        size = random_.randrange(1, 2**20)
        total, squares = -n * size // 2, n * size * size // random_.randrange(1, 4)
        if n * squares >= total * total:
            rows.append((n, total, squares))
    rows += [(1, -5, 25), (2**20, -(2**40), 2**60), (2**20, -1, 2**60), (3, 0, 0)]
    expected = [float(a * c - b * b) for a, b, c in rows]
    made = fixed.variance(*(torch.tensor([row[i] for row in rows]) for i in range(3)))
    assert made.tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, 0x123456789ABCDEF0])
def test_philox(seed: int) -> None:
    keys = [(i % 2**32, p, (i * 7919) % 2**32) for i, p in enumerate(numbers(100))]
    index, position, stream = zip(*keys, strict=True)
    made = fixed.philox(
        signed(list(index)), signed(list(position)), signed(list(stream)), signed([seed])
    )
    assert unsigned(made) == [uniform64(seed, i, p, s) for i, p, s in keys]


def test_sums_of_two_parts_are_rounded_once() -> None:
    random_ = random.Random(3)
    pairs = [(0, 0), (1 << 47, 1), ((1 << 47) - 1, 0xFFFF), ((1 << 52) + 1, 1 << 15)]
    for bits in range(1, 55):
        pairs += [(random_.getrandbits(bits), random_.getrandbits(n)) for n in (1, 15, 16, 30, 54)]
        pairs.append(((1 << bits) - 1, (1 << bits) - 1))
    high, low = (torch.tensor(each) for each in zip(*pairs, strict=True))
    wanted = [float((a << 16) + b) for a, b in pairs]
    assert fixed.double_of(high, low).tolist() == wanted
