from __future__ import annotations

import inspect
import json
import re
import sys

import pytest

from aleator import samplers as S
from aleator.cli.samplers import neutral
from aleator.core.options import in_words
from tests.cli.conftest import Command


def test_no_sampler_or_parameter_is_missing(aleator: Command) -> None:
    result = aleator("samplers")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    places = []
    for cls in S.SAMPLERS:
        letter = f" ({cls.letter})" if cls.letter else ""
        start = f"{cls.name}{letter}: "
        (place,) = (i for i, line in enumerate(lines) if line.startswith(start))
        places.append(place)
        for i, p in enumerate(cls.parameters(), place + 1):
            shown = [p.name, in_words(p), neutral(p), ", ".join(p.flags)]
            assert re.split("  +", lines[i].strip()) == [cell for cell in shown if cell]
    assert places == sorted(places)
    for p in S.PARAMETERS.values():
        assert re.search(
            rf"^    {p.name}  .*{re.escape(', '.join(p.flags))}$", result.out, re.MULTILINE
        )


def test_values_and_ranges(aleator: Command) -> None:
    out = aleator("samplers").out
    for row in (
        "top_p +0 to 1 +1.0 +--top-p",
        "top_k +0 or more +0 +--top-k",
        "xtc_threshold +0 to 0.5, or 1 +0.1 +--xtc-threshold",
        "mirostat_m +2 to 1048576 +100 +--mirostat-m",
        "penalty_scope +all or generated or mixed +all +--penalty-scope",
        "dry_sequence_breakers +at most 128 +'\\\\n' ':' '\"' '\\*' +--dry-sequence-breaker",
        "mirostat +0 to 2 +0 +--mirostat",
    ):
        assert re.search(f"^    {row}$", out, re.MULTILINE), row


@pytest.mark.parametrize("cls", S.SAMPLERS, ids=lambda cls: cls.name)
def test_the_contract_of_each(aleator: Command, cls: type[S.Sampler]) -> None:
    spellings = [cls.name, *cls.aliases, *([cls.letter] if cls.letter else []), cls.name.upper()]
    outputs = {aleator("samplers", spelling).out for spelling in spellings}
    (out,) = outputs
    assert out.startswith(f"names: {', '.join([cls.name, *cls.aliases])}")
    assert f"class: aleator.samplers.{cls.__name__}\n" in out
    assert (inspect.getdoc(sys.modules[cls.__module__]) or "?").splitlines()[0] in out
    for p in cls.parameters():
        assert f"{', '.join([p.name, *p.aliases])}\n    {p.help}\n" in out


def test_presets(aleator: Command) -> None:
    out = aleator("samplers", "--presets").out
    for name, values in S.PRESETS.items():
        assert re.search(rf"^{re.escape(name)}( \(the default\))?$", out, re.MULTILINE)
        for key, value in values.items():
            assert key == "samplers" or f"{key}={value}" in out
    assert "llama.cpp (the default)\n    order:  penalties, dry, top_n_sigma, top_k," in out


def test_json(aleator: Command) -> None:
    made = json.loads(aleator("samplers", "--json").out)
    assert [s["name"] for s in made["samplers"]] == [cls.name for cls in S.SAMPLERS]
    assert [p["name"] for p in made["parameters"]] == list(S.PARAMETERS)
    assert made["presets"]["llama.cpp"]["top_k"] == 40
    one = json.loads(aleator("samplers", "nucleus", "--json").out)
    assert one == next(s for s in made["samplers"] if s["name"] == "top_p")
    assert one["parameters"][0]["flags"] == ["--top-p"]
    assert "Keeps      the shortest prefix" in one["contract"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topk_"], "no sampler 'topk_'; did you mean"),
        (["z"], "the names are logit_bias, token_mask, min_tokens,"),
        (["top_k", "--presets"], "both given: choose one"),
    ],
)
def test_bad_input(aleator: Command, words: list[str], message: str) -> None:
    result = aleator("samplers", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
