"""The items of ``tools/gpu_decoder.py``: what its child processes do.

    python tools/gpu_decoder_items.py WORK

WORK is a JSON file: the kind, the items, and the file for events, one line of JSON each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_tests

Item = dict[str, Any]
BUNDLED = "bundled"
MOST_SAID = 3000
"""How many last characters of an item's output are kept."""


def name_of(item: Item) -> str:
    """An item in words."""
    words = (f"{key}={value}" for key, value in item.items() if key not in ("device", "tokens"))
    return " ".join(words)


def child(path: Path) -> None:
    """Run the items that a file lists, and write the result of each."""
    work = json.loads(path.read_text())
    with Path(work["events"]).open("a") as file:
        for item in work["items"]:
            gpu_tests.write_line(file, {"begun": item})
            line: Item = {"item": name_of(item)}
            try:
                found = DO[work["kind"]](item)
                line |= {"outcome": "differs" if found.get("wrong") else "passed", **found}
            except Exception:
                line |= {"outcome": "failed", "said": traceback.format_exc()[-MOST_SAID:]}
            gpu_tests.write_line(file, line)
            if line["outcome"] == "failed":
                return  # an error of CUDA breaks the whole process


def logits(item: Item) -> Item:
    """Compare rows of logits of a random model: the walk of decoder_walk.py."""
    from decoder_walk import Walk
    from wide_models import MODELS, write_wide

    from aleator.models import build_decoder, open_weights

    with tempfile.TemporaryDirectory(prefix="gpu-decoder-") as folder:
        path = write_wide(Path(folder) / "m.gguf", MODELS[item["model"]], item["type"])
        decoders = [
            build_decoder(open_weights(path), "cpu"),
            build_decoder(open_weights(path), item["device"], form="triton"),
        ]
        types = dict(zip(("type_k", "type_v"), item["cache"], strict=True))
        found = Walk(decoders, 5, **types).run()
    where = {"where": found.where} if found.where else {}
    return {"rows": found.rows, "wrong": found.wrong, **where}


def model_on(device: str, path: str | None, **options: Any) -> Any:
    """A model on the GPU; on the CPU Triton's interpreter computes."""
    import aleator

    if device != "cpu":
        return aleator.load(path, device=device, dtype="exact", **options)
    from aleator.language_model import LanguageModel
    from aleator.models import build_decoder

    plain = aleator.load(path, device="cpu", **options)
    decoder = build_decoder(plain.weights, "cpu", form="triton")
    return LanguageModel(plain.weights, decoder, plain.tokenizer, options=plain.options)


def texts(item: Item) -> Item:
    """Compare texts of an engine on the GPU with those of one on the CPU."""
    import aleator

    first, n = item["first"], item["requests"]
    made = []
    for model in (aleator.load(device="cpu"), model_on(item["device"], None)):
        with model.engine(n_seq_max=8) as engine:
            on = {"sampling_device": item["sampling"]}
            waiting = [
                engine.submit(**request(i, item["tokens"]), **on) for i in range(first, first + n)
            ]
            for each in waiting:
                each.result()
            made.append([each.text for each in waiting])
    wrong = [first + i for i, (a, b) in enumerate(zip(*made, strict=True)) if a != b]
    return {
        "texts": n,
        "wrong": len(wrong),
        **({"where": f"requests {wrong[:5]}"} if wrong else {}),
    }


def request(i: int, tokens: int) -> dict[str, Any]:
    """A request by its number."""
    prompts = ("ROMEO:", "To be, or not to be", "What say you, my lord?\n", "Enter", "JULIET:\nO ")
    options: dict[str, Any] = {
        "prompt": prompts[i % 5] * (1 + i % 3),
        "max_tokens": tokens,
        "seed": i,
    }
    options["temperature"] = (0.0, 0.7, 1.0, 1.5)[i % 4]
    if i % 3 == 0:
        options["top_p"] = 0.9
    if i % 5 == 0:
        options["repeat_penalty"] = 1.1
    if i % 7 == 0:
        options["min_p"] = 0.05
    return options


