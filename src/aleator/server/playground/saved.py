"""A text with its steps as one file that needs neither server nor network."""

from __future__ import annotations

import base64
import json
import re
from importlib.resources import files
from typing import Any

from aleator.server.playground.recording import Recording
from aleator.server.playground.replay import Replay
from aleator.server.playground.told import Telling
from aleator.text.tokenizer import Tokenizer

PAGE = files("aleator.server.playground") / "page"
FIRST = "saved.js"
_IMPORT = re.compile(r'(?<=from )"\./([^"]+)"')
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'"
"""The file asks for nothing, wherever it is opened."""

TOP = 10
"""Likely tokens that are named for each step; the open step shows more."""


def saved_page(recording: Recording, tokenizer: Tokenizer, model: str) -> str:
    """The HTML of a text that was written.

    Args:
        recording: The text; the logits of all its steps are kept.
        tokenizer: Of the model.
        model: Its name.

    Raises:
        Forgotten: Logits of a step are not kept.
    """
    record = json.dumps(
        told(recording, tokenizer, model), ensure_ascii=False, separators=(",", ":")
    )
    modules = {f"page/{name}": _url(text) for name, text in _modules(FIRST).items()}
    style = (PAGE / "page.css").read_text("utf-8")
    # In a script element only "<" can begin what ends it, or a comment.
    data = record.replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="content-security-policy" content="{POLICY}">
<title>Aleator: a recorded text</title>
<style>
{style}</style>
<script type="importmap">{json.dumps({"imports": modules})}</script>
<script type="application/json" id="record">{data}</script>
<script type="module">import "page/{FIRST}";</script>
</head>
<body><div id="app"></div></body>
</html>
"""


def told(recording: Recording, tokenizer: Tokenizer, model: str) -> dict[str, Any]:
    """What the file holds of a text: its start, and every step in short and in full."""
    telling = Telling(tokenizer.vocab)
    replay, generation = Replay(recording, tokenizer), recording.generation
    steps, full = [], []
    for step in range(len(recording.inherited), len(recording.drawn)):
        found = replay.explain(step, TOP)
        steps.append(telling.step(recording, step, found, TOP))
        full.append(telling.full_step(recording, step, found))
    prompt = (*recording.prompt, *recording.inherited)
    return {
        "model": model,
        "start": {
            "prompt": telling.tokens(prompt),
            "seed": generation.seed,
            "chain": generation.chain.describe(),
        },
        "steps": steps,
        "full": full,
        "reason": generation.stop_reason,
    }


def _modules(first: str) -> dict[str, str]:
    """A module and all that it imports, by name; their imports are bare names of the import map."""
    found: dict[str, str] = {}
    left = [first]
    while left:
        name = left.pop()
        if name in found:
            continue
        text = PAGE.joinpath(*name.split("/")).read_text("utf-8")
        left += _IMPORT.findall(text)
        found[name] = _IMPORT.sub(r'"page/\1"', text)
    return found


def _url(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
