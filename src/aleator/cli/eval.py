"""``aleator eval samplers``: quality and diversity of samplers on a model."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aleator.cli import INTERRUPTED
from aleator.cli.arguments import Parser
from aleator.cli.eval_page import Measured, page, plot
from aleator.cli.options import add_model_options, load_model
from aleator.cli.sampling import sampling_of
from aleator.cli.terminal import ProgressBar, note, write, write_json
from aleator.core.errors import ParameterError
from aleator.language_model import LanguageModel, load
from aleator.samplers import SamplingParams

PROMPTS = ("ROMEO:", "Once upon a time", "The city lies on a river.", "My lord, ")
TEMPERATURES = "0.5,0.7,1,1.3,1.6"
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature alone": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.1": {"min_p": 0.1},
    "typical-p 0.9": {"typical_p": 0.9},
    "top-n-sigma 1": {"top_n_sigma": 1.0},
    "p-less": {"p_less": "on"},
    "top-H 0.4": {"top_h": 0.4},
    "min-k 3": {"min_k_tau": 3.0},
    "XTC 0.5": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "mirostat 2": {"mirostat": 2},
    "adaptive-p 0.5": {"adaptive_target": 0.5, "min_p": 0.05},
}
"""Samplers with values from their papers or from engines, each alone with the temperature.  Adaptive-p needs a
min-p."""
REFUSED_PARAMETERS = {
    "temperature": "leave its temperature out: those of --temps are used",
    "seed": "leave its seed out: the seed of a text is its number",
}
"""Parameters that a custom setting may not have, and why."""
LONGEST_GRAM = 4

EXAMPLES = """\
Each setting writes --texts texts of -n tokens for each prompt, at each temperature
of --temps, in the usual order of samplers (docs/samplers.md).  The seed of a text
is its number, so that all settings draw from the same random numbers.

  perplexity  of the texts under the judge, or under the model itself: high
              means that it finds them improbable
  distinct-n  runs of n tokens that differ, of all that the texts of a setting
              have; low means that texts are alike or repeat themselves
  repeats     tokens that end a run of four which stood before in their text

Ctrl-C ends it and writes what is done.

examples:
  aleator eval samplers
  aleator eval samplers -m model.gguf --judge larger.gguf --html page.html
  aleator eval samplers --only "top-p 0.9,p-less" --temps 0.8,1.2 --json
  aleator eval samplers --only "" --setting "mine=--top-p 0.8 --min-p 0.02"
"""


def add_arguments(parser: Parser) -> None:
    parser.positional("action", "samplers")
    group = parser.group("texts")
    group.option("-p, --prompt TEXT", "a prompt; several may be given", action="append")
    group.number("-n, --n-predict N", "tokens of a text at most", default=200)
    group.number("--texts N", "texts of each prompt", default=8)
    group = parser.group("settings")
    group.option("--temps LIST", f"temperatures ({TEMPERATURES})", default=TEMPERATURES)
    group.option("--only LIST", f"of the settings only these: {', '.join(SETTINGS)}")
    group.option(
        "--setting NAME=OPTIONS",
        'a setting of your own, such as "mine=--top-p 0.8 --min-p 0.02"; several may be given',
        action="append",
    )
    group = parser.group("results")
    group.option("--judge FILE", "a model that says how probable the texts are, a larger one")
    group.option("--html FILE", "write one page with plots, which needs nothing else")
    group.option("--svg FILE", "write the first plot alone")
    group.switch("--json", "write one JSON object instead of a table")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action != "samplers":
        raise ParameterError("action", "write: aleator eval samplers (see --help)")
    temperatures = temperatures_of(arguments.temps)
    wanted = [
        (name, t, params_of(sampling, t))
        for name, sampling in settings_of(arguments).items()
        for t in temperatures
    ]
    for file in filter(None, (arguments.html, arguments.svg)):
        if Path(file).is_dir() or not Path(file).absolute().parent.is_dir():
            raise ParameterError("file", f"{file}: give a file's name in a folder that exists")
    model = load_model(arguments)
    judge = model if arguments.judge is None else load(Path(arguments.judge))
    prompts = arguments.prompt or PROMPTS
    found: list[Measured] = []
    complete = True
    with ProgressBar("settings", "settings") as bar:
        try:
            for done, (name, temperature, params) in enumerate(wanted):
                bar(done, len(wanted))
                texts = texts_of(model, prompts, arguments, params)
                found.append(measured(name, temperature, texts, judge, judge is not model))
        except KeyboardInterrupt:
            complete = False
    names = [str(each.weights.config.name or each.weights.path.name) for each in (model, judge)]
    judge_name = names[1] if judge is not model else "the model itself"
    if arguments.json:
        settings = [as_json(m) for m in found]
        write_json({"model": names[0], "judge": names[1], "settings": settings})
    else:
        write(table(found))
    pages(arguments, found, names[0], judge_name)
    if not complete:
        note("aleator: error: interrupted: the results are those of the settings that were done")
    return 0 if complete else INTERRUPTED


def settings_of(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The requested settings, by name."""
    words = SETTINGS if arguments.only is None else map(str.strip, arguments.only.split(","))
    only = [word for word in words if word]
    for name in only:
        if name not in SETTINGS:
            raise ParameterError(
                "only", f"--only: there is no setting {name!r:.60}: choose of {', '.join(SETTINGS)}"
            )
    chosen = {name: SETTINGS[name] for name in only}
    for word in arguments.setting or ():
        name, equals, options = word.partition("=")
        if not name or not equals:
            raise ParameterError("setting", f"--setting {word!r:.80}: give NAME=OPTIONS")
        if name in chosen:
            raise ParameterError("setting", f"--setting {word!r:.80}: two settings have that name")
        chosen[name] = sampling_of(options, "setting")
        for given, instead in REFUSED_PARAMETERS.items():
            if given in chosen[name]:
                raise ParameterError("setting", f"--setting {word!r:.80}: {instead}")
    if not chosen:
        raise ParameterError("only", "--only leaves no setting: name one, or give --setting")
    return chosen


