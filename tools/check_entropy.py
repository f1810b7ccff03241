"""Compares the entropy of random rows with high-precision arithmetic.

    python tools/check_entropy.py [--rows 10000] [--largest 256000] [--bits 0] [--seed 1] [--out FILE.md]

Rows of eight families and 1 to 256,000 logits, at temperatures from 0.1 to 3.3.  Rows of up to 1,000
different logits are compared with mpmath (200 digits), longer ones with sums of NumPy's long doubles; some
with both.  Rows of up to 20,000 logits also go to the NumPy reference and the PyTorch form, whose bits must be
the same.
"""

from __future__ import annotations

from collections import Counter

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from run_report import Report, command, machine, parser, progress

import aleator
from aleator import samplers as S
from aleator.core.contract import NUMERICS_VERSION
from aleator.core.numerics import Row
from aleator.device.candidates import DeviceCandidates

FAMILIES = ("peaked", "flat", "model-like", "masked", "two values", "one value", "huge", "tiny")
TEMPERATURES = (1.0, 0.7, 0.1, 1.5, 3.3)
Logits = NDArray[np.float32]


def row_of(family: str, n: int, rng: np.random.Generator) -> Logits:
    """A row of n logits."""
    if family == "peaked":
        row = rng.normal(0, rng.uniform(0.1, 10), n)
        row[rng.integers(n)] += rng.uniform(5, 60)
    elif family == "flat":
        row = rng.normal(0, rng.uniform(1e-6, 0.1), n)
    elif family == "model-like":
        row = rng.normal(0, 2, n)
        some = rng.choice(n, min(n, 300), replace=False)
        row[some] += rng.exponential(3, len(some)) + 6
    elif family == "masked":
        row = np.where(rng.random(n) < rng.random(), rng.normal(0, 3, n), -np.inf)
        row[rng.integers(n)] = 0
    elif family == "two values":
        low, high = rng.normal(0, 10, 2)
        row = np.where(rng.random(n) < rng.random(), low, high)
    elif family == "one value":
        row = np.full(n, rng.normal())
    else:
        powers = (1, 30) if family == "huge" else (-30, -3)
        row = rng.normal(0, 10 ** rng.uniform(*powers), n)
    return row.astype(np.float32)


def by_mpmath(row: Logits, temperature: float) -> float:
    """Entropy in bits; at this precision even logits far below the top count."""
    counted = Counter(row[row > -np.inf].tolist())
    with mpmath.workdps(200):
        top = mpmath.mpf(max(counted))
        others = mpmath.mpf(0)
        weighted = mpmath.mpf(0)
        for logit, count in counted.items():
            depth = (top - mpmath.mpf(logit)) / mpmath.mpf(temperature)
            if depth:
                weight = mpmath.exp(-depth) * count
                others += weight
                weighted += weight * depth
        n = counted[float(top)]
        nats = mpmath.log(n) + mpmath.log1p(others / n) + weighted / (n + others)
        return float(nats / mpmath.log(2))


def by_long_doubles(row: Logits, temperature: float) -> float:
    """Entropy in bits; every term is positive, so nothing cancels."""
    sound = np.sort(row[row > -np.inf])
    depth = (np.longdouble(sound[-1]) - sound.astype(np.longdouble)) / np.longdouble(temperature)
    n = int((depth == 0).sum())
    weight = np.exp(-depth[depth > 0])
    others, weighted = weight.sum(), (weight * depth[depth > 0]).sum()
    nats = np.log(np.longdouble(n)) + np.log1p(others / n) + weighted / (n + others)
    return float(nats / np.log(np.longdouble(2)))


def by_kernels(row: Logits, temperature: float) -> float:
    """Entropy by the native kernels."""
    candidates = aleator.Candidates(row)
    aleator.SamplerChain([S.Temperature(temperature=temperature)]).apply(candidates)
    found: float = candidates.entropy
    return found


def by_reference(row: Logits, temperature: float) -> float:
    """Entropy by the NumPy reference."""
    reference = Row.load(row)
    reference.temperature = temperature
    return float(reference.entropy().bits)


def by_torch(rows: Logits, temperatures: NDArray[np.float64]) -> list[float]:
    """Entropy of each row by the PyTorch form."""
    device = DeviceCandidates(torch.from_numpy(rows))
    device.apply_temperature(torch.from_numpy(temperatures))
    found: list[float] = device.entropy().bits.tolist()
    return found


