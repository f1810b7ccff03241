"""``aleator generate``: generate text that continues a prompt."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aleator.cli import CONTEXT_FULL, INTERRUPTED
from aleator.cli import options as shared
from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.sampling import add_sampling_options, announce, sampling_arguments
from aleator.cli.terminal import ProgressBar, complain, hint, note, on_interrupt, write, write_json
from aleator.core.errors import ParameterError
from aleator.core.options import declarations
from aleator.generate.beam_options import OF_BEAMS, BeamOptions
from aleator.generate.generation import Generation
from aleator.generate.session import Session
from aleator.generate.session_file import SessionFile
from aleator.language_model import LanguageModel
from aleator.samplers import ConstraintSampler

EXAMPLES = """\
The text goes to standard output as it is made, everything else to standard
error: before it the seed, the sampling parameters and the chain of samplers,
after it the speed.  The same prompt, seed and parameters write the same text,
also with a larger -n.

exit codes:
  0    done
  1    something failed while running
  2    wrong usage, parameter or input
  3    model missing, not a model, or of an unsupported kind
  4    context full: the prompt, or the tokens asked for with -n, do not fit; or -n
       or the context too small for what the grammar asks for
  130  interrupted with Ctrl-C

examples:
  aleator generate -p "ROMEO:" -n 100 --seed 7
  aleator generate -m model.gguf -f prompt.txt --temp 0.7 --stop "\\n\\n"
  aleator generate -p "To be" -n 40 --samplers "top_k;temperature" --num 3
  aleator generate -p "To be" -n 5 --logprobs 3 --json | python -m json.tool
  aleator generate -p "Ages:" --regex "[A-Z][a-z]+, [0-9]{2}"
  aleator generate -p "JULIET:" --grammar 'root ::= "yes" | "no"'
  echo "ROMEO:" | aleator generate --preset greedy -n 50
  aleator generate -p "ROMEO:" -n 20 --num-beams 4 --num-return-sequences 2
  aleator generate -p "ROMEO:" -n 50 --session scene.state
  aleator generate -n 50 --session scene.state     (goes on)
  aleator generate -p "ROMEO:" -n 50 --replay text.json && aleator replay text.json
