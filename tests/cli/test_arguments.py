from __future__ import annotations

import pytest

from aleator.cli.arguments import Parser, did_you_mean, integer
from aleator.core.errors import ParameterError


@pytest.fixture
def parser() -> Parser:
    parser = Parser("test", "test things", "examples:\n  none")
    group = parser.group("things")
    group.option("-n, --number", type=integer(-1, 99))
    group.option("-ub, --ubatch-size", type=integer(1))
    group.option("-p, --prompt")
    group.option("--top-k")
    group.option("--stop", action="append", default=[])
    group.option("--flag", action="store_true")
    parser.positional("path", help="a path")
    return parser


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["-n", "5"], "number", 5),
        (["-n5"], "number", 5),
        (["-n=5"], "number", 5),
        (["--number", "-1"], "number", -1),
        (["--number=-1"], "number", -1),
        (["-ub", "7"], "ubatch_size", 7),
        (["-ub=7"], "ubatch_size", 7),
        (["-p", "- a list"], "prompt", "- a list"),
        (["-p", "--flag"], "prompt", "--flag"),
        (["-p", ""], "prompt", ""),
        (["-p", "a=b"], "prompt", "a=b"),
        (["--prompt=a=b"], "prompt", "a=b"),
        (["--top_k", "3"], "top_k", "3"),
        (["--top_k=-1e-5"], "top_k", "-1e-5"),
        (["--stop", "a", "--stop", "-b"], "stop", ["a", "-b"]),
        (["--flag"], "flag", True),
        (["file"], "path", "file"),
        (["-"], "path", "-"),
        (["--flag", "--", "-p"], "path", "-p"),
        ([], "path", None),
    ],
)
def test_values(parser: Parser, words: list[str], name: str, value: object) -> None:
    assert getattr(parser.parse(words), name) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nunber", "5"], "unknown option --nunber; did you mean --number"),
        (["--numb", "5"], "unknown option --numb"),
        (["-u", "5"], "unknown option -u"),
        (["-x"], "unknown option -x"),
        (["-n"], "-n needs a value"),
        (["-n", "five"], "'five' is not a whole number"),
        (["-n", "100"], "100 is out of range: -1 to 99"),
        (["-ub", "0"], "0 is out of range: 1 or more"),
        (["a", "b"], "unexpected 'b'"),
        (["--flag=1"], "ignored explicit argument '1'"),
    ],
)
def test_errors(parser: Parser, words: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parser.parse(words)


def test_help_is_printed(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    assert parser.parse(["--flag", "--help"]) is None
    printed = capsys.readouterr().out
    assert "usage: aleator test [options] [PATH]" in printed
    assert "Test things." in printed
    assert "examples:\n  none" in printed


def test_did_you_mean() -> None:
    assert did_you_mean("tempp", ["temp", "top"]) == "; did you mean temp?"
    assert did_you_mean("zzz", ["temp"]) == ""
