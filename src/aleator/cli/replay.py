"""``aleator replay``: generate texts again from their records, offline, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import MODEL_OPTIONS, add_model_options, file_text, model_named, read_file
from aleator.cli.terminal import ProgressBar, complain, note, write
from aleator.core.contract import NUMERICS_VERSION
from aleator.core.errors import FileFormatError, ParameterError
from aleator.core.json_text import loads
from aleator.engine.replay import KEY, Record, differences, hash_of_text, hash_of_tokens, make_again
from aleator.engine.verify import MOST_WRONG, verify
from aleator.generate.options import LOADED, WHERE
from aleator.language_model import LanguageModel, load
from aleator.samplers.watermark import WATERMARK_KEY_FILE

EXAMPLES = """\
FILE is what 'aleator generate --replay FILE' wrote, a response of 'aleator serve'
to a request with "aleator_replay": true, its field of that name, or the value of
its header x-aleator-replay.  A header has no prompt: give it with --prompt-file,
as text, or as a JSON list of token ids.  It has no text to compare with, either:
then the text is printed.

exit codes:
  0    the same text, tokens and log-probabilities, to the bit
  1    something differs, or is not verified: standard output says where
  2    wrong usage, or another model or prompt than in the record
  3    a file missing or damaged
  4    context full: the prompt is longer than the record's context

examples:
  aleator generate -p "ROMEO:" -n 50 --replay text.json && aleator replay text.json
  aleator replay --verify text.json
  aleator replay response.json -m model.gguf
  aleator replay header.json -m model.gguf --prompt-file prompt.txt
"""


def add_arguments(parser: Parser) -> None:
    parser.positional("file", "the records; -: standard input")
    records = parser.group("records")
    records.option(
        "--prompt-file FILE",
        "the prompt, where a record has only its hash: text in UTF-8, or a JSON list of token ids",
    )
    add_declared(records, (WATERMARK_KEY_FILE,))
    records.switch(
        "--verify",
        "draw each token again from its key, at the speed of a prompt, and name the wrong ones",
    )
    records.switch("--any-model", "go on with a model that is not the one of the record")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.file is None:
        raise ParameterError("file", "name the file with the records (see aleator replay --help)")
    _key = given(arguments, (WATERMARK_KEY_FILE,))  # found by its fingerprint while referenced
    records = [Record.from_json(each, arguments.file) for each in read_records(arguments.file)]
    model = load_for(records, arguments)
    prompt = None
    if arguments.prompt_file is not None:
        prompt = read_prompt(arguments.prompt_file, model, records[0])
    differ = 0
    for number, record in enumerate(records, 1):
        check_model(record, model, arguments.any_model)
        where = f"text {number} of {len(records)}" if len(records) > 1 else "the text"
        right = verified if arguments.verify else same
        differ += not right(record, model, prompt, where)
    return int(differ > 0)


def same(record: Record, model: LanguageModel, prompt: tuple[int, ...] | None, where: str) -> bool:
    """Generate one text again, and print the differences."""
    now = make_again(record, model, prompt)
    if record.made is None:
        write(model.tokenizer.decode(now.tokens, skip_special=True) + "\n")
        note(
            f"{where}: made again, {len(now.tokens)} tokens, hash {now.text_hash}; the record has nothing to "
            "compare it with"
        )
        return True
    found = differences(record.made, now)
    if not found:
        what = "tokens and log-probabilities" if record.made.logprobs is not None else "tokens"
        write(f"{where} is the same: {len(record.made.tokens)} {what}, seed {record.seed}\n")
        return True
    write(f"{where} is another one:\n")
    for line in found:
        write(f"  {line}\n")
    text = model.tokenizer.decode(now.tokens, skip_special=True)
    note(f"  now: {text!r:.400} (hash {hash_of_text(text)})")
    return False


def verified(
    record: Record, model: LanguageModel, prompt: tuple[int, ...] | None, where: str
) -> bool:
    """Check one text token by token, and print wrong tokens with their reasons."""
    found = verify(record, model, prompt)
    if found.ok:
        write(f"{where} is verified: {found.checked} tokens, seed {record.seed}\n")
        return True
    write(f"{where} is not what its record draws:\n")
    for each in found.wrong:
        write(f"  token {each.position}: {each.reason}\n")
    for line in found.others:
        write(f"  {line}\n")
    if len(found.wrong) == MOST_WRONG:
        write(
            f"  and so on: after {MOST_WRONG} wrong tokens nothing more is looked at; the seed, the parameters "
            "or the prompt may be others than the text's\n"
        )
    return False


def read_records(path: str) -> list[object]:
    """The records in a file, one per line or in a response; FileFormatError if there are none."""
    text = read_file(path)

    def values() -> Iterator[Any]:
        try:
            yield loads(text)
        except ValueError:
            for line in text.splitlines():
                if line.strip():
                    yield loads(line)

    found: list[object] = []
    try:
        for value in values():
            inner = value.get(KEY) if isinstance(value, dict) else value
            if isinstance(inner, dict):
                found.append(inner)
            elif isinstance(inner, list):
                found += inner
            else:
                found.append(value)
    except ValueError:
        raise FileFormatError(path, "this is neither JSON nor JSON lines") from None
    if not found:
        raise FileFormatError(path, "there is no record in it")
    return found


def load_for(records: list[Record], arguments: argparse.Namespace) -> LanguageModel:
    """Load the model as it was loaded for the records, except for options given on the command line."""
    options: dict[str, Any] = dict(records[0].loading)
    options["n_ctx"] = max(record.n_ctx for record in records)
    chosen = given(arguments, (*MODEL_OPTIONS, *LOADED))
    if chosen.keys() & set(WHERE):  # where it computes may differ
        options = {name: value for name, value in options.items() if name not in WHERE}
    options |= chosen
    path = model_named(arguments)
    with ProgressBar("loading", "layers") as bar:
        return load(path, progress=bar, **options)


def check_model(record: Record, model: LanguageModel, any_model: bool) -> None:
    """Refuse a model or contract other than the record's; ParameterError says which."""
    if record.model != model.fingerprint:
        message = (
            f"the model is another one: its fingerprint is {model.fingerprint}, and that of the record "
            f"{record.model} ({record.name or 'without a name'})"
        )
        if not any_model:
            raise ParameterError("model", f"{message}: give -m PATH, or --any-model to go on")
        complain(message)
    then, now = (record.numerics, record.arithmetic), (NUMERICS_VERSION, model.identity.arithmetic)
    if then != now:
        note(
            f"the record was made under version {then[0]} of draws and {then[1]} of the decoder's arithmetic; "
            f"these are {now[0]} and {now[1]}: another text is no wonder"
        )


def read_prompt(path: str, model: LanguageModel, record: Record) -> tuple[int, ...]:
    """The tokens of a prompt in a file: text, or a JSON list of ids."""
    text = file_text(path)
    try:
        ids = loads(text)
    except ValueError:
        ids = None
    if isinstance(ids, list) and ids and all(type(each) is int for each in ids):
        return tuple(ids)
    parse_special = bool(record.options.get("parse_special"))
    tokens = model.prompt_tokens(text, parse_special=parse_special)
    if len(text) > 1 and text.endswith("\n"):  # editors add it
        shorter = model.prompt_tokens(text[:-1], parse_special=parse_special)
        if hash_of_tokens(shorter) == record.prompt_hash:
            return shorter
    return tokens
