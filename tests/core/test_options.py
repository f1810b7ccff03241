from __future__ import annotations

import ast
import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import aleator
from aleator.cache.options import STORAGE_TYPES, CacheOptions
from aleator.cache.storage.layer import TYPES
from aleator.core.errors import ParameterError
from aleator.core.options import (
    Options,
    declarations,
    json_schema,
    option,
    resolved,
    takes,
)
from aleator.engine.options import EngineOptions, SubmitOptions
from aleator.generate import Context
from aleator.generate.beam_options import BeamOptions
from aleator.generate.options import THREADS_PER_CORE, ContextOptions, GenerateOptions, ModelOptions
from aleator.samplers.params import ALL
from aleator.server.options import ServerOptions

CLASSES = (CacheOptions, ContextOptions, GenerateOptions, ModelOptions)
EVERY = [(cls, each) for cls in CLASSES for each in declarations(cls).values()]
IDS = [f"{cls.__name__}.{each.name}" for cls, each in EVERY]


@dataclass(frozen=True, kw_only=True)
class Some(Options):
    size: int = option("how large", 3, low=1, high=9, aliases=("length",))
    ratio: float | None = option("how much", None, low=0)
    kind: str = option("which", "a", choices=("a", "b"))
    fast: bool = option("quick", True)
    text: str = option("words", "")


@pytest.mark.parametrize(("cls", "each"), EVERY, ids=IDS)
def test_defaults_are_in_range_and_wrong_values_are_refused_by_name(cls: Any, each: Any) -> None:
    assert getattr(cls(), each.name) == each.neutral
    wrong: list[Any] = [object(), b"x"]
    if each.type is not bool:
        wrong.append(True)
    if each.type is int:
        wrong += [float(each.low or 1), np.float32(each.low or 1)]
    if each.type in (int, float):
        wrong += ["5", float("nan")]
        wrong += [] if each.low is None else [each.low - 1]
        wrong += [] if each.high is None else [each.high + 1]
    if each.choices:
        wrong.append("nonsense")
    if not each.optional and each.type in (int, float, bool, str):
        wrong.append(None)
    for value in wrong:
        if each.name in ("device", "dtype"):
            continue  # checked with torch, by what uses them
        with pytest.raises(ParameterError, match=each.name) as caught:
            cls(**{each.name: value})
        assert caught.value.parameter == each.name


def test_options_are_values_that_cannot_be_changed() -> None:
    some = Some(size=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        some.size = 5  # type: ignore[misc]
    assert some == Some.of({"length": 4}) != Some()
    assert some.replace(kind="b") == Some(size=4, kind="b")
    assert some.values() == {"size": 4, "ratio": None, "kind": "a", "fast": True, "text": ""}
    assert type(Some(ratio=1).ratio) is float


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sise": 3}, "there is no option 'sise': did you mean size?"),
        ({"zzz": 3}, "known are size, ratio, kind, fast, text, length"),
        ({"size": 3, "length": 3}, "size is given twice, once as length"),
        ({"size": 10}, "size=10 is out of range: give 1 to 9 (default: 3)"),
        ({"size": "5"}, "size='5' is of type str, not a number: give 1 to 9 (default: 3)"),
        ({"kind": "c"}, "kind='c' must be one of a, b"),
        ({"kind": ["a"]}, "must be one of a, b"),
        ({"fast": 1}, "fast=1 is not a switch: give True or False"),
        ({"text": 1}, "text=1 is not text"),
    ],
)
def test_messages_say_what_to_write(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Some.of(given)
    assert message in str(caught.value)


def test_an_end_that_is_not_in_the_words_of_a_range_is_told_to_who_goes_beyond() -> None:
    wanted = "n_ctx=99999999999 is out of range, whose end is 2147483647: give 0 or more"
    with pytest.raises(ParameterError, match=wanted):
        ContextOptions(n_ctx=99999999999)


def test_a_signature_shows_every_option() -> None:
    @takes(declarations(Some).values())
    def work(first: int, *, own: str = "", **options: Any) -> None:
        """Work.

        Args:
            first: to begin with.
            options: fields of
                :class:`Some`.

        Raises:
            ParameterError: at times.
        """

    signature = inspect.signature(work)
    assert list(signature.parameters) == ["first", "own", "size", "ratio", "kind", "fast", "text"]
    assert signature.parameters["ratio"].annotation == "float | None"
    assert signature.parameters["size"].default == 3
    assert inspect.getdoc(work) == (
        "Work.\n\nArgs:\n    first: to begin with.\n    size: how large (1 to 9; default: 3).\n"
        "    ratio: how much (0 or more; default: none).\n    kind: which (a or b; default: a).\n"
        "    fast: quick (default: on).\n    text: words (default: none).\n\n"
        "Raises:\n    ParameterError: at times."
    )
    assert work.__doc__ == inspect.getdoc(work)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("size", "4", 4), ("ratio", "0.5", 0.5), ("kind", "b", "b"), ("fast", "off", False), ("fast", "ON", True),
     ("text", "", "")],
)  # fmt: skip
def test_text_is_read_as_declared(name: str, text: str, value: Any) -> None:
    assert declarations(Some)[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("size", "4.5"), ("size", ""), ("ratio", "x"), ("fast", "maybe"), ("kind", "")],
)
def test_text_that_cannot_be_read_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ParameterError, match=name):
        declarations(Some)[name].parse(text)


