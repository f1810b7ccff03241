"""The page of the site that needs no server: the playground over WebAssembly, and live pictures of samplers.

tools/make_site.py writes it into the folder ``try`` where ``make wasm`` has been; ``python tools/site_page.py
FOLDER`` writes it alone.
"""

from __future__ import annotations

import hashlib
import html
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import aleator
from aleator.cli.samplers import contract
from aleator.core.contract import Purpose
from aleator.core.philox import stream
from aleator.generate import Batch, Context, beam_chain
from aleator.generate.cache_script import OPERATIONS
from aleator.models.hub.bundled import bundled_model
from aleator.samplers import SAMPLERS, Sampler
from aleator.server.playground import cells
from aleator.server.playground.as_json import StepFormatter, everything
from aleator.server.playground.saved import page_of

ROOT = Path(__file__).parents[1]
FOLDER = "try"
PAGE = ROOT / "src/aleator/server/playground/page"
PACKAGE, SITE = ROOT / "js/src", ROOT / "js/site"
WASM = PACKAGE / "aleator.wasm"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
"""What the page may load and run: its own files, and WebAssembly."""
LEFT_OUT = ("saved.js", "parameters.d.ts", "index.d.ts")
TEXT = "To be, or not to be, that is the question: whether to be or not to"
"""What the row of logits of the live pictures follows; words return, for penalties."""
LIVE: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 2, "dry_sequence_breakers": []},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "min_k": {"min_k_tau": 3.0},
    "top_k": {"top_k": 5},
    "top_a": {"top_a": 0.3},
    "tail_free": {"tfs_z": 0.9},
    "typical_p": {"typical_p": 0.8},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "epsilon_cutoff": {"epsilon_cutoff": 0.02},
    "eta_cutoff": {"eta_cutoff": 0.05},
    "p_less": {"p_less": "on"},
    "top_h": {"top_h": 0.4},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    "temperature": {"temperature": 0.6, "dynatemp_range": 0.0},
    "smoothing": {"smoothing_factor": 0.3, "smoothing_curve": 1.0},
    "mirostat": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat_v2": {"mirostat": 2, "mirostat_tau": 3.0},
    "adaptive_p": {"adaptive_target": 0.2},
    "dist": {"temperature": 1.0, "draw": "gumbel"},
}
"""Samplers with a live picture: the parameters that it begins with."""
START = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05}


def live_picture(chain: dict[str, Any] = START) -> str:
    """The HTML of a live picture; nothing where there is no WebAssembly."""
    if not WASM.is_file():
        return ""
    told = html.escape(json.dumps(chain))
    return (
        f'<aleator-live chain="{told}"></aleator-live>\n'
        f'<script type="module" src="{FOLDER}/live.js"></script>'
    )


def try_it() -> str:
    """A link to the playground of the site, where there is one."""
    return f"[Open the playground in this browser]({FOLDER}/index.html)" if WASM.is_file() else ""


def sampler_page(cls: type[Sampler]) -> str:
    """A sampler's own page: a live picture, and its contract."""
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    picture = live_picture(LIVE[cls.name]) if cls.name in LIVE else ""
    parts = [f"# {cls.name}", summary, picture, f"```text\n{contract(cls)}```"]
    return "\n\n".join(filter(None, [*parts, "[All samplers](samplers.md#all-samplers)"])) + "\n"


def sampler_pages() -> dict[str, str]:
    """The pages of all samplers, by the names of their files."""
    return {f"sampler-{cls.name}.md": sampler_page(cls) for cls in SAMPLERS}


def row() -> dict[str, Any]:
    """A row of logits of the bundled model, and its tokens."""
    model = aleator.load()
    prompt = model.prompt_tokens(TEXT)
    logits = Context(model, n_ctx=64).decode(Batch.one(prompt, 0))[-1]
    tokens = StepFormatter(model.vocab).tokens(range(len(model.vocab)))
    return {"text": TEXT, "prompt": prompt, "logits": logits.tolist(), "tokens": tokens}


def constants() -> dict[str, Any]:
    """What the engine of the page has in common with Python's beams, and with the cells of its playground."""
    return {
        "beams": {
            "COLDEST": beam_chain.COLDEST,
            "DRAWING": beam_chain.DRAWING,
            "PLAIN": beam_chain.PLAIN,
            "GUMBEL": stream(Purpose.GUMBEL),
        },
        "cells": {
            "CELLS": cells.CELLS,
            "SEQUENCES": cells.SEQUENCES,
            "MOST_OPERATIONS": cells.MOST_OPERATIONS,
            "MOST_TOKENS": cells.MOST_TOKENS,
            "PROMPT": cells.PROMPT,
            "OPERATIONS": OPERATIONS,
        },
    }


def write_page(folder: Path) -> None:
    """Write all files of the page."""
    copied = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(PAGE, folder, ignore=copied)
    shutil.copytree(SITE, folder, ignore=copied, dirs_exist_ok=True)  # its transport.js prevails
    shutil.copytree(PACKAGE, folder / "aleator", ignore=copied)
    shutil.copy(bundled_model(), folder / "model.gguf")
    policy = f'<meta http-equiv="content-security-policy" content="{POLICY}">\n<title>'
    for name in ("index.html", "live.html"):
        page = (folder / name).read_text().replace('"/playground/', '"')
        (folder / name).write_text(page.replace("<title>", policy))
    written = {"declared": everything(), "constants": constants(), "row": row()}
    for name, value in written.items():
        text = json.dumps(value, ensure_ascii=False)
        (folder / f"{name}.js").write_text(f"export default {text};\n")
    (folder / "saved.html").write_text(page_of(""))  # engine/recorded.js puts its record in
    offline(folder)


def offline(folder: Path) -> None:
    """Tell the service worker the page's files, and their version."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "offline.js"
    }
    version = hashlib.sha256(b"".join(name.encode() + data for name, data in files.items()))
    told = {"VERSION": version.hexdigest()[:16], "FILES": ["./", *files]}
    lines = [f"const {name} = {json.dumps(value)};\n" for name, value in told.items()]
    worker = folder / "offline.js"
    worker.write_text("".join(lines) + worker.read_text())


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
