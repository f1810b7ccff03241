"""Makes random mixes of requests in engines, and compares each with the request made alone, bit for bit.

    python tools/engine_mixes.py [--mixes 1000] [--seed 1] [--models llama:Q8_0,qwen2:Q4_0]

A mix is an engine with random sizes and a handful of requests: prompts that begin alike, many kinds of
sampling parameters, grammars, stop strings, log-probabilities, guidance, sessions to go on with, arrivals at
random steps, priorities, cancels and speculation.  What a request gives must be what ``generate`` gives on a
model that caches and guesses nothing: the tokens (of a cancelled one, their beginning) and the
log-probabilities as equal numbers.
A mix is a function of its number and the seed; one that differs is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from make_models import SPECS, write_model

import aleator
from aleator.generate.generation import Generation
from aleator.generate.session import Session
from aleator.hub.bundled import bundled_model

N_VOCAB = 2048
"""Tokens of the bundled model, whose tokenizer the random ones have."""
STEMS = ("ROMEO:", "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\n")
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 1.3, "min_p": 0.05},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"mirostat": 2},
    {"xtc_probability": 0.5, "top_n_sigma": 2},
)
GRAMMARS: tuple[str, ...] = (
    'root ::= "[" [0-9]+ ("," [0-9]+)* "]"',
    'root ::= "yes, my lord" | "no, my lord"',
)
DEFAULT = "llama:Q8_0,qwen2:Q4_0"


@dataclass
class Asked:
    """A request of a mix.

    Attributes:
        prompt: its text.
        options: of ``submit`` and ``generate``.
        priority: of ``submit``.
        spec_type: of ``submit``; alone nothing is guessed.
        drawn: tokens that were drawn before: the prompt is then a session that ends with these.
        after: steps of the engine after which it comes.
        cancelled_at: tokens after which it is cancelled; None: never.
    """

    prompt: str | Session
    options: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    spec_type: str = "none"
    drawn: int = 0
    after: int = 0
    cancelled_at: int | None = None


def make_model(folder: Path, name: str) -> Path:
    """A model with random weights, such as llama:Q8_0, which reads and writes text."""
    arch, kind = name.split(":")
    spec = replace(SPECS[arch], type=kind, n_vocab=N_VOCAB)
    path = folder / f"{arch}-{kind}.gguf"
    return write_model(path, spec, tokenizer_from=bundled_model())


def mix(rng: random.Random) -> tuple[dict[str, Any], list[Asked]]:
    """Options of an engine, and what is asked of it."""
    n_seq_max = rng.choice([1, 2, 3, 5, 8])
    engine = {
        "n_seq_max": n_seq_max,
        "n_ctx": rng.choice([None, max(256, 128 * n_seq_max)]),
        "token_budget": rng.choice([n_seq_max + 1, 24, 64, 512]),
        "max_pause": rng.choice([0.0, 0.001, 0.25, 100.0]),
    }
    asked = []
    for _ in range(rng.randint(2, 8)):
        prompt = rng.choice(STEMS) * rng.choice([1, 1, 2, 4])
        prompt += "".join(rng.choice("abc de\n") for _ in range(rng.choice([0, 1, 20])))
        options = {
            "seed": rng.randrange(1000),
            "max_tokens": rng.choice([1, 5, 20, 40]),
            **rng.choice(SAMPLING),
        }
        if rng.random() < 0.3:
            options["grammar"] = rng.choice(GRAMMARS)
        if rng.random() < 0.4:
            options["logprobs"] = rng.choice([0, 3])
        if rng.random() < 0.2:
            options["stop"] = ["th", "e a"]
        if n_seq_max > 1 and rng.random() < 0.15:
            options["guidance_scale"] = rng.choice([0.5, 1.5])
            options["negative_prompt"] = rng.choice(STEMS) + rng.choice(["", "a b"])
        spec_type = rng.choice(["none", "none", "ngram", "draft"])
        drawn = rng.choice([0, 0, 0, 1, 12])
        after = rng.choice([0, 0, 3, 10, 25])
        each = Asked(prompt, options, rng.randint(-1, 1), spec_type, drawn, after)
        if rng.random() < 0.2:
            each.cancelled_at = rng.choice([0, 1, 8])
        asked.append(each)
    return engine, asked


def with_session(model: aleator.LanguageModel, asked: Asked, folder: Path) -> Asked:
    """A request whose prompt is what has been drawn so far, where that is asked for."""
    if not asked.drawn:
        return asked
    before = model.generate(asked.prompt, **asked.options | {"max_tokens": asked.drawn})
    model.save_session(folder / "session", before, new=True)
    return replace(asked, prompt=model.load_session(folder / "session"))


def made_together(
    model: aleator.LanguageModel, options: dict[str, Any], asked: list[Asked]
) -> list[Generation]:
    """What an engine makes of a mix."""
    with aleator.Engine(model, **options) as engine:
        made: dict[int, Generation] = {}
        while len(made) < len(asked):
            stats = engine.stats
            idle = not stats.running and not stats.waiting
            for i, each in enumerate(asked):
                if i not in made and (stats.steps >= each.after or idle):
                    made[i] = engine.submit(
                        each.prompt,
                        priority=each.priority,
                        spec_type=each.spec_type,
                        **each.options,
                    )
                    idle = False
            cancel_some(asked, made)
            time.sleep(0.0005)
        while not all(generation.done for generation in made.values()):
            cancel_some(asked, made)
            time.sleep(0.0005)
        return [made[i] for i in range(len(asked))]


def cancel_some(asked: list[Asked], made: dict[int, Generation]) -> None:
    """Cancel those whose time has come."""
    for i, generation in made.items():
        at = asked[i].cancelled_at
        if at is not None and generation.stats.sampled_tokens >= at and not generation.done:
            generation.cancel()


def difference(alone: Generation, together: Generation) -> str:
    """Where two generations of one request differ; "" if they do not."""
    ours, wanted = together.tokens, alone.tokens
    if together.stop_reason == "interrupted":
        wanted = wanted[: len(ours)]
    elif together.stop_reason != alone.stop_reason or together.text != alone.text:
        return f"{together.stop_reason}, alone {alone.stop_reason}"
    if ours != wanted:
        return f"tokens {ours}, alone {wanted}"
    logprobs = alone.logprobs
    if logprobs is not None and together.logprobs != logprobs[: len(ours)]:
        return "other log-probabilities"
    return ""


def run(paths: list[Path], mixes: int, seed: int, show: bool = False) -> tuple[int, list[str]]:
    """Make mixes.

    Args:
        paths: models, which take turns.
        mixes: how many.
        seed: of all that is random.
        show: print progress.

    Returns:
        How many requests were compared, and what differed.
    """
    plain = [aleator.load(path, n_threads=1, prompt_cache=False) for path in paths]
    # The model that guesses is the model itself, so that some guesses are right.
    caching = [aleator.load(path, n_threads=1, model_draft=str(path)) for path in paths]
    compared, wrong = 0, []
    for number in range(mixes):
        options, asked = mix(random.Random(f"{seed} {number}"))
        at = number % len(paths)
        asked = [with_session(plain[at], each, paths[at].parent) for each in asked]
        for each, together in zip(asked, made_together(caching[at], options, asked), strict=True):
            alone = plain[at].generate(each.prompt, **each.options)
            compared += 1
            found = difference(alone, together)
            if found:
                wrong.append(f"mix {number}, {paths[at].stem}, {options}, {each}: {found}")
                print(wrong[-1], flush=True)
        if show and number % 50 == 49:
            print(f"{number + 1} mixes, {compared} requests, {len(wrong)} differ", flush=True)
    return compared, wrong


def main() -> int:
    """Make the mixes that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mixes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", default=DEFAULT, help=f"default: {DEFAULT}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [make_model(Path(folder), name) for name in args.models.split(",")]
        compared, wrong = run(paths, args.mixes, args.seed, show=True)
    print(f"{args.mixes} mixes of {args.models}: {compared} requests, {len(wrong)} differ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
