from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from aleator.cli import main


@dataclass
class Result:
    code: int
    out: str
    err: str


Command = Callable[..., Result]


class Input(io.TextIOWrapper):
    """Standard input that holds given bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def aleator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in this process, on one thread."""

    def run(*words: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr("sys.stdin", Input(stdin))
        code = main(words)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
