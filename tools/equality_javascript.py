"""Counts what the npm package computes otherwise than this one, in browsers and elsewhere.

    python tools/equality_javascript.py [--where chromium firefox node deno] [--draws 100000] [--models 20]
                                        [--texts 200] [--files 500] [--seed N] [--out FILE.md]

Random chains draw; random models of different architectures give logits after 40 tokens, read together and one
by one; the bundled model writes texts with random options; damaged files end in the same errors, or give equal
logits.  Tokens and bits are compared.  After "make wasm".
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any

from equality_decoder import CACHE_TYPES, TYPES
from run_report import ROOT, Report, command, machine, parser, progress
from wide_models import MODELS, write_wide

sys.path.insert(0, str(ROOT))

from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import logits_of
from tests.javascript.firefox import Firefox
from tests.javascript.random_cases import (
    Case,
    damaged_files,
    random_chains,
    random_texts,
)
from tests.playground.browser import Browser

PROGRAM = "tests/javascript/anywhere.mjs"
PROGRAMS = {"node": ["node"], "deno": ["deno", "run", "--allow-net", "--allow-read"]}
PLACES = ("chromium", "firefox", *PROGRAMS)
PAGE = f'<!doctype html><meta charset="utf-8"><script type="module" src="/{PROGRAM}"></script>'
DRAWS = 24
"""How often a chain draws."""
AT_ONCE = {"chains": 50, "logits": 1, "text": 5, "damaged": 20}
"""Cases that are asked for together."""
TOKENS = 40
PATIENCE = 900.0
"""Seconds that a place has for what it is asked."""


@dataclass
class Place:
    """Somewhere that JavaScript runs; ``asked`` and ``told`` are its work and results."""

    name: str
    asked: Queue[dict[str, Any] | None] = field(default_factory=lambda: Queue(1))
    told: Queue[Any] = field(default_factory=Queue)
    wrong: Counter[str] = field(default_factory=Counter)


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of the repository and the models, and gives each place its work."""

    def __init__(self, places: dict[str, Place], models: str, *given: Any) -> None:
        self.places, self.models = places, models
        super().__init__(*given, directory=str(ROOT))

    def translate_path(self, path: str) -> str:
        if path.startswith("/models/"):
            return str(Path(self.models, Path(path).name))
        return super().translate_path(path)

    def do_GET(self) -> None:
        if self.path.strip("/") in self.places:
            return self.answer(PAGE.encode(), "text/html")
        super().do_GET()

    def do_POST(self) -> None:
        place = self.places[self.path.split("/")[1]]
        place.told.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        asked = place.asked.get()
        self.answer(b"" if asked is None else json.dumps(asked).encode(), "application/json")

    def answer(self, body: bytes, kind: str) -> None:
        """Send this; nothing is the end."""
        self.send_response(200 if body else 204)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(name: str, address: str, folder: Path) -> Iterator[None]:
    """A browser at this address, or a program that is given it."""
    if name == "firefox":
        profile = folder / "profile"
        profile.mkdir()
        with Firefox(profile) as firefox:
            firefox.open(address)
            yield
    elif name == "chromium":
        with Browser() as chromium:
            chromium.driver.get(address)
            yield
    else:
        with subprocess.Popen([*PROGRAMS[name], str(ROOT / PROGRAM), address]) as process:
            try:
                yield
            finally:
                process.terminate()


Work = tuple[str, str, Case, Any]
"""What to do, its name, the case, and the right result."""