def ours(row: Logits, temperature: float) -> float:
    """Entropy by the native kernels; for short rows the other forms must agree."""
    found = by_kernels(row, temperature)
    if len(row) <= 20_000:
        forms = {
            "reference": by_reference(row, temperature),
            "torch": by_torch(row[None], np.array([temperature]))[0],
        }
        for form, other in forms.items():
            if other != found:
                raise SystemExit(
                    f"{form} has {other!r}, native {found!r}: {temperature=}, {row.tolist()[:20]}"
                )
    return found


def compare_bits(n_rows: int, rng: np.random.Generator) -> None:
    """Stop at the first row whose entropy differs in bits between forms."""
    batch = 500
    for begin in range(0, n_rows, batch):
        n = int(np.exp(rng.uniform(0, np.log(256))))
        rows = np.stack([row_of(FAMILIES[i % len(FAMILIES)], n, rng) for i in range(batch)])
        temperatures = rng.choice(TEMPERATURES, batch)
        others = by_torch(rows, temperatures)
        for row, temperature, other in zip(rows, temperatures.tolist(), others, strict=True):
            found = {
                "native": by_kernels(row, temperature),
                "reference": by_reference(row, temperature),
                "torch": other,
            }
            if len(set(found.values())) > 1:
                raise SystemExit(f"{found}: {temperature=}, {row.tolist()}")
        progress(f"{begin + batch:,} of {n_rows:,} rows")


def main() -> None:
    """Compare, and print the worst of each family."""
    asked = parser(__doc__, out="Markdown with the table, machine and command")
    asked.add_argument("--rows", type=int, default=10_000)
    asked.add_argument("--largest", type=int, default=256_000)
    asked.add_argument("--bits", type=int, default=0, help="rows whose bits alone are compared")
    asked.add_argument("--seed", type=int, default=1)
    arguments = asked.parse_args()
    rng = np.random.default_rng(arguments.seed)
    compare_bits(arguments.bits, rng)
    worst: dict[str, tuple[float, int, float, float]] = {}
    rows: Counter[str] = Counter()
    with_mpmath = 0
    for index in range(arguments.rows):
        family = FAMILIES[index % len(FAMILIES)]
        n = int(np.exp(rng.uniform(0, np.log(arguments.largest)))) if index >= len(FAMILIES) else 1
        row, temperature = (
            row_of(family, n, rng),
            TEMPERATURES[int(rng.integers(len(TEMPERATURES)))],
        )
        small = len(np.unique(row)) <= 1000
        exact = (by_mpmath if small else by_long_doubles)(row, temperature)
        with_mpmath += small
        if small and index % 10 == 0:
            other = by_long_doubles(row, temperature)
            if abs(other - exact) > 1e-12 * exact:
                raise SystemExit(f"long doubles have {other!r}, mpmath {exact!r}")
        found = ours(row, temperature)
        # Gaps of more than 990 bits are clamped: such entropies are below 1e-290.
        error = abs(found - exact) / exact if exact > 1e-290 else abs(found - exact)
        rows[family] += 1
        worst[family] = max(worst.get(family, (-1.0, 0, 0.0, 0.0)), (error, n, temperature, exact))
        if index % 200 == 199:
            progress(f"{index + 1:,} of {arguments.rows:,}")
    progress("")
    report = Report(
        "Entropy against exact arithmetic",
        f"{machine()}, numerics {NUMERICS_VERSION}.",
        f"    {command(__file__)}",
        f"{with_mpmath:,} rows by mpmath, the others by long doubles. Rows of up to 20,000 logits had the\n"
        "same bits in the NumPy reference, the native kernels and the PyTorch form; so had all of "
        f"{arguments.bits:,} more rows of up to 256.",
    )
    report.table(
        "family", "rows:", "largest relative error:", "at V:", "at T:", "entropy there, bits:"
    )
    for family in FAMILIES:
        error, n, temperature, exact = worst[family]
        report.row(
            family, f"{rows[family]:,}", f"{error:.2g}", f"{n:,}", temperature, f"{exact:.4g}"
        )
    report.write(arguments.out)
    if max(error for error, *_ in worst.values()) > 1e-6:
        raise SystemExit("an entropy is off by more than a millionth")


if __name__ == "__main__":
    main()
