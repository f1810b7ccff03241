"""Speed of ``aleator serve`` beside llama-server's, both driven by one client program, in turns.

    python benchmarks/bench_server.py -m MODEL.gguf --llama-server build/bin/llama-server [--quick]

Requests go to ``/v1/completions`` of both, as streams, with the same bodies.  Orders:

    mixed N     N clients, each with its own prompts of 40 to 60 words, answers of 64 tokens
    shared N    the same, but prompts begin with the same 600 words
    schema N    answers are JSON of a schema

Each order is driven in rounds, one server after the other, so that the machine's load affects both.  It prints
the median of the rounds, and with each round the machine's load and the share of its cores that client and
server took: run it on an otherwise idle machine.

Overhead of HTTP: see http_overhead.py, which runs at the end, after both servers.  Results go to
``benchmarks/results/bench_server[_quick].DATE.json`` and ``.md``.  ``--quick`` takes at most six minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from http_overhead import bare_loop
from http_overhead import measure as measure_overhead
from http_overhead import report as overhead_report

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import RESULTS, parser, table_head, table_row
from server_process import ServerProcess

HERE = Path(__file__).parent
WORDS = (
    "the", "king", "of", "and", "to", "in", "is", "was", "he", "for", "it", "with", "as", "his",
)  # fmt: skip
ANSWER = 64
"""Tokens of an answer."""
SEQUENCE = 1536
"""Positions of one sequence: the shared prefix, a prompt, an answer, and some room."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Romeo", "Juliet", "Mercutio", "Tybalt"]},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
        "friends": {
            "type": "array",
            "items": {"enum": ["Benvolio", "Paris", "Laurence"]},
            "minItems": 3,
            "maxItems": 3,
        },
        "alive": {"type": "boolean"},
    },
    "required": ["name", "age", "friends", "alive"],
    "additionalProperties": False,
}
OURS, THEIRS = "aleator", "llama-server"


@dataclass(frozen=True)
class Order:
    """What clients ask for in one round.

    Attributes:
        kind: "mixed", "shared" or "schema".
        clients: Number of concurrent clients.
        each: Requests of each client, one after the other.
    """

    kind: str
    clients: int
    each: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.kind} {self.clients}"

    def bodies(self, round: int) -> list[dict[str, Any]]:
        """The requests of a round: the same for every server, different in every round."""
        return [self._body(f"{round} {number}") for number in range(self.clients * self.each)]

    def _body(self, seed: str) -> dict[str, Any]:
        rng = random.Random(seed)
        prompt = " ".join(rng.choice(WORDS) for _ in range(rng.randint(40, 60)))
        if self.kind == "shared":
            common = random.Random("common")
            prompt = " ".join(common.choice(WORDS) for _ in range(600)) + " " + prompt
        body: dict[str, Any] = {
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.8,
            "seed": rng.randrange(2**31),
        }
        if self.kind == "schema":
            return {**body, "json_schema": SCHEMA, "max_tokens": 2 * ANSWER}
        return {**body, "max_tokens": ANSWER, "ignore_eos": True}


ORDERS = (
    Order("mixed", 1, 4),
    Order("mixed", 4, 3),
    Order("mixed", 16, 2),
    Order("mixed", 64, 1),
    Order("shared", 16, 2),
    Order("schema", 4, 3),
)


@dataclass
class Rounds:
    """Measurements of one order at one server, a value for each round.

    Attributes:
        values: By name.
        first: Seconds to the first token of every request.
        gaps: Seconds between events of all requests.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def add(self, **values: float) -> None:
        """Add a round."""
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def summary(self) -> dict[str, float]:
        """Medians of the rounds, and quantiles over all of them in milliseconds."""
        made = {name: statistics.median(values) for name, values in self.values.items()}
        for name, times in (("first", self.first), ("gap", self.gaps)):
            for q in (50, 99):
                made[f"{name}_p{q}_ms"] = float(np.percentile(times, q)) * 1e3 if times else 0.0
        return made


class Running(ServerProcess):
    """A server whose processor time and memory are read."""

    def cpu_seconds(self) -> float:
        """Its processor time in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def main_seconds(self) -> float:
        """Processor time of its main thread in seconds; in ours this is the event loop."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def peak_mib(self) -> float:
        """Its peak memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0


