"""One text and one list of log-probabilities for each request over HTTP, whatever happens beside it.

A text is made offline, alone. Then it is asked for from ``aleator serve``: with nothing cached; once more; from
the prompt cache; as the first of several (n > 1); beside clients that stream other texts, and beside some that
begin texts and go away; in a slot that was saved, erased and restored; by a server that guesses; and by
``aleator.engine.replay`` from the record of the response. All are compared to the bit.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aleator
from aleator.engine.replay import Made, Record, make_again
from attacks.world import PATIENCE, PROMPTS, World

if TYPE_CHECKING:
    from tests.server.live import Live

RANDOM = ("llama:F32", "llama:Q4_K_M", "llama:F16", "llama:Q8_0")
"""Models with random weights, which take turns with the one that is attacked."""
PER_MODEL = 3
"""Trials of one model before the next one has its turn."""
CHAINS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
)
NOISY = 3
"""Clients beside the one that is looked at."""

Told = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, and the log-probability of each."""


class Asker:
    """Asks servers of one model for one text in every way.

    Args:
        world: Counts what happens.
        model: The server's, here.
        live: The server.
        guessing: One with ``--spec-type ngram``.
        body: What is asked.
        wanted: What must come.
    """

    def __init__(
        self, world: World, model: aleator.LanguageModel, live: Live, guessing: Live, body: dict[str, Any]
    ) -> None:  # fmt: skip
        self.world, self.model, self.live, self.guessing, self.body = (
            world,
            model,
            live,
            guessing,
            body,
        )
        alone = Made.of(model.generate(**body, logprobs=0))
        self.wanted: Told = alone.tokens, alone.logprobs or ()

    def every_way(self, rng: random.Random) -> None:
        """Ask in each, in a random order."""
        self.way("salted", lambda: self.completion(self.live, cache_salt=f"{rng.random()}"))
        self.completion(self.live, seed=99)  # what is then cached
        ways: dict[str, Callable[[], Told]] = {
            "cached": self.cached,
            "several": lambda: self.completion(self.live, n=3),
            "restored": self.restored,
            "guessed": lambda: self.completion(self.guessing),
            "offline": self.offline,
        }
        for name in rng.sample(sorted(ways), len(ways)):
            self.way(name, ways[name])
        for go_away in (False, True):
            how = "beside cancels" if go_away else "beside others"
            salted = partial(self.completion, self.live, cache_salt=how)
            with beside(self.live, go_away, rng.random()):
                self.way(how, salted)
                self.way(f"cached {how}", lambda: self.completion(self.live))
        with beside(self.guessing, True, rng.random()):
            self.way("guessed beside cancels", lambda: self.completion(self.guessing))

    def way(self, name: str, ask: Callable[[], Told]) -> None:
        """Ask, and compare."""
        told = ask()
        what = f"{self.model.weights.path.name}, {self.body}: {told}, alone {self.wanted}"
        self.world.check(told == self.wanted, name, what)

    def post(self, live: Live, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a body."""
        status, _, answer = live.post(path, body)
        self.world.check(status == 200, "answers", f"{path} {status} {answer!r:.300}")
        made: dict[str, Any] = json.loads(answer)
        return made

    def record(self, live: Live, **more: Any) -> tuple[dict[str, Any], Record]:
        """An answer, and the record of its first text."""
        body = {**self.body, "logprobs": 1, "aleator_replay": True, **more}
        made = self.post(live, "/v1/completions", body)
        return made, Record.from_json(made["aleator_replay"][0])

    def completion(self, live: Live, **more: Any) -> Told:
        """What ``/v1/completions`` says."""
        made, record = self.record(live, **more)
        tokens = record.made.tokens if record.made else ()
        return tokens, tuple(made["choices"][0]["logprobs"]["token_logprobs"])

    def cached(self) -> Told:
        """The same from the prompt cache, which must have it."""
        made, record = self.record(self.live)
        found = made["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.world.check(found == made["usage"]["prompt_tokens"] - 1, "found in the cache", found)
        tokens = record.made.tokens if record.made else ()
        return tokens, tuple(made["choices"][0]["logprobs"]["token_logprobs"])

    def offline(self) -> Told:
        """The same from a record, without the server; all of several."""
        made, _ = self.record(self.live, n=2)
        for each in made["aleator_replay"]:
            record = Record.from_json(each)
            again = make_again(record, self.model)
            self.world.check(again == record.made, "replayed", f"{again}, served {record.made}")
        again = make_again(Record.from_json(made["aleator_replay"][0]), self.model)
        return again.tokens, again.logprobs or ()

    def restored(self) -> Told:
        """In a slot that was saved, erased and restored."""
        self.in_slot(seed=99, n_predict=1)
        self.post(self.live, "/slots/0?action=save", {"filename": "saved"})
        self.post(self.live, "/slots/0?action=erase", {})
        self.post(self.live, "/slots/0?action=restore", {"filename": "saved"})
        made = self.in_slot()
        self.world.check(made["timings"]["cache_n"] > 0, "found in the slot", made["timings"])
        drawn = made["completion_probabilities"]
        return tuple(each["id"] for each in drawn), tuple(each["logprob"] for each in drawn)

    def in_slot(self, **more: Any) -> dict[str, Any]:
        """What llama-server's ``/completion`` says, in slot 0."""
        given = {name: value for name, value in self.body.items() if name != "max_tokens"}
        given |= {"n_predict": self.body["max_tokens"], "id_slot": 0, "n_probs": 1, **more}
        return self.post(self.live, "/completion", given)


@contextlib.contextmanager
def beside(live: Live, go_away: bool, seed: float) -> Iterator[None]:
    """Other clients, which stream texts to their ends, or go away in the middle of them."""
    over, begun = threading.Event(), threading.Barrier(NOISY + 1)

    def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for i in itertools.count():
            body = {
                "prompt": "".join(rng.choice("abcdefgh \n") for _ in range(rng.randint(2, 300))),
                "max_tokens": rng.randint(20, 100),
                "stream": True,
                "temperature": 1.5,
                "n": rng.randint(1, 2),
            }
            connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
            with contextlib.closing(connection), contextlib.suppress(OSError):
                head = {"content-type": "application/json"}
                connection.request("POST", "/v1/completions", json.dumps(body), head)
                response = connection.getresponse()
                response.read(1)
                if not i:
                    begun.wait()
                response.read(rng.randint(1, 2000)) if go_away else response.read()
            if over.is_set():
                return

    threads = [threading.Thread(target=client, args=(i,)) for i in range(NOISY)]
    for thread in threads:
        thread.start()
    try:
        begun.wait(PATIENCE)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def servers(path: Path, folder: Path) -> Iterator[tuple[Live, Live]]:
    """Two servers of one model: one that guesses nothing, and one that does."""
    from tests.server.live import Process

    words = [
        "-m", str(path), "--parallel", "8", "-c", "512", "--slot-save-path", str(folder),
        "--no-log-requests",
    ]  # fmt: skip
    with Process(*words) as plain, Process(*words, "--spec-type", "ngram") as guessing:
        yield plain.live, guessing.live


def scene(world: World) -> Generator[None, None, None]:
    """Ask for one text after another; each model has its turn."""
    slots = world.folder / "slots"
    slots.mkdir()
    for turn in itertools.count():
        name = RANDOM[turn // 2 % len(RANDOM)]
        path = world.random_model(name) if turn % 2 else world.path
        model = aleator.load(path, n_threads=1, n_ctx=512, prompt_cache=False)
        with servers(path, slots) as (plain, guessing):
            for number in range(PER_MODEL):
                rng = world.rng("text", turn, number)
                body = {
                    "prompt": rng.choice(PROMPTS) + "x" * rng.randrange(9), "seed": rng.randrange(2**32),
                    "max_tokens": rng.randint(10, 30), "ignore_eos": True, **rng.choice(CHAINS),
                }  # fmt: skip
                Asker(world, model, plain, guessing, body).every_way(rng)
                yield
