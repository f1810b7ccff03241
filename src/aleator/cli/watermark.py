"""``aleator watermark detect``: test whether a text was drawn with a watermark's key."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import add_model, read_file, weights_named
from aleator.cli.terminal import write, write_json
from aleator.core.errors import ParameterError
from aleator.core.json_text import loads
from aleator.language_model import load_vocabulary
from aleator.samplers.dist import DRAW
from aleator.samplers.synthid import SynthIDTest, detector
from aleator.samplers.watermark import KEYED, WATERMARK_KEY_FILE, WATERMARK_NGRAM
from aleator.text.tokenizer import Tokenizer

OPTIONS = (DRAW, WATERMARK_KEY_FILE, WATERMARK_NGRAM)
EXAMPLES = """\
FILE is the text without its prompt; -: standard input.  The key is that of
--watermark-key-file or of the environment variable ALEATOR_WATERMARK_KEY, the
model one with the tokens of the one that wrote the text.  --draw is watermark or
synthid, and says which watermark is looked for.  p is the probability of a score as
high in a text made without the key; docs/watermarks.md says what it cannot tell.

examples:
  aleator watermark detect text.txt -m model.gguf --watermark-key-file key.txt
  aleator watermark detect ids.json --ids --json
  aleator watermark detect text.txt --draw synthid --watermark-key-file keys.json
"""


def add_arguments(parser: Parser) -> None:
    parser.positional("action", "detect")
    parser.positional("file", "the text")
    group = parser.group("watermark")
    add_declared(group, OPTIONS, {DRAW.name: KEYED[0]})
    group.switch("--ids", "FILE is a JSON list of token ids, and no model is needed")
    group.switch("--json", "write one JSON object instead of lines")
    add_model(group)


def run(arguments: argparse.Namespace) -> None:
    if arguments.action != "detect" or arguments.file is None:
        raise ParameterError("action", "write: aleator watermark detect FILE (see --help)")
    values = given(arguments, OPTIONS)
    detect = detector(values.get(DRAW.name, KEYED[0]))
    text = read_file(arguments.file)
    found = detect(
        token_ids(text) if arguments.ids else tokens(text.removesuffix("\n"), arguments),
        values.get(WATERMARK_KEY_FILE.name),
        ngram=values.get(WATERMARK_NGRAM.name, WATERMARK_NGRAM.neutral),
    )
    if arguments.json:
        write_json(asdict(found))
        return
    if isinstance(found, SynthIDTest):
        score = (
            f"mean: {found.mean:.4f}, weighted {found.weighted_mean:.4f} (0.5 expected without the "
            f"watermark)\np of the weighted mean: at most 10^{found.weighted_log10_p:.1f}\n"
        )
    else:
        score = f"score: {found.score:.2f} ({found.n_scored} expected without the watermark)\n"
    write(
        f"tokens: {found.n_tokens}, scored: {found.n_scored}\n{score}"
        f"p: {found.p_value:.3g} (10^{found.log10_p:.1f})\nkey: {found.fingerprint}\n"
    )


def tokens(text: str, arguments: argparse.Namespace) -> list[int]:
    """The tokens of a text, without those that a tokenizer adds around every text."""
    tokenizer = Tokenizer(load_vocabulary(weights_named(arguments)))
    return tokenizer.encode(text, add_special=False, parse_special=False)


def token_ids(text: str) -> list[int]:
    """Token ids from a JSON list."""
    try:
        made = loads(text)
    except ValueError:
        made = None
    if not isinstance(made, list) or not all(type(each) is int for each in made):
        raise ParameterError(
            "file", "the file is not a JSON list of token ids: give one, or leave out --ids"
        )
    return made
