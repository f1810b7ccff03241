"""Speed, memory, start-up and perplexity of aleator and its peers on the same files, in every type.

    python benchmarks/bench_generate.py --prepare             makes the models only (tools/make_models.py)
    python benchmarks/bench_generate.py --quick               about 8 minutes
    python benchmarks/bench_generate.py [--sizes 134m 1b 3b 7b gemma3 mamba moe] [--types Q4_K_M ...]
        [--threads N] [-m FILE.gguf ...] [--llama-python PYTHON] [--llama-bin FOLDER] [--transformers]
        [--cache-types f16 q8_0 ...] [--orders "decode 16 2000" ...] [--real FILE.gguf --text FILE.txt]

Llamas with random weights, of 134 M, 0.94 B, 3 B and 7 B parameters, and on request a Gemma 3 (121 M), a Mamba
(114 M), a mixture of experts (1 B of 4 B active), and any files. Each engine runs in its own process, and
they take turns: one round of aleator, one of llama.cpp with flash attention, one without, and so on, so that
a change in the machine's load affects all of them. A ratio is aleator's median speed over that of llama.cpp's
better variant. The speed at which as many threads read plain memory is measured before each round of decode,
which is shown as a share of it: bytes of weights read per token, times tokens per second, over that speed.
Before that the file is dropped from the system's page cache and mapped by aleator, once for both engines:
only data read from disk, not data just written, get the pages of 2 MiB that aleator asks for.
First token and peak memory are those of whole processes. With --real, perplexity of a model with real
weights in every type, by both engines' own commands on the same text.

With --transformers Llamas are measured there too, in float32, or bfloat16 if the file is. With --cache-types
decoding is measured after texts of several lengths by type of keys and values. --orders names the measurements:
"prefill TOKENS", "decode TOKENS BEFORE", "batch TOKENS SEQUENCES", "beams TOKENS BEAMS" (a search for one text,
whose tokens count; llama-cpp-python has none), and those that bench_growth.py describes; processes are left out
then. After --most SECONDS of an order no new round of it begins.

llama.cpp is the package llama-cpp-python of --llama-python; its programs (llama-bench, llama-perplexity,
llama-quantize) are in --llama-bin. Results are written after each model, and an interrupted run continues;
--again starts anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import generate_report
import numpy as np
import numpy.typing as npt
from generate_turns import Order, add_options, asked, environment, in_turns, opened, run_facts

from aleator.models import open_weights
from aleator.models.files.mapping import map_file
from aleator.models.weights import Weights

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import RESULTS, command, parser

TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_K_M", "IQ4_NL",
    "IQ4_XS", "MXFP4", "F16", "BF16", "F32",
)  # fmt: skip
SIZES = {
    "134m": "llama-134m", "1b": "llama-1b", "3b": "llama-3b", "7b": "llama-7b", "gemma3": "gemma3-121m",
    "mamba": "mamba-114m", "moe": "qwen3moe-1b-active",
}  # fmt: skip
"""Names of make_models.py's models."""
LARGE = ("1b", "3b", "7b", "moe")
"""Sizes with fewer tokens and rounds."""
LONG = ("Q4_K_M", "Q8_0", "F16")
"""Types that are also measured with long prompts and long contexts."""
QUICK = {"134m": ("Q4_K_M", "Q4_1", "Q8_0", "F16")}
"""Types that --quick measures for a size; for other sizes only the first."""
CACHE_DEPTHS = (128, 1024, 2000)
"""Tokens before the decoded ones, for other types of keys and values."""
PACKAGES = ("aleator", "torch", "numpy", "transformers")

Answer = dict[str, Any]


def read_speed(words: npt.NDArray[np.int64], threads: int, passes: int = 5) -> float:
    """Bytes per second at which threads read memory larger than caches: the best of some passes."""
    parts = np.array_split(words, threads)
    best = float("inf")
    for _ in range(passes):
        readers = [threading.Thread(target=part.max) for part in parts]
        start = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        best = min(best, time.perf_counter() - start)
    return words.nbytes / best