def drive(server: Running, order: Order, round: int) -> dict[str, Any]:
    """Drive one round with the client program."""
    asked = {
        "port": server.port,
        "path": "/v1/completions",
        "clients": order.clients,
        "bodies": order.bodies(round),
    }
    made = subprocess.run(
        [sys.executable, str(HERE / "server_client.py")],
        input=json.dumps(asked).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def others_share(seconds: float, before: tuple[int, int], known: float) -> float:
    """Cores that programs other than client and server took meanwhile."""
    busy, ticks = processor_times()[0] - before[0], os.sysconf("SC_CLK_TCK")
    return max(0.0, busy / ticks - known) / seconds


def processor_times() -> tuple[int, int]:
    """Busy and idle ticks of the processors since the machine's start."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, idle


def measure(
    servers: list[Running], orders: list[Order], rounds: int, end: float
) -> dict[str, dict[str, Rounds]]:
    """Drive all orders in rounds, servers in turns; start no round after the time is over."""
    found: dict[str, dict[str, Rounds]] = {}
    for order in orders:
        by_server = found.setdefault(order.name, {server.name: Rounds() for server in servers})
        for round in range(rounds):
            if round and time.monotonic() > end:
                break
            for server in servers if round % 2 == 0 else servers[::-1]:
                before, cpu = processor_times(), server.cpu_seconds()
                main = server.main_seconds()
                seen = drive(server, order, round)
                seconds, own = seen["seconds"], seen["client_seconds"]
                used, main = server.cpu_seconds() - cpu, server.main_seconds() - main
                if seen["errors"]:
                    raise SystemExit(f"{server.name}, {order.name}: {seen['errors'][0]}")
                values = by_server[server.name]
                values.add(
                    tokens_per_second=seen["tokens"] / seconds,
                    requests_per_second=seen["requests"] / seconds,
                    main_us=1e6 * main / max(1, seen["tokens"]),
                    client_us=1e6 * own / max(1, seen["tokens"]),
                    server_cores=used / seconds,
                    client_cores=own / seconds,
                    other_cores=others_share(seconds, before, used + own),
                )
                values.first += seen["first"]
                values.gaps += seen["gaps"]
                print(
                    f"{order.name:10} {server.name:13} {seen['tokens'] / seconds:8.1f} tok/s "
                    f"{seen['requests'] / seconds:7.2f} req/s  cores: server {used / seconds:.2f}, client "
                    f"{own / seconds:.2f}, others {values.values['other_cores'][-1]:.2f}  load {load()}",
                    flush=True,
                )
    return found


def load() -> str:
    """The machine's load in the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def commands(args: argparse.Namespace, cells: int) -> dict[str, list[str]]:
    """How to start the servers: the same file, threads, sequences and cells."""
    ours = [
        sys.executable, "-c", "import sys; from aleator.cli import main; sys.exit(main())", "serve",
        "-m", args.model, "-t", str(args.threads), "--parallel", str(args.parallel), "-c", str(SEQUENCE),
        "--n-cells", str(cells), "--port", "{port}", "--no-log-requests", "--no-cache-disk",
    ]  # fmt: skip
    theirs = [
        args.llama_server, "-m", args.model, "-t", str(args.threads), "-np", str(args.parallel), "-c",
        str(cells), "-kvu", "--host", "127.0.0.1", "--port", "{port}", "--log-disable",
    ]  # fmt: skip
    return {OURS: ours, THEIRS: theirs} if args.llama_server else {OURS: ours}


@contextmanager
def started(args: argparse.Namespace, cells: int) -> Iterator[list[Running]]:
    """Both servers, ready to answer."""
    with ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
        servers = []
        for name, command in commands(args, cells).items():
            server = Running(name, command, Path(folder) / f"{name}.log")
            ends.callback(server.end)
            servers.append(server)
        for server in servers:
            server.wait()
            drive(server, Order("mixed", 2, 1), -1)  # one-time initialisation
        yield servers


def report(result: dict[str, Any]) -> str:
    """Tables of the measurements."""
    lines = [
        f"# Servers against each other, {result['date']}",
        "",
        f"{result['model']}, {result['threads']} threads, {result['cores']} cores; `{result['command']}`. "
        "Medians of rounds in turns; times over all requests. Cores: what server, client and others took of "
        "the machine.",
        "",
        *table_head(
            "order", "server", "tok/s:", "req/s:", "ratio:", "first token ms, p50 / p99:",
            "between tokens ms, p50 / p99:", "cores: server / client / others:",
        ),
    ]  # fmt: skip
    for name, by_server in result["orders"].items():
        theirs = by_server.get(THEIRS)
        for server, v in by_server.items():
            key = "requests_per_second" if name.startswith("schema") else "tokens_per_second"
            ratio = f"{v[key] / theirs[key]:.2f}" if theirs and server == OURS else ""
            first, gap = (
                f"{v[f'{each}_p50_ms']:,.{digits}f} / {v[f'{each}_p99_ms']:,.{digits}f}"
                for each, digits in (("first", 0), ("gap", 1))
            )
            cores = " / ".join(f"{v[f'{who}_cores']:.2f}" for who in ("server", "client", "other"))
            speeds = f"{v['tokens_per_second']:,.1f}", f"{v['requests_per_second']:.2f}"
            lines.append(table_row(name, server, *speeds, ratio, first, gap, cores))
    lines += [
        "",
        "Ratios of schemas are of requests.",
        "",
        *overhead_report(result["overhead_us"]),
        *_loop(result["orders"], result["bare_us"]),
        "",
        "Peak memory: "
        + ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in result["peak_mib"].items())
        + ".",
        "",
    ]
    return "\n".join(lines)


