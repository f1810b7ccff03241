"""Prefill and decode speed of aleator, llama.cpp and transformers on the same weights and threads.

    python benchmarks/bench_peers.py                       all models, results into benchmarks/results/
    python benchmarks/bench_peers.py --models bundled      one of them, printed only with --no-write

Models: the bundled one, and a Llama with random weights (12 layers, n_embd 768, 12 heads, n_ff 2,048,
vocabulary 32,000) in f32, bf16 and q8_0; against llama.cpp alone also a Gemma 3 (18 layers, n_embd 640, 4
heads of 256, n_ff 2,048, window 512: 121 M parameters) and a Mamba (24 layers, n_embd 768: 114 M).  Each
engine runs in a process of its own; they take turns, one round of one engine after the other, so that a
change in the machine's load meets all of them.  A round clears the cache, runs the prompt and then decodes
greedily, token by token.  Peers run as they are best here: llama.cpp with its defaults, transformers'
`generate` in the weights' type (float32 for the bundled model's f16 and for q8_0, which it does not have).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import IO, Any, Protocol, cast

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("aleator", "llama.cpp", "transformers")
PACKAGES = ("aleator", "torch", "numpy", "llama-cpp-python", "transformers")
BUNDLED = ROOT / "src" / "aleator" / "data" / "shakespeare.gguf"
RANDOM_TYPES = {"f32": "F32", "bf16": "BF16", "q8_0": "Q8_0"}
SHAPES = ("gemma3", "mamba")
MODELS = (
    "bundled",
    *(f"random-{t}" for t in RANDOM_TYPES),
    *(f"{s}-{t}" for s in SHAPES for t in RANDOM_TYPES),
)


# Engines, each in a worker process


class Engine(Protocol):
    """One implementation with a model loaded."""

    n_vocab: int

    def round(self, prompt: list[int], n: int) -> tuple[float, float, list[int]]:
        """From an empty cache: seconds of prefill, seconds of n greedy tokens after it, all n + 1 tokens."""


class Aleator:
    def __init__(self, folder: Path, threads: int, n_ctx: int) -> None:
        import torch

        from aleator.generate import Batch, Context
        from aleator.models import build_decoder, open_weights

        torch.set_num_threads(threads)
        self._batch = Batch
        self.context = Context(
            build_decoder(open_weights(folder / "model.gguf")), n_ctx=n_ctx, n_threads=threads
        )
        self.n_vocab = self.context.n_vocab

    def round(self, prompt: list[int], n: int) -> tuple[float, float, list[int]]:
        context = self.context
        context.cache.clear()
        start = time.perf_counter()
        tokens = [int(context.decode(self._batch.one(prompt, 0))[0].argmax())]
        middle = time.perf_counter()
        for pos in range(len(prompt), len(prompt) + n):
            row = context.decode(self._batch.one(tokens[-1:], pos))[0]
            tokens.append(int(row.argmax()))
        return middle - start, time.perf_counter() - middle, tokens


class LlamaCpp:
    def __init__(self, folder: Path, threads: int, n_ctx: int) -> None:
        import llama_cpp
        import numpy as np

        self._np, self._lib = np, llama_cpp
        # Kept: the library calls it for as long as the process lives.
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model = llama_cpp.llama_model_load_from_file(
            str(folder / "model.gguf").encode(), model_params
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, threads, threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def _decode(self, tokens: list[int]) -> int:
        array = (self._lib.llama_token * len(tokens))(*tokens)
        if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = self._lib.llama_get_logits_ith(self._context, -1)
        return int(self._np.ctypeslib.as_array(logits, shape=(self.n_vocab,)).argmax())

    def round(self, prompt: list[int], n: int) -> tuple[float, float, list[int]]:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        start = time.perf_counter()
        tokens = [self._decode(prompt)]
        middle = time.perf_counter()
        for _ in range(n):
            tokens.append(self._decode(tokens[-1:]))
        return middle - start, time.perf_counter() - middle, tokens


class Transformers:
    def __init__(self, folder: Path, threads: int, n_ctx: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self._torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        self.n_vocab = self.model.config.vocab_size

    def round(self, prompt: list[int], n: int) -> tuple[float, float, list[int]]:
        times: list[float] = []

        def watch(ids: Any, scores: Any, **_: Any) -> Any:
            times.append(time.perf_counter())
            return scores

        start = time.perf_counter()
        with self._torch.inference_mode():
            out = self.model.generate(
                self._torch.tensor([prompt]),
                attention_mask=self._torch.ones(1, len(prompt), dtype=self._torch.long),
                max_new_tokens=n + 1,
                min_new_tokens=n + 1,
                do_sample=False,
                pad_token_id=0,
                logits_processor=[watch],
            )
        # The first scores end the prefill; the last token's scores end the decode of the n after it.
        return times[0] - start, times[-1] - times[0], out[0, len(prompt) :].tolist()


KINDS: dict[str, Any] = {"aleator": Aleator, "llama.cpp": LlamaCpp, "transformers": Transformers}


def memory() -> tuple[float, float]:
    """MiB: the process's highest resident memory, and how much is its own rather than a file's."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, own = (int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
    return peak, own