def read_anew(path: Path) -> None:
    """Drop a file's pages, so that the next mapping reads them from disk as after a reboot."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    int(map_file(path)[::4096].max())


def expected(weights: Weights) -> tuple[int, int]:
    """Bytes of matrices that one token's step reads, and bytes of all of them."""
    experts = weights.config.experts
    share = experts.n_used / experts.n_experts if experts else 1.0
    one = total = 0.0
    for name in weights.names():
        size = weights.stored(name).data.size
        total += size
        if name != "token_embd.weight" or weights.config.tied:
            one += size * (share if "_exps" in name else 1.0)
    return round(one), round(total)


def made(folder: Path, size: str, kind: str, n_vocab: int = 0) -> Path:
    """The file of a random model, with ``n_vocab`` tokens instead of its own if not 0."""
    from make_models import SPECS, write_model

    spec = replace(SPECS[SIZES[size]], type=kind)
    if n_vocab:
        spec = replace(spec, n_vocab=n_vocab)
    path = folder / f"{SIZES[size]}{f'-{n_vocab}' if n_vocab else ''}-{kind}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".partial")
        write_model(part, spec).rename(path)
    return path


def orders(size: str, kind: str, options: argparse.Namespace) -> list[Order]:
    """The measurements for a model."""
    small, long, quick = size not in LARGE, kind in LONG, options.quick
    rounds = 3 if quick else 5
    if options.orders:
        return [asked(words, rounds) for words in options.orders]
    if options.cache_types:
        return [("decode", [16, depth], 16, rounds) for depth in CACHE_DEPTHS]
    lengths = [128, 512]
    if long or (small and quick):
        lengths.append(2048)
    if long and small and not quick:
        lengths.append(8192)
    sizes = (1, 4, 16) if quick else ((1, 2, 4, 8, 16, 32, 64) if small else (1, 4, 16, 64))
    n = 48 if small else 16
    todo: list[Order] = [("decode", [n, 0], n, rounds + 2)]
    todo += [("prefill", [length], length, rounds if length < 2048 else 2) for length in lengths]
    todo += [("batch", [8, b], 8 * b, rounds if small else 3) for b in sizes if b > 1]
    if long and small and not quick:
        todo.append(("decode", [16, 8000], 16, 2))
        todo += [("beams", [32, width], 32, 3) for width in (1, 4, 8)]
    return todo


def speeds(path: Path, todo: list[Order], options: argparse.Namespace) -> Answer:
    """Tokens per second of everything that is measured of a model, by order, engine and variant.

    ``read`` is the median speed of the plain reads before each round of decode, in bytes per second: memory
    speed changes within minutes on shared machines.
    """
    reads = list[float]()
    workers = opened(path, options)
    words = (
        np.ones(2**26, np.int64) if any(o[0] == "decode" and o[1][1] == 0 for o in todo) else None
    )

    def read_memory() -> None:
        if words is not None:
            reads.append(read_speed(words, options.threads))

    found: Answer = {}
    for order in todo:
        name = " ".join(map(str, [order[0], *order[1]]))
        shallow = order[0] == "decode" and order[1][1] == 0
        found[name] = in_turns(workers, order, options, read_memory if shallow else None)
        print(
            f"  {name}: " + ", ".join(f"{w} {v:,.1f}" for w, v in found[name].items()), flush=True
        )
    ours = workers["aleator"]
    facts: Answer = {"speeds": found}
    if reads:
        facts["read_bytes_s"] = statistics.median(reads)
    if sys.platform == "linux":  # apart from the speeds: counting slows a step
        facts["touched_bytes"] = ours.order("touched", "", 8)
    if options.cache_types:
        kinds = options.cache_types
        facts["cache_bytes"] = {kind: ours.order("cache_bytes", kind, 1024) for kind in kinds}
    for worker in workers.values():
        worker.close()
    return facts


