"""Loading and unloading models while a server runs."""

from __future__ import annotations

import gc
import http.client
import json
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aleator
from tests.server.live import PATIENCE, Process, request_of, rest, until
from tests.server.test_models import BODY, NAMES, listed, serving
from tests.server.test_models import alone as alone
from tests.server.test_models import folder as folder


def test_ollamas_keep_alive_unloads_its_model_alone(folder: Path) -> None:
    body = {"model": "small:latest", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    with serving([listed(folder / f"{name}.gguf") for name in ("plain", "small")]) as live:
        live.text("plain")
        entry = live.pool.by_name["small"]
        for given, kept in (("5m", 300.0), (None, 300.0), (-1, None)):
            status, _, data = live.post("/api/generate", {**body, "keep_alive": given})
            assert (status, entry.keeps) == (200, kept), data
        status, _, data = live.post("/api/generate", {**body, "keep_alive": "5"})
        assert (status, b"keep_alive" in data) == (400, True)
        for wrong in ({"options": {"top_p": "x"}}, {"format": "xml"}):
            status, _, data = live.post("/api/generate", {**body, **wrong, "keep_alive": 0})
            assert (status, entry.keeps) == (400, None), data
        status, _, data = live.post("/v1/completions", {**BODY, "model": "small", "keep_alive": 0})
        assert (status, b"keep_alive" in data, entry.keeps) == (400, True, None)
        assert live.states()["small"] == {"value": "loaded"}
        assert live.post("/api/generate", {**body, "stream": True, "keep_alive": 0})[0] == 200
        until(lambda: live.states()["small"] == {"value": "unloaded"})
        assert live.states()["plain"] == {"value": "loaded"}


def test_loading_and_unloading_by_request(folder: Path, alone: dict[str, str]) -> None:
    with serving([listed(folder / f"{name}.gguf") for name in NAMES]) as live:

        def asked(action: str, name: str) -> tuple[int, Any]:
            status, _, data = live.post(f"/models/{action}", {"model": name})
            return status, json.loads(data)

        assert live.got("/slots?model=small&autoload=false", 400)["error"]["code"] == 400
        assert live.states()["small"] == {"value": "unloaded"}
        assert asked("load", "small") == (200, {"success": True})
        until(lambda: live.states()["small"] == {"value": "loaded"})
        assert asked("load", "small")[1]["error"]["message"] == "model 'small' is loaded already"
        assert asked("unload", "small") == (200, {"success": True})
        assert live.states()["small"] == {"value": "unloaded"}
        assert asked("unload", "small")[0] == 400
        assert live.text("small") == alone["small"]


def test_lists_answer_while_a_model_is_loaded_and_what_is_kept_is_loaded_first(
    folder: Path, alone: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(path: Path, *, progress: Any, **options: Any) -> aleator.LanguageModel:
        progress(1, 4)
        go_on.wait(PATIENCE)
        return aleator.load(path, progress=progress, **options)

    monkeypatch.setattr("aleator.server.entry.load", slow)
    models = [listed(folder / "plain.gguf"), listed(folder / "tiny.gguf", keep_loaded=True)]
    with serving(models) as live, ThreadPoolExecutor(2) as pool:
        until(lambda: live.states()["tiny"] == {"value": "loading", "progress": 0.25})
        tiny, plain = pool.submit(live.text, "tiny"), pool.submit(live.text, "plain")
        until(lambda: live.states()["plain"] == {"value": "loading", "progress": 0.0})
        assert live.got("/health") == {"status": "ok"}
        go_on.set()
        assert (tiny.result(), plain.result()) == (alone["tiny"], alone["plain"])


def test_a_model_whose_file_was_written_to_is_loaded_anew(
    folder: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    own = Path(shutil.copy(folder / "small.gguf", tmp_path / "own.gguf"))
    whole, other = own.read_bytes(), (folder / "tiny.gguf").read_bytes()
    with serving([listed(own), listed(folder / "plain.gguf")]) as live:
        assert live.text("own") == alone["small"]
        own.write_bytes(other)
        assert live.text("own") == alone["tiny"]
        with own.open("r+b") as file:
            file.truncate(5000)
        status, _, data = live.post("/v1/completions", {**BODY, "model": "own"})
        assert (status, b"could not be loaded" in data) == (503, True)
        assert live.states()["own"]["value"] == "unloaded"  # it takes no memory
        assert live.text("plain") == alone["plain"]
        own.write_bytes(whole)
        assert live.post("/models/load", {"model": "own"})[0] == 200
        assert live.text("own") == alone["small"]
        loaded = live.pool.by_name["own"].loaded
        (tmp_path / "new.gguf").write_bytes(other)
        (tmp_path / "new.gguf").replace(own)  # what is mapped is the old file
        assert live.text("own") == alone["small"]
        own.unlink()
        assert live.text("own") == alone["small"]
        assert "own" in [each["name"] for each in live.got("/api/tags")["models"]]
        assert live.post("/api/show", {"model": "own"})[0] == 200
        assert live.pool.by_name["own"].loaded is loaded


def test_an_unloaded_model_leaves_the_memory_though_a_connection_stays_open(folder: Path) -> None:
    with serving([listed(folder / f"{name}.gguf") for name in NAMES[:2]], models_max=1) as live:
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
        body = json.dumps({**BODY, "model": "plain"})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        connection.getresponse().read()
        loaded = live.pool.entries[0].loaded
        assert loaded is not None
        model = weakref.ref(loaded.service.model)
        del loaded
        live.text("small")
        gc.collect()
        assert model() is None
        connection.close()


SLOW = """
import time
import aleator.server.entry as entry
def load(path, *, progress, **options):
    for step in range(10**6):
        progress(step, 10**6)
        time.sleep(0.01)
entry.load = load
"""


def test_a_signal_ends_a_loading(folder: Path) -> None:
    words = ("--models", str(folder), "--drain-timeout", "0.2")
    with Process(*words, prelude=SLOW) as server:
        with server.live.send(request_of({**BODY, "model": "tiny"})) as connection:
            until(lambda: b'"loading"' in server.live.ask("GET", "/v1/models")[2])
            server.signal()
            came = rest(connection)
        assert server.end() == 0
        assert came.startswith(b"HTTP/1.1 503")
        assert b"shutting down" in came
