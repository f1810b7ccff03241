"""``aleator imatrix``: how much each column of a model's matrices matters for a text."""

from __future__ import annotations

import argparse
from pathlib import Path

from aleator.cli import INTERRUPTED
from aleator.cli.arguments import Parser
from aleator.cli.options import add_model_options, add_text_options, load_model, read_text
from aleator.cli.perplexity import CHUNK
from aleator.cli.terminal import ProgressBar, note, write
from aleator.core.errors import ParameterError
from aleator.generate.imatrix import InputSums
from aleator.generate.scores import chunks_of
from aleator.models.files.gguf_writer import target
from aleator.models.files.imatrix import write_imatrix

EXAMPLES = """\
Reads a text with a model and writes, for every matrix of its layers, the mean square of
each column's input: where inputs are large, errors of the weights do harm.  aleator
quantize --imatrix takes the file, and so does llama-quantize.  The text is cut into
chunks of -c tokens, each read with an empty cache and, where the model has one, BOS in
place of its first token, as llama-imatrix does.  Some 50,000 tokens of texts as the
model will meet them are enough.  Ctrl-C writes what was read so far.

examples:
  aleator imatrix -m model-F16.gguf -f texts.txt -o imatrix.gguf
  aleator imatrix -m model-F16.gguf -f texts.txt -o imatrix.gguf --chunks 100
"""


def add_arguments(parser: Parser) -> None:
    add_text_options(parser, "text", "the text")
    group = parser.group("importance matrix")
    group.option("-o, --output FILE", "the file to write")
    group.number("--chunks N", "chunks to read at most (default: the whole text)")
    add_model_options(parser, chunk=CHUNK)


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is None:
        raise ParameterError("output", "no output is given: -o imatrix.gguf")
    text, out = read_text(arguments), Path(arguments.output)
    n_ctx = int(arguments.n_ctx)
    model = load_model(arguments)
    names = [] if arguments.file in (None, "-") else [arguments.file]
    sums, done, interrupted = InputSums(model.weights), 0, False
    target(out, [model.weights.path, *map(Path, names)], sums.nbytes)
    tokens = model.prompt_tokens(text)
    n_chunks = chunks_of(tokens, n_ctx, arguments.chunks)
    bos = model.vocab.bos if model.vocab.add_bos else None
    with ProgressBar("reading", "chunks") as bar:
        try:
            for done in sums.read(model.context(n_ctx), tokens, n_ctx, n_chunks, bos):
                if not sums.found():
                    raise ParameterError(
                        "device",
                        "nothing is seen: an importance matrix is made on the CPU, without --device",
                    )
                bar(done, n_chunks)
        except KeyboardInterrupt:
            if not done:
                raise
            interrupted = True
    found = sums.found()
    write_imatrix(out, found, names, done, n_ctx)
    partial = [name for name, (_, rows) in found.items() if not rows.all()]
    if partial:
        note(
            f"aleator: warning: the text did not reach every expert of {len(partial)} tensors, such as "
            f"{partial[0]}: give a longer one"
        )
    write(f"{arguments.output}: {len(found)} tensors from {done} chunks of {n_ctx} tokens\n")
    if interrupted:
        note("aleator: error: interrupted: the file is of the chunks read so far")
    return INTERRUPTED if interrupted else 0
