"""``aleator generate --num-beams``: the most probable texts, or texts drawn without replacement."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from aleator.cli.declared import given
from aleator.cli.options import load_model, read_text
from aleator.cli.sampling import sampling_arguments
from aleator.cli.terminal import complain, hint, note, write, write_json
from aleator.core.errors import ParameterError
from aleator.core.options import Option, declarations
from aleator.generate.beam_options import OF_BEAMS, BeamOptions

BEAMS = tuple(declarations(BeamOptions).values())
OTHERS = {"num": 1, "session": None, "replay": None}
"""Options of the command that do not apply to beams, and their default values."""


def beams_asked(arguments: argparse.Namespace) -> bool:
    """Whether ``--num-beams`` was given; ParameterError for other beam options without it."""
    if arguments.num_beams is None:
        for each in BEAMS:
            if getattr(arguments, each.name) is not None:
                raise ParameterError(each.name, f"{each.flags[0]} needs --num-beams N: give it too")
    return arguments.num_beams is not None


def run_beams(arguments: argparse.Namespace, of_texts: Iterable[Option]) -> int:
    """Search, and print the texts; ``of_texts`` are all text options of the command."""
    strange = [each.name for each in of_texts if each not in OF_BEAMS]
    for name, absent in {**OTHERS, **dict.fromkeys(strange)}.items():
        if getattr(arguments, name) != absent:
            flag = name.replace("_", "-")
            raise ParameterError(name, f"--{flag} and --num-beams do not go together: give one")
    options = given(arguments, (*OF_BEAMS, *BEAMS), arguments.no_escape)
    sampling, prompt = sampling_arguments(arguments), read_text(arguments)
    model = load_model(arguments)
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
        if not each.text.endswith("\n"):
            (write if sys.stdout.isatty() or len(found) > 1 else hint)("\n")
    if found[0].seed is not None:
        note(f"seed: {found[0].seed}")
    if any(each.complete is False for each in found):
        complain("a text was cut off before it was all that the grammar asks for: give a larger -n")
        return 4
    return 0
