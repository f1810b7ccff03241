"""The order of a chain: how it is read, and where samplers go that it does not name.

The order of a preset or a model file may lack a sampler that a parameter asks for.  The sampler is then
inserted.  Its position in the index (samplers/index.py) decides where:

- one that changes logits (penalties, DRY): after the nearest sampler that precedes it in the index, else first;
- one that cuts: before the nearest sampler that follows it in the index, else after the last that cuts; if none
  cuts, after the nearest that precedes it in the index;
- temperature last, smoothing right after it, and adaptive_p at the end, because it draws the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aleator.core.errors import ParameterError
from aleator.samplers.index import BY_LETTER, BY_NAME, ORDERED, SAMPLERS

_LAST = ("temperature", "smoothing", "adaptive_p")
_BY_THEMSELVES = {
    cls.name: "draws the token, and stands last by itself: leave it out; temperature=0, mirostat= and "
    "adaptive_target= choose another draw"
    if cls.selects
    else "masks or biases, and stands first by itself: leave it out"
    for cls in SAMPLERS
    if cls.name not in ORDERED
}
"""The samplers that an order must not name, each with the reason."""
_RANK = {name: rank for rank, name in enumerate(ORDERED)}


def parse_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Read sampler names in any spelling, as ``"top_k;top_p;temperature"`` or as a sequence."""
    if not isinstance(names, Iterable):
        raise ParameterError(f"samplers={names!r:.60}: give names of samplers")
    given = names.split(";") if isinstance(names, str) else list(names)
    order = []
    for name in given:
        key = str(name).strip().lower()
        if not key:
            continue
        if key in _BY_THEMSELVES:
            raise ParameterError(
                f"samplers: {key} is not named in an order: it {_BY_THEMSELVES[key]}"
            )
        if key not in BY_NAME:
            raise ParameterError(
                f"samplers: there is no sampler {name!r}; the names are {', '.join(ORDERED)}"
            )
        order.append(BY_NAME[key])
    return tuple(order)


def parse_letters(letters: str) -> tuple[str, ...]:
    """Read llama.cpp's ``--sampler-seq``, such as ``"edskypmxt"``."""
    if not isinstance(letters, str):
        raise ParameterError(f"sampler_seq={letters!r:.60}: give a text of letters")
    for letter in letters:
        if letter not in BY_LETTER:
            known = ", ".join(f"{k} {v}" for k, v in BY_LETTER.items())
            raise ParameterError(f"sampler_seq: there is no sampler {letter!r}; known are {known}")
    return tuple(BY_LETTER[letter] for letter in letters)


def missing(order: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The samplers that parameters ask for and an order does not name."""
    return [n for n, cls in ORDERED.items() if n not in order and cls.asked_for(values)]


def completed(order: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """The order with more samplers inserted, each at its place (see the module)."""
    made = list(order)
    for name in sorted(names, key=_RANK.__getitem__):
        made.insert(_place(made, name), name)
    return tuple(made)


def _place(order: Sequence[str], name: str) -> int:
    rank = _RANK[name]
    if name == "smoothing" and "temperature" in order:
        return order.index("temperature") + 1
    if name in _LAST:
        return len(order)
    if _writes(name):
        return 1 + max(
            (i for i, other in enumerate(order) if _writes(other) and _RANK[other] < rank),
            default=-1,
        )
    cuts = [
        i
        for i, other in enumerate(order)
        if not _writes(other) and other not in (*_LAST, "softmax")
    ]
    after = [i for i in cuts if _RANK[order[i]] > rank]
    if after:
        return min(after, key=lambda i: _RANK[order[i]])
    before = cuts or [
        i for i, other in enumerate(order) if _RANK[other] < rank and other not in _LAST
    ]
    return 1 + max(before, default=-1)


def _writes(name: str) -> bool:
    return ORDERED[name].writes and name not in _LAST