def worker(kind: str, folder: Path, threads: int, n_ctx: int) -> None:
    """Answers each line on standard input ([prompt, n]) with a line of JSON."""
    start = time.perf_counter()
    engine: Engine = KINDS[kind](folder, threads, n_ctx)
    loaded = time.perf_counter() - start
    print(json.dumps({"load_s": loaded, "n_vocab": engine.n_vocab}), flush=True)
    for line in sys.stdin:
        prefill, decode, tokens = engine.round(*json.loads(line))
        peak, own = memory()
        answer = {"prefill_s": prefill, "decode_s": decode, "tokens": tokens}
        print(json.dumps({**answer, "peak_mib": peak, "own_mib": own}), flush=True)


class Worker:
    """The parent's side of a worker process."""

    def __init__(self, kind: str, folder: Path, threads: int, n_ctx: int) -> None:
        command = [
            sys.executable,
            __file__,
            "--worker",
            kind,
            str(folder),
            str(threads),
            str(n_ctx),
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
            ),
        }
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._orders = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        self.ready = self._read()
        self.start_s = time.perf_counter() - start

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("a worker ended; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def round(self, prompt: Sequence[int], n: int) -> dict[str, Any]:
        self._orders.write(json.dumps([list(prompt), n]) + "\n")
        self._orders.flush()
        return self._read()

    def close(self) -> None:
        self._orders.close()
        self._process.wait(timeout=60)


# Models: one folder each with model.gguf, and for transformers config.json and model.safetensors


def write_shape(folder: Path, shape: str, kind: str) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    from make_models import SPECS, write_model

    sizes: dict[str, dict[str, Any]] = {
        "gemma3": {"n_layers": 18, "n_embd": 640, "n_heads": 4, "n_kv_heads": 1, "head_dim": 256,
                   "n_ff": 2048, "window": 512, "scaling": "none"},
        "mamba": {"n_layers": 24, "n_embd": 768, "dt_rank": 48},
    }  # fmt: skip
    common: dict[str, Any] = {
        "n_vocab": 32000,
        "context": 4096,
        "seed": 125,
        "type": RANDOM_TYPES[kind],
    }
    write_model(folder / "model.gguf", replace(SPECS[shape], **sizes[shape], **common))


def write_random(folder: Path, kind: str) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    from make_models import SPECS, write_model

    spec = replace(
        SPECS["llama-134m"],
        context=2048,
        type=RANDOM_TYPES[kind],
    )
    write_model(folder / "model.gguf", spec)


def write_transformers(folder: Path, dtype: str) -> None:
    """The GGUF file's weights under Hugging Face's names, with its order of rows in each head."""
    import torch
    from safetensors.torch import save_file

    from aleator.models import open_weights
    from aleator.models.layers import parameters

    weights = open_weights(folder / "model.gguf")
    c, kind = weights.config, getattr(torch, dtype)
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    tensors = {}
    for name in weights.names():
        stem = name.removesuffix(".weight")
        tensor = parameters.tensor(weights, name, kind)
        if stem in top:
            tensors[f"{top[stem]}.weight"] = tensor
            continue
        _, layer, part = stem.split(".")
        if part in ("attn_q", "attn_k"):  # GGUF interleaves the two halves of a head
            pairs = tensor.view(-1, c.head_dim // 2, 2, c.n_embd)
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        tensors[f"model.layers.{layer}.{names[part]}.weight"] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": c.n_embd,
        "intermediate_size": c.n_ff[0],
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads[0],
        "num_key_value_heads": c.n_kv_heads[0],
        "head_dim": c.head_dim,
        "vocab_size": c.n_vocab,
        "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.rms_eps,
        "rope_theta": c.rope.theta,
        "tie_word_embeddings": c.tied,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))


def prepare(name: str, folder: Path) -> Path:
    folder = folder / name
    if (folder / "config.json").exists():  # written last
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shape, _, kind = name.partition("-")
    if shape in SHAPES:
        write_shape(folder, shape, kind)
        (folder / "config.json").write_text("{}")
        return folder
    if name == "bundled":
        (folder / "model.gguf").write_bytes(BUNDLED.read_bytes())
    else:
        write_random(folder, name.removeprefix("random-"))
    write_transformers(folder, "bfloat16" if name == "random-bf16" else "float32")
    return folder


# Measuring and reporting


@dataclass
class Settings:
    threads: int
    prompt: int
    tokens: int
    rounds: int
    seconds: float


