from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.core.errors import ParameterError
from aleator.core.options import Options, declarations, option
from aleator.samplers.dry import DRY_SEQUENCE_BREAKERS
from aleator.samplers.logit_bias import LOGIT_BIAS


@dataclass(frozen=True, kw_only=True)
class Some(Options):
    size: int = option("how large", 3, low=1, flags=("-n", "--size"))
    loud: bool = option("with noise", False, flags=("--loud",))
    fast: bool = option("quick", True, off_flags=("--no-fast",), off_help="slowly")
    fused: bool = option("in one", True, flags=("-fa", "--fused"), valued=True)
    kind: str = option("which", "a", choices=("a", "b"), flags=("--kind",))
    words: tuple[str, ...] = option("texts", (), flags=("-w", "--word"), escapes=True)
    hidden: int = option("for Python", 0)


PARAMETERS = (*declarations(Some).values(), LOGIT_BIAS, DRY_SEQUENCE_BREAKERS)


@pytest.fixture
def parser() -> Parser:
    made = Parser("test", "test things", "")
    add_declared(made.group("things"), PARAMETERS)
    return made


def values(parser: Parser, *words: str, no_escape: bool = False) -> dict[str, Any]:
    arguments = parser.parse(words)
    assert arguments is not None
    return given(arguments, PARAMETERS, no_escape)


def test_only_what_is_given_is_passed_on(parser: Parser) -> None:
    assert values(parser) == {}
    assert values(parser, "-n5", "--kind", "b") == {"size": 5, "kind": "b"}
    assert values(parser, "--loud", "--no-fast") == {"loud": True, "fast": False}
    assert values(parser, "-fa", "off") == {"fused": False}
    assert values(parser, "-w", r"a\n", "--word", "b") == {"words": ["a\n", "b"]}
    assert values(parser, "-l", "5+1", "-l", "6-inf") == {
        "logit_bias": ((5, 1.0), (6, float("-inf")))
    }
    breakers = ("--dry-sequence-breaker", "x", "--dry-sequence-breaker", "none")
    assert values(parser, *breakers) == {"dry_sequence_breakers": ()}
    assert values(parser, *breakers, "--dry-sequence-breaker", r"\n") == {
        "dry_sequence_breakers": ("\n",)
    }
    assert values(parser, "--dry-sequence-breaker", r"\n", no_escape=True) == {
        "dry_sequence_breakers": (r"\n",)
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-n", "x"), "-n: size='x' is not a whole number"),
        (("-n", "0"), r"-n: size=0 is out of range: give 1 or more \(default: 3\)"),
        (("-fa", "maybe"), "-fa: fused='maybe' must be on or off"),
        (("--kind", "c"), "--kind: kind='c' must be one of a, b"),
        (("--hidden", "5"), "unknown option --hidden"),
    ],
)
def test_errors_name_the_flag(parser: Parser, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        values(parser, *words)


def test_help_says_range_and_default(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    parser.parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "-n, --size N how large (1 or more; default: 3)" in text
    assert "--kind NAME which (a or b; default: a)" in text
    assert "-fa, --fused on|off in one (default: on)" in text
    assert "--no-fast slowly" in text
    assert "hidden" not in text