def temperatures_of(words: str) -> list[float]:
    """The numbers of a list; samplers check their range."""
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise ParameterError(
            "temps",
            f"--temps {words!r:.60}: give numbers with commas between, such as {TEMPERATURES}",
        ) from None


def params_of(sampling: Mapping[str, Any], temperature: float) -> SamplingParams:
    """All parameters of a setting; without a preset the others are neutral."""
    given = {"preset": "neutral", **sampling, "temperature": temperature}
    made: SamplingParams = SamplingParams.resolve(given, given.pop("preset"))
    return made


def texts_of(
    model: LanguageModel,
    prompts: Sequence[str],
    arguments: argparse.Namespace,
    params: SamplingParams,
) -> list[tuple[str, tuple[int, ...], str]]:
    """Prompt, tokens and text of each generation with the setting."""
    several = [prompt for prompt in prompts for _ in range(arguments.texts)]
    made = model.generate_batch(
        several, seed=list(range(len(several))), max_tokens=arguments.n_predict, params=params
    )
    return [(prompt, tuple(g.tokens), g.text) for prompt, g in zip(several, made, strict=True)]


def measured(
    name: str,
    temperature: float,
    texts: Sequence[tuple[str, tuple[int, ...], str]],
    judge: LanguageModel,
    by_text: bool,
) -> Measured:
    """Measure the texts; a judge with another vocabulary reads the text."""
    scored = [(p, text if by_text else tokens) for p, tokens, text in texts if text and tokens]
    scores: Any = (
        judge.score([p for p, _ in scored], [text for _, text in scored]) if scored else []
    )
    logprobs = [each for score in scores for each in score.logprobs]
    perplexity = math.exp(-math.fsum(logprobs) / len(logprobs)) if logprobs else math.nan
    written = [tokens for _, tokens, _ in texts]
    distinct = tuple(distinct_share(written, n) for n in range(1, LONGEST_GRAM + 1))
    return Measured(
        name, temperature, sum(map(len, written)), perplexity, distinct, repeat_share(written)
    )


def grams(tokens: Sequence[int], n: int) -> Iterable[tuple[int, ...]]:
    """All runs of ``n`` tokens."""
    return zip(*(tokens[i:] for i in range(n)), strict=False)


def distinct_share(texts: Sequence[Sequence[int]], n: int) -> float:
    """Share of distinct runs among all runs of ``n`` tokens in the texts."""
    counts = Counter(gram for tokens in texts for gram in grams(tokens, n))
    return len(counts) / max(1, counts.total())


def repeat_share(texts: Sequence[Sequence[int]]) -> float:
    """Share of runs of four tokens that occurred earlier in the same text."""
    runs = [list(grams(tokens, LONGEST_GRAM)) for tokens in texts]
    return (
        1 - sum(len(set(each)) for each in runs) / max(1, sum(map(len, runs))) if any(runs) else 0.0
    )


def as_json(m: Measured) -> dict[str, Any]:
    """A setting as JSON, which cannot express the values of texts without tokens."""
    return {**asdict(m), "perplexity": m.perplexity if math.isfinite(m.perplexity) else None}


def table(found: Sequence[Measured]) -> str:
    """A table with a line for each setting and temperature."""
    lines = [
        f"{'setting':<20} {'temp':>5} {'tokens':>7} {'perplexity':>10} "
        + " ".join(f"{f'distinct-{n}':>10}" for n in range(1, LONGEST_GRAM + 1))
        + f" {'repeats':>8}"
    ]
    lines += [
        f"{m.setting:<20.20} {m.temperature:>5g} {m.tokens:>7,} {m.perplexity:>10.2f} "
        + " ".join(f"{100 * d:>9.1f}%" for d in m.distinct)
        + f" {100 * m.repeats:>7.1f}%"
        for m in found
    ]
    return "\n".join(lines) + "\n"


def pages(arguments: argparse.Namespace, found: Sequence[Measured], model: str, judge: str) -> None:
    """Write the page and the plot, if requested."""
    if found and arguments.html:
        Path(arguments.html).write_text(page(found, model, judge), "utf-8")
        note(f"page: {arguments.html}")
    if found and arguments.svg:
        Path(arguments.svg).write_text(plot(found, "distinct-3"), "utf-8")
        note(f"plot: {arguments.svg}")
