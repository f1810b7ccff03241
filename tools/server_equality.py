"""Counts the texts that a server gives to one request: there should be one, with one list of log-probabilities.

    python tools/server_equality.py [--model NAME=PATH ...] [--seeds 8] [--tokens 100] [--way NAME ...]
                                    [--out FILE.md]

Small models with random weights are made: F32, F16, Q8_0 and Q4_K_M; --model names more.  For each,
``aleator serve`` runs in a process of its own, and each of some requests (seeds, the default chain and the full
vocabulary at temperature 1) is made over HTTP

    alone       with nothing cached
    repeated    once more
    cached      after a request with the same prompt, which is found in the prompt cache
    noisy       beside three clients that stream other texts
    cancels     beside three clients that begin texts and go away
    restored    in a slot that was saved, erased and restored (/slots)
    guessed     by a server with --spec-type ngram
    offline     by ``aleator.replay`` from the record of the response, without a server

Tokens and log-probabilities are compared to the bit.  Exit code 1 if any differ.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aleator
from aleator.hub.bundled import bundled_model
from aleator.replay import Record, make_again

PROMPT = (
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n"
    "First Citizen:\nYou are all resolved rather to die than to famish?\n\n"
)
CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "full, T=1": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
TYPES = ("F32", "F16", "Q8_0", "Q4_K_M")
NOISY = 3
"""Clients beside the one that is looked at."""


@dataclass(frozen=True)
class Told:
    """What a response says.

    Attributes:
        tokens: Drawn.
        logprobs: Of each.
        cached: Tokens of the prompt that were not computed.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int = field(default=0, compare=False)


class Server:
    """``aleator serve`` in a process of its own.

    Args:
        path: Of the model.
        slots: Directory for saved slots.
        words: More of the command line.
    """

    def __init__(self, path: Path, slots: Path, *words: str) -> None:
        program = "import sys; from aleator.cli import main; sys.exit(main())"
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", program, "serve", "-m", str(path), "--port", "0", "--parallel", "8",
                "-c", "512", "--slot-save-path", str(slots), "--no-log-requests", *words,
            ],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self.port, log = 0, ""
        if self._process.stderr is None:
            raise RuntimeError("the process has no standard error")
        for line in self._process.stderr:
            log += line.decode()
            found = re.search(r"listening on http://[^:]*:(\d+)", log)
            if found:
                self.port = int(found[1])
                break
        else:
            raise SystemExit(f"the server did not begin:\n{log}")
        # What it writes later must not fill the pipe.
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            made: dict[str, Any] = json.loads(response.read())
            if response.status != 200:
                raise SystemExit(f"{path}: {response.status}: {made}")
            return made

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)
        self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()


def completion(server: Server, body: dict[str, Any]) -> tuple[Told, Record]:
    """What ``/v1/completions`` says."""
    made = server.post("/v1/completions", {**body, "logprobs": 1, "aleator_replay": True})
    record = Record.from_json(made["aleator_replay"][0])
    if record.made is None:
        raise SystemExit("the record has no text")
    logprobs = tuple(made["choices"][0]["logprobs"]["token_logprobs"])
    if logprobs != record.made.logprobs:
        raise SystemExit("the record has other log-probabilities than the response")
    cached = made["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Told(record.made.tokens, logprobs, cached), record


def in_slot(server: Server, body: dict[str, Any]) -> Told:
    """What llama-server's ``/completion`` says, in slot 0."""
    given = {k: v for k, v in body.items() if k not in ("max_tokens", "cache_salt")}
    made = server.post(
        "/completion",
        {
            **given,
            "n_predict": body["max_tokens"],
            "id_slot": 0,
            "n_probs": 1,
            "return_tokens": True,
        },
    )
    probabilities = made["completion_probabilities"]
    return Told(
        tuple(each["id"] for each in probabilities),
        tuple(each["logprob"] for each in probabilities),
        made["timings"]["cache_n"],
    )


@contextlib.contextmanager
def beside(server: Server, go_away: bool) -> Iterator[None]:
    """Other clients, which stream texts to their ends, or go away in the middle of them."""
    over = threading.Event()

    def client(number: int) -> None:
        rng = random.Random(number)
        while not over.is_set():
            body = {
                "prompt": "".join(rng.choice("abcdefgh \n") for _ in range(rng.randint(2, 300))),
                "max_tokens": rng.randint(20, 150),
                "stream": True,
                "temperature": 1.5,
                "n": rng.randint(1, 2),
            }
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.request(
                    "POST",
                    "/v1/completions",
                    json.dumps(body),
                    {"content-type": "application/json"},
                )
                response = connection.getresponse()
                response.read(rng.randint(1, 2000)) if go_away else response.read()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(NOISY)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.2)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def small_models(folder: Path) -> dict[str, Path]:
    """Models with random weights and the bundled model's tokens."""
    from make_models import SPECS, write_model

    spec = replace(
        SPECS["llama"], n_embd=256, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=512, n_layers=3, context=512
    )  # fmt: skip
    made = {}
    for kind in TYPES:
        path = folder / f"random-{kind}.gguf"
        source = bundled_model()
        vocabulary = len(aleator.load().vocab)
        write_model(path, replace(spec, type=kind, n_vocab=vocabulary), tokenizer_from=source)
        made[f"random {kind}"] = path
    return made