FIRST = """
import sys, aleator
from aleator.generate import Batch
model = aleator.load(sys.argv[1], n_threads=int(sys.argv[2]))
context = model.context(n_ctx=512)
context.decode(Batch.one(list(range(int(sys.argv[3])))))
for pos in range(int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[4])):
    context.decode(Batch.one([5], pos))
"""


# A process inherits the peak memory of its parent, so a small process starts it.
MEASURE = """
import json, os, subprocess, sys, time
start = time.perf_counter()
null = subprocess.DEVNULL
running = subprocess.Popen(sys.argv[1:], stdout=null, stderr=null)
_, status, usage = os.wait4(running.pid, 0)
print(json.dumps([time.perf_counter() - start, usage.ru_maxrss / 1024, status]))
"""


def process(command: list[str], options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a whole process, and its peak memory in MiB."""
    between = [sys.executable, "-S", "-c", MEASURE, *command]
    done = subprocess.run(
        between, check=True, stdout=subprocess.PIPE, text=True, env=environment(options)
    )
    seconds, peak, status = json.loads(done.stdout)
    if status:
        raise RuntimeError(f"{shlex.join(command)} ended with status {status}")
    return seconds, peak


def processes(path: Path, options: argparse.Namespace) -> Answer:
    """First token of a process, in seconds, and peak memory with a prompt of 256 tokens and 16 more."""
    commands: dict[str, Any] = {
        "aleator": lambda p, n: [sys.executable, "-c", FIRST, str(path), str(options.threads), str(p), str(n)]
    }  # fmt: skip
    bench = Path(options.llama_bin or "/nowhere") / "llama-bench"
    if bench.exists():
        common = [str(bench), "-m", str(path), "-t", str(options.threads), "-r", "1", "--no-warmup"]
        commands["llama.cpp"] = lambda p, n: [*common, "-p", str(p), "-n", str(n), "-fa", "1"]
    if options.transformers:
        program = str(Path(__file__).with_name("generate_engines.py"))
        whole = [sys.executable, program, "transformers", str(path), str(options.threads)]
        commands["transformers"] = lambda p, n: [*whole, json.dumps(["decode", "", n, p])]
    found: Answer = {}
    for who, words in commands.items():
        first = [process(words(1, 0), options)[0] for _ in range(3)]
        found[who] = {"first_s": min(first), "peak_mib": process(words(256, 16), options)[1]}
    print(f"  processes: {found}", flush=True)
    return found


def perplexities(kind: str, options: argparse.Namespace) -> Answer:
    """Perplexity of the real model in a type, by both engines; the file's own types if it is "as it is"."""
    tools, folder = Path(options.llama_bin), options.folder
    path = Path(options.real)
    if kind != "as it is":
        path = folder / f"{path.stem}-{kind}.gguf"
        if not path.exists():
            part = path.with_suffix(".partial")
            quantiser = [str(tools / "llama-quantize"), "--allow-requantize"]
            plain = ["--pure", "--output-tensor-type", kind, "--token-embedding-type", kind]
            command = [
                *quantiser,
                *([] if "K" in kind or kind == "IQ4_XS" else plain),
                options.real,
                str(part),
            ]
            subprocess.run([*command, kind, str(options.threads)], check=True, capture_output=True,
                           env=environment(options))  # fmt: skip
            part.rename(path)
    chunks, threads = str(options.chunks), str(options.threads)
    text = ["-f", options.text, "-c", "512", "--chunks", chunks, "-t", threads]
    ours = subprocess.run(
        [sys.executable, "-c", "import sys; from aleator.cli import main; sys.exit(main())",
         "perplexity", "-m", str(path), *text, "--json"],
        check=True, capture_output=True, text=True, env=environment(options),
    )  # fmt: skip
    found: Answer = {"aleator": json.loads(ours.stdout)["perplexity"]}
    theirs = subprocess.run(
        [str(tools / "llama-perplexity"), "-m", str(path), *text],
        check=True, capture_output=True, text=True, env=environment(options),
    )  # fmt: skip
    said = theirs.stdout + theirs.stderr
    found["llama.cpp"] = float(said.split("Final estimate: PPL = ")[1].split()[0])
    found["mib"] = path.stat().st_size / 2**20
    print(f"  perplexity {kind}: {found}", flush=True)
    return found


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    told = parser(__doc__, out="stem of the results' .json and .md")
    add_options(told)
    told.add_argument(
        "--sizes", nargs="*", choices=list(SIZES), default=None,
        help="default: 134m and 1b without -m; none: only the perplexity of --real",
    )  # fmt: skip
    told.add_argument(
        "-m", "--models", nargs="+", type=Path, default=[], help="GGUF files as they are"
    )
    told.add_argument("--types", nargs="+", choices=TYPES)
    told.add_argument("--cache-types", nargs="+", metavar="TYPE", help="of keys and values")
    told.add_argument("--orders", nargs="+", metavar="ORDER", help="what is measured")
    told.add_argument("--quick", action="store_true", help="few types, lengths and rounds")
    told.add_argument("--prepare", action="store_true", help="only make the models")
    told.add_argument("--again", action="store_true", help="do not go on with what is written")
    told.add_argument("--transformers", action="store_true", help="measure transformers too")
    told.add_argument("--real", help="a GGUF file with real weights, for perplexity")
    told.add_argument("--text", help="the text for perplexity")
    told.add_argument("--chunks", type=int, default=40, help="of 512 tokens, for perplexity")
    options = told.parse_args(arguments)
    if options.sizes is None:
        options.sizes = [] if options.models else ["134m", "1b"]
    if bool(options.real) != bool(options.text) or (options.real and not options.llama_bin):
        told.error("--real, --text and --llama-bin go together")
    if not (options.sizes or options.models or options.real):
        told.error("--sizes without a size needs --real: there is nothing to measure")
    return options


def measured(path: Path, size: str, kind: str, options: argparse.Namespace) -> Answer:
    """All that is measured of a model."""
    read_anew(path)
    load = os.getloadavg()[0]
    print(f"{path.name}, load {load:.2f}", flush=True)
    one, total = expected(open_weights(path))
    found: Answer = {"mib": path.stat().st_size / 2**20, "weight_bytes": one, "load": load}
    found["all_bytes"] = total
    found |= speeds(path, orders(size, kind, options), options)
    return found if options.orders else found | {"processes": processes(path, options)}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    quick = "_quick" if options.quick else ""
    stem = options.out or RESULTS / f"bench_generate{quick}.{date.today()}"
    todo = [
        (size, kind)
        for size in options.sizes
        for kind in options.types or (QUICK.get(size, ("Q4_K_M",)) if options.quick else TYPES)
    ]
    if options.prepare:
        for size, kind in todo:
            print(made(options.folder, size, kind), flush=True)
        return
    results = stem.with_name(stem.name + ".json")
    everything: Answer = {"about": {}, "models": {}, "perplexity": {}}
    if results.exists() and not options.again:
        everything = json.loads(results.read_text())
    packages = PACKAGES if options.transformers else PACKAGES[:-1]
    everything["about"] = run_facts(options, *packages) | {"command": command(__file__, arguments)}

    def write() -> None:
        everything["about"]["load_average_after"] = os.getloadavg()
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(everything, indent=1) + "\n")
        stem.with_name(stem.name + ".md").write_text(generate_report.report(everything))

    models = everything["models"]
    try:
        for size, kind in todo:
            if (name := f"{size} {kind}") not in models:
                models[name] = measured(made(options.folder, size, kind), size, kind, options)
                write()
        for path in options.models:
            if path.stem not in models:
                models[path.stem] = measured(path, "", "", options)
                write()
        kinds = ("as it is", *(QUICK["134m"] if options.quick else options.types or TYPES))
        for kind in kinds if options.real else ():
            if kind not in everything["perplexity"]:
                everything["perplexity"][kind] = perplexities(kind, options)
                write()
    except KeyboardInterrupt:
        print("ended by hand; the same command goes on", file=sys.stderr)
    print(generate_report.report(everything))


if __name__ == "__main__":
    main()
