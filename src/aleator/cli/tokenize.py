"""``aleator tokenize``: show the tokens of a text."""

from __future__ import annotations

import argparse

from aleator.cli.arguments import Parser
from aleator.cli.options import add_model, add_text_options, read_text, weights_named
from aleator.cli.terminal import write, write_json
from aleator.core.token_text import readable
from aleator.language_model import load_vocabulary
from aleator.text.tokenizer import Tokenizer

EXAMPLES = """\
examples:
  aleator tokenize -p "To be, or not to be"
  aleator tokenize -m model.gguf -f text.txt --ids
  echo "<|im_start|>" | aleator tokenize -m model.gguf --no-parse-special
"""


def add_arguments(parser: Parser) -> None:
    add_text_options(parser, "text", "the text")
    group = parser.group("tokens")
    add_model(group)
    group.switch("--ids", "write the ids only, as a Python and JSON list")
    group.switch("--json", "write JSON: a list of {id, text, bytes}")
    group.switch("--no-bos", "leave out the tokens put around every text (BOS, EOS)")
    group.switch(
        "--parse-special",
        "read the names of control tokens, such as </s>, as those tokens (default: off)",
    )


def run(arguments: argparse.Namespace) -> None:
    text = read_text(arguments)
    vocab = load_vocabulary(weights_named(arguments))
    tokenizer = Tokenizer(vocab)
    tokens = tokenizer.encode(
        text, add_special=not arguments.no_bos, parse_special=arguments.parse_special
    )
    pieces = [vocab.token_bytes(token) for token in tokens]
    if arguments.ids:
        write(f"{tokens}\n")
    elif arguments.json:
        rows = [
            {"id": token, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)}
            for token, piece in zip(tokens, pieces, strict=True)
        ]
        write_json(rows, ensure_ascii=False)
    else:
        for token, piece in zip(tokens, pieces, strict=True):
            write(f"{token:8} {readable(piece)}\n")
