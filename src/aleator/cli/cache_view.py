"""``aleator cache-view``: show which cells of the KV cache hold what while sequences come and go."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from typing import TYPE_CHECKING, Any

from aleator.cli.arguments import Parser, integer
from aleator.cli.declared import unescape
from aleator.cli.options import add_model_options, load_model
from aleator.cli.terminal import write
from aleator.core.errors import ParameterError

if TYPE_CHECKING:
    from aleator.cache import Frame
    from aleator.generate import Context
    from aleator.language_model import LanguageModel

SCRIPT = (
    "decode 0 20; fork 0 1; fork 0 2; decode 0,1,2 8; rm 1; slide 0 4; decode 0,2 4; rm 2; defrag"
)

EXAMPLES = f"""\
A script of operations is run on a small cache; after each, a line shows its
cells: . free, a digit the owner (+ above 9), M several owners, ~ below a cell
whose key is still to be rotated to a new position.

  decode SEQ[,SEQ...] N     n tokens of each sequence, one after the other; an
                            empty sequence begins with the prompt
  fork SEQ SEQ [UPTO]       the second sequence shares the first one's cells
  rm SEQ [P0 [P1]]          remove positions P0 to P1 - 1; all: rm SEQ
  add SEQ P0 P1 DELTA       move positions; -1 as P1: to the end
  div SEQ P0 P1 DIVISOR     divide positions
  slide SEQ KEEP [DISCARD]  forget positions after the first KEEP, move up the rest
  keep SEQ                  remove every other sequence
  defrag                    fill holes with the last cells
  clear                     remove everything

The script unless one is given:
  {SCRIPT}

examples:
  aleator cache-view
  aleator cache-view --png cells.png
  aleator cache-view -c 64 --script "decode 0,1 12; rm 0; decode 2 20; defrag"
"""


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    group = parser.group("what to show")
    group.option("--script", metavar="TEXT", default=SCRIPT, help="operations, separated by ;")
    group.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        default="ROMEO:\\nWhat light",
        help="how sequences begin (default: %(default)s)",
    )
    group.option(
        "--seed", type=integer(0), default=1, metavar="N", help="of the tokens (default: 1)"
    )
    group.option("--sequences", type=integer(1), default=8, metavar="N", help="ids (default: 8)")
    group.option("--png", metavar="FILE", help="draw a picture too (needs aleator[plot])")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the cells after each operation; returns the exit code."""
    if arguments.png is not None:
        from aleator.core.pictures import require_matplotlib

        require_matplotlib()
    operations = [x.split() for x in arguments.script.split(";") if x.strip()]
    for words in operations:
        _check(words)
    if arguments.n_ctx is None:
        arguments.n_ctx = "80"
    model = load_model(arguments)
    context = model.context(n_ctx=model.n_ctx, n_seq_max=arguments.sequences)
    script = Script(model, context, unescape(arguments.prompt), arguments.seed)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    frames: list[Frame] = []
    for words in operations:
        script.do(words)
        frames.append(context.cache.frame(" ".join(words)))
        write(frames[-1].text(width) + "\n\n")
    if arguments.png is not None and frames:
        context.cache.plot(arguments.png, frames)
    return 0


ARGUMENTS = {
    "decode": (2, 2),
    "fork": (2, 3),
    "rm": (1, 3),
    "add": (4, 4),
    "div": (4, 4),
    "slide": (2, 3),
    "keep": (1, 1),
    "defrag": (0, 0),
    "clear": (0, 0),
}
"""Least and most numbers of each operation."""


def _check(words: list[str]) -> None:
    name, given = words[0], words[1:]
    if name not in ARGUMENTS:
        raise ParameterError(
            "script", f"{name!r} is not an operation; operations: {', '.join(ARGUMENTS)}"
        )
    low, high = ARGUMENTS[name]
    numbers = given[0].split(",") + given[1:] if name == "decode" and given else given
    whole = all(x.lstrip("-").isascii() and x.lstrip("-").isdigit() for x in numbers)
    if not low <= len(given) <= high or not whole:
        count = str(low) if low == high else f"{low} to {high}"
        raise ParameterError("script", f"{' '.join(words)!r}: {name} takes {count} whole numbers")


class Script:
    """Runs operations on a context, whose sequences go on with tokens drawn from the model."""

    def __init__(self, model: LanguageModel, context: Context, prompt: str, seed: int) -> None:
        self._context = context
        self._prompt = model.tokenizer.encode(prompt)
        if not self._prompt:
            raise ParameterError("prompt", "the prompt has no tokens: give -p TEXT")
        self._random = random.Random(seed)
        self._next: dict[int, int] = {}

    def do(self, words: list[str]) -> None:
        """Run one operation."""
        cache, name = self._context.cache, words[0]
        if name == "decode":
            for _ in range(int(words[2])):
                self._decode([int(x) for x in words[1].split(",")])
            return
        n = [int(x) for x in words[1:]]
        if name == "fork":
            cache.seq_cp(n[0], n[1], 0, n[2] if len(n) > 2 else -1)
            self._next.pop(n[1], None)
        elif name == "rm":
            cache.seq_rm(*n)
        elif name == "add":
            cache.seq_add(*n)
        elif name == "div":
            cache.seq_div(*n)
        elif name == "slide":
            cache.sequence(n[0]).slide(*n[1:])
        elif name == "keep":
            cache.seq_keep(n[0])
        elif name == "defrag":
            cache.defrag()
        else:
            cache.clear()

    def _decode(self, seqs: list[int]) -> None:
        from aleator.generate import Batch

        batch = Batch()
        for seq in seqs:
            empty = self._context.cache.seq_pos_max(seq) < 0
            # A sequence that was not decoded yet goes on with a token of the prompt.
            go_on = [self._next.get(seq, self._random.choice(self._prompt))]
            text = self._prompt if empty else go_on
            for i, token in enumerate(text):
                batch.add(token, seqs=[seq], logits=i == len(text) - 1)
        for seq, row in zip(seqs, self._context.decode(batch), strict=True):
            self._next[seq] = int(self._random.choice(best(row)))


def best(row: Any) -> list[int]:
    """The four most likely tokens of a row of logits, most likely first."""
    import numpy as np

    return [int(token) for token in np.argsort(-np.asarray(row), kind="stable")[:4]]
