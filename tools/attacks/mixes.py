"""Random mixes of requests in engines, each request compared with the same one alone, bit for bit.

A mix is an engine with random sizes and a handful of requests: prompts that begin alike, many kinds of
sampling parameters, grammars, stop strings, log-probabilities, guidance, sessions to go on with, arrivals at
random steps, priorities, cancels and speculation.  Every other trial is a batch with n > 1.  What a request
gives must be what ``generate`` gives on a model that caches and guesses nothing: the tokens (of a cancelled
one, their beginning) and the log-probabilities as equal numbers.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aleator
from aleator.engine.replay import Made, Record, make_again
from aleator.generate.generation import Generation
from aleator.generate.session import Session
from attacks.world import World

RANDOM = ("llama:Q8_0", "qwen2:Q4_0")
"""Models with random weights, which take turns with the one that is attacked."""
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


@dataclass
class Pair:
    """A model twice.

    Attributes:
        plain: It caches nothing.
        caching: It caches prompts, and guesses with itself, so that some guesses are right.
    """

    plain: aleator.LanguageModel
    caching: aleator.LanguageModel

    @classmethod
    def of(cls, path: Path) -> Pair:
        """Load a model twice."""
        return cls(
            aleator.load(path, n_threads=1, prompt_cache=False),
            aleator.load(path, n_threads=1, model_draft=str(path)),
        )


def scene(world: World) -> Generator[None, None, None]:
    """Make mixes and batches."""
    paths = [world.path, *(world.random_model(name) for name in RANDOM)]
    pairs: dict[Path, Pair] = {}
    for number in itertools.count():
        path = paths[number // 2 % len(paths)]
        if path not in pairs:
            pairs[path] = Pair.of(path)
        rng = world.rng("mix", number)
        if number % 2:
            several(world, pairs[path], rng)
        else:
            one_mix(world, pairs[path], rng)
        yield


def one_mix(world: World, models: Pair, rng: random.Random) -> None:
    """Make one mix, and each of its requests alone."""
    options, asked = mix(rng)
    asked = [with_session(models.plain, each, world.folder) for each in asked]
    for each, together in zip(asked, made_together(models.caching, options, asked), strict=True):
        alone = models.plain.generate(each.prompt, **each.options)
        found = difference(alone, together)
        what = f"{models.plain.weights.path.stem}, {options}, {each}: {found}"
        world.check(not found, "requests of mixes as alone", what)


def several(world: World, models: Pair, rng: random.Random) -> None:
    """Make a batch of prompts with n > 1, and each of its texts again alone."""
    _, asked = mix(rng)
    prompts = [str(each.prompt) for each in asked[:3]]
    options = {
        **rng.choice(SAMPLING), "max_tokens": rng.choice([1, 5, 20]), "logprobs": 0,
        "seed": rng.randrange(1000), "spec_type": rng.choice(["none", "ngram"]),
    }  # fmt: skip
    made = models.caching.generate_batch(prompts, n=rng.randint(2, 4), **options)
    for each in made:
        each.wait()
        again = make_again(Record.of(each, models.plain, ""), models.plain)
        what = f"{models.plain.weights.path.stem}, {options}, {prompts}: {Made.of(each)}, alone {again}"
        world.check(again == Made.of(each), "texts of batches as alone", what)
