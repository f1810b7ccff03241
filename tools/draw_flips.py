"""Counts draws that change when logits change a little, by `inverse` and by `gumbel` (docs/reproducibility.md).

    python tools/draw_flips.py [-m FILE.gguf] [-f TEXT] [--rows 320] [--seeds 16]

A model's rows of logits are compared with those of three variants: one with its feed-forward channels in
another order, which is the same function summed in another order and so differs only in low bits; and two with
weights rounded to Q8_0 and to Q4_0.  Each row is sampled with every seed, by both draws, over the whole
vocabulary and by the default chain.  The model has F16 or F32 matrices (without -m: the bundled one).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from run_report import Report, command, parser

from aleator import SamplingParams
from aleator.generate import Batch, Context
from aleator.language_model import load_vocabulary
from aleator.models import build_decoder, open_weights
from aleator.models.hub.bundled import bundled_model
from aleator.text.tokenizer import Tokenizer

Rows = npt.NDArray[np.float32]
Change = Callable[[str, npt.NDArray[np.generic]], None]

TEXT = Path(__file__).resolve().parent.parent / "tests" / "data" / "coriolanus.txt"
CHAINS = {
    "whole vocabulary, temperature 0.8": ("neutral", 0.8),
    "preset llama.cpp": ("llama.cpp", 0.8),
}
"""A preset and a temperature."""
DRAWS = ("inverse", "gumbel")


def reordered(name: str, data: npt.NDArray[np.generic]) -> None:
    """Reorder the feed-forward channels of a layer."""
    parts = name.split(".")
    if len(parts) < 3 or parts[2] not in ("ffn_gate", "ffn_up", "ffn_down"):
        return
    axis = int(parts[2] == "ffn_down")
    order = np.random.default_rng(int(parts[1])).permutation(data.shape[axis])
    data[...] = data.take(order, axis)


def rounded(kind: str) -> Change:
    """Round matrices as a type would store them."""

    def change(name: str, data: npt.NDArray[np.generic]) -> None:
        if data.ndim == 2:
            of = gguf.GGMLQuantizationType[kind]
            stored = gguf.quants.quantize(data.astype(np.float32), of)
            data[...] = gguf.quants.dequantize(stored, of).astype(data.dtype)

    return change


OTHERS: dict[str, Change] = {
    "summed in another order": reordered,
    "weights rounded to Q8_0": rounded("Q8_0"),
    "weights rounded to Q4_0": rounded("Q4_0"),
}


def changed(path: Path, copy: Path, change: Change) -> Path:
    """A copy of a model with its tensors changed in place."""
    shutil.copyfile(path, copy)
    for tensor in gguf.GGUFReader(copy, "r+").tensors:
        change(tensor.name, tensor.data)
    return copy


def rows_of(path: Path, tokens: list[int]) -> Rows:
    context = Context(build_decoder(open_weights(path)), n_ctx=len(tokens))
    rows: Rows = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    return rows


def tokens_drawn(rows: Rows, chain: tuple[str, float], draw: str, seeds: int) -> list[int]:
    """The tokens of each row with each seed."""
    params = SamplingParams.preset(chain[0], temperature=chain[1], draw=draw)
    drawn = []
    for i, row in enumerate(rows):
        for seed in range(seeds):
            drawn.append(params.replace(seed=i * seeds + seed).chain().sample(row))
    return drawn


def main() -> None:
    asked = parser(__doc__, out="Markdown with the table and command")
    asked.add_argument("-m", "--model", type=Path, default=bundled_model())
    asked.add_argument("-f", "--file", type=Path, default=TEXT)
    asked.add_argument("--rows", type=int, default=320)
    asked.add_argument("--seeds", type=int, default=16)
    options = asked.parse_args()
    tokenizer = Tokenizer(load_vocabulary(open_weights(options.model)))
    tokens = tokenizer.encode(options.file.read_text())[: options.rows]
    right = rows_of(options.model, tokens)
    facts = f"{len(right)} rows of {right.shape[1]:,}, {options.seeds} seeds"
    report = Report(
        "Draws that change with the logits",
        f"{options.model.name}: {facts}",
        f"    {command(__file__)}",
    )
    report.table("logits", "largest difference:", "chain", "inverse:", "gumbel:")
    with tempfile.TemporaryDirectory() as folder:
        for name, change in OTHERS.items():
            other = rows_of(changed(options.model, Path(folder) / "model.gguf", change), tokens)
            far = np.abs(other - right).max()
            for title, chain in CHAINS.items():
                cells = []
                for draw in DRAWS:
                    mine, theirs = (
                        np.array(tokens_drawn(rows, chain, draw, options.seeds))
                        for rows in (right, other)
                    )
                    cells.append(f"{np.mean(mine != theirs):.2%}")
                report.row(name, f"{far:.2g}", title, *cells)
    report.write(options.out)


if __name__ == "__main__":
    main()
