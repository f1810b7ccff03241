"""What the page knows comes from the declarations, and how it writes a chain elsewhere is true."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import aleator
from aleator.cli.arguments import Parser
from aleator.cli.sampling import add_sampling_options, sampling_arguments
from aleator.core.options import declarations
from aleator.generate.beam_options import BeamOptions
from aleator.samplers import PRESETS, SAMPLERS
from aleator.samplers.params import ALL
from aleator.server.playground.as_json import USUAL
from tests.playground.conftest import Client


def test_every_sampler_parameter_and_preset_is_told(client: Client) -> None:
    told = client.get()
    assert [each["name"] for each in told["samplers"]] == [cls.name for cls in SAMPLERS]
    assert set(told["parameters"]) == set(ALL)
    assert set(told["presets"]) == set(PRESETS)
    beams = declarations(BeamOptions)
    assert set(told["beams"]) == set(beams)
    assert told["beams"]["early_stopping"]["choices"] == [True, False, "never"]
    assert set(USUAL) <= {*ALL, *beams}
    assert told["model"]["n_vocab"] == 2048
    assert told["model"]["bundled"]
    declared = {**ALL, **beams}
    for name, parameter in {**told["parameters"], **told["beams"]}.items():
        assert parameter["help"] == declared[name].help
        slider = parameter.get("slider")
        if slider is not None:
            assert slider["low"] < slider["high"]
            for value in (slider["low"], slider["high"]):
                declared[name].check(value)  # a slider gives nothing that is refused


def test_a_preset_is_told_with_the_values_that_it_sets(client: Client) -> None:
    for name, values in client.get()["presets"].items():
        assert aleator.SamplingParams(**values) == aleator.SamplingParams.preset(name)


@pytest.mark.parametrize(
    "sampling",
    [
        {"preset": "llama.cpp", "temperature": 0.5, "top_k": 20},
        {"preset": "neutral", "samplers": ["min_p", "temperature"], "min_p": 0.1, "temperature": 1.5},
        {"preset": "vllm", "logit_bias": {"15": -1.5}, "bad_words": ["a b", "c"], "ignore_eos": True},
        {"preset": "neutral", "grammar": 'root ::= "it\'s" "\\n"', "seed": 3},
        {"preset": "neutral", "mirostat": 2, "allowed_token_ids": [1, 2]},
        {"preset": "neutral", "min_keep": 3, "top_p": 0.5, "numerics": "llama.cpp"},
    ],
    ids=range(6),
)  # fmt: skip
def test_the_three_spellings_mean_the_same_chain(client: Client, sampling: dict[str, Any]) -> None:
    told = client.post("/chain", **sampling)
    given = dict(sampling)
    if "logit_bias" in given:
        given["logit_bias"] = {int(k): v for k, v in given["logit_bias"].items()}
    wanted = aleator.SamplingParams.preset(given.pop("preset"), **given)
    assert eval(told["python"], {"aleator": aleator}) == wanted
    parser = Parser("generate", "x", "")
    add_sampling_options(parser)
    parser.group("other").option("--no-escape", action="store_true")
    words = shlex.split(told["cli"])
    assert words[:2] == ["aleator", "generate"]
    parsed = parser.parse(words[2:])
    assert parsed is not None
    read = sampling_arguments(parsed)
    assert aleator.SamplingParams.preset(read.pop("preset"), **read) == wanted
    assert told["chain"].startswith("logits -> ")


def test_a_chain_that_cannot_be_is_refused_with_its_place(client: Client) -> None:
    assert client.refused("/chain", dry_base=0.5)["param"] == "dry_base"
    error = client.refused("/chain", grammar='root ::= "a"\nb ::= ]')
    assert (error["param"], error["line"]) == ("grammar", 2)
    assert error["column"] > 0
    assert client.refused("/chain", samplers=["top_k"], top_p=0.5)["param"] == "top_p"


def test_tokens_of_a_text(client: Client) -> None:
    told = client.post("/tokens", text="To be")["tokens"]
    assert [each["id"] for each in told] == list(client.model.prompt_tokens("To be"))
    assert told[0]["special"] is True
    assert "".join(each["text"] for each in told[1:]) == "To be"