"""


TEXT = (
    "max_tokens", "stop", "logprobs", "echo", "heal", "parse_special", "context_shift", "n_keep",
    "stop_loops", *shared.STEERING, "guidance_scale", "negative_prompt",
)  # fmt: skip
GRAMMAR = ("complete_grammar", "jump_forward")
DRAWING = ("sampling_device", "multi_step")
OF_TEXTS = (*TEXT, *GRAMMAR, *DRAWING, *shared.SPECULATION)
BEAMS = tuple(declarations(BeamOptions).values())
NOT_OF_BEAMS = {"num": 1, "session": None, "replay": None}
"""Options of the command that do not apply to beams, and their default values."""


def add_arguments(parser: Parser) -> None:
    shared.add_text_options(
        parser,
        "prompt",
        "the text to continue, which may be empty if the model has a token for the beginning of a text",
    )
    text = parser.group("what to write")
    add_declared(text, shared.pick(TEXT))
    text.number(
        "--num N", "completions to write, in one batch; each has its own random numbers", default=1
    )
    text.switch("--json", "write one JSON object when all is done, instead of text as it is made")
    text.option(
        "--replay FILE",
        "write into FILE what 'aleator replay' needs to make the text again and compare, the prompt "
        "included; a line for each completion",
    )
    shared.add_session_options(
        text,
        "keep the text with its keys and values in FILE, written at the end; with a FILE there and "
        "no prompt go on where it ended, with its own prompt or one that goes on from its text compute only "
        "what is new",
        "--session, --prompt-cache FILE",
    )
    add_sampling_options(parser)
    add_declared(parser.group("how a grammar is obeyed"), shared.pick(GRAMMAR))
    add_declared(parser.group("where tokens are drawn"), shared.pick(DRAWING))
    add_declared(parser.group("guesses that are checked"), shared.pick(shared.SPECULATION))
    add_declared(parser.group("beams in place of draws (docs/beams.md)"), BEAMS)
    shared.add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if beams_asked(arguments):
        return run_beams(arguments)
    if arguments.session is not None and arguments.num > 1:
        raise ParameterError("session", "--session holds one text: leave --num out")
    if arguments.replay is not None:
        shared.check_directory("replay", arguments.replay)
    with shared.session_file(arguments) as file:
        return _run(arguments, file)


def _run(arguments: argparse.Namespace, file: SessionFile | None) -> int:
    resumed = file is not None and file.exists
    goes_on = resumed and arguments.prompt is None and arguments.file is None
    prompt: str | Session = "" if goes_on else shared.read_text(arguments)
    sampling = sampling_arguments(arguments)
    options = shared.generation_options(arguments, OF_TEXTS)
    model = shared.load_model(arguments)
    if file is not None and resumed:
        session = model.load_session(file)
        shared.announce_session(arguments.session, session)
        if isinstance(prompt, str) and not goes_on:
            tokens = model.prompt_tokens(prompt, parse_special=bool(options.get("parse_special")))
            file.require(tokens, len(tokens))
        else:
            prompt = session
    with ProgressBar("prompt", "tokens") as bar:
        generations = model.generate_batch(
            [prompt],
            n=arguments.num,
            progress=bar,
            **options,
            **sampling,
        )
        announce(generations[0].request.params, model, arguments.preset)
        with on_interrupt(*(generation.cancel for generation in generations)):
            if arguments.json:
                print_json(model, prompt, generations)
            else:
                stream(generations)
        if file is not None:
            held = model.save_session(file, generations[0])
            note(f"session: keys and values of {held} tokens are in {arguments.session}")
        if arguments.replay is not None:
            write_records(arguments.replay, model, generations)
    report(generations)
    return exit_code(model, generations)


def stream(generations: Sequence[Generation]) -> None:
    """Print each completion's text: the first as it is generated, the others along with it."""
    for number, generation in enumerate(generations, 1):
        if len(generations) > 1:
            note(f"completion {number} of {len(generations)}:")
        last = ""
        for piece in generation:
            write(piece)
            last = piece
        end_line(last, len(generations))
        if generation.logprobs is not None:
            for entry in generation.logprobs:
                top = "  ".join(f"{each.text!r} {each.logprob:.4f}" for each in entry.top)
                note(f"{entry.chosen.logprob:9.4f} {entry.chosen.text!r:<16} {top}")


def end_line(last: str, n_texts: int) -> None:
    """End a text's line: a file or pipe gets exactly the text; a terminal, or several texts, get line ends."""
    if not last.endswith("\n"):
        (write if sys.stdout.isatty() or n_texts > 1 else hint)("\n")


def write_records(path: str, model: LanguageModel, generations: Sequence[Generation]) -> None:
    """Write the records of all completions, one per line; see :mod:`aleator.engine.replay`."""
    from aleator.engine.replay import Record  # what it imports would delay every text

    records = [Record.of(each, model).as_json() for each in generations]
    lines = [json.dumps(record, allow_nan=False) + "\n" for record in records]
    Path(path).write_text("".join(lines), encoding="utf-8")
    note(f"replay: what makes the text again is in {path}")