def measure(name: str, folder: Path, s: Settings) -> Iterator[dict[str, Any]]:
    """One row of results per engine."""
    import random

    engines = ENGINES[:2] if name.partition("-")[0] in SHAPES else ENGINES
    n_ctx = max(1024, 256 * -(-(s.prompt + s.tokens + 8) // 256))
    workers = {kind: Worker(kind, folder, s.threads, n_ctx) for kind in engines}
    rng = random.Random(1)
    prompt = [rng.randrange(3, workers["aleator"].ready["n_vocab"]) for _ in range(s.prompt)]
    rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in engines}
    for worker_ in workers.values():
        worker_.round(prompt, 4)
    end = time.monotonic() + s.seconds
    while len(rounds[ENGINES[0]]) < s.rounds and time.monotonic() < end:
        for kind, worker_ in workers.items():
            rounds[kind].append(worker_.round(prompt, s.tokens))
    size = (folder / "model.gguf").stat().st_size
    first = rounds["aleator"][0]["tokens"]
    for kind, worker_ in workers.items():
        worker_.close()
        prefill = [s.prompt / r["prefill_s"] for r in rounds[kind]]
        decode = [s.tokens / r["decode_s"] for r in rounds[kind]]
        tokens = rounds[kind][0]["tokens"]
        agree = next(
            (i for i, (a, b) in enumerate(zip(tokens, first, strict=True)) if a != b), len(first)
        )
        yield {
            "model": name,
            "model_mib": size / 2**20,
            "engine": kind,
            "rounds": len(decode),
            "prefill_best": max(prefill),
            "prefill_median": statistics.median(prefill),
            "decode_best": max(decode),
            "decode_median": statistics.median(decode),
            "peak_mib": max(r["peak_mib"] for r in rounds[kind]),
            "own_mib": rounds[kind][-1]["own_mib"],
            "start_s": worker_.start_s,
            "load_s": worker_.ready["load_s"],
            "same_tokens_as_aleator": agree,
        }


HEAD = (
    "| model | engine | prefill tok/s: best (median) | decode tok/s: best (median) "
    "| aleator's decode: best (median) | peak MiB (own) | start s | same tokens |\n"
    "|---|---|---|---|---|---|---|---|"
)


def line(row: dict[str, Any], ours: dict[str, Any]) -> str:
    def pair(what: str) -> str:
        return f"{row[what + '_best']:,.1f} ({row[what + '_median']:,.1f})"

    ratio = " (".join(
        f"{ours['decode_' + k] / row['decode_' + k]:.2f}x" for k in ("best", "median")
    )
    return (
        f"| {row['model']} | {row['engine']} | {pair('prefill')} | {pair('decode')} | {ratio}) "
        f"| {row['peak_mib']:,.0f} ({row['own_mib']:,.0f}) | {row['start_s']:.2f} "
        f"| {row['same_tokens_as_aleator']} |"
    )


def machine() -> dict[str, Any]:
    from aleator import _native

    text = Path("/proc/cpuinfo").read_text()
    model = next((x.split(":")[1].strip() for x in text.splitlines() if "model name" in x), "?")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "isa": _native.isa(),
        "system": platform.system() + " " + platform.machine(),
        "python": platform.python_version(),
        "niceness": os.nice(0),
        "load_average": os.getloadavg(),
    }


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "source tree"


def report(rows: list[dict[str, Any]], about: dict[str, Any]) -> str:
    ours = {r["model"]: r for r in rows if r["engine"] == "aleator"}
    facts = [f"- {key}: {value}" for key, value in about.items()]
    body = [line(r, ours[r["model"]]) for r in rows]
    return "\n".join(
        ["# Generating against llama.cpp and transformers", "", *facts, "", HEAD, *body, ""]
    )


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        kind, folder, threads, n_ctx = sys.argv[2:]
        return worker(kind, Path(folder), int(threads), int(n_ctx))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded in each round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120, help="at most, for each model")
    parser.add_argument("--folder", type=Path, help="keep the models here for the next time")
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    names = args.models.split(",")
    if unknown := set(names) - set(MODELS):
        parser.error(f"unknown models: {', '.join(unknown)}; known: {', '.join(MODELS)}")
    settings = Settings(args.threads, args.prompt, args.tokens, args.rounds, args.seconds)
    sys.path.insert(0, str(ROOT / "src"))
    about: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench_peers.py", *sys.argv[1:]]),
        **machine(),
        "versions": ", ".join(f"{p} {version(p)}" for p in PACKAGES),
        "threads": settings.threads,
        "prompt": settings.prompt,
        "tokens": settings.tokens,
    }
    rows: list[dict[str, Any]] = []
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            made = list(measure(name, prepare(name, args.folder or Path(temporary)), settings))
            rows += made
            for row in made:
                print(line(row, made[0]), flush=True)
    about["load_average_after"] = os.getloadavg()
    if args.no_write:
        return
    stem = ROOT / "benchmarks" / "results" / f"bench_peers.{about['date']}"
    stem.parent.mkdir(exist_ok=True)
    stem.with_name(stem.name + ".json").write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n"
    )
    stem.with_name(stem.name + ".md").write_text(report(rows, about))
    print(f"written: {stem}.json and .md")


if __name__ == "__main__":
    main()
