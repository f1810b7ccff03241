"""Compares the decoder in Triton with the native one, bit for bit, on random models of every architecture.

    python tools/equality_architectures.py [--each 1] [--seed N] [--names ARCHITECTURE ...] [--device cpu]
                                           [--type TYPE] [--part I N] [--out FILE.md]

The models are in no repository: sizes, types of matrices, keys and values, micro-batches, lengths and
tokens are drawn.  Every second model of an architecture is wide enough for blocks of 256.  Each goes through
the walk of decoder_walk.py.  A line is printed for each model as it ends, and added to the file: a later call
with the same file and seed leaves out the models that are equal there.  ``--part 0 2`` takes every second
architecture; ``--type BF16`` gives all models matrices of that type.  On the CPU Triton's interpreter computes.
The exit status is 0 if no bit differs and nothing failed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from decoder_walk import Walk
from equality_decoder import TYPES
from run_report import Report, command, machine, parser
from wide_models import MODELS, SMALL, AnySpec, write_model

from aleator.models import build_decoder, open_weights
from aleator.models.index import ARCHITECTURES

CACHES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types of keys and of values."""
WRONG = "other bits:"
COLUMNS = (
    "architecture", "number:", "model", "matrices", "keys, values", "micro-batch:", "rows:", WRONG,
    "refused by both", "processor seconds:",
)  # fmt: skip
MOST_LAYERS = 8
"""Models with more layers are not drawn."""


def drawn(name: str, wide: bool, r: random.Random) -> AnySpec:
    """A random model of an architecture; ``wide``: its matrices are whole blocks of 256."""
    listed = [each for each in (MODELS if wide else SMALL).values() if each.arch == name]
    spec: Any = r.choice([each for each in listed if _n_layers(each) <= MOST_LAYERS])
    widths = [256, 512] if wide else [32, 64, 96]
    changes: dict[str, Any] = {
        "seed": r.randrange(1 << 30), "n_vocab": r.randrange(40, 160), "type": r.choice(TYPES),
    }  # fmt: skip
    # Vectors of positions, and ALiBi, need as many channels as heads have.
    if getattr(spec, "rope", True):
        changes["n_embd"] = r.choice(widths)
    if getattr(spec, "gemma4", None) is None:
        n_ff = r.choice(widths) if wide else 8 * r.randrange(4, 17)
        changes["n_ff"] = n_ff
        experts = getattr(spec, "experts", None)
        if experts is not None and experts.n_ff == spec.n_ff:
            changes["experts"] = replace(experts, n_ff=n_ff)
        if getattr(spec, "n_ff_expert", None) == spec.n_ff:
            changes["n_ff_expert"] = n_ff
    made: AnySpec = replace(spec, **changes)
    return made


def _n_layers(spec: Any) -> int:
    return spec.n_layers if hasattr(spec, "n_layers") else len(spec.layers)


def drawn_caches(decoder: Any, r: random.Random) -> tuple[str, str]:
    """Random types of keys and values that the heads' sizes allow."""
    shapes = decoder.cache_shapes + decoder.window_shapes
    sides = [[s.head_dim for s in shapes], [s.head_dim_v for s in shapes]]
    latent = decoder.config.latent
    if latent is not None and latent.compressed:
        sides[0].append(latent.rank)
    plain = CACHES[:3]
    k, v = (r.choice(plain if any(n % 32 for n in each) else CACHES) for each in sides)
    return k, v


def compared(name: str, number: int, options: argparse.Namespace) -> tuple[bool, list[Any]]:
    """Compare one random model; returns whether all was equal, and the rest of its row."""
    r = random.Random(f"{options.seed} {name} {number}")
    spec = drawn(name, number % 2 == 1, r)
    if options.type is not None:
        spec = replace(spec, type=options.type)
    n_ubatch, seed = r.choice((18, 24, 64)), r.randrange(1 << 30)
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="equality-") as folder:
        path = write_model(Path(folder) / "m.gguf", spec)
        decoders = [
            build_decoder(open_weights(path), "cpu", form="native"),
            build_decoder(open_weights(path), options.device, form="triton"),
        ]
        caches = drawn_caches(decoders[0], r)
        walk = Walk(decoders, seed, n_ubatch=n_ubatch, type_k=caches[0], type_v=caches[1])
        found = walk.run()
    model = f"{spec.n_embd} wide, {_n_layers(spec)} layers, {spec.n_vocab} tokens"
    seconds = time.process_time() - began
    row = [
        model, spec.type, ", ".join(caches), n_ubatch, found.rows, found.wrong,
        ", ".join(found.refused), f"{seconds:.0f}",
    ]  # fmt: skip
    if found.where:
        print(f"{name} {number}: {found.where}; {spec}", flush=True)
    return not found.wrong, row


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    asked = parser(__doc__, out="Markdown with the table, machine and command")
    asked.add_argument("--each", type=int, default=1, help="models of each architecture")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument(
        "--names",
        nargs="+",
        metavar="NAME",
        choices=list(ARCHITECTURES),
        default=list(ARCHITECTURES),
        help="default: all; a wrong one prints their names",
    )
    asked.add_argument("--device", default="cpu")
    asked.add_argument(
        "--type",
        metavar="TYPE",
        choices=TYPES,
        help="of all models' matrices; a wrong one prints their names",
    )
    asked.add_argument(
        "--part",
        nargs=2,
        type=int,
        default=(0, 1),
        metavar=("I", "N"),
        help="every Nth, from the Ith",
    )
    return asked.parse_args(arguments)


def equal_before(out: Path | None, drawn_by: str) -> set[tuple[str, int]]:
    """Names and numbers of the models that are equal in the file of an earlier call.

    Raises:
        SystemExit: its models were drawn, or compared, in another way.
    """
    if out is None or not out.exists():
        return set()
    text = out.read_text()
    if drawn_by not in text.splitlines():
        raise SystemExit(
            f"{out} is of other models, without the line {drawn_by!r}: give another --out"
        )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found = [row for row in rows if len(row) == len(COLUMNS) and row[COLUMNS.index(WRONG)] == "0"]
    return {(row[0], int(row[1])) for row in found}


def run(options: argparse.Namespace, report: Report, before: set[tuple[str, int]]) -> bool:
    """Compare the models that are not of ``before``; returns whether all was equal."""
    ok = True
    first, step = options.part
    with np.errstate(all="ignore"):
        for name in options.names[first::step]:
            for number in range(options.each):
                if (name, number) in before:
                    continue
                try:
                    equal, row = compared(name, number, options)
                except Exception:
                    traceback.print_exc()
                    equal, row = False, ["failed", *[""] * (len(COLUMNS) - 3)]
                ok = ok and equal
                report.row(name, number, *row)
                if options.out is not None:
                    with options.out.open("a") as file:
                        file.write(report.lines[-1] + "\n")
    return ok


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = parsed(arguments)
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    where = "Triton's interpreter" if options.device == "cpu" else options.device
    of_type = "" if options.type is None else f", matrices in {options.type}"
    drawn_by = f"Drawn with seed {options.seed}{of_type}, compared in {where}."
    before = equal_before(options.out, drawn_by)
    report = Report(
        "Random models of every architecture, in Triton and native",
        f"{machine('torch', 'triton')}.",
        drawn_by,
        f"    {command(__file__, arguments)}",
        "Each row of logits, and the bytes of a saved sequence, are compared bit for bit. What is done with "
        "each model stands in tools/decoder_walk.py.",
    )
    report.table(*COLUMNS)
    if options.out is not None and not options.out.exists():
        report.write(options.out)
    ok = run(options, report, before)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
