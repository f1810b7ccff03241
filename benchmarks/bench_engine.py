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
import datetime
import http.client
import json
import os
import platform
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from engine_pauses import report_pauses

import aleator

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


@contextmanager
def llama_server(program: str, model: str, clients: int, threads: int) -> Iterator[int]:
    """The port of a llama-server that has loaded a model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [
        program, "-m", model, "--port", str(port), "-np", str(clients), "-c", str(clients * N_CTX),
        "-t", str(threads), "-tb", str(threads), "--log-disable", "--no-webui", "-kvu",
    ]  # fmt: skip
    folder = str(Path(program).parent)
    server = subprocess.Popen(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": folder},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            if server.poll() is not None:
                raise RuntimeError(f"llama-server ended: {' '.join(command)}")
            if healthy(port):
                break
            time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait()


def healthy(port: int) -> bool:
    """Whether a server is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


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


def report(seconds: float, found: Found) -> tuple[float, str]:
    """Tokens per second, and two cells of the table: these, and the seconds to the first token."""
    first = np.array(found.first)
    speed = found.tokens / seconds
    return speed, f"{speed:.1f} | {np.median(first):.2f}, {np.quantile(first, 0.95):.2f}"


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--requests", type=int, help="of each client (default: 8; --quick: 3 to 1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama-server", metavar="PATH", help="the program to compare with")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only-pauses", action="store_true")
    parser.add_argument(
        "--prompts", default="512,4096,16384", help="tokens of prompts, beside writers"
    )
    parser.add_argument("--writers", default="1,4,15")
    parser.add_argument("--max-pause", type=float, help="default: that of an engine")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.prompts = args.prompts or ("512" if args.quick else "512,4096,16384")
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    say("# An engine under load\n")
    say(
        f"{datetime.date.today()}, {Path(args.model).name}, {processor()}, {args.threads} threads, "
        f"aleator {aleator.__version__}.\n"
    )
    command = [Path(arg).name if arg == args.model else arg for arg in sys.argv[1:]]
    say(f"    python benchmarks/bench_engine.py {' '.join(command)}\n")
    if not args.only_pauses:
        load_tests(args, say)
    report_pauses(args, say)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


def processor() -> str:
    """The processor's name, and how many there are."""
    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    )
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def load_tests(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Measure engines and their peers under the load of clients."""
    model = aleator.load(args.model, n_threads=args.threads, n_ctx=N_CTX)
    say(
        "| clients | engine, tokens/s | first token, median and 95 % | llama-server | first token | ratio "
        "| transformers | ratio |"
    )
    say("|---:" * 8 + "|")
    details: list[str] = []
    for clients in map(int, args.clients.split(",")):
        each = args.requests or (
            (3 if clients == 1 else 2 if clients == 4 else 1) if args.quick else 8
        )
        with aleator.Engine(model, n_seq_max=clients) as engine:
            seconds, found = load_test(of_engine(engine), clients, each)
            ours, cells = report(seconds, found)
            details.append(where_time_goes(clients, engine.stats, found.drawing))
        row = f"| {clients} | {cells} "
        if args.llama_server:
            with llama_server(args.llama_server, args.model, clients, args.threads) as port:
                theirs, cells = report(*load_test(of_server(port), clients, each))
            row += f"| {cells} | {ours / theirs:.2f} "
        else:
            row += "| | | "
        if args.transformers:
            speed = of_transformers(model, clients, each, args.threads)
            row += f"| {speed:.1f} | {ours / speed:.2f} |"
        else:
            row += "| | |"
        say(row)
    say("\n" + "\n".join(details) + "\n")


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
