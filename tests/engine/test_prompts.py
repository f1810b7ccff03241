from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.options import declarations
from aleator.generate.options import GenerateOptions

OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0.9, "seed": 3}


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "prompt=None: give text, a list of token ids, or a session"),
        (5, "prompt=5: give text"),
        ({"role": "user"}, "give text"),
        (["ROMEO:"], r"use generate_batch\(\)"),
        ([{"role": "user", "content": "hi"}], "list of messages: use chat"),
        ([1, 2.5], "prompt token 1 is 2.5: give integers"),
        ([[1, 2]], r"prompt token 0 is \[1, 2\]"),
    ],
)
def test_what_is_no_prompt_is_refused(
    prompt: Any, message: str, model: aleator.LanguageModel
) -> None:
    for call in (
        lambda: model.generate(prompt, **OPTIONS),
        lambda: model.generate_batch(["a", prompt], **OPTIONS),
        lambda: model.prompt_tokens(prompt),
    ):
        with pytest.raises(aleator.ParameterError, match=message) as caught:
            call()
        assert caught.value.parameter == "prompt"


@pytest.mark.parametrize("prompts", [None, 5, "ROMEO:", b"a", [], {"a": 1}])
def test_what_is_no_list_of_prompts_is_refused(prompts: Any, model: aleator.LanguageModel) -> None:
    with pytest.raises(aleator.ParameterError, match=r"give .*at least one prompt") as caught:
        model.generate_batch(prompts)
    assert caught.value.parameter == "prompts"


@pytest.mark.parametrize("n", [0, -1, 1.5, None, "2"])
def test_there_is_at_least_one_text_of_each_prompt(n: Any, model: aleator.LanguageModel) -> None:
    with pytest.raises(aleator.ParameterError, match=r"n=.*: give an integer, 1 or more") as caught:
        model.generate_batch(["a"], n=n)
    assert caught.value.parameter == "n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": "5"}, "max_tokens='5' is of type str, not a number: give -1 or more"),
        ({"stop": 5}, "stop=5: give a text or a list of texts"),
        ({"echo": "yes"}, "echo='yes' is not a switch: give True or False"),
        ({"maxtokens": 5}, "there is no option 'maxtokens': did you mean max_tokens"),
        ({"temprature": 1}, "did you mean temperature"),
        ({"do_sample": False}, "there is no option 'do_sample': temperature=0 is greedy"),
        ({"max_length": 9}, "write max_tokens="),
        ({"params": "greedy"}, "params='greedy': give aleator.SamplingParams"),
        ({"preset": 5}, "there is no preset 5"),
    ],
)
def test_options_are_refused_by_name(
    options: dict[str, Any], message: str, model: aleator.LanguageModel
) -> None:
    calls: list[Any] = [model.generate, model.generate_batch]
    for call, prompt in zip(calls, ("a", ["a"]), strict=True):
        with pytest.raises(aleator.ParameterError, match=message) as caught:
            call(prompt, **options)
        assert caught.value.parameter in options


def test_unknown_names_of_loading_are_refused() -> None:
    with pytest.raises(aleator.ParameterError, match="did you mean n_batch"):
        aleator.load(n_bach=5)  # type: ignore[call-arg]
    with pytest.raises(aleator.ParameterError, match="type_k='f8' must be one of"):
        aleator.load("nothing-is-read-before-options-are-checked", type_k="f8")


def test_token_ids_of_any_integer_kind(model: aleator.LanguageModel) -> None:
    text = model.generate([1, 2, 3], **OPTIONS).text
    assert model.generate(np.array([1, 2, 3]), **OPTIONS).text == text  # type: ignore[arg-type]
    assert model.generate((np.int32(i) for i in (1, 2, 3)), **OPTIONS).text == text  # type: ignore[arg-type]


def test_text_of_strangers_has_no_control_tokens(model: aleator.LanguageModel) -> None:
    text, bos = "ROMEO:<|endoftext|>", model.vocab.bos
    assert declarations(GenerateOptions)["parse_special"].neutral is False
    plain = model.generate(text, max_tokens=1).request.tokens
    assert plain.count(bos) == 1  # the tokenizer's own
    assert model.tokenizer.decode(plain[1:]) == text
    assert model.prompt_tokens(text) == plain
    assert tuple(model.tokenizer.encode(text)) == plain
    parsed = model.generate(text, max_tokens=1, parse_special=True).request.tokens
    assert parsed.count(bos) == 2


def test_every_prompt_of_a_batch_may_have_options_of_its_own(model: aleator.LanguageModel) -> None:
    prompts, seeds, limits = ["ROMEO:", "JULIET:", "ROMEO:"], [1, 2, 3], [5, 9, None]
    made = model.generate_batch(
        prompts, seed=seeds, max_tokens=limits, temperature=[0.5, 1.5, 0.0], stop=["\n"], top_k=20
    )
    for prompt, seed, limit, temperature, one in zip(
        prompts, seeds, limits, (0.5, 1.5, 0.0), made, strict=True
    ):
        alone = model.generate(
            prompt, seed=seed, max_tokens=limit, temperature=temperature, stop=["\n"], top_k=20
        )
        assert (one.text, one.seed, one.stop_reason) == (alone.text, seed, alone.stop_reason)
    params = [aleator.SamplingParams(top_k=3, seed=8), aleator.SamplingParams(min_p=0.1)]
    both = model.generate_batch(["a", "b"], params=params, max_tokens=4)
    assert [g.request.params.top_k for g in both] == [3, 0]
    assert both[0].seed == 8
    presets = model.generate_batch(["a", "b"], preset=["greedy", None], max_tokens=4)
    assert [g.request.params.temperature for g in presets] == [0.0, 0.8]
    assert presets[0].seed == presets[1].seed  # one seed for all that have none
    several = model.generate_batch(["a", "b"], n=2, seed=[4, 5], max_tokens=1)
    assert [g.seed for g in several] == [4, 4, 5, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": [1]}, "seed has 1 values for 2 prompts: give one for each, or one"),
        ({"seed": [1, "a"]}, "seed='a'"),
        ({"max_tokens": [1, -5]}, "max_tokens=-5"),
        ({"multi_step": [1, 2]}, "give one value for all prompts"),
        ({"params": [None, 5]}, "params=5"),
    ],
)
def test_lists_of_options_are_checked(
    options: dict[str, Any], message: str, model: aleator.LanguageModel
) -> None:
    with pytest.raises(aleator.ParameterError, match=message):
        model.generate_batch(["a", "b"], **options)


def test_a_list_of_seeds_is_for_batches(model: aleator.LanguageModel) -> None:
    with pytest.raises(aleator.ParameterError, match="seed"):
        model.generate("a", seed=[1])  # type: ignore[arg-type]
