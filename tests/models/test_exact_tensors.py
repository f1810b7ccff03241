"""Which tensors stay in float32 where a decoder computes in bfloat16, of every architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from wide_models import SMALL, write_model

from aleator.models import build_decoder, open_weights
from tests.drawn import differences

NUMBER = re.compile(r"\[\d+\]")
FIRST = {spec.arch: name for name, spec in reversed(SMALL.items())}
"""An architecture -> its first small model."""


def tensors(place: str, value: Any, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of an object of the package, and of those in it, by its place."""
    if isinstance(value, torch.Tensor):
        yield place, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from tensors(f"{place}[{i}]", each, seen)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from tensors(f"{place}[{key}]", each, seen)
    elif type(value).__module__.startswith("aleator.models"):
        slots = (name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()))
        names = dict.fromkeys([*getattr(value, "__dict__", {}), *slots])
        for name in names:
            yield from tensors(f"{place}.{name}", getattr(value, name, None), seen)


def test_the_tensors_that_stay_exact_are_those_on_record(tmp_path: Path) -> None:
    told = {}
    for arch, name in sorted(FIRST.items()):
        path = write_model(tmp_path / "m.gguf", SMALL[name])
        decoder: Any = build_decoder(open_weights(path), dtype="bfloat16", form="torch")
        seen: set[int] = set()
        found = {
            f"{NUMBER.sub('[]', place)} {tuple(each.shape)} {each.dtype}"
            for place, each in tensors("", decoder, seen)
        }
        told[arch] = sorted(found)
    assert len(told) > 40
    assert differences("tensors", [told]) == []
