"""Several models in one server: three files with the bundled model's vocabulary, and two that are no models."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.cli.serve import OF_ONE_MODEL
from aleator.models.config import WindowConfig
from aleator.models.conversion.quantise import Quantisation
from aleator.models.hub.bundled import bundled_model
from aleator.models.sizes import cache_of_layers
from aleator.models.weights import open_weights
from aleator.server.entry import Entry, entry_of
from aleator.server.options import ServerOptions
from aleator.server.pool import Pool
from aleator.server.router import create_router
from aleator.server.run import Server, bound
from aleator.server.telemetry import Metrics
from tests.server.live import PATIENCE, Live, Process, request_of, rest

NAMES = ("plain", "small", "tiny")
BODY: dict[str, Any] = {"prompt": "ROMEO:\nWhat", "max_tokens": 24, "seed": 7, "temperature": 1.0}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as it is and quantised twice; a file that is cut short, and one that is text."""
    made = tmp_path_factory.mktemp("models")
    shutil.copy(bundled_model(), made / "plain.gguf")
    for name, kind in (("small", "Q4_0"), ("tiny", "Q2_K")):
        Quantisation(bundled_model(), kind, None).write(made / f"{name}.gguf", 1)
    (made / "cut.gguf").write_bytes(bundled_model().read_bytes()[:4096])
    (made / "text.gguf").write_text("no model")
    (made / "notes.txt").write_text("none either")
    return made


@pytest.fixture(scope="session")
def alone(folder: Path) -> dict[str, str]:
    """The text of each model alone."""
    made = {}
    for name in NAMES:
        model = aleator.load(folder / f"{name}.gguf", n_threads=1)
        text = model.generate(BODY["prompt"], max_tokens=24, seed=7, temperature=1.0).text
        made[name] = text
    assert len({*made.values()}) == 3
    return made


def listed(path: Path, name: str = "", **given: Any) -> Callable[..., Entry]:
    own = {each.name: given.pop(each.name) for each in OF_ONE_MODEL if each.name in given}
    return partial(
        entry_of,
        name or path.stem,
        str(path),
        model={"n_threads": 1, "n_ctx": 256, **given.pop("model", {})},
        engine={"n_seq_max": 2},
        defaults={},
        options=ServerOptions(**own),
        **given,
    )


class LiveModels(Live):
    """A server of several models in this process."""

    pool: Pool

    def text(self, name: str, **more: Any) -> str:
        status, _, data = self.post("/v1/completions", {**BODY, "model": name, **more})
        assert status == 200, data
        made = json.loads(data)
        assert made["model"] == name
        text: str = made["choices"][0]["text"]
        return text

    def got(self, path: str, status: int = 200) -> Any:
        found, _, data = self.ask("GET", path)
        assert found == status, data
        return json.loads(data)

    def states(self) -> dict[str, Any]:
        return {each["id"]: each["status"] for each in self.got("/v1/models")["data"]}


@contextmanager
def serving(models: Sequence[Callable[..., Entry]], **options: Any) -> Iterator[LiveModels]:
    chosen = ServerOptions(**{"port": 0, "log_requests": False, **options})
    metrics, listening = Metrics(""), bound(chosen)
    pool = Pool([each(ended=metrics.ended) for each in models], chosen)
    listens = threading.Event()

    def begin() -> None:
        pool.begin()
        listens.set()

    server = Server(create_router(pool, metrics), chosen, begin, pool.cut)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    assert listens.wait(PATIENCE)
    live = LiveModels(listening.getsockname()[1])
    live.pool = pool
    try:
        yield live
    finally:
        server.end()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        pool.close()
        listening.close()


@pytest.fixture(scope="module")
def three(folder: Path) -> Iterator[LiveModels]:
    """All three, two at a time, and one that is cut short."""
    models = [listed(folder / f"{name}.gguf", aliases=(f"{name}-alias",)) for name in NAMES]
    with serving([*models, listed(folder / "cut.gguf")], models_max=2) as live:
        yield live