def print_json(
    model: LanguageModel, prompt: str | Session, generations: Sequence[Generation]
) -> None:
    """Print everything about the run as one JSON object on one line."""
    result = {
        "model": str(model.weights.path),
        "prompt": prompt if isinstance(prompt, str) else None,
        "prompt_tokens": list(generations[0].request.tokens),
        "seed": generations[0].seed,
        "params": finite(generations[0].request.params.values()),
        "chain": generations[0].chain.describe(),
        "completions": [generation.as_json() for generation in generations],
        "stats": generations[0].stats.as_json(),
    }
    write_json(result, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """Replace infinities in a value by the strings "inf" and "-inf", as JSON has no numbers for them."""
    if isinstance(value, ConstraintSampler):
        return value.describe()
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def report(generations: Sequence[Generation]) -> None:
    """Print the speed and the stop reason on standard error."""
    stats = generations[0].stats
    reused = f" ({stats.reused_tokens} more reused)" if stats.reused_tokens else ""
    right = f", {stats.draft_n_accepted} of {stats.draft_n} guesses right" if stats.draft_n else ""
    gap = "\n" if sys.stdout.isatty() else ""
    made = sum(len(generation.tokens) for generation in generations)
    reasons = ", ".join(dict.fromkeys(generation.stop_reason for generation in generations))
    note(
        f"{gap}prompt {stats.prompt_tokens} tokens{reused}, {stats.prompt_tokens_per_second:.1f} tokens/s | "
        f"text {made} tokens, {stats.decode_tokens_per_second:.1f} tokens/s{right} | "
        f"sampler {stats.sampler_us_per_token:.1f} us/token | ended by: {reasons}"
    )


def exit_code(model: LanguageModel, generations: Sequence[Generation]) -> int:
    """0, 130 after Ctrl-C, or 4 with an explanation if the context was too small."""
    reasons = {generation.stop_reason for generation in generations}
    if "interrupted" in reasons:
        return INTERRUPTED
    cut = [g for g in generations if g.stop_reason in ("length", "context") and not g.complete]
    if any(generation.complete is False for generation in cut):
        wanted = cut[0].request.options.complete_grammar
        if wanted is None:
            wanted = cut[0].chain.numerics == "portable"
        finished = "" if wanted else " (portable numerics do so, unless --no-complete-grammar)"
        complain(
            "the text was cut off before it was all that the grammar asks for: give a larger -n or -c"
            f"{finished}"
        )
        return CONTEXT_FULL
    if "context" not in {generation.stop_reason for generation in cut}:
        return 0
    message = (
        f"the context is full: {model.n_ctx} positions hold the prompt's "
        f"{len(generations[0].request.tokens)} tokens and the text; for more give a larger -c "
        f"(the model was trained with {model.weights.config.context_length}), or --context-shift to "
        "forget the older half and go on"
    )
    if generations[0].request.options.max_tokens is None:
        note(f"aleator: {message}")
        return 0
    complain(message)
    return CONTEXT_FULL


def beams_asked(arguments: argparse.Namespace) -> bool:
    """Whether ``--num-beams`` was given; ParameterError for other beam options without it."""
    if arguments.num_beams is None:
        for each in BEAMS:
            if getattr(arguments, each.name) is not None:
                raise ParameterError(each.name, f"{each.flags[0]} needs --num-beams N: give it too")
    return arguments.num_beams is not None


def run_beams(arguments: argparse.Namespace) -> int:
    """Search, and print the texts."""
    strange = [each.name for each in shared.pick(OF_TEXTS) if each not in OF_BEAMS]
    for name, absent in {**NOT_OF_BEAMS, **dict.fromkeys(strange)}.items():
        if getattr(arguments, name) != absent:
            flag = name.replace("_", "-")
            raise ParameterError(name, f"--{flag} and --num-beams do not go together: give one")
    options = given(arguments, (*OF_BEAMS, *BEAMS), arguments.no_escape)
    sampling, prompt = sampling_arguments(arguments), shared.read_text(arguments)
    model = shared.load_model(arguments)
    found = model.beams(prompt, **options, **sampling)
    if arguments.json:
        result = {
            "model": str(model.weights.path),
            "prompt": prompt,
            "beams": [dict(vars(each)) for each in found],
        }
        write_json(result, ensure_ascii=False, allow_nan=False)
    for number, each in enumerate(() if arguments.json else found, 1):
        note(
            f"beam {number} of {len(found)}: score {each.score:.4f}, log-probability {each.logprob:.4f}, "
            f"{len(each.tokens)} tokens, ended by: {each.stop_reason}"
        )
        write(each.text)
        end_line(each.text, len(found))
    if found[0].seed is not None:
        note(f"seed: {found[0].seed}")
    if any(each.complete is False for each in found):
        complain("a text was cut off before it was all that the grammar asks for: give a larger -n")
        return CONTEXT_FULL
    return 0
