"""docs/from-other-engines.md names all parameters, theirs and ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from aleator.core.options import declarations
from aleator.generate.beam_options import BeamOptions
from aleator.generate.options import ContextOptions, GenerateOptions, ModelOptions
from aleator.samplers.params import ALL, SAMPLER_SEQ

TOLD: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[1] / "tools" / "from_other_engines.toml").read_text()
)
ENGINES = {engine["name"]: engine["rows"] for engine in TOLD["engine"]}
# Keyword arguments of generate and generate_batch that are no options.
ARGUMENTS = {"n", "on_logits"}


def test_our_names_are_ours() -> None:
    known = {
        *ALL,
        SAMPLER_SEQ.name,
        *declarations(GenerateOptions),
        *declarations(BeamOptions),
        *declarations(ModelOptions),
        *declarations(ContextOptions),
        *ARGUMENTS,
    }
    named = {name for rows in ENGINES.values() for _, _, ours, _ in rows for name in ours}
    assert named | set(TOLD["only_ours"]) <= known


def test_every_sampling_parameter_of_ours_is_told() -> None:
    named = {name for rows in ENGINES.values() for _, _, ours, _ in rows for name in ours}
    untold = set(ALL) - named - set(TOLD["only_ours"]) - {"numerics"}
    assert not untold, "tools/from_other_engines.toml says what others call it, or [only_ours]"
    assert not named & set(TOLD["only_ours"])


@pytest.mark.parametrize("name", ENGINES)
def test_each_is_told_once_and_what_is_missing_has_a_remedy(name: str) -> None:
    theirs = [row[0] for row in ENGINES[name]]
    assert len(set(theirs)) == len(theirs)
    assert all(ours or differences for _, _, ours, differences in ENGINES[name])


def test_every_attribute_of_transformers_is_told() -> None:
    config = pytest.importorskip("transformers").GenerationConfig()
    attributes = {name for name in vars(config) if not name.startswith("_")}
    assert attributes <= {row[0] for row in ENGINES["transformers"]}


def test_llama_cpps_flags_are_flags_here_where_there_is_a_counterpart() -> None:
    flags = {
        flag
        for p in [*ALL.values(), SAMPLER_SEQ, *declarations(GenerateOptions).values()]
        for flag in p.flags
    }
    for theirs, flag, ours, _ in ENGINES["llama.cpp"]:
        if flag and ours and ours[0] not in ("grammar", "json_schema", "sampling_device"):
            assert {each.strip() for each in flag.split(",")} <= flags, theirs