@pytest.mark.parametrize("most", [1, 2])
def test_texts_are_those_of_each_model_alone(
    folder: Path, alone: dict[str, str], most: int
) -> None:
    models = [listed(folder / f"{name}.gguf") for name in NAMES]
    with serving(models, models_max=most) as live, ThreadPoolExecutor(9) as pool:
        wanted = [name for _ in range(4) for name in NAMES]
        assert [*pool.map(live.text, wanted)] == [alone[name] for name in wanted]
        loaded = [each["value"] for each in live.states().values()]
        assert loaded.count("loaded") == most


def test_a_stream_holds_its_model(folder: Path, alone: dict[str, str]) -> None:
    models = [listed(folder / f"{name}.gguf") for name in NAMES[:2]]
    long = {**BODY, "model": "plain", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with serving(models, models_max=1) as live:
        with live.send(request_of(long)) as connection:
            came = connection.recv(2**16)
            while b"data: " not in came:
                came += connection.recv(2**16)
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(live.text, "small")
                came += rest(connection)
                assert other.result() == alone["small"]
        assert b"data: [DONE]" in came
        assert came.count(b'"text":') > 150


def test_requests_find_the_model_that_they_name(three: LiveModels, alone: dict[str, str]) -> None:
    assert three.text("small") == alone["small"]
    status, _, data = three.post("/v1/completions", {**BODY, "model": "tiny-alias"})
    assert json.loads(data)["choices"][0]["text"] == alone["tiny"]
    status, _, data = three.post("/v1/completions", BODY)  # the first one's
    assert (status, json.loads(data)["model"]) == (200, "plain")
    assert json.loads(data)["choices"][0]["text"] == alone["plain"]
    status, _, data = three.post("/v1/completions?model=small", BODY)
    assert json.loads(data)["choices"][0]["text"] == alone["small"]
    status, _, data = three.post("/v1/completions?model=small", {**BODY, "model": "tiny"})
    assert (status, b"the address says model='small'" in data) == (400, True)
    status, _, data = three.post("/v1/completions?model=small&model=tiny", BODY)
    assert (status, b"the address names several: give one" in data) == (400, True)
    status, _, data = three.post("/v1/completions", {**BODY, "model": 3})
    assert (status, json.loads(data)["error"]["param"]) == (400, "model")


def test_every_dialect_reaches_the_model(three: LiveModels, alone: dict[str, str]) -> None:
    told = three.got("/props?model=small")
    assert (told["model_alias"], Path(told["model_path"]).name) == ("small", "small.gguf")
    assert len(three.got("/slots?model=tiny")) == 2
    sizes = {}
    for name in NAMES:
        for path, body in (
            ("/tokenize", {"content": "Romeo"}),
            ("/v1/embeddings", {"input": "Romeo"}),
            ("/embedding", {"content": "Romeo"}),
            ("/completion", {"prompt": "Romeo", "n_predict": 2}),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
            ),
            ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
            ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
            ("/api/embed", {"input": "Romeo"}),
            (
                "/api/generate",
                {"prompt": "x", "raw": True, "options": {"num_predict": 2}, "stream": False},
            ),
        ):
            status, headers, data = three.post(path, {**body, "model": name})
            assert status == 200, (path, data)
            if path == "/v1/embeddings":
                sizes[name] = json.loads(data)["data"][0]["embedding"]
            if path == "/completion":
                assert "x-aleator-replay" in headers
    assert len({str(each) for each in sizes.values()}) == 3
    status, _, data = three.post("/lora-adapters?model=small", [])
    assert (status, json.loads(data)) == (200, {"success": True})
    assert three.got("/tokenizer_info?model=tiny")["vocab_size"] > 0
    status, _, data = three.post(
        "/api/generate",
        {"model": "small:latest", "prompt": BODY["prompt"], "raw": True, "stream": False,
         "options": {"num_predict": 24, "seed": 7, "temperature": 1.0}},
    )  # fmt: skip
    assert status == 200, data
    assert three.ask("GET", "/")[0] == 200
    assert three.got("/api/playground/cells")


