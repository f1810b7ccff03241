"""Speed of an engine under load, against llama-server and transformers' continuous batching.

    python benchmarks/bench_engine.py -m MODEL.gguf [--quick] [--threads 2] [--out FILE.md]
        [--llama-server PATH] [--transformers] [--clients 1,4,16,64]
    python benchmarks/bench_engine.py -m MODEL.gguf --only-pauses [--prompts 512,4096,16384]
        [--writers 1,4,15] [--max-pause 0.25] [--threads 2] [--out FILE.md]

Clients send prompts of mixed lengths, half of them with a common prefix, and read streams of mixed
lengths, one request after the other, at temperature 0.8.  The same requests go to a llama-server that is
started with the same file, threads, sequences and positions, and read as a stream.  transformers gets a Llama
of the file's shape with random weights in bfloat16 (speed does not depend on the weights' values), on PyTorch's
CPU kernels (for which it needs psutil), and all requests at once: it has no streams to read here, so only its
tokens per second count.  Also: where an engine's time goes, and how a prompt and decoding requests affect each
other, for the given prompts and numbers of decoding requests (writers), with a verdict on each of the three
promises of docs/engine.md.  Run it on an otherwise idle machine: --quick takes some six minutes.  A model with
random weights and a real vocabulary:

    python tools/make_models.py llama-134m --type Q4_K_M --tokenizer-from SmolLM2.gguf --out MODEL.gguf
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from engine_pauses import report_pauses

import aleator

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import Report, command, machine, parser
from server_process import ServerProcess

COMMON = (
    "You are a helpful assistant that answers in short sentences and never repeats itself. " * 8
)
WORDS = "the king of and to in is was he for it with as his that on be at by this had not"
N_CTX = 1024
"""Positions of a request."""


@dataclass
class Found:
    """What clients have seen.

    Attributes:
        tokens: Generated tokens.
        drawing: Seconds of drawing tokens, if known.
        first: Seconds from sending a request to the first piece of its text.
    """

    tokens: int = 0
    drawing: float = 0.0
    first: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, tokens: int, first: float, drawing: float) -> None:
        """Note an answer."""
        with self.lock:
            self.tokens += tokens
            self.drawing += drawing
            self.first.append(first)


Ask = Callable[[str, int, int], tuple[int, float, float]]
"""(prompt, tokens wanted, seed) -> (tokens generated, seconds to the first piece, seconds of drawing)."""


def request(number: int) -> tuple[str, int]:
    """A prompt, and how many tokens are wanted."""
    rng = random.Random(number)
    text = " ".join(rng.choice(WORDS.split()) for _ in range(rng.choice([8, 60, 250])))
    return (COMMON if number % 2 else "") + text, rng.choice([16, 64, 128])


def numbers(clients: int, each: int) -> list[list[int]]:
    """The requests of each client; they differ for every number of clients, so that none are cached."""
    return [[10_000 * clients + 100 * i + k for k in range(each)] for i in range(clients)]


def load_test(ask: Ask, clients: int, each: int) -> tuple[float, Found]:
    """Run clients; return the seconds that it took, and what they saw."""
    found = Found()

    def client(own: list[int]) -> None:
        for number in own:
            prompt, wanted = request(number)
            found.add(*ask(prompt, wanted, number))

    threads = [threading.Thread(target=client, args=(own,)) for own in numbers(clients, each)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started, found


def of_engine(engine: aleator.Engine) -> Ask:
    """Send requests to an engine."""

    def ask(prompt: str, wanted: int, seed: int) -> tuple[int, float, float]:
        sent = time.perf_counter()
        made = engine.submit(prompt, max_tokens=wanted, seed=seed, ignore_eos=True, temperature=0.8)
        first = 0.0
        for _ in made:
            first = first or time.perf_counter() - sent
        return len(made.tokens), first, made.stats.sampler_seconds

    return ask


def of_server(port: int) -> Ask:
    """Send requests to a llama-server."""

    def ask(prompt: str, wanted: int, seed: int) -> tuple[int, float, float]:
        body = {
            "prompt": prompt,
            "n_predict": wanted,
            "seed": seed,
            "ignore_eos": True,
            "temperature": 0.8,
            "cache_prompt": True,
            "stream": True,
        }
        sent = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        head = {"Content-Type": "application/json"}
        connection.request("POST", "/completion", json.dumps(body), head)
        reply, first, last = connection.getresponse(), 0.0, b""
        while line := reply.readline():
            if line.startswith(b"data: "):
                first, last = first or time.perf_counter() - sent, line[6:]
        connection.close()
        return int(json.loads(last)["tokens_predicted"]), first, 0.0

    return ask


def llama_server(args: argparse.Namespace, clients: int, log: Path) -> ServerProcess:
    """A llama-server with the model."""
    words = [
        args.llama_server, "-m", args.model, "--port", "{port}", "-np", str(clients),
        "-c", str(clients * N_CTX), "-t", str(args.threads), "-tb", str(args.threads),
        "--log-disable", "--no-webui", "-kvu",
    ]  # fmt: skip
    return ServerProcess(
        "llama-server", words, log, LD_LIBRARY_PATH=str(Path(args.llama_server).parent)
    )


def of_transformers(model: aleator.LanguageModel, clients: int, each: int, threads: int) -> float:
    """Tokens per second of transformers' continuous batching with the same prompts and lengths."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    config = model.decoder.config
    shape = transformers.LlamaConfig(
        vocab_size=config.n_vocab,
        hidden_size=config.n_embd,
        intermediate_size=config.n_ff[0],
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads[0],
        num_key_value_heads=config.n_kv_heads[0],
        max_position_embeddings=N_CTX,
    )
    shape._attn_implementation = "sdpa"
    made = transformers.LlamaForCausalLM(shape).to(torch.bfloat16).eval()
    wanted = [request(number) for own in numbers(clients, each) for number in own]
    # All ask for the same length, as its batch call takes one: the mean of ours.
    n = round(sum(tokens for _, tokens in wanted) / len(wanted))
    settings = transformers.GenerationConfig(
        max_new_tokens=n, do_sample=True, temperature=0.8, eos_token_id=-1, pad_token_id=0
    )
    prompts = [list(model.prompt_tokens(prompt)) for prompt, _ in wanted]
    started = time.perf_counter()
    outputs = made.generate_batch(
        inputs=prompts,
        generation_config=settings,
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            num_blocks=max(8, clients * N_CTX // 256), max_batch_tokens=512
        ),
        progress_bar=False,
    )
    took = time.perf_counter() - started
    return sum(len(each.generated_tokens) for each in outputs.values()) / took


