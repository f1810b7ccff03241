"""``aleator convert``: write a Hugging Face directory as a GGUF file."""

from __future__ import annotations

import argparse

from aleator.cli.arguments import Parser
from aleator.cli.quantize import add_output_options, carry_out, source_of
from aleator.core.errors import ParameterError
from aleator.models.conversion.quantise import Quantisation
from aleator.models.hub.located import located

TYPES = ("F32", "F16", "BF16", "Q8_0")

EXAMPLES = """\
Reads DIRECTORY, a model as Hugging Face has it (config.json, tokenizer.json and
*.safetensors), and writes OUT, a GGUF file for aleator and llama.cpp.  Tokenizer, chat
template and recommended sampling parameters go with it.

Without --type every matrix keeps its type, and nothing is lost.  BF16 and F16 have 16 bits
of a weight: BF16 is what most models were trained in; F16 is a little finer and has a
smaller range.  Q8_0 has 8.5 bits and next to no loss.  For fewer bits give the directory
to aleator quantize, which needs no file between.

Tensors pass through one after the other, so a model may be larger than memory.  OUT is
there when it is whole, or not at all.  A model that GGUF cannot describe is refused before
anything is written; what llama.cpp does without is told in a warning.

examples:
  aleator convert Qwen3-0.6B qwen3.gguf
  aleator convert Qwen3-0.6B qwen3-Q8_0.gguf --type Q8_0
  aleator convert Qwen3-0.6B --dry-run
  aleator quantize Qwen3-0.6B qwen3-Q4_K_M.gguf --type Q4_K_M
"""


def add_arguments(parser: Parser) -> None:
    parser.positional("directory", "the directory to read, or hf:ORG/NAME")
    parser.positional("out", "the file to write")
    group = parser.group("converting")
    group.option("--type TYPE", "the type of matrices; left out: as they are", offered=TYPES)
    add_output_options(group)


def run(arguments: argparse.Namespace) -> None:
    for name in ("directory", "out"):
        if getattr(arguments, name) is None and not (name == "out" and arguments.dry_run):
            raise ParameterError(name, f"no {name} is given: aleator convert DIRECTORY OUT")
    kind = None if arguments.type is None else arguments.type.upper()
    if kind not in (None, *TYPES):
        raise ParameterError(
            f"type={arguments.type!r:.80}: give one of {', '.join(TYPES)}; aleator quantize takes a directory "
            "too, and has more types",
        )
    directory = located(arguments.directory)
    if directory.is_file():
        raise ParameterError(
            "directory",
            f"{directory} is a file: give the directory that holds it with config.json; for a GGUF file "
            "there is aleator quantize",
        )
    carry_out(Quantisation(source_of(directory), kind), arguments, "converting")
