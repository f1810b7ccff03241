"""``aleator perplexity``: how well a model predicts a text, by llama.cpp's definition."""

from __future__ import annotations

import argparse
import json
import sys
from time import perf_counter
from typing import Any

from aleator.cli import INTERRUPTED
from aleator.cli.arguments import Parser
from aleator.cli.options import add_model_options, add_text_options, load_model, read_text
from aleator.cli.terminal import hint, note, write
from aleator.generate.scores import Perplexity
from aleator.language_model import LanguageModel

CHUNK = 512
"""Tokens per chunk without ``-c``, as in llama.cpp."""
QUIET = 10.0
"""Seconds between lines of progress if standard error is not a terminal."""

EXAMPLES = """\
The text is cut into chunks of -c tokens, each read with an empty cache and, where the
model has one, BOS in place of its first token.  The second half of each chunk is
scored.  This is what llama-perplexity does, so the numbers can be compared.  Ctrl-C
ends it and writes the result of the chunks read so far.

examples:
  aleator perplexity -m model.gguf -f text.txt
  aleator perplexity -m model.gguf -f text.txt -c 1024 --chunks 20 --json
"""


def add_arguments(parser: Parser) -> None:
    add_text_options(parser, "text", "the text")
    group = parser.group("measurement")
    group.number("--chunks N", "chunks to read at most (default: the whole text)")
    group.switch("--json", "write one JSON object instead of a line")
    add_model_options(parser, chunk=CHUNK)


def run(arguments: argparse.Namespace) -> int:
    text = read_text(arguments)
    n_ctx = CHUNK if arguments.n_ctx is None else int(arguments.n_ctx)
    model = load_model(arguments)
    show = Progress()
    complete = True
    try:
        found = model.perplexity(text, n_ctx=n_ctx, chunks=arguments.chunks, progress=show)
    except KeyboardInterrupt:
        if show.last is None:
            raise
        found, complete = show.last, False
    finally:
        show.clear()
    write(report(model, found, show.seconds, complete, arguments.json))
    if not complete:
        note("aleator: error: interrupted: the result is that of the chunks read so far")
    return 0 if complete else INTERRUPTED


class Progress:
    """Shows the running value and the speed: one changing line on a terminal, otherwise a line now and then."""

    def __init__(self) -> None:
        self.last: Perplexity | None = None
        self._started = self._shown = perf_counter()
        self.seconds = 0.0
        self._terminal = sys.stderr.isatty()

    def __call__(self, now: Perplexity) -> None:
        """Note a measurement, and show it."""
        self.last, self.seconds = now, perf_counter() - self._started
        speed = now.n_read / self.seconds
        left = (now.n_chunks - now.chunk) * now.n_ctx / speed
        line = (
            f"chunk {now.chunk}/{now.n_chunks}: perplexity {now.value:.4f}, {speed:,.0f} tokens/s, "
            f"{left:,.0f} s left"
        )
        if self._terminal:
            hint(f"\r{line:<79}")
        elif perf_counter() - self._shown > QUIET and now.chunk < now.n_chunks:
            self._shown = perf_counter()
            note(line)

    def clear(self) -> None:
        """Clear the line."""
        if self._terminal and self.last is not None:
            hint(f"\r{'':<79}\r")


def report(
    model: LanguageModel, found: Perplexity, seconds: float, complete: bool, as_json: bool
) -> str:
    speed = found.n_read / seconds
    if not as_json:
        return (
            f"perplexity {found.value:.4f} ± {found.error:.5f} ({found.n_scored:,} tokens scored, "
            f"{found.chunk} of {found.n_chunks} chunks of {found.n_ctx}, {speed:,.0f} tokens/s)\n"
        )
    fields: dict[str, Any] = {
        "model": model.weights.config.name or model.weights.path.name,
        "perplexity": found.value,
        "error": found.error,
        "n_scored": found.n_scored,
        "n_ctx": found.n_ctx,
        "chunks": found.chunk,
        "n_chunks": found.n_chunks,
        "complete": complete,
        "seconds": seconds,
        "tokens_per_second": speed,
    }
    return json.dumps(fields) + "\n"
