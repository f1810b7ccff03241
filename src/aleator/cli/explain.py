"""``aleator explain``: show what every sampler does to the next token's probabilities."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aleator.cli import INTERRUPTED
from aleator.cli import options as shared
from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared
from aleator.cli.sampling import add_sampling_options, announce, sampling_arguments, sampling_of
from aleator.cli.terminal import ProgressBar, note, on_interrupt, write, write_json
from aleator.core import integers
from aleator.core.errors import ParameterError
from aleator.core.packages import require_matplotlib
from aleator.core.token_text import readable
from aleator.generate.generation import Generation
from aleator.language_model import LanguageModel
from aleator.samplers import Grammar, JSONSchema, Regex, SamplerChain
from aleator.samplers.explain import Explanation
from aleator.samplers.explain_text import curves, step_line, summary, to_ascii
from aleator.samplers.params import CONSTRAINTS
from aleator.server.playground.recording import LogitsMemory, Recording, branch
from aleator.server.playground.saved import InitialView, saved_page

TEXT = ("stop", "stop_loops", "heal", *shared.STEERING)
"""Options of a text that affect what its steps draw, or end it."""
EVERYTHING = 2**62
"""Bytes of logits that are kept, in effect all."""

EXAMPLES = """\
For one step: a table with a line per sampler, and a bar per token.  The full bar
is what is left of its probability, the light part what was there before, the
darker part what it gained; > marks the token drawn, and removed tokens name the
sampler that removed them.  For several steps: a line and few bars for each, and
curves of entropy, mass cut and state at the end.  What is shown is what
"aleator generate" with the same options draws.

  left      candidates after the sampler
  mass cut  probability of the tokens that it removed
  moved     probability that changed hands among those that stay
  choices   2 to the entropy: as many equally likely tokens
  best      probability of the most likely token

examples:
  aleator explain -p "To be" --seed 7
  aleator explain -p "To be" -n 40 --mirostat 2 --png mirostat.png
  aleator explain -m model.gguf -p "Once" --samplers "xtc;min_p" --xtc-probability 1
  aleator explain -p "To be" -n 40 --html steps.html
  aleator explain -p "To be" -n 40 --html two.html --compare "--temp 1.5 --top-k 0"
  aleator explain -p "To be" -n 40 --html tree.html --branch "3= king" --branch "0=#65"
  aleator explain -p "To be" -n 20 --json | python -m json.tool