def compare(
    path: Path,
    seeds: int,
    tokens: int,
    slots: Path,
    note: Callable[[str], None],
    wanted: Sequence[str] = (),
) -> dict[str, dict[str, int]]:
    """Make all requests of one model in all ways, or in those that are wanted.

    Returns:
        By chain and way, how many of the seeds have another text, or other log-probabilities, than alone.
    """
    bodies = {
        (chain, seed): {"prompt": PROMPT, "max_tokens": tokens, "seed": seed, "ignore_eos": True, **options}
        for chain, options in CHAINS.items()
        for seed in range(1, seeds + 1)
    }  # fmt: skip
    alone: dict[tuple[str, int], Told] = {}
    records: dict[tuple[str, int], Record] = {}
    differ: dict[str, dict[str, int]] = {chain: {} for chain in CHAINS}

    def way(name: str, ask: Callable[[tuple[str, int]], Told]) -> None:
        if wanted and name not in wanted:
            return
        for key in bodies:
            told = ask(key)
            if not alone.get(key):
                raise SystemExit("nothing to compare with")
            differ[key[0]][name] = differ[key[0]].get(name, 0) + (told != alone[key])
        note(f"{name}: {[each[name] for each in differ.values()]} of {seeds} differ")

    def salted(key: tuple[str, int], salt: str) -> Told:
        return completion(server, {**bodies[key], "cache_salt": f"{salt} {key}"})[0]

    def cached(key: tuple[str, int]) -> Told:
        told = completion(server, bodies[key])[0]
        if told.cached < 16:
            raise SystemExit(f"nothing was cached: {told.cached}")
        return told

    def restored(key: tuple[str, int]) -> Told:
        server.post("/slots/0?action=restore", {"filename": "saved"})
        told = in_slot(server, bodies[key])
        if told.cached < 16:
            raise SystemExit(f"nothing was restored: {told.cached}")
        return told

    server = Server(path, slots)
    try:
        for key in bodies:
            body = {**bodies[key], "cache_salt": f"alone {key}"}
            alone[key], records[key] = completion(server, body)
            if alone[key].cached:
                raise SystemExit("the first request was cached")
        way("repeated", lambda key: salted(key, "again"))
        completion(server, {**next(iter(bodies.values())), "seed": 99})
        way("cached", cached)
        with beside(server, go_away=False):
            way("noisy", lambda key: salted(key, "noisy"))
            # Others may have made its prefix give way.
            way("noisy, cached", lambda key: completion(server, bodies[key])[0])
        with beside(server, go_away=True):
            way("cancels", lambda key: salted(key, "cancels"))
        in_slot(server, {**next(iter(bodies.values())), "seed": 99})
        server.post("/slots/0?action=save", {"filename": "saved"})
        server.post("/slots/0?action=erase", {})
        way("restored", restored)
    finally:
        server.end()
    server = Server(path, slots, "--spec-type", "ngram")
    try:
        way("guessed", lambda key: salted(key, "guessed"))
        with beside(server, go_away=True):
            way("guessed, cancels", lambda key: completion(server, bodies[key])[0])
    finally:
        server.end()
    model = aleator.load(path, n_ctx=512)

    def offline(key: tuple[str, int]) -> Told:
        made = make_again(records[key], model)
        return Told(made.tokens, made.logprobs or ())

    way("offline", offline)
    return differ


def report(found: dict[str, dict[str, dict[str, int]]], seeds: int, tokens: int) -> str:
    """A table of what was found."""
    first = next(iter(next(iter(found.values())).values()))
    lines = [
        f"# One text for each request, {time.strftime('%Y-%m-%d', time.gmtime())}",
        "",
        f"`python tools/server_equality.py`: {seeds} seeds, {tokens} tokens, `aleator serve --parallel 8`.",
        "How many of the seeds had another text, or other log-probabilities, than alone and uncached; compared",
        "to the bit.",
        "",
        f"| model | chain | {' | '.join(first)} |",
        "|---|---|" + "---:|" * len(first),
    ]
    for name, chains in found.items():
        for chain, ways in chains.items():
            lines.append(f"| {name} | {chain} | {' | '.join(str(n) for n in ways.values())} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--no-small", action="store_true", help="only the models of --model")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--way", action="append", default=[], help="make this one alone; several")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {} if args.no_small else small_models(Path(folder))
        models |= {name: Path(path) for name, _, path in (m.partition("=") for m in args.model)}
        found = {}
        for name, path in models.items():
            began = time.monotonic()
            found[name] = compare(
                path, args.seeds, args.tokens, Path(folder),
                lambda line: print(f"  {line}", flush=True), args.way,
            )  # fmt: skip
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    text = report(found, args.seeds, args.tokens)
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return int(any(n for chains in found.values() for w in chains.values() for n in w.values()))


if __name__ == "__main__":
    sys.exit(main())
