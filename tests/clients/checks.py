"""What the scripts of this folder share: each runs in an environment of its own, with a client package in it.

They get a file with what the server is and what it must answer, as ``aleator`` answers without a server.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Server:
    """The server that is asked.

    Attributes:
        url: Where it listens, without a path.
        model: An alias of its model.
        tools: Whether its template shows tools.
        thinks: Whether its template lets it reason.
        messages: A chat.
        prompt: A prompt.
        schema: Of arguments of tools and of JSON.
        seed: For all requests.
        max_tokens: For all requests.
        chat: What it answers to the chat.
        completion: What it makes of the prompt.
        embedding: The vector of the prompt.
        questions: With choices, and which is right.
        scores_of_ids: Log-probabilities of each choice and whether it is greedy, of token ids without BOS.
        scores_of_texts: As ``model.score`` has them for texts.
        folder: For files.
    """

    url: str
    model: str
    tools: bool
    thinks: bool
    messages: list[dict[str, str]]
    prompt: str
    schema: dict[str, Any]
    seed: int
    max_tokens: int
    chat: str
    completion: str
    embedding: list[float]
    questions: list[dict[str, Any]]
    scores_of_ids: list[list[tuple[list[float], bool]]]
    scores_of_texts: list[list[tuple[list[float], bool]]]
    folder: str


Check = Callable[[Server], object]


def equal(found: object, wanted: object) -> None:
    """Fail unless two values are equal."""
    if found != wanted:
        raise AssertionError(f"{found!r:.400} is not {wanted!r:.400}")


def raises(kind: type[Exception], said: str, ask: Callable[[], object]) -> None:
    """Fail unless asking raises an error that says something."""
    try:
        ask()
    except kind as error:
        if said not in str(error):
            raise AssertionError(f"{error!r:.400} does not say {said!r}") from error
        return
    raise AssertionError(f"nothing was raised, not {kind.__name__}")


def main(package: str, *checks: Check) -> None:
    """Make all checks, print a line for each, and exit with 1 if one failed."""
    server = Server(**json.loads(Path(sys.argv[1]).read_text()))
    failed = 0
    print(f"{package} {version(package)}", flush=True)
    for check in checks:
        began = time.monotonic()
        try:
            said = check(server)
        except Exception:
            failed += 1
            traceback.print_exc()
            said = "FAILED"
        name = check.__name__.replace("_", " ")
        print(f"  {name}: {said or 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
    sys.exit(1 if failed else 0)
