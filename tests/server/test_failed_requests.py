"""What is left of failed requests is free at once, as after one that is answered."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.language_model import LanguageModel
from aleator.models.hub.bundled import bundled_model
from tests.server.live import Live, in_thread, request_of, rest, until

COMPLETIONS = "/v1/completions"
TIMES = 4


@pytest.fixture(scope="module")
def live(model: LanguageModel) -> Iterator[Live]:
    with in_thread(model, engine={"n_seq_max": 2, "n_ctx": 512}, grammar_timeout=2) as made:
        yield made


def left(live: Live, work: Callable[[], object]) -> int:
    """What only a collection frees after some work."""
    engine = live.engine
    assert engine is not None
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMES):
            work()
        until(lambda: not engine.stats.running and not engine.stats.waiting)
        assert live.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})[0] == 200
        time.sleep(0.1)  # until the connections are closed
        return gc.collect()
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def usual(live: Live) -> int:
    """What answered requests leave: asyncio's connections, which refer to themselves; and one such more.

    A connection that has just ended may be counted with the next requests.
    """
    body = {"prompt": "x", "max_tokens": 2}
    return 10 + max(left(live, lambda: live.post(COMPLETIONS, body)) for _ in range(2))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (COMPLETIONS, {"prompt": "x", "temprature": 1}, 400),
        (COMPLETIONS, {"prompt": "x", "grammar": "root ::= ("}, 400),
        (COMPLETIONS, {"prompt": "x", "regex": "("}, 400),
        (COMPLETIONS, {"prompt": "x", "json_schema": {"type": "no such"}}, 400),
        (COMPLETIONS, {"prompt": "x", "logit_bias": [[5, "nan"]]}, 400),
        (COMPLETIONS, {"prompt": "x" * 20_000}, 400),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 200, "deadline": 0.001}, 200),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 2, "n": 2, "stream": True}, 200),
        ("/v1/chat/completions", {"messages": [{"role": "x"}]}, 400),
        ("/v1/responses", {"input": 5}, 400),
        ("/v1/messages", {"model": "x"}, 400),
        ("/api/chat", {"model": "no such"}, 404),
        ("/infill", {"input_prefix": "x", "input_suffix": "y"}, 501),
        ("/nowhere", {}, 404),
    ],
)  # fmt: skip
def test_refused_requests(live: Live, usual: int, path: str, body: Any, status: int) -> None:
    assert live.post(path, body)[0] == status
    assert left(live, lambda: live.post(path, body)) <= usual


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_away(live: Live, usual: int, stream: bool) -> None:
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": stream}

    def goes() -> None:
        with live.send(request_of(body)) as connection:
            connection.settimeout(0.2)
            with suppress(TimeoutError):
                connection.recv(300)

    goes()
    assert left(live, goes) <= usual


@pytest.mark.parametrize("stream", [False, True])
def test_errors_in_the_middle(
    live: Live, usual: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("not today")

    def fail() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("aleator.generate.completion.Completion.feed", fails)
            answer = live.post(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "stream": stream})
        assert b"internal error" in answer[2]

    fail()
    assert left(live, fail) <= usual


def test_a_model_whose_file_is_cut_short_while_it_writes(tmp_path: Path) -> None:
    file = Path(shutil.copy(bundled_model(), tmp_path / "own.gguf"))
    endless = {"prompt": "x", "max_tokens": 10**4, "ignore_eos": True, "context_shift": True}
    with in_thread(aleator.load(file), engine={"n_seq_max": 2}, any_model=True) as live:
        with live.send(request_of({**endless, "stream": True})) as stream:
            stream.recv(100)
            os.truncate(file, 5000)
            assert b"since the model was loaded" in rest(stream)
        for path, body in ((COMPLETIONS, {"prompt": "y"}), ("/v1/embeddings", {"input": "y"})):
            status, _, data = live.post(path, body)
            assert (status, b"load it again" in data) == (500, True)
        assert live.ask("GET", "/v1/models")[0] == 200