def chains(draws: int, seed: int) -> Iterator[Work]:
    """Random chains, so many draws."""
    for case, drawn in islice(random_chains(seed, DRAWS), -(-draws // DRAWS)):
        yield "chains", str(case["parameters"]), case, drawn


def models(n: int, seed: int, folder: Path, address: str) -> Iterator[Work]:
    """Random models, each of another shape and with other types of tensors and caches."""
    r = random.Random(seed)
    for name in r.sample(sorted(MODELS), n):
        kind, (k, v) = r.choice(TYPES), r.choice(CACHE_TYPES)
        path = write_wide(folder / f"{name}-{kind}.gguf", MODELS[name], kind)
        tokens = [r.randrange(96) for _ in range(TOKENS)]
        case = {"path": f"{address}/models/{path.name}", "tokens": tokens}
        types = {"typeK": k.upper(), "typeV": v.upper()}
        yield "logits", f"{path.stem} {k} {v}", case | types, [logits_of(path, tokens, k, v)] * 2


def texts(n: int, seed: int, address: str) -> Iterator[Work]:
    """Texts of the bundled model."""
    for case, told in islice(random_texts(seed, f"{address}/models/{bundled_model().name}"), n):
        yield "text", json.dumps(case), case, told


def files(n: int, seed: int, folder: Path) -> Iterator[Work]:
    """Damaged files."""
    for i, (case, told) in enumerate(islice(damaged_files(seed, folder), n)):
        yield "damaged", f"{i}: {told[:80]}", case, told


def compare(places: Sequence[Place], work: Iterator[Work], done: Counter[str]) -> None:
    """Have every place do the work; count what was compared, and what differs."""
    for first in work:
        some = [first, *islice(work, AT_ONCE[first[0]] - 1)]
        for place in places:
            place.asked.put({"what": first[0], "cases": [case for _, _, case, _ in some]})
        for place in places:
            told = place.told.get(timeout=PATIENCE)
            for (what, name, _, right), result in zip(some, told, strict=True):
                if result != right:
                    place.wrong[what] += 1
                    print(f"{place.name}: {what} {name}: {str(result)[:300]}", file=sys.stderr)
        for what, _, case, right in some:
            done[what] += 1
            done["draws"] += len(case.get("rows", ()))
            done["tokens"] += len(right["tokens"]) if what == "text" else 0
        progress(f"{dict(done)}")
    progress("")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and report."""
    options_of = parser(__doc__, "Markdown with the counts")
    options_of.add_argument("--where", nargs="+", choices=PLACES, default=PLACES[:2])
    options_of.add_argument("--draws", type=int, default=100_000)
    options_of.add_argument("--models", type=int, default=20, help=f"at most {len(MODELS)}")
    options_of.add_argument("--texts", type=int, default=200)
    options_of.add_argument("--files", type=int, default=500)
    options_of.add_argument("--seed", type=int, default=0)
    given = options_of.parse_args(arguments)
    report = Report(
        "The npm package and Python's", machine("aleator"), f"    {command(__file__, arguments)}"
    )
    places = {name: Place(name) for name in given.where}
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / bundled_model().name).symlink_to(bundled_model())
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, places, name))
        stack.enter_context(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        address = f"http://127.0.0.1:{server.server_port}"
        for each in given.where:
            stack.enter_context(running(each, f"{address}/{each}/", folder))
        about = {each.name: each.told.get(timeout=PATIENCE) for each in places.values()}
        for work in (
            chains(given.draws, given.seed),
            models(given.models, given.seed, folder, address),
            texts(given.texts, given.seed, address),
            files(given.files, given.seed, folder),
        ):
            compare([*places.values()], work, done)
        for place in places.values():
            place.asked.put(None)
    report.table(
        "where", "relaxed SIMD", "draws:", "chains that differ:", "models:", "that differ:", "texts:",
        "tokens in them:", "that differ:", "damaged files:", "that differ:",
    )  # fmt: skip
    for place in places.values():
        told, wrong = about[place.name], place.wrong
        relaxed = "yes" if told["relaxed"] else "no"
        report.row(
            told["who"], relaxed, done["draws"], wrong["chains"], done["logits"], wrong["logits"],
            done["text"], done["tokens"], wrong["text"], done["damaged"], wrong["damaged"],
        )  # fmt: skip
    report.write(given.out)
    return 1 if any(place.wrong for place in places.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
