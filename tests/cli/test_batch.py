"""``aleator batch``: results by name, errors by line, and going on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aleator import FileFormatError, LanguageModel, ParameterError
from aleator.cli.batch_bodies import chat_arguments
from aleator.cli.batch_work import COMPLETION, Line, Work, failed, read_lines
from aleator.integrations.row_file import ResultFile
from tests.chat import templates
from tests.cli.conftest import Command
from tests.cli.test_terminal import Terminal

SEED = ("-t", "1", "--seed", "3", "-n", "8")


def chat(name: str, **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Good morrow."}], **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def results(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line["response"] for line in lines}


def test_requests_of_all_kinds(aleator: Command, model: LanguageModel, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    schema = templates.WEATHER["function"]["parameters"]
    asked = write(
        tmp_path / "in.jsonl",
        chat("chat", model="mine", temperature=0, logprobs=True, top_logprobs=2),
        chat("json", max_tokens=60, response_format={"type": "json_schema", "json_schema": {"schema": schema}}),
        {"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "ROMEO:", "seed": 5, "logprobs": 1}},
        "JULIET:",
        {"prompt": list(model.prompt_tokens("NURSE:")), "max_tokens": 3, "top_k": 1},
        {"custom_id": "bare", "messages": [{"role": "user", "content": "Hm?"}], "logprobs": True, "kept": True},
    )  # fmt: skip
    result = aleator("batch", asked, str(out), *SEED, "--parallel", "3")
    assert (result.code, result.out) == (0, "")
    assert "6 of 6 requests" in result.err
    made = results(out)
    assert made.keys() == {"chat", "json", "text", "line-4", "line-5", "bare"}
    assert {each["status_code"] for each in made.values()} == {200}
    # Each is what it is alone.
    alone = model.chat(
        [{"role": "user", "content": "Good morrow."}], temperature=0, seed=3, max_tokens=8
    )
    body = made["chat"]["body"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": alone.text}
    assert (body["model"], body["object"], body["seed"]) == ("mine", "chat.completion", 3)
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"] == len(alone.tokens)
    assert len(entries[0]["top_logprobs"]) == 2
    jsonschema.validate(
        json.loads(made["json"]["body"]["choices"][0]["message"]["content"]), schema
    )
    text = model.generate("ROMEO:", seed=5, max_tokens=8)
    choice = made["text"]["body"]["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text.text, "length")
    assert len(choice["logprobs"]["tokens"]) == 8
    assert (
        made["line-4"]["body"]["choices"][0]["text"]
        == model.generate("JULIET:", seed=3, max_tokens=8).text
    )
    assert made["line-5"]["body"]["usage"]["completion_tokens"] == 3
    assert len(made["bare"]["body"]["choices"][0]["aleator_kept"]["masks"]) == 8


def test_requests_of_standard_input(aleator: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = aleator("batch", "-", str(out), *SEED, stdin=b'"ROMEO:"\n"JULIET:"\n')
    assert result.code == 0
    assert results(out).keys() == {"line-1", "line-2"}


def test_an_error_of_the_results_file_ends_the_work(model: LanguageModel) -> None:
    def full(result: object) -> None:
        raise OSError("No space left on device")

    work = Work(model, [Line("a", COMPLETION, {"prompt": "a"})] * 3, full, {"max_tokens": 1})
    with model.engine(n_seq_max=2) as engine, pytest.raises(OSError, match="No space left"):
        work.run(engine, 2)
    assert work.stopped


def test_how_far_it_is_changes_on_a_terminal(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    work = Work(model, [], lambda result: None, {})
    work.report()
    assert shown.getvalue().startswith("\r0 of 0 requests")
    assert shown.getvalue().endswith("\x1b[K")
    work.report(last=True)
    assert shown.getvalue().endswith("requests/s\n")


def test_a_call_of_a_tool(aleator: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    body: Any = {"tools": [templates.CLOCK], "tool_choice": "required"}
    asked = write(tmp_path / "in.jsonl", chat("a", **body))
    # The bundled model's template shows no tools.
    assert aleator("batch", asked, str(out), *SEED).code == 1
    assert results(out)["a"]["body"]["error"]["param"] == "tools"


def test_a_body_is_an_object() -> None:
    data = b'{"custom_id": "a", "url": "/v1/completions", "body": ["b"]}'
    assert list(read_lines(data)) == [Line("a", "", {}, "body is not a JSON object")]


def test_errors_are_of_their_lines(aleator: Command, tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    lines = [
        chat("stream", stream=True),
        chat("n", n=2),
        chat("unknown", temprature=1),
        chat("role", messages=[{"role": "x"}]),
        chat("top", top_logprobs=2),
        chat("format", response_format={"type": "xml"}),
        chat("missing", messages=None),
        {"custom_id": "long", "prompt": "a b " * 2000},
        {"custom_id": "both", "prompt": "a", "tools": []},
        {"custom_id": "callback", "prompt": "a", "on_logits": 1},
        {"custom_id": "cold", "prompt": "a", "temperature": -1},
        {"custom_id": "url", "url": "/v1/embeddings", "body": {}},
        {"custom_id": "field", "body": {}, "more": 1},
        {"custom_id": 3, "prompt": "a"},
        chat("good"),
        chat("good"),
        [1],
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{oops\n\n")
    result = aleator("batch", str(source), str(out), *SEED)
    assert result.code == 1
    made = results(out)
    assert "18 of 18 requests, 17 with errors" in result.err
    assert [name for name, each in made.items() if each["status_code"] == 200] == ["good"]
    named = {
        n: (r["body"]["error"]["param"], r["body"]["error"]["message"])
        for n, r in made.items()
        if n != "good"
    }
    assert named["stream"][0] == "stream"
    assert named["stream"][1].startswith("stream=True: only false is supported: ")
    assert named["n"][0] == "n"
    assert "did you mean" in named["unknown"][1] or "temperature" in named["unknown"][1]
    assert named["role"][1].startswith("messages[0].role='x'")
    assert named["missing"] == ("messages", "messages is missing")
    assert "positions" in named["long"][1]
    assert named["both"][0] == "tools"
    assert named["callback"][0] == "on_logits"
    assert named["callback"][1].startswith("there is no field 'on_logits': ")
    assert "/v1/chat/completions" in named["url"][1]
    assert "'more'" in named["field"][1]
    assert named["cold"][0] == "temperature"
    assert "custom_id=3" in named["line-14"][1]
    assert "occurs before" in named["line-16"][1]
    assert "neither a JSON object" in named["line-17"][1]
    assert "not JSON" in named["line-18"][1]


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def test_hostile_lines_end_nothing(model: LanguageModel, tmp_path: Path) -> None:
    half, schema = "\ud800", {"type": "array", "items": {"enum": [nested(100)]}}
    bodies: list[tuple[dict[str, Any], str | None]] = [
        ({"regex": half}, "regex"),
        ({"banned_strings": [half]}, "banned_strings"),
        ({"logit_bias": {half: 1}}, "logit_bias"),
        ({"self": 1}, "self"),
        ({"drafter": "x"}, "drafter"),
        ({"preset": []}, "preset"),
        ({"json_schema": {"enum": [nested(3000)]}}, "json_schema"),
        ({"prompt": nested(3000)}, "prompt"),
        ({"model": nested(3000)}, "model"),
    ]
    lines = [Line(str(i), COMPLETION, {"prompt": "a"} | body) for i, (body, _) in enumerate(bodies)]
    fine: dict[str, dict[str, Any]] = {
        "schema": {"json_schema": schema},
        "square": {"logit_bias": {"\u00b2": 1}},  # a text, though Python calls it a digit
        "nines": {"logit_bias": {"9" * 5000: 1}},  # a text too: no id is so long
    }
    lines += [Line(name, COMPLETION, {"prompt": "a"} | body) for name, body in fine.items()]
    lines += read_lines(
        b'{"prompt":' + b"[" * 100_000 + b"\n" + b'{"custom_id":"good","prompt":"a"}'
    )
    path = tmp_path / "out"
    with ResultFile(str(path)) as file, model.engine(n_seq_max=2) as engine:
        Work(model, lines, file.append, {"max_tokens": 2, "seed": 1}).run(engine, 2)
    made = results(path)
    good = {name for name, each in made.items() if each["status_code"] == 200}
    assert good == {"good", *fine}
    for i, (body, field) in enumerate(bodies):
        status, error = made[str(i)]["status_code"], made[str(i)]["body"]["error"]
        assert (status, error["param"]) == (400, field), (list(body), error)
    assert "'prompt' is nested more than" in made["line-1"]["body"]["error"]["message"]


def test_every_line_has_a_name_of_its_own() -> None:
    texts = (
        '{"custom_id": "line-2", "prompt": "a"}', '"b"', "", '{"custom_id": "line-5", "prompt": "c"}',
        '{"custom_id": "line-5", "prompt": "d"}', '{"custom_id": "line-2-", "prompt": "e"}', '"f"',
        '{"custom_id": "", "prompt": "g"}',
    )  # fmt: skip
    lines = list(read_lines("\n".join(texts).encode()))
    names = ["line-2", "line-2--", "line-5", "line-5-", "line-2-", "line-7", "line-8"]
    assert [line.name for line in lines] == names
    assert [line.name for line in lines if line.wrong] == ["line-5-", "line-8"]
    assert lines[1].body == {"prompt": "b"}


def test_what_no_check_knows_is_an_error_of_its_line(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> dict[str, Any]:
        raise RuntimeError("hm")

    monkeypatch.setattr("aleator.cli.batch_bodies.completion_response", wrong)
    path = tmp_path / "out"
    with ResultFile(str(path)) as file, model.engine(n_seq_max=1) as engine:
        Work(model, list(read_lines(b'"a"\n"b"')), file.append, {"max_tokens": 1}).run(engine, 1)
    made = results(path)
    assert {each["status_code"] for each in made.values()} == {500}
    assert made["line-2"]["body"]["error"]["message"] == "RuntimeError: hm"


def test_it_goes_on_where_it_stopped(aleator: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    asked = write(tmp_path / "in.jsonl", *(chat(f"r{i}", seed=i) for i in range(6)))
    whole = tmp_path / "whole.jsonl"
    assert aleator("batch", asked, str(whole), *SEED).code == 0
    lines = whole.read_bytes().splitlines(keepends=True)
    # Two results, and a third that was not written to its end.
    out.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    result = aleator("batch", asked, str(out), *SEED, "-np", "1")
    assert result.code == 0
    assert "2 of 6 results are there already" in result.err
    first, second = results(whole), results(out)
    assert first.keys() == second.keys()
    for name, response in first.items():
        assert response["body"]["choices"] == second[name]["body"]["choices"]
    assert "6 of 6 results are there already" in aleator("batch", asked, str(out), *SEED).err


def test_errors_of_an_earlier_run_count(aleator: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    asked = write(tmp_path / "in.jsonl", chat("bad", n=2), "a")
    assert aleator("batch", asked, str(out), *SEED).code == 1
    assert aleator("batch", asked, str(out), *SEED).code == 1  # nothing is left to do
    asked = write(tmp_path / "in.jsonl", chat("bad", n=2), "a", "b")
    assert aleator("batch", asked, str(out), *SEED).code == 1
    assert (
        aleator("batch", write(tmp_path / "in.jsonl", {"prompt": "x"}, "a"), str(out), *SEED).code
        == 0
    )


def test_what_failed_for_no_fault_of_its_own_is_made_again(
    aleator: Command, tmp_path: Path
) -> None:
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    asked = write(tmp_path / "in.jsonl", chat("bad", n=2), chat("a"), chat("b", seed=2))
    assert aleator("batch", asked, str(whole), *SEED).code == 1
    lines = {json.loads(line)["custom_id"]: line for line in whole.read_text().splitlines()}
    broken = json.dumps(failed("a", 500, "no memory"))
    out.write_text("\n".join([broken, lines["bad"], lines["b"]]) + "\n")
    result = aleator("batch", asked, str(out), *SEED)
    assert result.code == 1  # of the request that is wrong
    assert "1 result that failed before is made again" in result.err
    assert "2 of 3 results are there already" in result.err
    again = results(out)
    assert again.keys() == {"bad", "a", "b"}
    assert again["bad"]["status_code"] == 400
    assert again["a"]["body"]["choices"] == results(whole)["a"]["body"]["choices"]
    assert list(tmp_path.glob("*.part")) == []
    with ResultFile(str(out)), pytest.raises(ParameterError, match="in use"):
        ResultFile(str(out))


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    texts = (
        "hello\n",
        '{"a": 1}\n{"custom_id": "b"}\n',
        "[]\n",
        '{"custom_id": "b"}\n',
        '{"id": 1}',
        "a",
    )
    for text in texts:
        path.write_text(text)
        with pytest.raises(FileFormatError, match="line 1 is not a result"):
            ResultFile(str(path))
        assert path.read_text() == text
    path.write_text("")
    with ResultFile(str(path)), pytest.raises(ParameterError, match="in use by another process"):
        ResultFile(str(path))


def test_the_requests_are_not_where_results_go(aleator: Command, tmp_path: Path) -> None:
    asked, link = tmp_path / "in.jsonl", tmp_path / "link"
    asked.write_text('{"prompt": "a"}')
    link.symlink_to(asked)
    for out in (asked, link):
        result = aleator("batch", str(asked), str(out))
        assert (result.code, "the file of the requests" in result.err) == (2, True)
        assert asked.read_text() == '{"prompt": "a"}'


def test_names_that_have_no_utf_8(tmp_path: Path) -> None:
    path, name = tmp_path / "out", "\ud800"
    with ResultFile(str(path)) as file:
        file.append(failed(name, 400, "wrong"))
    assert path.read_bytes().isascii()
    with ResultFile(str(path)) as file:
        assert file.done == {name}


def test_stopping_writes_no_half_answers(model: LanguageModel, tmp_path: Path) -> None:
    lines = list(read_lines(b'"ROMEO:"\n"JULIET:"\n"NURSE:"\n'))
    with ResultFile(str(tmp_path / "out")) as file, model.engine(n_seq_max=1) as engine:
        work = Work(model, lines, file.append, {"max_tokens": 900, "on_logits": None})
        seen: list[int] = []

        def look(chain: Any, logits: Any) -> None:
            seen.append(1)
            if len(seen) == 5:
                work.stop()

        work._defaults = {"max_tokens": 900, "on_logits": look}
        work.run(engine, 2)
    assert work.stopped
    assert (tmp_path / "out").read_text() == ""


def test_the_file_of_the_requests_is_named_as_it_was_given(
    aleator: Command, tmp_path: Path
) -> None:
    asked = write(tmp_path / "in.jsonl", "ROMEO:")
    for name, error in (
        ("./none//x", "No such file"),
        ("", "No such file"),
        (asked + "/", "Not a dir"),
    ):
        result = aleator("batch", name, str(tmp_path / "out.jsonl"), *SEED)
        assert result.code != 0
        assert f"error: {name}: {error}" in result.err


def test_two_files_are_needed(aleator: Command) -> None:
    result = aleator("batch", "a")
    assert (result.code, "give two files" in result.err) == (2, True)


def test_a_chat_means_what_it_means_to_the_server() -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}]}
    assert chat_arguments({**asked, "top_logprobs": 0}) == asked
    more = {"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}, "logprobs": True}
    made = {"chat_template_kwargs": {"a": 1, "reasoning_effort": "low"}, "logprobs": 0}
    assert chat_arguments({**asked, **more}) == {**asked, **made}
