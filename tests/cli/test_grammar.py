"""Grammars on the command line."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from aleator.cli import main

SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, '
    '"required": ["name", "age"], "additionalProperties": false}'
)


def test_json_is_valid_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("1", "2"):
        assert (
            main(["generate", "-p", "ROMEO:", "--json-schema", SCHEMA, "--seed", seed, "-c", "90"])
            == 0
        )
        value = json.loads(capsys.readouterr().out)
        assert set(value) == {"name", "age"}


def test_a_text_cut_off_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "-p", "ROMEO:", "-j", SCHEMA, "--seed", "1"]
    assert main([*words, "-n", "4"]) == 4
    assert "cut off before it was all that the grammar asks for" in capsys.readouterr().err
    assert main([*words, "-n", "22", "--no-complete-grammar"]) == 4
    assert "--no-complete-grammar" in capsys.readouterr().err
    assert main([*words, "-n", "22"]) == 0
    json.loads(capsys.readouterr().out)
    assert main([*words, "-n", "22", "--json", "--no-jump-forward"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["completions"][0]["complete"] is True
    assert made["params"]["json_schema"] == "json_schema"


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    grammar, schema = tmp_path / "a.gbnf", tmp_path / "a.json"
    grammar.write_text('root ::= "yes" | "no"\n')
    schema.write_text('{"enum": ["yes", "no"]}')
    run = ["generate", "-p", "x", "--seed", "1"]
    assert main([*run, "--grammar-file", str(grammar)]) == 0
    assert capsys.readouterr().out in ("yes", "no")
    assert main([*run, "-jf", str(schema)]) == 0
    assert json.loads(capsys.readouterr().out) in ("yes", "no")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(grammar.read_bytes())))
    assert main([*run, "--grammar-file", "-"]) == 0
    assert capsys.readouterr().out in ("yes", "no")
    schema.write_text('{"enum": [}')
    assert main([*run, "--json-schema-file", str(schema)]) == 2
    assert f"{schema}: the JSON schema is not JSON: line 1, column 11" in capsys.readouterr().err
    assert main([*run, "--grammar-file", str(tmp_path / "none")]) == 3


def test_a_wrong_grammar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "x", "--grammar", 'root ::= "yes" | foo']) == 2
    err = capsys.readouterr().err
    assert "line 1, column 18" in err
    assert 'root ::= "yes" | foo\n' in err
    assert main(["generate", "-p", "x", "--regex", "a(b"]) == 2
    assert "line 1, column 2: unclosed group" in capsys.readouterr().err
    assert main(["generate", "-p", "x", "--regex", "a", "-j", "{}"]) == 2
    assert "--json-schema and --regex are both given" in capsys.readouterr().err


def test_regex_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["generate", "-p", "x", "--regex", "[0-9]{3}-[a-z]+!", "-n", "9", "--seed", "2"]) == 0
    )
    assert re.fullmatch("[0-9]{3}-[a-z]+!", capsys.readouterr().out)
    assert main(["explain", "-p", "x", "--regex", "[0-9]", "--seed", "2"]) == 0
    assert re.search(r"^regex +10 +2,038", capsys.readouterr().out, re.MULTILINE)


def test_each_answer_of_a_chat_obeys(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    for numerics in ("portable", "llama.cpp"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\nAnd?\n/regen\n")))
        words = ["chat", "--grammar", 'root ::= "Ay, " [a-z]{1,9} "."', "--seed", "1"]
        assert main([*words, "--numerics", numerics]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3
        assert all(re.fullmatch("Ay, [a-z]{1,9}[.]", line) for line in lines)
