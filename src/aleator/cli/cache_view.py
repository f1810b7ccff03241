"""``aleator cache-view``: show what the KV cache's cells hold as sequences come and go."""

from __future__ import annotations

import argparse
import shutil
import sys

from aleator.cache import Frame
from aleator.cli.arguments import Parser
from aleator.cli.declared import unescape
from aleator.cli.options import add_model_options, load_model
from aleator.cli.terminal import write
from aleator.core.packages import require_matplotlib
from aleator.generate.cache_script import EXAMPLE, Script, checked

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
  {EXAMPLE}

examples:
  aleator cache-view
  aleator cache-view --png cells.png
  aleator cache-view -c 64 --script "decode 0,1 12; rm 0; decode 2 20; defrag"
"""


def add_arguments(parser: Parser) -> None:
    group = parser.group("what to show")
    group.option("--script TEXT", "operations, separated by ;", default=EXAMPLE)
    group.option(
        "-p, --prompt TEXT",
        "how sequences begin (default: %(default)s)",
        default="ROMEO:\\nWhat light",
    )
    group.number("--seed N", "of the tokens", low=0, default=1)
    group.number("--sequences N", "ids", default=8)
    group.option("--png FILE", "draw a picture too (needs aleator[plot])")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.png is not None:
        require_matplotlib()
    operations = [x.split() for x in arguments.script.split(";") if x.strip()]
    for words in operations:
        checked(words)
    if arguments.n_ctx is None:
        arguments.n_ctx = "80"
    model = load_model(arguments)
    context = model.context(n_ctx=model.n_ctx, n_seq_max=arguments.sequences)
    prompt = model.tokenizer.encode(unescape(arguments.prompt))
    script = Script(context, prompt, arguments.seed)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    frames: list[Frame] = []
    for words in operations:
        script.do(words)
        frames.append(context.cache.frame(" ".join(words)))
        write(frames[-1].text(width) + "\n\n")
    if arguments.png is not None and frames:
        context.cache.plot(arguments.png, frames)