def test_unknown_models_are_404_in_the_form_of_each_dialect(three: LiveModels) -> None:
    def refused(path: str, **body: Any) -> Any:
        status, _, data = three.post(path, {"model": "gpt-4", **body})
        assert status == 404
        return json.loads(data)

    known = "this server has 'plain', 'plain-alias', 'small', 'small-alias', 'tiny', 'tiny-alias' and 'cut'"
    messages = [{"role": "user", "content": "x"}]
    told = refused("/v1/chat/completions", messages=messages)["error"]
    assert told["message"] == f"model='gpt-4': {known}"
    assert (told["param"], told["code"]) == ("model", "model_not_found")
    assert refused("/v1/messages", messages=messages, max_tokens=1)["type"] == "error"
    assert known in refused("/api/chat", messages=messages)["error"]
    assert refused("/completion", prompt="x")["error"]["code"] == 404
    assert refused("/models/load")["error"]["code"] == 404
    assert three.got("/props?model=..%2F..%2Fetc", 404)["error"]["code"] == 404
    assert three.got("/v1/models/gpt-4", 404)["error"]["code"] == "model_not_found"
    assert three.got("/nowhere?model=plain", 404)["error"]["message"].startswith("there is no")
    assert three.ask("GET", "/v1/completions")[0] == 405
    assert three.post("/v1/images/x", {"model": "plain"})[0] == 501
    status, _, data = three.post("/models", {"model": "plain"})
    assert (status, b"when the server is started: -m or --models" in data) == (501, True)


def test_a_file_that_is_no_model_fails_for_its_own_requests(
    three: LiveModels, alone: dict[str, str]
) -> None:
    loaded = [name for name, each in three.states().items() if each["value"] == "loaded"]
    status, _, data = three.post("/v1/completions", {**BODY, "model": "cut"})
    error = json.loads(data)["error"]
    assert (status, error["code"]) == (503, "model_not_loaded")
    assert error["message"].startswith("model 'cut' could not be loaded: ")
    state = three.states()["cut"]
    assert (state["value"], state["failed"]) == ("unloaded", True)
    assert state["reason"] in error["message"]
    assert [n for n, each in three.states().items() if each["value"] == "loaded"] == loaded
    status, _, data = three.post("/api/chat", {"model": "cut", "messages": []})
    assert (status, json.loads(data)["error"]) == (503, error["message"])
    assert three.text("plain") == alone["plain"]


def test_lists_tell_all_models(three: LiveModels) -> None:
    three.text("small")
    made = {each["id"]: each for each in three.got("/v1/models")["data"]}
    assert [*made] == [*NAMES, "cut"]
    assert made["small"]["meta"]["n_ctx"] == 256
    assert made["small"]["aliases"] == ["small", "small-alias"]
    assert three.got("/models")["data"] == three.got("/v1/models")["data"]
    assert three.got("/v1/models/small-alias")["id"] == "small"
    tags = {each["name"]: each for each in three.got("/api/tags")["models"]}
    assert [*tags] == [*NAMES, "cut"]
    assert tags["small"]["details"]["family"]
    assert tags["cut"]["size"] == 4096
    running = [each["name"] for each in three.got("/api/ps")["models"]]
    assert "small" in running
    assert "cut" not in running
    assert three.got("/health") == {"status": "ok"}


def test_metrics_are_of_all_and_of_one(three: LiveModels) -> None:
    three.text("small")
    page = three.ask("GET", "/metrics")[2].decode()
    assert 'aleator_generated_tokens_total{model="small"}' in page
    assert 'route="/v1/completions",status="200"' in page
    assert "llamacpp:" not in page
    own = three.ask("GET", "/metrics?model=small-alias")[2].decode()
    assert "llamacpp:tokens_predicted_total" in own
    assert re.search(r"^aleator_generated_tokens_total [1-9]", own, re.MULTILINE)
    assert three.got("/metrics?model=cut", 503)["error"]["code"] == "model_not_loaded"