def speed_and_wait(seconds: float, found: Found) -> tuple[float, list[str]]:
    """Tokens per second, and two cells of the table: these, and the seconds to the first token."""
    first = np.array(found.first)
    speed = found.tokens / seconds
    return speed, [f"{speed:.1f}", f"{np.median(first):.2f}, {np.quantile(first, 0.95):.2f}"]


def main() -> None:
    """Measure what the command line asks for."""
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("-m", "--model", required=True)
    asked.add_argument("--clients", default="1,4,16,64")
    asked.add_argument("--requests", type=int, help="of each client (default: 8; --quick: 3 to 1)")
    asked.add_argument("--threads", type=int, default=os.cpu_count())
    asked.add_argument("--llama-server", metavar="PATH", help="the program to compare with")
    asked.add_argument("--transformers", action="store_true")
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--only-pauses", action="store_true")
    asked.add_argument(
        "--prompts", default="512,4096,16384", help="tokens of prompts, beside writers"
    )
    asked.add_argument("--writers", default="1,4,15")
    asked.add_argument("--max-pause", type=float, help="default: that of an engine")
    args = asked.parse_args()
    report = Report(
        "An engine under load",
        f"{Path(args.model).name}, {args.threads} threads; {machine('aleator')}.",
        f"    {command(__file__)}",
    )
    if not args.only_pauses:
        load_tests(args, report)
    report_pauses(args, report)
    report.write(args.out)


def load_tests(args: argparse.Namespace, report: Report) -> None:
    """Measure engines and their peers under the load of clients."""
    model = aleator.load(args.model, n_threads=args.threads, n_ctx=N_CTX)
    report.table(
        "clients:", "engine, tokens/s:", "first token, median and 95 %:", "llama-server:", "first token:",
        "ratio:", "transformers:", "ratio:",
    )  # fmt: skip
    details: list[str] = []
    for clients in map(int, args.clients.split(",")):
        each = args.requests or (
            (3 if clients == 1 else 2 if clients == 4 else 1) if args.quick else 8
        )
        with aleator.Engine(model, n_seq_max=clients) as engine:
            seconds, found = load_test(of_engine(engine), clients, each)
            ours, cells = speed_and_wait(seconds, found)
            details.append(where_time_goes(clients, engine.stats, found.drawing))
        theirs, others = ["", "", ""], ["", ""]
        if args.llama_server:
            with (
                TemporaryDirectory() as folder,
                llama_server(args, clients, Path(folder) / "log") as server,
            ):
                speed, beside = speed_and_wait(*load_test(of_server(server.port), clients, each))
            theirs = [*beside, f"{ours / speed:.2f}"]
        if args.transformers:
            speed = of_transformers(model, clients, each, args.threads)
            others = [f"{speed:.1f}", f"{ours / speed:.2f}"]
        report.row(clients, *cells, *theirs, *others)
    report.say("", *details, "")


def where_time_goes(clients: int, stats: aleator.EngineStats, drawing: float) -> str:
    """A line about an engine's time."""
    steps = max(1, stats.steps)
    prompts = stats.reused_tokens + stats.prompt_tokens
    return (
        f"{clients} clients: {stats.steps} steps of {1e3 * stats.step_seconds / steps:.2f} ms, of these "
        f"{1e3 * drawing / steps:.2f} ms drawing tokens; {1e6 * stats.scheduling_seconds / steps:.0f} us "
        f"admission and decisions a step; {stats.reused_tokens} of {prompts} prompt tokens reused.  "
    )


if __name__ == "__main__":
    main()
