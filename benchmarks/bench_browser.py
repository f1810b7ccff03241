"""The npm package against wllama (llama.cpp compiled to WebAssembly) in headless Chromium.

    python benchmarks/bench_browser.py NAME=MODEL.gguf ... --wllama FOLDER [--threads 1 2] [--out FILE.md]

FOLDER is the npm package @wllama/wllama, unpacked.  Engines take turns over the same prompt of 128 tokens,
then write greedily, each with the numbers of ``--threads``.  wllama's figures are llama.cpp's own; Aleator's
are those of a caller of ``generate``, so with all that JavaScript does.  ``--other NAME=js/src``
measures another build of the package in the same turns.
The page is isolated (COOP, COEP), as wllama needs it for its shared memory.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tools"))
from run_report import Report, command, machine, parser

ROOT = Path(__file__).resolve().parent.parent
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}
PAGE = b'<!doctype html><meta charset="utf-8"><script type="module" src="/bench/page.js"></script>'
TEXT = (ROOT / "docs" / "numerics.md").read_text()


class Served(ThreadingHTTPServer):
    """Serves the page, what it measures and its plan; keeps what it posts."""

    def __init__(self, folders: dict[str, Path], plan: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folders, self.plan = folders, plan
        self.done: dict[str, Any] = {}
        self.posted = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Served

    def do_GET(self) -> None:
        _, folder, *rest = self.path.split("/", 2)
        if self.path == "/":
            self.answer(PAGE, ".html")
        elif self.path == "/plan":
            self.answer(json.dumps(self.server.plan).encode(), ".json")
        elif folder in self.server.folders:
            path = self.server.folders[folder].joinpath(*rest)
            self.answer(path.read_bytes(), path.suffix)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"", ".json")
        if self.path == "/done":
            self.server.done = json.loads(body)
            self.server.posted.set()
        else:
            print(body.decode(), file=sys.stderr)

    def answer(self, body: bytes, suffix: str) -> None:
        self.send_response(200)
        for name, value in (
            ("Content-Type", TYPES.get(suffix, "application/octet-stream")),
            ("Content-Length", str(len(body))),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Embedder-Policy", "require-corp"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def measured(folders: dict[str, Path], plan: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What the page posts."""
    server = Served(folders, plan)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("chromium is not installed")
    with tempfile.TemporaryDirectory() as profile:
        browser = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}",
             f"http://127.0.0.1:{server.server_port}/"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            if not server.posted.wait(seconds):
                raise SystemExit(f"nothing after {seconds} s")
        finally:
            browser.terminate()
            browser.wait(20)
            server.shutdown()
    if "error" in server.done:
        raise SystemExit(server.done["error"])
    return server.done


def pairs(given: list[str]) -> dict[str, Path]:
    """NAME=PATH, each."""
    return {name: Path(path).resolve() for name, _, path in (each.partition("=") for each in given)}


def main() -> None:
    """Measure, and write the report."""
    args = parser(__doc__, "the report")
    args.add_argument("models", nargs="+", metavar="NAME=MODEL.gguf")
    args.add_argument("--wllama", type=Path, required=True)
    args.add_argument("--other", nargs="*", default=[], metavar="NAME=js/src")
    args.add_argument("--threads", type=int, nargs="+", default=[1])
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--tokens", type=int, default=64)
    args.add_argument("--seconds", type=float, default=600)
    given = args.parse_args()
    models, others = pairs(given.models), pairs(given.other)
    folders = {"bench": ROOT / "benchmarks/browser", "aleator": ROOT / "js/src"}
    folders |= {"wllama": given.wllama / "esm", **others}
    plan = {
        "rounds": given.rounds, "tokens": given.tokens, "threads": given.threads, "text": TEXT[:4000],
        "models": {name: f"/{name}/{path.name}" for name, path in models.items()},
        "versions": {name: f"/{name}/index.js" for name in ("aleator", *others)},
    }  # fmt: skip
    before = os.getloadavg()[0]
    folders |= {name: path.parent for name, path in models.items()}
    done = measured(folders, plan, given.seconds)
    report(given, done, before)


def report(given: Any, done: dict[str, Any], before: float) -> None:
    """Tables of the medians."""
    version = json.loads((given.wllama / "package.json").read_text())["version"]
    facts = (
        f"{done['agent']}; wllama {version}; relaxed SIMD: {done['facts']['relaxed']}; cross-origin isolated: "
        f"{done['isolated']}; load of the machine before and after: {before:.1f}, {os.getloadavg()[0]:.1f}."
    )
    out = Report(
        "The npm package against wllama in Chromium", f"    {command(__file__)}", machine(), facts
    )
    out.say(f"Tokens a second, medians of {given.rounds} turns (lowest to highest).", "")
    out.table("model", "engine, threads", "prompt:", "decode:", "memory, MiB:")
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in done["made"]:
        rows[each["model"], each["name"]].append(each)
    for (model, name), made in rows.items():
        cells = []
        for what in ("prompt", "decode"):
            values = sorted(each[what] for each in made)
            cells.append(f"{statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})")
        memory = made[-1].get("memory")
        cells.append("" if memory is None else f"{memory:.0f}")
        out.row(f"{model}, {made[0]['n']} + {given.tokens} tokens", name, *cells)
    out.say(
        "",
        f"llama.cpp's default chain over 128,256 logits, with their copy: {done['chains']:.0f} microseconds.",
    )
    out.write(given.out)


if __name__ == "__main__":
    main()