def test_names_with_ollamas_tag_and_endpoints_behind_a_key(folder: Path) -> None:
    with serving([listed(folder / "plain.gguf", "plain:latest")], api_key=("k",)) as live:
        for path in ("/models/load", "/v1/completions", "/api/generate"):
            status, _, data = live.post(path, {"model": "plain:latest", "prompt": "x"})
            assert (status, b"API key" in data) == (401, True)
        assert live.ask("GET", "/v1/models")[0] == 401
        assert live.got("/health") == {"status": "ok"}
        key = {"authorization": "Bearer k"}
        body = {"prompt": "x", "raw": True, "stream": False, "options": {"num_predict": 1}}
        for name, wanted in (("plain:latest", 200), ("plain", 404)):
            assert live.post("/api/generate", {**body, "model": name}, key)[0] == wanted


def test_an_engine_that_fails_ends_its_own_requests(
    folder: Path, alone: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving([listed(folder / f"{name}.gguf") for name in NAMES[:2]]) as live:
        live.text("small")
        live.text("plain")
        loaded = live.pool.entries[0].loaded
        assert loaded is not None

        def broken(*args: Any, **named: Any) -> None:
            raise RuntimeError("broken")

        loop: Any = loaded.service.engine._loop
        monkeypatch.setattr(loop._core, "clear", broken)
        monkeypatch.setattr(loop._core, "step", broken)
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(live.text, "small")
            status, _, _ = live.post("/v1/completions", {**BODY, "model": "plain"})
            assert (status, other.result()) == (500, alone["small"])
        assert loaded.service.engine.closed
        assert live.text("plain") == alone["plain"]
        assert live.text("small") == alone["small"]


def test_adapters_are_found_by_their_names(folder: Path, tmp_path: Path) -> None:
    from tests.language_model.test_adapters import bundled_pairs
    from tests.models.adapters import write_adapter

    architecture = aleator.load(n_threads=1).weights.architecture.name
    file = write_adapter(tmp_path / "old.gguf", bundled_pairs(0), architecture=architecture)
    models = [
        listed(folder / "tiny.gguf"),
        listed(folder / "plain.gguf", model={"adapters": {"old": str(file)}}),
    ]
    with serving(models) as live:
        assert [*live.states()] == ["tiny", "plain", "old"]
        parents = [each["details"]["parent_model"] for each in live.got("/api/tags")["models"]]
        assert parents == ["", "", "plain"]
        assert live.text("old") != live.text("plain")
        status, _, told = live.post("/v1/completions?model=old", BODY)
        assert status == 400
        assert "model='old': the address names an adapter: name 'plain'" in told.decode()
        parents = [each["details"]["parent_model"] for each in live.got("/api/tags")["models"]]
        assert parents == ["", "", "plain"]
        entry = live.got("/v1/models/old")
        shown = entry["id"], entry["parent"], entry["status"]["value"]
        assert shown == ("old", "plain", "loaded")


def test_models_share_directories_but_not_what_is_there(
    folder: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    kept = {"cache_disk": 2**26, "cache_dir": str(tmp_path / "prompts")}
    (tmp_path / "slots").mkdir()
    own = ServerOptions(slot_save_path=str(tmp_path / "slots"))
    models = [
        partial(listed(folder / f"{name}.gguf", model=kept), options=own) for name in NAMES[:2]
    ]
    with serving(models, models_max=1) as live:
        wanted = [*NAMES[:2], *NAMES[:2]]
        assert [live.text(name) for name in wanted] == [alone[name] for name in wanted]
        slot = {"prompt": BODY["prompt"], "n_predict": 4, "id_slot": 0, "model": "plain"}
        assert live.post("/completion", slot)[0] == 200

        def act(action: str, model: str) -> tuple[int, bytes]:
            body = {"filename": "talk", "model": model}
            status, _, data = live.post(f"/slots/0?action={action}", body)
            return status, data

        assert act("save", "plain")[0] == 200
        status, data = act("restore", "small")
        assert (status, b"the slot cannot be restored: " in data) == (400, True)
        assert act("restore", "plain")[0] == 200
        assert act("erase", "nobody")[0] == 404


def test_the_memory_of_a_model_counts_its_draft_and_the_states_and_windows_of_all_sequences(
    folder: Path, tmp_path: Path
) -> None:
    plain, mamba = folder / "plain.gguf", write_model(tmp_path / "mamba.gguf", SPECS["mamba"])
    sizes = cache_of_layers(open_weights(mamba).config, 512, "f16", "f16", 2)
    for path, back in ((plain, 0), (mamba, 8 * 2 * sum(states for _, _, states in sizes))):
        fixed, alone, drafted = (
            listed(path, model=given)(ended=print).measure()
            for given in ({"n_rollback": 0}, {}, {"model_draft": str(path)})
        )
        assert alone == fixed + back
        assert drafted == 2 * alone
    config = open_weights(plain).config
    windows = WindowConfig(64, (True,) * config.n_layers, config.rope)
    one, eight = (
        cache_of_layers(replace(config, window=windows), 4096, "f16", "f16", n)[0][0]
        for n in (1, 8)
    )
    assert 768 * eight == 1024 * one  # cells, of 64 for each sequence and a micro-batch


def test_a_list_is_made_anew(folder: Path, alone: dict[str, str], tmp_path: Path) -> None:
    def text_of(live: Live, name: str) -> str:
        status, _, data = live.post("/v1/completions", {**BODY, "model": name})
        return str(json.loads(data)["choices"][0]["text"] if status == 200 else status)

    def listed_by(live: Live, path: str) -> dict[str, str]:
        status, _, data = live.ask("GET", path)
        assert status == 200, data
        return {each["id"]: each["status"]["value"] for each in json.loads(data)["data"]}

    shutil.copy(folder / "plain.gguf", tmp_path / "one.gguf")
    shutil.copy(folder / "small.gguf", tmp_path / "two.gguf")
    with Process("--models", str(tmp_path), "-c", "256", "-np", "2") as server:
        live = server.live
        assert text_of(live, "one") == alone["plain"]
        assert text_of(live, "two") == alone["small"]
        shutil.copy(folder / "tiny.gguf", tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "two.gguf")
        shutil.copy(folder / "tiny.gguf", tmp_path / "three.gguf")
        loaded = {"one": "loaded", "two": "loaded"}
        assert listed_by(live, "/v1/models") == loaded
        assert listed_by(live, "/models?reload=1") == {
            "one": "loaded", "three": "unloaded", "two": "unloaded"
        }  # fmt: skip
        assert [text_of(live, name) for name in ("two", "three")] == [alone["tiny"]] * 2
        for path in tmp_path.iterdir():
            path.unlink()
        status, _, data = live.ask("GET", "/v1/models?reload=1")
        assert (status, b"there is no model" in data) == (400, True)
        assert text_of(live, "one") == alone["plain"]


def test_a_directory_is_served(folder: Path, alone: dict[str, str]) -> None:
    with Process("--models", str(folder), "-c", "256", "-np", "2", "-m", "tiny") as server:
        assert "models: cut, plain, small, text, tiny\n" in server.err
        status, _, data = server.live.post("/v1/completions", BODY)
        made = json.loads(data)
        assert (status, made["model"]) == (200, "tiny")
        assert made["choices"][0]["text"] == alone["tiny"]
        status, _, data = server.live.post("/v1/completions", {**BODY, "model": "small.gguf"})
        assert json.loads(data)["choices"][0]["text"] == alone["small"]
        server.signal(signal.SIGINT)
        assert server.end() == 0
        assert "model loaded" in server.err
        assert "Traceback" not in server.err
