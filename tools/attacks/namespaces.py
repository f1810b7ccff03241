"""Two keys, and two salts of one key: what another has cached looks like what nobody has.

Two servers share a directory; their model has memory and disk below its cells.  Cached tokens and the bytes
of answers are compared; the times of a first answer, of one that another has cached and of one that is one's
own are reported only.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import aleator
from aleator.generate.prompt_tiers import PromptTiers, Speed
from attacks.world import PATIENCE, World

KEYS = ("the-first-key", "the-second-key")
PASSING = ("id", "created", "timings", "created_at", "total_duration", "load_duration",
           "prompt_eval_duration", "eval_duration")  # fmt: skip
"""Fields that are another's in every answer: names and times."""


def without_passing(value: Any) -> Any:
    """An answer without names and times."""
    if isinstance(value, dict):
        return {k: without_passing(v) for k, v in value.items() if k not in PASSING}
    return [without_passing(each) for each in value] if isinstance(value, list) else value


def text(rng: random.Random) -> str:
    """A prompt of some two hundred tokens that nobody has asked with before."""
    return " ".join(
        rng.choice(["thee", "king", "O,", "my lord", "sword", "xyz"]) for _ in range(150)
    )


def scene(world: World) -> Generator[None, None, None]:
    """Ask with one prompt after another: as the first, as another, and again."""
    from tests.server.live import in_thread

    times: dict[str, list[float]] = {"first": [], "another's": [], "one's own": []}
    with ExitStack() as both:
        servers = []
        for _ in range(2):
            model, tiers = with_tiers(world)
            live = in_thread(model, engine={"n_seq_max": 2, "n_ctx": 4096}, api_key=KEYS)
            servers.append((both.enter_context(live), tiers))

        def ask(path: str, body: Any, who: tuple[str, str], how: str) -> tuple[int, Any, Any]:
            head = {"authorization": f"Bearer {who[0]}"}
            live, tiers = rng.choice(servers)
            began = time.perf_counter()
            status, headers, answer = live.post(path, {**body, "cache_salt": who[1]}, head)
            times[how].append(time.perf_counter() - began)
            world.check(tiers.flush(PATIENCE), "all is written", how)  # the other one may read it
            kept = {k: v for k, v in headers.items() if k in ("content-type", "content-length")}
            made = json.loads(answer)
            world.check(status == 200, "answers", f"{status} {answer!r:.300}")
            kept.pop("content-length", None) if "timings" in made or "created" in made else None
            return cached_of(made), kept, without_passing(made)

        for number in itertools.count():
            rng = world.rng("namespace", number)
            path, body = request(rng)
            first, second = others(rng, number)
            alone = ask(path, body, first, "first")
            world.check(alone[0] == 0, "nothing cached at first", alone[0])
            other = ask(path, body, second, "another's")
            world.check(other == alone, "another's prefix looks like none", f"{other}, {alone}")
            for who in (first, second):
                own = ask(path, body, who, "one's own")
                world.check(own[0] > 0, "one's own prefix is found", f"{path} {who} {own[0]}")
                same = texts_of(own[2]) == texts_of(alone[2])
                world.check(same, "texts as alone", f"{own[2]}, {alone[2]}")
            told = [f"{how} {1000 * statistics.median(each):.1f} ms" for how, each in times.items()]
            world.figures["median time"] = ", ".join(told)
            yield


def with_tiers(world: World) -> tuple[aleator.LanguageModel, PromptTiers]:
    """The model as another process has it, for which reading is always worth it."""
    below: dict[str, Any] = {"cache_ram": 2**22, "cache_disk": 2**26}
    folder = str(world.folder / "prompts")
    model = aleator.load(world.path, n_threads=1, cache_dir=folder, **below)
    tiers = model.prompt_tiers
    if tiers is None:
        raise ValueError("the model has no tiers")
    tiers.computing = Never()
    return model, tiers


class Never(Speed):
    """The speed of what is never done in time."""

    def seconds(self, amount: float) -> float:
        """See :class:`Speed`."""
        return PATIENCE


def request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body."""
    prompt, seed = text(rng), rng.randrange(2**31)
    return rng.choice([
        ("/v1/completions", {"prompt": prompt, "max_tokens": 4, "seed": seed, "logprobs": 1}),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "seed": seed}),
        ("/completion", {"prompt": prompt, "n_predict": 4, "seed": seed, "n_probs": 1}),
    ])  # fmt: skip


def others(rng: random.Random, number: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """Two who share nothing, each a key and a salt; nor do they with those of other trials."""
    salt, another = f"{number}", f"another {number}"
    return rng.choice([
        ((KEYS[0], salt), (KEYS[1], salt)),
        ((KEYS[0], salt), (KEYS[0], another)),
        ((KEYS[1], another), (KEYS[1], salt)),
    ])  # fmt: skip


def cached_of(answer: Any) -> int:
    """Tokens of the prompt that were cached, as an answer says."""
    if "usage" in answer:
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    return int(answer["timings"]["cache_n"])


def texts_of(answer: Any) -> Any:
    """What was written, with log-probabilities."""
    return answer.get("choices") or (answer["content"], answer["completion_probabilities"])
