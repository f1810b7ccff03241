"""``aleator quantize``: store a model in fewer bits."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from aleator.cli.arguments import Group, Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.terminal import ProgressBar, note, write
from aleator.core.errors import ParameterError
from aleator.core.options import declarations
from aleator.generate.options import ContextOptions
from aleator.models.conversion.file_types import FILE_TYPES
from aleator.models.conversion.quantise import Quantisation
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.imatrix import read_imatrix
from aleator.models.hub.located import located

THREADS = [declarations(ContextOptions)["n_threads"]]

EXAMPLES = """\
Reads SOURCE, a GGUF file in F32, F16 or BF16, and writes OUT with the bytes that
llama-quantize would write.  SOURCE may also be a directory as for aleator convert; OUT is
then as if it had been converted first.  A type such as Q4_K_M is a mixture: tensors of
which errors do more harm get more bits, by llama.cpp's rules.  --dry-run shows them.
Metadata, tokenizer and chat template stay.  A file that is quantised already can be read,
too; what it lost stays lost.  OUT is there when it is whole, or not at all.

types, with the bits of a weight in a model of 8 billion:
{types}

An importance matrix says which columns matter on texts like yours; from four bits down
it lessens the loss.  aleator perplexity measures it.

examples:
  aleator quantize model-F16.gguf model-Q4_K_M.gguf --type Q4_K_M
  aleator quantize model-F16.gguf out.gguf --type Q4_K_M --dry-run
  aleator quantize Qwen3-0.6B qwen3-Q4_K_M.gguf --type Q4_K_M
  aleator imatrix -m model-F16.gguf -f texts.txt -o imatrix.gguf
  aleator quantize model-F16.gguf small.gguf --type Q3_K_M --imatrix imatrix.gguf
""".format(types="\n".join(f"  {name:<10} {each.about}" for name, each in FILE_TYPES.items()))


def add_arguments(parser: Parser) -> None:
    parser.positional(
        "source",
        "the GGUF file to read, of a split model the first; a directory with safetensors; or hf:ORG/NAME",
    )
    parser.positional("out", "the file to write")
    group = parser.group("quantising")
    group.option("--type TYPE", "the file type, such as Q4_K_M", offered=tuple(FILE_TYPES))
    group.option("--imatrix FILE", "importance matrix, of aleator imatrix or llama.cpp")
    add_output_options(group)


def add_output_options(group: Group) -> None:
    """Add the options for how a file is written."""
    group.switch("--dry-run", "show what each tensor would become, and write nothing")
    group.switch("--json", "write one JSON object instead of lines")
    add_declared(group, THREADS)


def run(arguments: argparse.Namespace) -> None:
    for name in ("source", "out", "type"):
        missing = getattr(arguments, name) is None and not (name == "out" and arguments.dry_run)
        if missing:
            raise ParameterError(
                name,
                f"no {name} is given: aleator quantize SOURCE OUT --type {arguments.type or 'Q4_K_M'}",
            )
    imatrix = None if arguments.imatrix is None else read_imatrix(arguments.imatrix)
    plan = Quantisation(source_of(located(arguments.source)), arguments.type, imatrix)
    for kind, count in plan.widened.items():
        note(
            f"aleator: warning: {count} tensors are stored in {kind} already: what that lost stays lost; "
            "F32, F16 or BF16 is better to start from"
        )
    if plan.unweighed:
        note(
            f"aleator: warning: the importance matrix lacks {len(plan.unweighed)} tensors, such as "
            f"{plan.unweighed[0]}: all their columns count the same"
        )
    carry_out(plan, arguments, "quantising")


def carry_out(plan: Quantisation, arguments: argparse.Namespace, title: str) -> None:
    """Write the file unless that is not wanted, and report what becomes of the tensors."""
    threads = given(arguments, THREADS).get("n_threads")
    if not arguments.dry_run:
        with ProgressBar(title, "bytes") as bar:
            plan.write(arguments.out, threads, bar)
    write(report(plan, arguments))


def source_of(path: Path) -> Path | GGUFFile:
    """The path of a GGUF file, or an open directory to convert, with warnings about what is left out."""
    if not path.is_dir():
        return path
    from aleator.text.converted import open_converted  # GGUF files need none of it

    made = open_converted(path)
    for each in made.left_out:
        note(f"aleator: warning: the GGUF file leaves out {each}")
    for each in made.llama_cpp_lacks:
        note(f"aleator: warning: the GGUF file is not for llama.cpp, which lacks {each}")
    return made


def report(plan: Quantisation, arguments: argparse.Namespace) -> str:
    before, after = plan.size
    bits = 8 * after / plan.n_elements
    types = dict(Counter(each.new.type for each in plan.changes).most_common())
    if arguments.json:
        fields = {
            "out": None if arguments.dry_run else arguments.out,
            "type": plan.kind,
            "bytes_before": before,
            "bytes": after,
            "bits": bits,
            "tensors": {each.new.name: [each.before, each.new.type] for each in plan.changes},
        }
        return json.dumps(fields) + "\n"
    lines = []
    if arguments.dry_run:
        width = max(len(each.new.name) for each in plan.changes)
        for each in plan.changes:
            becomes = f"{each.before} -> {each.new.type}" if each.changes else each.before
            lines.append(f"{each.new.name:<{width}}  {becomes}")
    counted = ", ".join(f"{count} {kind}" for kind, count in types.items())
    sizes = f"{before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB, {bits:.2f} bits a weight"
    lines.append(f"{plan.kind or 'types as they are'}: {sizes}; tensors: {counted}")
    return "\n".join(lines) + "\n"