def _loop(orders: dict[str, Any], bare_us: float) -> list[str]:
    """Processor time of HTTP itself, and of an event loop that only writes."""
    ours = {name: each[OURS] for name, each in orders.items() if name.startswith("mixed")}
    told = [
        f"{name.removeprefix('mixed ')}: {v['main_us']:.0f} and {v['client_us']:.0f}"
        for name, v in ours.items()
    ]
    if not told:
        return []
    return [
        "",
        "Microseconds of a processor per token, by clients, of our server's event loop and of the client: "
        f"{'; '.join(told)}. Both delay the decoder, which has a thread for each core. If each token woke "
        f"an event loop that does nothing but write 300 bytes, that would take {bare_us:.0f} us "
        "(http_overhead.py --loop).",
    ]


def main() -> None:
    """Measure, print and write."""
    asked = parser(__doc__)
    asked.add_argument("-m", "--model", required=True)
    asked.add_argument(
        "--llama-server", help="llama.cpp's program; without it only ours is measured"
    )
    asked.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--parallel", type=int, default=64)
    asked.add_argument("--rounds", type=int, help="default: 5, with --quick 2")
    asked.add_argument("--orders", help="such as 'mixed 1,schema 4'; default: all")
    asked.add_argument("--quick", action="store_true", help="at most six minutes")
    asked.add_argument("--out", help="default: benchmarks/results/bench_server[_quick].DATE")
    args = asked.parse_args()
    orders = [o for o in ORDERS if not args.orders or o.name in args.orders.split(",")]
    rounds = args.rounds or (2 if args.quick else 5)
    end = time.monotonic() + (200 if args.quick else 86400)
    cells = 64 * 256 if args.parallel > 16 else args.parallel * SEQUENCE
    size = Path(args.model).stat().st_size / 2**20
    with started(args, cells) as servers:
        found = measure(servers, orders, rounds, end)
        peak = {server.name: server.peak_mib() for server in servers}
    summed = {name: {s: r.summary() for s, r in by.items()} for name, by in found.items()}
    overhead = measure_overhead(args.model, args.threads, 2 * rounds + 1)
    bare = statistics.median(asyncio.run(bare_loop(size, 200)) for _ in range(rounds))
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = {
        "date": date,
        "model": Path(args.model).name,
        "threads": args.threads,
        "cores": os.cpu_count(),
        "command": " ".join(["bench_server.py", *sys.argv[1:]]),
        "orders": summed,
        "overhead_us": overhead,
        "bare_us": 1e6 * bare,
        "peak_mib": peak,
    }
    name = "bench_server_quick" if args.quick else "bench_server"
    out = Path(args.out or RESULTS / f"{name}.{date}")
    out.with_name(out.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
    text = report(result)
    out.with_name(out.name + ".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