"""


def add_arguments(parser: Parser) -> None:
    shared.add_text_options(parser, "prompt", "the text before the first step")
    group = parser.group("what to show")
    group.number("-n, --steps N", "steps to explain, fewer if the model ends the text", default=1)
    group.number(
        "--top N", "tokens to show of each step (default: 10 for one step, 3 for several)", low=0
    )
    group.option("--png FILE", "draw a picture too (needs aleator[plot])")
    group.option(
        "--html FILE",
        "write the text with all steps as one page for a browser, which needs nothing else",
    )
    group.option(
        "--compare OPTIONS",
        'write a second text on the same seed with these sampling options changed, such as "--temp 1.5"; '
        "with --preset among them nothing else of the first chain holds. The page of --html has both, and "
        "where they diverge",
    )
    group.option(
        "--branch AT=TOKEN",
        "write a branch too, for the page of --html: the text up to its token AT (from 0), TOKEN in place "
        'of that, and what follows then. TOKEN is its text, such as "3= king", or its id, "3=#292"; several '
        "may be given",
        action="append",
    )
    group.switch("--json", "write one JSON object instead of text")
    add_declared(parser.group("what is written"), shared.pick(TEXT))
    add_sampling_options(parser)
    shared.add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.png is not None:
        require_matplotlib()
    for name, what in (("compare", "both texts"), ("branch", "the branches")):
        if getattr(arguments, name) is not None and arguments.html is None:
            raise ParameterError(name, f"--{name} needs --html FILE: the page shows {what}")
    prompt = shared.read_text(arguments)
    sampling, options = sampling_arguments(arguments), shared.generation_options(arguments, TEXT)
    other = None if arguments.compare is None else changed(sampling, arguments)
    many = arguments.steps > 1
    top = arguments.top if arguments.top is not None else 3 if many else 10
    model = shared.load_model(arguments)
    branches = [branch_of(word, arguments.steps, model) for word in arguments.branch or ()]
    steps: list[Explanation] = []
    recording = Recording(LogitsMemory(EVERYTHING))

    def look(chain: SamplerChain, logits: Any) -> None:
        if arguments.html is not None:
            recording.look(chain, logits)
        del steps[chain.position :]  # of tokens that were taken back
        steps.append(chain.explain(logits, model.vocab, top))
        if not arguments.json:
            show(steps[-1], many)

    with ProgressBar("prompt", "tokens") as bar:
        generation = model.generate(
            prompt,
            max_tokens=arguments.steps,
            on_logits=look,
            progress=bar,
            **options,
            **sampling,
        )
        announce(generation.request.params, model, arguments.preset)
        reason = to_the_end(generation)
    if arguments.json:
        write_json(as_json(generation, steps), ensure_ascii=False, allow_nan=False)
    elif many and steps:
        finish(generation, steps, model.vocab)
    if arguments.png is not None and steps:
        picture(steps, arguments.png)
    if arguments.html is not None:
        recording.begin(generation, {name: as_given(each) for name, each in sampling.items()})
        texts, shown = {recording: ""}, InitialView()
        if other is not None and reason != "interrupted":
            again = {"seed": generation.seed, **other}
            second = compared(model, prompt, arguments.steps, again, options)
            texts, shown = {recording: "A", second: "B"}, side_by_side(recording, second)
        if reason != "interrupted":
            made = branched(model, recording, branches, arguments.steps, options)
            texts |= dict.fromkeys(made, "")
            shown = replace(shown, text=shown.text or recording)
        name = model.weights.config.name or model.weights.path.name
        Path(arguments.html).write_text(saved_page(texts, model.tokenizer, name, shown), "utf-8")
        note(f"page: {arguments.html}")
    return INTERRUPTED if reason == "interrupted" else 0


def changed(sampling: Mapping[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters of the second text: those of the first, with the changes of ``--compare``."""
    changes = sampling_of(arguments.compare, "compare", arguments.no_escape)
    kept = {} if "preset" in changes else dict(sampling)
    if any(name in changes for name in CONSTRAINTS):  # a text has only one
        kept = {name: value for name, value in kept.items() if name not in CONSTRAINTS}
    return kept | changes


