"""Objects within a request's body."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.server.accepted import Accepted
from aleator.server.dialects.nested import (
    Nested,
    answered,
    arguments_of,
    input_of,
    text_part,
)
from aleator.server.fields import mapping, text, whole


def nested(lenient: bool = False, **fields: Any) -> Nested:
    return Nested("a[1]", fields, "an object", lenient)


def test_a_field_that_nobody_reads_is_refused_with_the_nearest_name() -> None:
    item = nested(name="x", tpye="y")
    assert (item.text("name"), item.optional("type", text)) == ("x", None)
    with pytest.raises(
        ParameterError, match=r"a\[1\]\.tpye is unknown: did you mean type\?"
    ) as caught:
        item.done()
    assert caught.value.parameter == "a[1].tpye"


def test_a_lenient_reader_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    item = nested(lenient=True, other=1, store=True)
    with caplog.at_level(logging.WARNING):
        item.take({"store": Accepted("nothing is stored", (False,))})
        item.done()
    assert "a[1].store=True is not supported: nothing is stored" in caplog.text
    assert "a[1].other is unknown" in caplog.text


def test_null_is_not_given() -> None:
    item = nested(a=None, b=None, c=None, d=None, e=None, f=None)
    assert not item.has("a")
    assert item.choice("a", "x", "y") == "x"
    assert item.flag("b") is False
    assert item.optional("c", whole(0, 9)) is None
    assert item.optional("d", mapping) is None
    assert item.nested("e") is None
    assert item.objects("f") == []
    item.take({"a": Accepted("", ())})
    item.done()


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda item: item.text("x"), 1),
        (lambda item: item.choice("x", "a", "b"), "c"),
        (lambda item: item.choice("x", "a", "b"), ["a"]),
        (lambda item: item.flag("x"), 1),
        (lambda item: item.optional("x", whole(1, 9)), 0),
        (lambda item: item.optional("x", whole(0, 9)), True),
        (lambda item: item.optional("x", whole(0, 9)), 1.0),
        (lambda item: item.optional("x", mapping), [1]),
        (lambda item: item.nested("x"), "text"),
        (lambda item: item.objects("x"), {"a": 1}),
        (lambda item: item.objects("x"), ["a"]),
        (lambda item: item.take({"x": Accepted("no", (1,))}), 2),
        (lambda item: arguments_of(item, "x"), "{"),
        (lambda item: arguments_of(item, "x"), "[1]"),
        (lambda item: arguments_of(item, "x"), "[" * 100_000),
        (lambda item: arguments_of(item, "x"), 3),
    ],
)
def test_wrong_values_are_named_by_their_path(read: Any, value: Any) -> None:
    with pytest.raises(ParameterError, match=r"^a\[1\]\.x") as caught:
        read(nested(x=value))
    assert caught.value.parameter.startswith("a[1].x")
    assert len(str(caught.value)) < 300


def test_something_else_than_an_object() -> None:
    with pytest.raises(ParameterError, match=r"a='x': give an object"):
        Nested("a", "x", "an object")
    with pytest.raises(ParameterError, match=r"^x=\{\}: give a list"):
        Nested("", {"x": {}}, "an object").objects("x", "a list")
    with pytest.raises(ParameterError, match=r"a\[1\]\.x\[1\]=3: give an object"):
        nested(x=[{}, 3]).objects("x", "a list")


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("image", "pictures"),
        ("input_image", "pictures"),
        ("image_url", "pictures"),
        ("input_audio", "audio parts"),
        ("document", "files"),
        ("input_file", "files"),
        ("video_url", "videos"),
    ],
)
def test_pictures_audio_and_files_are_refused_by_name(kind: str, word: str) -> None:
    with pytest.raises(
        ParameterError, match=f"{word} are not supported, only parts of type 'text'"
    ):
        text_part(nested(type=kind), "text")


def test_text_parts() -> None:
    assert text_part(nested(type="text", text="a"), "text") == "a"
    assert text_part(nested(text="a"), "text") == "a"
    for wrong in ({"type": "other", "text": "a"}, {"type": ["text"]}, {"type": "text"}):
        with pytest.raises(ParameterError):
            text_part(nested(**wrong), "text")


def test_results_answer_a_call() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{"id": "c1"}]},
        {"role": "user"},
    ]
    assert answered(nested(id="c1"), "id", messages) == "c1"
    with pytest.raises(ParameterError, match="no call before it has this id"):
        answered(nested(id="c2"), "id", messages)


def test_arguments_as_objects() -> None:
    assert (
        arguments_of(nested(x='{"a": 1}'), "x") == arguments_of(nested(x={"a": 1}), "x") == {"a": 1}
    )
    assert arguments_of(nested(x=""), "x") == {}
    assert input_of('{"a": 1}') == {"a": 1}
    assert input_of("[1]") == {"INVALID_JSON": "[1]"}
    assert input_of('{"a": ') == {"INVALID_JSON": '{"a": '}
    assert input_of("[" * 100_000)["INVALID_JSON"].startswith("[[")