_MADE: dict[str, Any] = {}
"""The last measured decoder, by its file."""


def decoder_of(item: Item) -> Any:
    """The decoder to measure: of a file, the bundled one, or a random model."""
    from make_models import SPECS, write_model

    from aleator.models import build_decoder, open_weights
    from aleator.models.hub.bundled import bundled_model

    name = item["file"]
    if name not in _MADE:
        _MADE.clear()
        path, (spec, _, kind) = Path(name), name.partition(":")
        if name == BUNDLED:
            path = bundled_model()
        elif spec in SPECS:
            folder = tempfile.mkdtemp(prefix="gpu-decoder-")
            path = write_model(Path(folder) / "m.gguf", replace(SPECS[spec], type=kind or "F16"))
        _MADE[name] = build_decoder(open_weights(path), item["device"], form="triton")
    return _MADE[name]


def speed(item: Item) -> Item:
    """Measure tokens per second of one shape: the best of three."""
    import torch

    from aleator.generate import Batch, Context

    n, prompt = int(item.get("sequences", 1)), int(item.get("prompt", 0))
    tokens = int(item["tokens"])
    decoder, n_ctx = decoder_of(item), max(prompt, n * (tokens + 2)) + 8
    context = Context(decoder, n_ctx=n_ctx, n_seq_max=n, device=None)

    def step(pos: int) -> None:
        batch = Batch()
        for seq in range(n):
            batch.add((pos + seq) % 64, pos, [seq], logits=True)
        wait(context.decode(batch))

    def work() -> int:
        context.cache.clear(data=False)
        if prompt:
            wait(context.decode(Batch.one([i % 64 for i in range(prompt)], 0)))
            return prompt
        for pos in range(tokens):
            step(pos)
        return tokens * n

    work()  # compiles
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - began))
    found: Item = {"tokens_per_second": round(best, 1)}
    if not prompt:
        found["limit"] = round(limit(decoder, n, tokens))
    if torch.cuda.is_available():
        found["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return found


def limit(decoder: Any, n: int, n_ctx: int) -> float:
    """Tokens per second of ``n`` sequences if only an H100's memory took time."""
    from aleator.generate.device_plan import Machine, device_plan
    from aleator.models import open_weights

    plan = device_plan(open_weights(decoder.weights.path), n_ctx, "f16", "f16", 512, (n,))
    return n / Machine().seconds(plan.steps[0].total.bytes, 0)


def llama(item: Item) -> Item:
    """Measure a shape of :func:`speed` with llama.cpp's programs."""
    n, prompt, bench = (
        int(item.get("sequences", 1)),
        int(item.get("prompt", 0)),
        Path(item["llama"]),
    )
    tokens = int(item["tokens"])
    asked = ["-m", item["file"], "-ngl", str(item["layers"])]
    if n > 1:
        program, key = bench.with_name("llama-batched-bench"), "speed_tg"
        asked += ["-c", str(n * (tokens + 16)), "-npp", "8", "-ntg", str(tokens), "-npl", str(n)]
        asked += ["--output-format", "jsonl"]
    else:
        program, key = bench, "avg_ts"
        asked += ["-p", str(prompt), "-n", "0" if prompt else str(tokens), "-r", "3", "-o", "jsonl"]
    done = subprocess.run([program, *asked], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-MOST_SAID:]}")
    return {"tokens_per_second": round(json.loads(lines[-1])[key], 1)}


def wait(rows: Any) -> None:
    """Wait until the device has computed rows of logits."""
    rows[-1].max().item()


DO: dict[str, Callable[[Item], Item]] = {
    "logits": logits, "texts": texts, "speed": speed, "llama": llama,
}  # fmt: skip


if __name__ == "__main__":
    child(Path(sys.argv[1]))
