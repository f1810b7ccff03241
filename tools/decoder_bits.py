"""Logits of small GGUF files, compared with those of a recorded file: the same bits on every machine.

    python tools/decoder_bits.py --make FOLDER      write the files; needs the package gguf
    python tools/decoder_bits.py --record FOLDER    write the golden file, on x86-64
    python tools/decoder_bits.py FOLDER [--isa NAME]

The files have random weights: every small model of tools/make_models.py, dense_models.py, hybrid_models.py
and delta_models.py, and a Llama and a Mamba in every type. tests/golden/machines/models.json has a digest of
each file and of its logits: token by token on one thread, and in one batch on three, which must have the same
bits. Comparing needs only NumPy and the package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "machines" / "models.json"
TOKENS = 24


def writers() -> dict[str, Callable[[Path], object]]:
    """Functions that write the models, by file name."""
    from dataclasses import replace

    from make_models import SPECS
    from wide_models import SMALL, write_model, write_wide

    from aleator.models.files.tensor_types import TENSOR_TYPES

    made: dict[str, Callable[[Path], object]] = {
        name: partial(write_model, spec=spec) for name, spec in SMALL.items()
    }
    for name in ("llama", "mamba"):
        wide = replace(SPECS[name], n_vocab=96, n_embd=256, n_ff=512, head_dim=64)
        made |= {f"{name}-{k}": partial(write_wide, spec=wide, kind=k) for k in TENSOR_TYPES}
    return made


def make(folder: Path, anew: bool = False) -> None:
    """Write the missing files, or all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in writers().items():
        if anew or not (folder / f"{name}.gguf").exists():
            write(folder / f"{name}.part")
            (folder / f"{name}.part").rename(folder / f"{name}.gguf")


def bits(path: Path) -> dict[str, str]:
    """Digests of a file and of its logits; "" for the logits if the two computations differ."""
    import numpy as np

    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    decoder = build_decoder(open_weights(path))
    tokens = [(7 * i * i + 3) % decoder.config.n_vocab for i in range(TOKENS)]
    alone = Context(decoder, n_ctx=64, n_threads=1)
    rows = [np.asarray(alone.decode(Batch.one([t], i))) for i, t in enumerate(tokens)]
    right = np.concatenate(rows)
    batch = Batch()
    for i, token in enumerate(tokens):
        batch.add(token, i, [0], logits=True)
    together = np.asarray(Context(decoder, n_ctx=64, n_threads=3).decode(batch))
    equal = together.tobytes() == right.tobytes()
    return {
        "file": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        "logits": hashlib.sha256(right.tobytes()).hexdigest()[:16] if equal else "",
    }


def differences(
    made: Mapping[str, dict[str, str]], golden: Mapping[str, dict[str, str]]
) -> list[str]:
    """What is wrong with each model that differs from the record or is not in it."""
    found = [f"{name}: was not recorded" for name in made if name not in golden]
    for name, right in golden.items():
        mine = made.get(name)
        if mine is None:
            found.append(f"{name}: is missing")
        elif mine["file"] != right["file"]:
            found.append(f"{name}: is another file")
        elif not mine["logits"]:
            found.append(f"{name}: a batch has other bits than its tokens one by one")
        elif mine["logits"] != right["logits"]:
            found.append(f"{name}: other bits")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true", help="write the files")
    parser.add_argument("--record", action="store_true", help="write the golden file")
    parser.add_argument("--isa", help="instruction set to ask for: base, v3, v4, dotprod")
    options = parser.parse_args(arguments)
    if options.isa:
        os.environ["ALEATOR_ISA"] = options.isa  # before the native module looks at it
    if options.make or options.record:
        make(options.folder, anew=options.record)
        if not options.record:
            return 0
    from aleator.core import host

    if options.isa and host.isa() != options.isa:
        print(f"asked for {options.isa}, and the native module runs {host.isa()}")
        return 1
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if options.record:
        names = writers()
        ordered = dict.fromkeys([*(name for name in golden if name in names), *names])
        made = {name: bits(options.folder / f"{name}.gguf") for name in ordered}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in made.items())
        GOLDEN.write_text(f"{{\n{lines}\n}}\n")
        return 0
    made = {path.stem: bits(path) for path in sorted(options.folder.glob("*.gguf"))}
    wrong = differences(made, golden)
    print("\n".join([*wrong[:20], f"{host.isa()}: {len(made)} models, {len(wrong)} differ"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
