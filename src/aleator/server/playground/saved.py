"""Texts with their steps as one file that needs neither server nor network.

The file has no logits, which would be many MiB.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from aleator.samplers.explain import Explanation
from aleator.server.playground.as_json import StepFormatter, spellings
from aleator.server.playground.recording import Forgotten, Recording, Replay, chain_at, draws
from aleator.text.tokenizer import Tokenizer

PAGE = files("aleator.server.playground") / "page"
FIRST = "saved.js"
_IMPORT = re.compile(r'(?<=from )"\./([^"]+)"')
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'"
"""The file loads nothing, wherever it is opened."""

TOP = 10
"""Likely tokens that are listed for each step; the open step shows more."""
ROWS = 12
"""Rows of an open step, as ``StepView`` of step-view.js has them."""
DIGITS = 8
"""Digits of the probabilities in a file, enough for all that the page shows."""
DRAWS = 1000
"""Draws of a step whose histogram is recorded."""


@dataclass(frozen=True)
class InitialView:
    """What a file shows first, and what else it has."""

    view: str = "write"  # One of the page's views
    text: Recording | None = None  # The text that is shown; None: the last
    step: int = 0  # The open step; -1: none
    shade: str = "surprise"  # What tokens are shaded by
    # The two texts of the view Compare; None: none
    compare: tuple[Recording, Recording] | None = None
    # Steps of texts whose histograms of draws are recorded
    draws: tuple[tuple[Recording, int], ...] = ()
    # Frames of the view Cache, as returned by :func:`aleator.server.playground.cells.frames`
    cells: Sequence[Mapping[str, Any]] = ()


def saved_page(
    texts: Mapping[Recording, str],
    tokenizer: Tokenizer,
    model: str,
    shown: InitialView | None = None,
) -> str:
    """The HTML of texts, each with its name on the page, and of those that they branch off."""
    held = rounded(contents(texts, tokenizer, model, shown or InitialView()))
    record = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
    # In a script element only "<" can begin its end tag, or a comment.
    return page_of(record.replace("<", "\\u003c"))


def page_of(record: str) -> str:
    """The HTML of a record, which is JSON without "<"."""
    modules = {
        f"page/{name}": f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
        for name, text in _modules(FIRST).items()
    }
    style = (PAGE / "page.css").read_text("utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="content-security-policy" content="{POLICY}">
<title>Aleator: recorded texts</title>
<style>
{style}</style>
<script type="importmap">{json.dumps({"imports": modules})}</script>
<script type="application/json" id="record">{record}</script>
<script type="module">import "page/{FIRST}";</script>
</head>
<body><div id="app"></div></body>
</html>
"""


def contents(
    texts: Mapping[Recording, str], tokenizer: Tokenizer, model: str, shown: InitialView
) -> dict[str, Any]:
    """The contents of the file: texts, each after the one that it branches off, and what is shown of them."""
    formatter = StepFormatter(tokenizer.vocab)
    order = _with_ancestors(texts)
    ends = _ends(texts, order)
    index = {recording: i for i, recording in enumerate(order)}
    made = [
        _text(recording, name, ends[recording], tokenizer, formatter)
        | {"parent": None if recording.parent is None else index[recording.parent]}
        for recording, name in order.items()
    ]
    full = [step for text in made for step in text["full"]]
    if full and not any(full):
        raise Forgotten(0)
    first = len(order) - 1 if shown.text is None else index[shown.text]
    return {
        "model": model,
        "texts": made,
        "shown": {
            "view": shown.view,
            "text": first,
            "step": shown.step,
            "shade": shown.shade,
            "compare": shown.compare and [index[each] for each in shown.compare],
        },
        "draws": [
            {"text": index[recording], "step": step}
            | drawn_often(
                chain_at(recording, tokenizer, step, None), recording.logits(step), formatter
            )
            for recording, step in shown.draws
        ],
        "cells": list(shown.cells),
    }


def rounded(value: Any) -> Any:
    """JSON with numbers cut to the digits that are shown: half the bytes."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def drawn_often(
    replay: Replay, logits: Any, formatter: StepFormatter, n: int = DRAWS
) -> dict[str, Any]:
    """Many draws of a chain at its current step, with the exact probabilities."""
    found = replay.chain.explain(logits, top=100)
    return formatter.draws(found, draws(replay.chain, logits, n), n)


def _with_ancestors(texts: Mapping[Recording, str]) -> dict[Recording, str]:
    """Texts and all their ancestors with their names, each after the one that it branches off."""
    order: dict[Recording, str] = {}
    for each in texts:
        line: list[Recording] = [each]
        while (parent := line[-1].parent) is not None:
            line.append(parent)
        for recording in reversed(line):
            order.setdefault(recording, texts.get(recording, ""))
    return order


def _ends(texts: Iterable[Recording], order: Iterable[Recording]) -> dict[Recording, int]:
    """Number of each text's drawn tokens in the file; of an unrequested text, those that others share."""
    ends = {each: len(each.drawn) for each in texts}
    asked = set(ends)
    for recording in reversed([*order]):
        parent = recording.parent
        if parent is not None and parent not in asked:
            ends[parent] = max(ends.get(parent, 0), recording.at)
    return ends


def _text(
    recording: Recording, name: str, end: int, tokenizer: Tokenizer, formatter: StepFormatter
) -> dict[str, Any]:
    """A text from where it leaves the one that it branches off; null for a forgotten step."""
    generation = recording.generation
    replay = Replay(recording, tokenizer)
    steps: list[dict[str, Any]] = []
    full: list[dict[str, Any] | None] = []
    for step in range(recording.at, end):
        try:
            if step < len(recording.inherited):  # the picked token
                picked = chain_at(recording, tokenizer, step, None)
                found = picked.chain.explain(recording.logits(step), top=TOP)
            else:
                found = replay.explain(step, TOP)
        except Forgotten:
            steps.append(formatter.forgotten(recording, step))
            full.append(None)
        else:
            steps.append(formatter.step(recording, step, found, TOP))
            full.append(_full(formatter, recording, step, found))
    sampling = {**recording.sampling, "seed": generation.seed}
    stats = generation.stats
    return {
        "name": name,
        "at": recording.at,
        "inherited": len(recording.inherited),
        "prompt": formatter.tokens(recording.prompt) if recording.parent is None else [],
        "seed": generation.seed,
        "chain": generation.chain.describe(),
        "spelled": spellings(sampling),
        "steps": steps,
        "full": full,
        "reason": generation.stop_reason,
        "complete": generation.complete,
        "computed": stats.prompt_tokens,
        "reused": stats.reused_tokens,
    }


def _full(
    formatter: StepFormatter, recording: Recording, step: int, found: Explanation
) -> dict[str, Any]:
    """All about a step, except the tokens that no view shows."""
    whole = formatter.full_step(recording, step, found)
    wanted = {each["token"]["id"] for each in whole["traces"][:ROWS]}
    for each in (whole["token"], whole["draw"] and whole["draw"]["token"]):
        if each:
            wanted.add(each["id"])
    whole["traces"] = [each for each in whole["traces"] if each["token"]["id"] in wanted]
    return whole


def _modules(first: str) -> dict[str, str]:
    """A module and all that it imports, by name; they import one another by bare names of the import map."""
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
