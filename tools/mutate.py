"""Would the conformance test notice a wrong kernel?  Change one thing at a time and check that it fails.

    python tools/mutate.py [name ...]

Each mutation is built in build/mutate, a copy of native/, and tests/samplers/test_conformance*.py run
against it.  Each takes about a minute, so this is not part of `make check`.  A complete run in which all are
noticed writes its table to benchmarks/results.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from native_module import ROOT, BuildError, build, environment

WORK = ROOT / "build" / "mutate"
RESULTS = ROOT / "benchmarks" / "results"
TESTS = ("tests/samplers/test_conformance.py", "tests/samplers/test_conformance_bounds.py")
TIME_LIMIT = 600


@dataclass(frozen=True)
class Mutation:
    """Texts of one file under native/, and their replacements."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]


def one(name: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(name, file, ((old, new),))


TILES, WEIGHTS, CANDIDATES = (
    "samplers/tiles.isa.cpp",
    "samplers/weights.hpp",
    "samplers/candidates.cpp",
)
ROW, RANKED, VECTORS = "samplers/tiled_row.hpp", "samplers/ranked_row.hpp", "samplers/vectors.hpp"
MUTATIONS = (
    one("ties go to the higher id", "samplers/values.hpp",
        "uint32_t(~id)", "uint32_t(id)"),
    one("c2 of the polynomial is one ulp off", "contract.hpp", "0.24022242426872253f", "0.24022243916988373f"),
    one("weights have two bits less", WEIGHTS,
        "contract::round + contract::weight_bits", "contract::round + 38"),
    one("t is clamped at -30", WEIGHTS, "Floats{} + contract::least_bits", "Floats{} - 30.0f"),
    one("top-p's bound is rounded down", "rng/fixed.hpp",
        "(product + ((u128{1} << shift) - 1)) >> shift", "product >> shift"),
    one("a mass equal to top-p's bound does not end the prefix", RANKED,
        "above + begin->measure < wanted", "above + begin->measure <= wanted"),
    Mutation("min-p drops what is exactly at its bound", VECTORS,
             (("_CMP_GE_OQ", "_CMP_GT_OQ"), ("x - zmax >= threshold", "x - zmax > threshold"))),
    one("min-p's product is a float32 one", "samplers/min_p.cpp",
        "float(c.temperature() * distance)",
        "float(c.temperature()) * float(distance)"),
    one("the product of temperatures is a float32", CANDIDATES,
        "const double product = temperature_ * factor;",
        "const double product = float(temperature_ * factor);"),
    one("a draw at a boundary stays before it", ROW,
        "while (target >= w[j]) target -= w[j++];", "while (target > w[j]) target -= w[j++];"),
    one("a Philox key word is one off", "contract.hpp", "0x9e3779b9u", "0x9e3779bau"),
    one("the position does not advance", "samplers/chain_base.hpp",
        "position_ += generated;", "position_ += 0;"),
    one("the last bit of log2 is lost", "rng/fixed.hpp",
        "fraction = fraction << 1 | two;", "fraction = fraction << 1 | (two && i < 31);"),
    one("frequency and presence are subtracted one by one", "samplers/penalties.cpp",
        "*z = *z - (by_count + presence_);", "*z = (*z - by_count) - presence_;"),
    one("repetition divides negative logits too", "samplers/penalties.cpp",
        "*z = *z > 0 ? *z / repetition_ : *z * repetition_;", "*z = *z / repetition_;"),
    one("XTC is off at a threshold of 0.5", "samplers/xtc.cpp",
        "threshold_ > contract::xtc_largest", "threshold_ >= contract::xtc_largest"),
    one("XTC's run ends at equality", CANDIDATES,
        "if (part_.weights[i] < bound)", "if (part_.weights[i] <= bound)"),
    one("typical's mean is rounded up", "samplers/typical_p.cpp",
        "contract::depth_unit + 0.5", "contract::depth_unit + 1"),
    one("a part of a flat row is taken for all of it", RANKED,
        "find_bin(mean, depth - mean, by", "find_bin(mean, max_score, by"),
    one("the entropy leaves out weights that count", TILES.replace(".isa.cpp", ".hpp"),
        "no_entropy_bits = -47.0f", "no_entropy_bits = -42.0f"),
    one("the entropy's products are rounded up", TILES,
        "split(weighted)", "split(weighted - 1)"),
    one("top-n-sigma truncates", TILES, "round_magnitude(distance, contract::sigma_unit)",
        "__builtin_convertvector(distance * -contract::sigma_unit, Ints)"),
    one("tail-free keeps one more", "samplers/tail_free.cpp", "order[i ? i - 1 : 0]", "order[i]"),
    one("DRY's shortest repetition goes free", "samplers/repeats.hpp",
        "counted >= allowed_", "counted > allowed_"),
    one("adaptive-p multiplies in another order", "samplers/adaptive_p.cpp",
        "above = contract::adaptive_slope * square",
        "above = (contract::adaptive_slope * distance) * distance"),
    one("-0 is not made +0", VECTORS, "v = v + 0.0f;", ""),
)  # fmt: skip


def outcome(mutation: Mutation | None) -> str:
    """The first test that fails with the mutation, or an empty text if none does."""
    native = WORK / "native"
    if mutation:
        path = native / mutation.file
        text = sound = path.read_text()
        for old, new in mutation.changes:
            if old not in text:
                raise SystemExit(f"{mutation.name}: {mutation.file} has no {old!r} any more")
            text = text.replace(old, new)
        path.write_text(text)
    try:
        module = build(native, WORK / "build", "-DCMAKE_BUILD_TYPE=Release")
    finally:
        if mutation:
            path.write_text(sound)
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *TESTS,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(module), capture_output=True, text=True,
            timeout=TIME_LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^FAILED [^:]+::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return f"`{failed[1]}`" if failed else "the process ends"


def copy_if_changed(source: str, target: str) -> str:
    """Copy a file if it differs, as a copy would be older than the build of a mutation."""
    if not Path(target).exists() or Path(target).read_bytes() != Path(source).read_bytes():
        shutil.copy(source, target)
    return target


def main() -> int:
    """Run the mutations, print their table, and fail if one goes unnoticed."""
    shutil.copytree(
        ROOT / "native", WORK / "native", dirs_exist_ok=True, copy_function=copy_if_changed
    )
    chosen = [m for m in MUTATIONS if not sys.argv[1:] or m.name in sys.argv[1:]]
    if first := outcome(None):
        raise SystemExit(f"without a mutation {first} fails")
    lines = ["| mutation | file | first test that fails |", "|---|---|---|"]
    missed = 0
    for mutation in chosen:
        noticed = outcome(mutation)
        missed += not noticed
        lines.append(f"| {mutation.name} | `{mutation.file}` | {noticed or '**none**'} |")
        print(lines[-1], flush=True)
    if not missed and len(chosen) == len(MUTATIONS):
        today = date.today().isoformat()
        head = f"# Mistakes in native kernels that the conformance test notices\n\n{today}\n\n"
        text = head + "    python tools/mutate.py\n\n" + "\n".join(lines) + "\n"
        (RESULTS / f"mutations_native.{today}.md").write_text(text)
    print(f"{len(chosen)} mutations, {missed} went unnoticed")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BuildError as error:
        sys.exit(f"the build failed:\n{error}")