def test_a_json_schema_says_the_same_as_the_check() -> None:
    schema = json_schema(declarations(Some).values())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema).is_valid
    for name, each in declarations(Some).items():
        for value in (None, 0, 1, 9, 10, 0.5, -1.5, True, "a", "c", [1]):
            try:
                each.check(value)
                good = True
            except ParameterError:
                good = False
            assert check({name: value}) == good, (name, value)
    assert not check({"other": 1})


def test_a_schema_of_requests_has_no_options_of_the_machine() -> None:
    schema = json_schema([*declarations(GenerateOptions).values(), *ALL.values()])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert {"max_tokens", "stop", "temperature", "seed", "logit_bias"} <= schema[
        "properties"
    ].keys()
    assert not {"sampling_device", "multi_step", "namespace"} & schema["properties"].keys()
    assert schema["properties"]["temperature"]["default"] == 1.0
    check = jsonschema.Draft202012Validator(schema).is_valid
    assert check({"max_tokens": 5, "stop": ["a"], "seed": None, "temperature": 0.5})
    assert not check({"max_tokens": "5"})
    assert not check({"temprature": 0.5})


def test_names_are_unique_among_all_that_generate_takes() -> None:
    assert not declarations(GenerateOptions).keys() & ALL.keys()
    assert resolved({"temp": 1, "max_tokens": 2}, {**declarations(GenerateOptions), **ALL}) == {
        "temperature": 1,
        "max_tokens": 2,
    }


def test_the_types_of_a_cache_are_those_it_can_store() -> None:
    assert tuple(TYPES) == STORAGE_TYPES


def test_no_more_threads_than_the_machine_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    most = 2 * THREADS_PER_CORE
    assert ContextOptions(n_threads=most).n_threads == most
    for name in ("n_threads", "n_threads_batch"):
        with pytest.raises(ParameterError, match=f"{name}={most + 1}: give at most {most}"):
            ContextOptions.of({name: most + 1})


PACKAGE = Path(aleator.__file__).parent
OWN = {("context", "n_seq_max"), ("context", "prompt_cache")}  # of one context, not of the model


def defaults_of(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """What stands as the default of each argument that has one."""
    given = function.args
    before = [*given.posonlyargs, *given.args]
    pairs = [*zip(before[len(before) - len(given.defaults) :], given.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d]
    return {argument.arg: value for argument, value in pairs}


def test_a_default_stands_in_one_place() -> None:
    """No argument repeats a declared default; generate, the commands and the model have none of their own."""
    declared = {
        name: each.neutral
        for cls in (CacheOptions, ContextOptions, GenerateOptions, ModelOptions)
        for name, each in declarations(cls).items()
        if each.neutral not in (None, False, "")
    }
    twice = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        strict = place.parts[0] in ("generate", "cli") or len(place.parts) == 1
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            twice += [
                (str(place), node.name, name)
                for name, value in defaults_of(node).items()
                if name in declared
                and (node.name, name) not in OWN
                and (strict or (isinstance(value, ast.Constant) and value.value == declared[name]))
            ]
    assert twice == []


@pytest.mark.parametrize(
    ("function", "some"),
    [
        (aleator.load, {"path", "progress", "n_batch", "type_k", "prompt_cache", "dtype"}),
        (aleator.LanguageModel.generate, {"prompt", "on_logits", "max_tokens", "top_p", "seed"}),
        (aleator.LanguageModel.generate_batch, {"prompts", "n", "max_tokens", "temperature"}),
        (Context, {"model", "prefix", "n_ctx", "n_ubatch", "lock_timeout"}),
    ],
)
def test_signatures_and_help_show_the_options(function: Any, some: set[str]) -> None:
    parameters = inspect.signature(function).parameters
    assert some <= parameters.keys()
    assert not any(each.kind == each.VAR_KEYWORD for each in parameters.values())
    text = inspect.getdoc(function) or ""
    assert all(f"\n    {name}: " in text for name in some)


ALL_OPTIONS = [
    BeamOptions,
    CacheOptions,
    ContextOptions,
    EngineOptions,
    GenerateOptions,
    ModelOptions,
    ServerOptions,
    SubmitOptions,
]


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_defaults_are_what_their_checks_give(options: type[Options]) -> None:
    """So they need no check."""
    for name, declared in declarations(options).items():
        made = declared.check(declared.neutral)
        assert (type(made), made) == (type(declared.neutral), declared.neutral), name
