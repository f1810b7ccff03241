"""Altered replay records: each is refused or said to differ, never "the same" where what matters was changed.

The records are of texts with log-probabilities and much chance, so that another seed, prompt, temperature or
place among completions cannot give the same numbers.  They are altered and given to ``aleator replay``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import itertools
import json
import math
import random
from collections.abc import Callable, Generator
from typing import Any

from aleator import cli
from aleator.core.errors import AleatorError
from aleator.engine.replay import Record
from attacks.fields import ODD
from attacks.world import PROMPTS, World

Json = dict[str, Any]
CODES = (0, 1, 2, 3, 4)
"""Exit codes of ``aleator replay``: the same, another one, refused, damaged, too long for its context."""
MATTERS = ("seed", "completion", "position", "prompt", "prompt_hash", "model", "made")
"""Fields whose every change makes a record untrue; other parameters may give the same text."""
OPTIONS: tuple[Json, ...] = (
    {},
    {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"repetition_penalty": 1.2, "top_n_sigma": 2.0},
    {"mirostat": 2},
)


def another_number(rng: random.Random, value: float) -> float:
    """A number that is not this one, but near."""
    return math.nextafter(value, rng.choice([-math.inf, math.inf]))


def in_tokens(rng: random.Random, record: Json) -> None:
    """Another token in the text."""
    tokens = record["made"]["tokens"]
    at = rng.randrange(len(tokens))
    tokens[at] = (tokens[at] + rng.randint(1, 100)) % 2000


def fewer_tokens(rng: random.Random, record: Json) -> None:
    """The text's end is gone."""
    record["made"]["tokens"].pop()


def more_tokens(rng: random.Random, record: Json) -> None:
    """The text is longer."""
    record["made"]["tokens"].append(rng.randrange(2000))


def in_logprobs(rng: random.Random, record: Json) -> None:
    """The last bit of a log-probability."""
    logprobs = record["made"]["logprobs"]
    at = rng.randrange(len(logprobs))
    logprobs[at] = another_number(rng, logprobs[at])


def fewer_logprobs(rng: random.Random, record: Json) -> None:
    """Some log-probabilities are gone."""
    del record["made"]["logprobs"][rng.randrange(len(record["made"]["logprobs"])) :]


def more_logprobs(rng: random.Random, record: Json) -> None:
    """More log-probabilities than tokens."""
    record["made"]["logprobs"].append(-1.0)


def in_hash(rng: random.Random, record: Json) -> None:
    """Another hash of the text."""
    record["made"]["text_hash"] = f"{rng.getrandbits(128):032x}"


def reason(rng: random.Random, record: Json) -> None:
    """Another reason of its end."""
    record["made"]["stop_reason"] = rng.choice(["stop", "eog", "grammar", "", "Length"])


def in_seed(rng: random.Random, record: Json) -> None:
    """Another seed."""
    record["seed"] += rng.choice([1, 2**32, 2**63])


def in_prompt(rng: random.Random, record: Json) -> None:
    """Another token in the prompt."""
    at = rng.randrange(len(record["prompt"]))
    record["prompt"][at] = (record["prompt"][at] + rng.randint(1, 100)) % 2000


def place(rng: random.Random, record: Json) -> None:
    """Another place among the completions, or in the random stream."""
    name = rng.choice(["completion", "position"])
    record[name] = record.get(name, 0) + rng.choice([1, 2, 2**31])


def warmth(rng: random.Random, record: Json) -> None:
    """Another temperature."""
    record["params"]["temperature"] = record["params"].get("temperature", 0.8) + 0.25


def length(rng: random.Random, record: Json) -> None:
    """Another bound of the length."""
    record["options"]["max_tokens"] += rng.choice([-1, 1, 5])


def other_model(rng: random.Random, record: Json) -> None:
    """Another model."""
    record["model"] = f"{rng.getrandbits(128):032x}"


def version(rng: random.Random, record: Json) -> None:
    """A version of the rules of draws that does not exist."""
    record["numerics"] = rng.choice([99, 2**40])


CHANGES: tuple[Callable[[random.Random, Json], None], ...] = (
    in_tokens, fewer_tokens, more_tokens, in_logprobs, fewer_logprobs, more_logprobs, in_hash, reason,
    in_seed, in_prompt, place, warmth, length, other_model, version,
)  # fmt: skip
"""Changes of which each makes what the record says untrue."""


def odd_value(rng: random.Random, record: Json) -> str:
    """Put an odd value into any field, or one inside, or take it away; the field's name."""
    name = rng.choice(sorted(record))
    where: Any = record
    key: Any = name
    if isinstance(record[name], dict) and record[name] and rng.random() < 0.6:
        where, key = record[name], rng.choice(sorted(record[name]))
    if rng.random() < 0.2:
        del where[key]
    else:
        where[key] = rng.choice(ODD)
    return name


def replayed(world: World, record: Json) -> tuple[int | str, str]:
    """Exit code of ``aleator replay``, and what it printed."""
    path, out = world.folder / "record.json", io.StringIO()
    path.write_text(json.dumps(record))
    words = ["replay", str(path), "-m", str(world.path), "-t", "1"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code: int | str = cli.main(words)
        except SystemExit as error:
            code = error.code or 0
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            code = f"{type(error).__name__}: {error}"
    return code, out.getvalue()


def equal(one: Json, other: Json, out: str) -> bool:
    """Whether two records say the same of what matters, as far as the command claims to have compared."""
    try:
        a, b = Record.from_json(one), Record.from_json(other)
    except AleatorError:
        return False
    if a.made is not None and b.made is not None and "log-probabilities" not in out:
        a = dataclasses.replace(a, made=dataclasses.replace(a.made, logprobs=b.made.logprobs))
    return all(getattr(a, name) == getattr(b, name) for name in MATTERS)


def scene(world: World) -> Generator[None, None, None]:
    """Alter one record after another."""
    for number in itertools.count():
        rng = world.rng("record", number)
        options = {**rng.choice(OPTIONS), "seed": rng.randrange(2**32), "ignore_eos": True}
        generation = world.model.generate(
            rng.choice(PROMPTS), max_tokens=rng.randint(12, 20), logprobs=0, **options
        )
        generation.wait()
        record = json.loads(json.dumps(Record.of(generation, world.model, "1").as_json()))
        code, out = replayed(world, record)
        world.check(code == 0 and " is the same" in out, "records made again", f"{code} {out}")
        for change in rng.sample(CHANGES, 4):
            altered = copy.deepcopy(record)
            change(rng, altered)
            code, out = replayed(world, altered)
            what = f"{change.__name__}: {code} {out} {json.dumps(altered)}"
            world.check(code in CODES and not claims(out), "records that are untrue", what)
        for _ in range(4):
            altered = copy.deepcopy(record)
            name = odd_value(rng, altered)
            code, out = replayed(world, altered)
            what = f"odd {name}: {code} {out} {json.dumps(altered)[:3000]}"
            world.check(code in CODES, "records with odd values", what)
            if claims(out):
                world.check(equal(record, altered, out), "records said to be the same", what)
        yield


def claims(out: str) -> bool:
    """Whether the command says that a text is the same."""
    return " is the same" in out
