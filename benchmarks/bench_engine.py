"""Speed of an engine: throughput, time to the first token under load, pauses, and what guesses save.

    python benchmarks/bench_engine.py -m MODEL.gguf [--clients 1,4,16,64] [--threads N]
    python benchmarks/bench_engine.py -m MODEL.gguf --server http://127.0.0.1:8080

Clients send prompts of mixed lengths, half of which begin with the same text, and read answers of mixed
lengths, one request after the other.  With --server the same requests go to a llama-server that serves the
same file (start it with ``-np`` and ``-c`` as large as here, ``--no-webui``), by its ``/completion``.  Then,
without a server: the pauses of four streams while a long prompt is computed, with and without ``max_pause``,
and the speed of a text that repeats itself, with guesses.  Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import aleator

COMMON = (
    "You are a helpful assistant that answers in short sentences and never repeats itself. " * 8
)
WORDS = (
    "the",
    "king",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "he",
    "for",
    "it",
    "with",
    "as",
    "his",
)


@dataclass
class Found:
    """What clients have seen."""

    tokens: int = 0
    first: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, tokens: int, first: float) -> None:
        """Note an answer."""
        with self.lock:
            self.tokens += tokens
            self.first.append(first)


Ask = Callable[[str, int, int], tuple[int, float]]
"""(prompt, tokens wanted, seed) to (tokens made, seconds to the first one)."""


def request(number: int) -> tuple[str, int]:
    """A prompt and how many tokens are wanted."""
    rng = random.Random(number)
    text = " ".join(rng.choice(WORDS) for _ in range(rng.choice([8, 60, 250])))
    return (COMMON if number % 2 else "") + text, rng.choice([16, 64, 128])


def load_test(ask: Ask, clients: int, each: int) -> tuple[float, Found]:
    """Let clients ask; returns the seconds that it took, and what they saw."""
    found = Found()

    def client(start: int) -> None:
        for number in range(start, start + each):
            prompt, wanted = request(number)
            found.add(*ask(prompt, wanted, number))

    threads = [threading.Thread(target=client, args=(1000 * i,)) for i in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started, found


def of_engine(engine: aleator.Engine) -> Ask:
    """Requests go to an engine."""

    def ask(prompt: str, wanted: int, seed: int) -> tuple[int, float]:
        made = engine.submit(prompt, max_tokens=wanted, seed=seed, ignore_eos=True, temperature=0.8)
        made.wait()
        return len(made.tokens), made.stats.prompt_seconds

    return ask


def of_server(url: str) -> Ask:
    """Requests go to a llama-server."""

    def ask(prompt: str, wanted: int, seed: int) -> tuple[int, float]:
        body = {
            "prompt": prompt,
            "n_predict": wanted,
            "seed": seed,
            "ignore_eos": True,
            "temperature": 0.8,
            "cache_prompt": True,
        }
        sent = urllib.request.Request(
            f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(sent) as reply:
            timings = json.load(reply)["timings"]
        return timings["predicted_n"], timings["prompt_ms"] / 1000

    return ask


def pauses(model: aleator.LanguageModel, max_pause: float) -> tuple[float, float]:
    """Long pauses of four streams over the usual while a prompt comes, and seconds to its first token."""
    n = model.n_ctx - 8
    with aleator.Engine(model, n_seq_max=5, max_pause=max_pause) as engine:
        seen: list[list[float]] = [[] for _ in range(4)]

        def read(i: int) -> None:
            made = engine.submit(f"{i}", max_tokens=n, ignore_eos=True, seed=i)
            for _ in made:
                seen[i].append(time.perf_counter())
                if stop.is_set():
                    made.cancel()

        stop = threading.Event()
        readers = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for reader in readers:
            reader.start()
        while min(map(len, seen)) < 30:
            time.sleep(0.01)
        begins = time.perf_counter()
        rng = np.random.default_rng(1)
        prompt = rng.integers(300, len(model.vocab) - 300, n - 8).tolist()
        long = engine.submit(prompt, max_tokens=1)
        long.wait()
        took = time.perf_counter() - begins
        stop.set()
        for reader in readers:
            reader.join()
    before = np.concatenate([np.diff([t for t in s if t < begins]) for s in seen])
    during = np.concatenate([np.diff([t for t in s if begins <= t < begins + took]) for s in seen])
    longest = float(np.quantile(during, 0.95) / np.median(before)) if len(during) else float("nan")
    return longest, took


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model")
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--requests", type=int, default=8, help="of each client")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--server", help="address of a llama-server; only that is measured")
    args = parser.parse_args()
    counts = [int(each) for each in args.clients.split(",")]
    if args.server:
        for clients in counts:
            report(
                "llama-server", clients, *load_test(of_server(args.server), clients, args.requests)
            )
        return
    model = aleator.load(args.model, n_threads=args.threads, n_ctx=1024)
    for clients in counts:
        with aleator.Engine(model, n_seq_max=min(clients, 64)) as engine:
            report("engine", clients, *load_test(of_engine(engine), clients, args.requests))
            stats = engine.stats
            us = 1e6 * stats.scheduling_seconds / max(1, stats.steps)
            print(f"  {stats.steps} steps, admission and decisions {us:.0f} us each")
    whole = aleator.load(args.model, n_threads=args.threads)
    for limit in (2.0, 1e6):
        longest, first = pauses(whole, limit)
        print(
            f"max_pause {limit:g}: while a prompt of {whole.n_ctx - 16} tokens is computed, 95% of pauses are "
            f"below {longest:.2f} times the usual; its first token after {first:.2f} s"
        )
    prompt = "A list of names: Ann, Bob, Eve, Ann, Bob, Eve, Ann, Bob, Eve, Ann, Bob,"
    for temperature in (0.0, 0.8):
        for kind in ("none", "ngram"):
            started = time.perf_counter()
            made = model.generate(
                prompt,
                max_tokens=200,
                temperature=temperature,
                seed=1,
                spec_type=kind,
                ignore_eos=True,
            )
            n = len(made.tokens)
            took, seen = time.perf_counter() - started, made.stats
            print(
                f"temperature {temperature}, spec_type {kind}: {n / took:.1f} tokens/s, "
                f"{seen.draft_n_accepted} of {seen.draft_n} guesses right"
            )


def report(what: str, clients: int, seconds: float, found: Found) -> None:
    """Print a line about a load."""
    first = np.array(found.first)
    print(
        f"{what}, {clients} clients: {found.tokens / seconds:.1f} tokens/s, first token after "
        f"{np.median(first):.3f} s (95%: {np.quantile(first, 0.95):.3f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
