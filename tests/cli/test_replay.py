from __future__ import annotations

import json
from pathlib import Path

import pytest

from aleator.engine.verify import MOST_WRONG
from tests.cli.conftest import Command

ROMEO = ("generate", "-t", "1", "-p", "ROMEO:", "-n", "8", "--seed", "7")


@pytest.fixture
def file(aleator: Command, tmp_path: Path) -> Path:
    path = tmp_path / "text.json"
    made = aleator(*ROMEO, "--num", "2", "--logprobs", "0", "--replay", str(path))
    assert made.code == 0
    return path


def test_a_text_is_made_again(aleator: Command, file: Path) -> None:
    result = aleator("replay", str(file))
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "text 1 of 2 is the same: 8 tokens and log-probabilities, seed 7"
    assert lines[1].startswith("text 2 of 2 is the same")


def test_where_it_differs_is_told(aleator: Command, file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["made"]["tokens"][5] += 1
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    result = aleator("replay", str(file))
    assert result.code == 1
    assert "text 2 of 2 is another one:\n  token 5 of the text: " in result.out


def test_a_text_of_layers_on_devices(aleator: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "text.json"
    words = ("--device-map", "cpu:0=0:2,cpu:1=2:6", "--replay", str(file))
    assert aleator(*ROMEO, *words).code == 0
    record = json.loads(file.read_text())
    assert record["loading"] == {"device_map": "cpu:0=0:2,cpu:1=2:6"}
    assert aleator("replay", str(file)).out.startswith("the text is the same")
    for elsewhere in (["--device", "cpu"], ["-ngl", "0"], ["--device-map", "cpu=0:6"]):
        assert aleator("replay", str(file), *elsewhere).code in (0, 1)  # last bits may differ


def test_records_of_a_response(aleator: Command, file: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in file.read_text().splitlines()]
    response = tmp_path / "response.json"
    response.write_text(json.dumps({"choices": [], "aleator_replay": records}, indent=1))
    assert aleator("replay", str(response)).out.count("is the same") == 2
    response.write_text(json.dumps({"choices": [], "aleator_replay": records[0]}))
    assert aleator("replay", str(response)).out.startswith("the text is the same")


def test_a_header_takes_the_prompt_from_a_file(
    aleator: Command, file: Path, tmp_path: Path
) -> None:
    record = json.loads(file.read_text().splitlines()[0])
    prompt, header = tmp_path / "prompt", tmp_path / "header.json"
    header.write_text(json.dumps({k: v for k, v in record.items() if k not in ("prompt", "made")}))
    result = aleator("replay", str(header))
    assert (result.code, "--prompt-file" in result.err) == (2, True)
    for text in ("ROMEO:", "ROMEO:\n", json.dumps(record["prompt"])):
        prompt.write_text(text)
        result = aleator("replay", str(header), "--prompt-file", str(prompt))
        assert result.code == 0
        assert f"hash {record['made']['text_hash']}" in result.err
    prompt.write_text("JULIET:")
    result = aleator("replay", str(header), "--prompt-file", str(prompt))
    assert (result.code, "the prompt is another one" in result.err) == (2, True)


def test_another_model_is_refused(aleator: Command, file: Path) -> None:
    record = {**json.loads(file.read_text().splitlines()[0]), "model": "0" * 32}
    file.write_text(json.dumps(record))
    result = aleator("replay", str(file))
    assert (result.code, "--any-model" in result.err) == (2, True)
    assert aleator("replay", str(file), "--any-model").code == 0


def test_what_is_no_record_is_refused(aleator: Command, tmp_path: Path) -> None:
    path = tmp_path / "none"
    assert aleator("replay", str(path)).code == 3
    for text in ("", "x", "{}", "[1]"):
        path.write_text(text)
        assert aleator("replay", str(path)).code == 3
    assert aleator("replay").code == 2


def test_verify(aleator: Command, file: Path) -> None:
    result = aleator("replay", "--verify", str(file))
    assert result.code == 0
    assert result.out.splitlines()[0] == "text 1 of 2 is verified: 8 tokens, seed 7"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["made"]["tokens"][5] += 1
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    result = aleator("replay", "--verify", str(file))
    assert result.code == 1
    assert "text 2 of 2 is not what its record draws:\n  token 5: " in result.out
    lines[1]["seed"] += 1
    file.write_text(json.dumps(lines[1]))
    assert aleator("replay", "--verify", str(file)).code == 1


def test_what_else_a_record_says_wrongly_is_told(aleator: Command, file: Path) -> None:
    record = json.loads(file.read_text().splitlines()[0])
    record["made"]["logprobs"].pop()
    file.write_text(json.dumps(record))
    result = aleator("replay", "--verify", str(file))
    assert result.code == 1
    assert result.out.splitlines()[1:] == ["  7 log-probabilities for 8 tokens"]


def test_after_many_wrong_tokens_nothing_more_is_looked_at(
    aleator: Command, tmp_path: Path
) -> None:
    file = tmp_path / "text.json"
    words = ("-t", "1", "-p", "ROMEO:", "-n", "20", "--seed", "7", "--replay", str(file))
    assert aleator("generate", *words).code == 0
    record = json.loads(file.read_text())
    record["made"]["tokens"] = [(token + 1) % 2048 for token in record["made"]["tokens"]]
    file.write_text(json.dumps(record))
    result = aleator("replay", "--verify", str(file))
    assert result.code == 1
    assert result.out.count("\n  token ") == MOST_WRONG
    assert f"and so on: after {MOST_WRONG} wrong tokens" in result.out


def test_empty_lines_between_records_are_passed_over(aleator: Command, file: Path) -> None:
    file.write_text("\n" + file.read_text().replace("\n", "\n\n \n"))
    assert aleator("replay", str(file)).out.count("is the same") == 2


def test_a_prompt_may_end_with_a_line_break_of_its_own(aleator: Command, tmp_path: Path) -> None:
    prompt, path = tmp_path / "prompt", tmp_path / "text.json"
    prompt.write_text("ROMEO:\n")
    words = ("generate", "-t", "1", "-p", "ROMEO:\\n", "-n", "4", "--seed", "7")
    assert aleator(*words, "--replay", str(path)).code == 0
    record = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in record.items() if k not in ("prompt", "made")}))
    result = aleator("replay", str(path), "--prompt-file", str(prompt))
    assert result.code == 0
    assert f"hash {record['made']['text_hash']}" in result.err


def test_a_record_that_cannot_be_written_is_refused_before_the_text(
    aleator: Command, tmp_path: Path
) -> None:
    for path, why in (
        (tmp_path / "no" / "x.json", "there is no directory"),
        (tmp_path, "it is a directory"),
    ):
        result = aleator("generate", "-p", "To be", "-n", "5", "--replay", str(path))
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"aleator: error: --replay={path}: {why}")