def compared(
    model: LanguageModel,
    prompt: str,
    steps: int,
    sampling: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Recording:
    """The second text, with its logits."""
    recording = Recording(LogitsMemory(EVERYTHING))
    look = recording.look
    generation = model.generate(prompt, max_tokens=steps, on_logits=look, **options, **sampling)
    to_the_end(generation)
    recording.begin(generation, {name: as_given(each) for name, each in sampling.items()})
    return recording


def to_the_end(generation: Generation) -> str:
    """Run a generation until it ends, or Ctrl-C ends it; return why it ended."""
    with on_interrupt(generation.cancel):
        return generation.stop_reason


def branch_of(word: str, steps: int, model: LanguageModel) -> tuple[int, int]:
    """The place at which a ``--branch`` leaves the text, and its token there; ParameterError if invalid."""
    place, _, token = word.partition("=")
    at = int(place) if place.isascii() and place.isdigit() else -1
    if not 0 <= at < steps or not token:
        raise ParameterError(
            "branch",
            f"--branch {word!r:.80}: give AT=TOKEN, AT from 0 to {steps - 1}; -n says how many tokens are "
            "written",
        )
    if token[0] == "#" and token[1:].isascii() and token[1:].isdigit():
        if int(token[1:]) < len(model.vocab):
            return at, int(token[1:])
        raise ParameterError("branch", f"--branch {word!r:.80}: {token} is not in the vocabulary")
    tokens = model.tokenizer.encode(token, add_special=False)
    if len(tokens) != 1:
        ids = ", ".join(f"#{each}" for each in tokens)
        raise ParameterError(
            "branch",
            f"--branch {word!r:.80}: {token!r:.60} is {len(tokens)} tokens, {ids}: give one",
        )
    return at, tokens[0]


def branched(
    model: LanguageModel,
    parent: Recording,
    branches: Sequence[tuple[int, int]],
    steps: int,
    options: Mapping[str, Any],
) -> list[Recording]:
    """Branches of a text, one for each place and token; ``steps`` includes the tokens before the branch."""
    made: list[Recording] = []
    own = {**options, **{name: each for name, each in parent.sampling.items() if name != "seed"}}
    for at, token in branches:
        if at >= len(parent.drawn):
            note(f"no branch at {at}: the text ended after {len(parent.drawn)} tokens")
            continue
        recording, session = branch(parent, at, token, model.tokenizer, parent.memory)
        left = max(1, steps - len(recording.inherited))
        generation = model.generate(session, max_tokens=left, on_logits=recording.look, **own)
        to_the_end(generation)
        recording.begin(generation, parent.sampling)
        made.append(recording)
    return made


def side_by_side(first: Recording, second: Recording) -> InitialView:
    """The view Compare, open where two texts diverge, with the histograms of that step."""
    a, b = first.drawn, second.drawn
    at = integers.shared(a, b)
    note("compare: the texts are equal" if a == b else f"compare: the texts diverge at token {at}")
    step = 0 if a == b else at
    open_steps = tuple((each, step) for each in (first, second) if step < len(each.drawn))
    return InitialView("compare", first, step, compare=(first, second), draws=open_steps)


def as_given(value: Any) -> Any:
    """A sampling parameter as the user wrote it: a constraint as its text."""
    if isinstance(value, JSONSchema):
        return value.schema
    if isinstance(value, Grammar):
        return value.grammar
    return value.pattern if isinstance(value, Regex) else value


def show(step: Explanation, many: bool) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    bars = step.bars(max(60, width - 6 if many else width))
    if not many:
        put(f"{step.table()}\n\n{bars}" if bars else step.table())
    else:
        put("\n".join([step_line(step), *(f"      {line}" for line in bars.splitlines())]))


def finish(generation: Generation, steps: list[Explanation], vocab: Any) -> None:
    others = [
        f"{readable(vocab.token_bytes(token))} at {at}"
        for at, (step, token) in enumerate(zip(steps, generation.tokens, strict=False))
        if step.draw is not None and step.draw.token.id != token
    ]
    forced = f"\nforced, or drawn anew for a ban: {', '.join(others)}" if others else ""
    ended = f"ended by: {generation.stop_reason}"
    put(f"\ntext: {generation.text!r}, {ended}{forced}\n\n{summary(steps)}")


def put(text: str) -> None:
    """Print lines in characters that standard output supports."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = to_ascii(text)
    write(f"{text}\n")


def as_json(generation: Generation, steps: list[Explanation]) -> dict[str, Any]:
    return {
        "prompt_tokens": list(generation.request.tokens),
        "seed": generation.seed,
        "chain": generation.chain.describe(),
        "text": generation.text,
        "tokens": generation.tokens,  # may differ from the steps' draws: bans, forced tokens
        "stop_reason": generation.stop_reason,
        "steps": [step.to_dict() for step in steps],
        "curves": curves(steps) if steps else {},
    }


def picture(steps: list[Explanation], path: str) -> None:
    from aleator.samplers.explain_plot import plot_steps

    if len(steps) == 1:
        steps[0].plot(path)
    else:
        plot_steps(steps, path)
    note(f"picture: {path}")
