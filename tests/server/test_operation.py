from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import aleator
from aleator import Engine, LanguageModel
from aleator.core.errors import CacheError, DeviceOutOfMemory, ParameterError
from aleator.engine.replay import Record, differences, make_again
from aleator.engine.stats import EndedRequest
from aleator.generate.tiered_prefixes import TieredPrefixes
from aleator.server.app import create_app, create_guarded
from aleator.server.errors import api_error
from aleator.server.options import ServerOptions
from aleator.server.service import Service
from aleator.server.telemetry import LOGGER, Lines, Metrics, configure, described, event, failure

SECRET = "First Citizen:\nMy secret is the colour of the sea.\n" * 4


class Asking:
    """Asks a guarded application, in this process."""

    def __init__(self, model: LanguageModel, **options: Any) -> None:
        self.metrics = Metrics("f")
        self.engine = Engine(model, n_seq_max=4, on_end=self.metrics.ended)
        self.service = Service(model, self.engine, ServerOptions(**options))
        self.app = create_guarded(self.service, self.metrics).app

    def __call__(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.request(method, path, **given)

        return asyncio.run(ask())

    def post(self, body: Any, key: str = "", path: str = "/v1/completions") -> httpx.Response:
        return self("POST", path, json=body, headers={"authorization": f"Bearer {key}"})

    def cached(self, body: dict[str, Any], key: str = "") -> int:
        response = self.post({"prompt": SECRET, "max_tokens": 2, **body}, key)
        assert response.status_code == 200, response.text
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def asking(model: LanguageModel) -> Iterator[Asking]:
    made = Asking(model, cors_origin=["http://page"], api_key=["one", "two"])
    with made.engine:
        yield made


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What is logged, as JSON."""
    stream, logger = io.StringIO(), logging.getLogger(LOGGER)
    handler, before = logging.StreamHandler(stream), (logger.handlers, logger.level)
    handler.setFormatter(Lines("json"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.handlers = before[0]
    logger.setLevel(before[1])


def test_what_one_key_asked_takes_others_no_less_time(asking: Asking) -> None:
    assert asking.cached({}, "one") == 0
    assert asking.cached({}, "one") > 40
    assert asking.cached({}, "two") == 0
    assert asking.cached({"cache_salt": "a"}, "one") == 0
    assert asking.cached({"cache_salt": "a"}, "one") > 40
    assert asking.cached({"cache_salt": "b"}, "one") == 0
    assert asking.cached({"cache_salt": "a"}, "two") == 0


def test_keys_are_needed(asking: Asking) -> None:
    for key in ("", "three", "on", "ones"):
        response = asking.post({"prompt": "x"}, key)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
    assert asking("GET", "/health").json() == {"status": "ok"}
    assert asking("GET", "/v1/models").status_code == 401


def test_pages_that_are_allowed_may_ask(asking: Asking) -> None:
    head = {"origin": "http://page", "access-control-request-method": "POST"}
    response = asking("OPTIONS", "/v1/completions", headers=head)
    assert response.headers["access-control-allow-origin"] == "http://page"
    assert asking("GET", "/health", headers={"origin": "http://other"}).status_code == 403


def test_the_header_and_the_field_make_the_text_again(asking: Asking, model: LanguageModel) -> None:
    body = {"prompt": "ROMEO:", "max_tokens": 12, "n": 2, "logprobs": 1, "aleator_replay": True}
    response = asking.post(body, "one")
    made = response.json()
    records = [Record.from_json(each) for each in made["aleator_replay"]]
    assert [each.completion for each in records] == [0, 1]
    for record, choice in zip(records, made["choices"], strict=True):
        assert record.made is not None
        assert list(record.made.logprobs or ()) == choice["logprobs"]["token_logprobs"]
        assert differences(record.made, make_again(record, model)) == []
    short = Record.from_json(json.loads(response.headers["x-aleator-replay"]))
    assert short.seed == made["seed"]
    assert make_again(short, model, records[0].prompt) == records[0].made
    stream = asking.post({**body, "stream": True, "seed": made["seed"]}, "one")
    last = json.loads(stream.text.split("\n\n")[-3].removeprefix("data: "))
    assert [Record.from_json(each) for each in last["aleator_replay"]] == records
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    response = asking.post({**chat, "aleator_replay": True}, "one", "/v1/chat/completions")
    record = Record.from_json(response.json()["aleator_replay"][0])
    assert make_again(record, model) == record.made


def test_figures(asking: Asking) -> None:
    asking.post({"prompt": "figures", "max_tokens": 3}, "one")
    page = asking("GET", "/metrics", headers={"x-api-key": "two"})
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(page.text)}
    assert families["aleator_generated_tokens"].samples[0].value >= 3
    lines = [line.split(" ") for line in page.text.splitlines() if line.startswith("llamacpp:")]
    figures = {name: float(value) for name, value in lines}
    for name in ("prompt_tokens_total", "tokens_predicted_total", "n_decode_total", "n_tokens_max"):
        assert figures[f"llamacpp:{name}"] >= 3
        assert f"# TYPE llamacpp:{name} counter\n" in page.text
    assert figures["llamacpp:tokens_predicted_seconds_total"] > 0
    assert figures["llamacpp:n_busy_slots_per_decode"] > 0
    assert figures["llamacpp:spec_decode_num_drafts_total"] == 0
    assert int(page.headers["process-start-time-unix"]) > 0
    first = families["aleator_time_to_first_token_seconds"]
    assert next(s.value for s in first.samples if s.name.endswith("_count")) >= 1
    labels = {name for f in families.values() for s in f.samples for name in s.labels}
    assert labels <= {"le", "method", "route", "status", "reason", "version", "fingerprint"}
    routes = {s.labels["route"] for s in families["aleator_http_requests"].samples}
    for path in ("/nowhere/1", "/nowhere/2"):
        asking("GET", path, headers={"x-api-key": "two"})
    again = asking("GET", "/metrics", headers={"x-api-key": "two"}).text
    more = {f.name: f for f in text_string_to_metric_families(again)}["aleator_http_requests"]
    assert {s.labels["route"] for s in more.samples} <= routes | {"other", "/metrics"}


def test_a_restart_keeps_prompts_for_the_key_that_asked_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TieredPrefixes, "computed", lambda *_: None)  # reading is worth it
    pages = []
    for before in (False, True):
        model = aleator.load(
            n_threads=1, cache_disk=2**28, cache_dir=str(tmp_path), cache_ram=2**24
        )
        asking = Asking(model, api_key=["one", "two"])
        with asking.engine:
            for key, salt in (("one", ""), ("two", ""), ("one", "x")):
                cached = asking.cached({"prompt": SECRET * 4, "cache_salt": salt}, key)
                assert cached >= 256 if before else cached == 0
            pages.append(asking("GET", "/metrics", headers={"x-api-key": "one"}).text)
        assert model.prompt_tiers is not None
        model.prompt_tiers.close(60)
    figures = {f.name: f for f in text_string_to_metric_families(pages[1])}
    hits = {s.labels["tier"]: s.value for s in figures["aleator_prompt_cache_hits"].samples}
    assert hits["disk"] == 3
    read = {s.labels["tier"]: s.value for s in figures["aleator_prompt_cache_bytes_read"].samples}
    assert read["disk"] > 100_000
    written = text_string_to_metric_families(pages[0])
    (entries,) = (f for f in written if f.name == "aleator_prompt_cache_written")
    assert {s.labels["tier"]: s.value for s in entries.samples}["ram"] >= 6  # each has its own


def test_every_request_has_an_id_and_a_line(
    asking: Asking, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    named = asking("GET", "/health?key=hidden", headers={"x-request-id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"
    strange = asking("GET", "/health", headers={"x-request-id": "not plain\t" * 50})
    assert strange.headers["x-request-id"].isalnum()
    first = lines()[0]
    assert first["event"] == "request"
    assert (first["id"], first["route"], first["status"]) == ("mine-1", "/health", 200)
    assert "hidden" not in json.dumps(lines())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_log_never_has_what_users_wrote(
    asking: Asking, lines: Callable[[], list[dict[str, Any]]], path: str
) -> None:
    bodies: list[Any] = [
        {"prompt": SECRET, "max_tokens": 2, "stop": "secret"},
        {"prompt": SECRET, "max_tokens": 10**6},
        {"prompt": {"secret": 1}},
        {"secret": SECRET},
        {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2},
        {"messages": SECRET},
        {"prompt": "x", "regex": "(secret"},
    ]
    for body in bodies:
        asking.post(body, "one", path)
    asking("POST", path, content=b'{"secret', headers={"x-api-key": "one"})
    assert len(lines()) == len(bodies) + 1
    assert "secret" not in json.dumps(lines())


def test_what_nobody_expected_is_logged_without_its_message(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    def broken(*given: object) -> None:
        raise ZeroDivisionError("the secret")

    with Engine(model, n_seq_max=1) as engine:
        service = Service(model, engine)
        monkeypatch.setattr(service, "_start", broken)
        app = create_app(service)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.post("/v1/completions", json={"prompt": "x"})

        response = asyncio.run(ask())
    assert response.status_code == 500
    assert "secret" not in response.text
    assert lines()[0]["error"] == "ZeroDivisionError"
    assert "test_operation.py" in lines()[0]["at"]
    assert "secret" not in json.dumps(lines())


def test_lines_for_people() -> None:
    record = logging.makeLogRecord({"msg": "draining", "created": 0.0, "levelname": "INFO"})
    record.fields = {"signal": "SIGTERM", "seconds": 1.5, "odd": 'a "b"\n'}
    assert Lines("text").format(record) == (
        '1970-01-01T00:00:00.000+00:00 info draining signal=SIGTERM seconds=1.5 odd="a \\"b\\"\\n"'
    )
    told = described(ParameterError("top_k", "top_k='the secret'"))
    assert told == {"error": "ParameterError", "parameter": "top_k"}


def test_events_and_failures_are_lines(lines: Callable[[], list[dict[str, Any]]]) -> None:
    event("something", number=3)
    failure("request failed", ValueError("the secret"), id="x")
    assert [each["event"] for each in lines()] == ["something", "request failed"]
    assert lines()[1]["level"] == "error"
    assert "secret" not in json.dumps(lines())


def test_logs_are_lines_of_the_server_and_warnings_of_uvicorn(
    lines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    uvicorn = logging.getLogger("uvicorn.error")
    before = uvicorn.handlers, uvicorn.level, uvicorn.propagate
    try:
        configure("json")
        event("something", number=3)
        uvicorn.info("not told")
        uvicorn.warning("told")
    finally:
        uvicorn.handlers, uvicorn.level, uvicorn.propagate = before
    written = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert written == ["something", "told"]
    assert lines() == []


def test_requests_that_drew_nothing_have_no_time_to_the_first_token() -> None:
    metrics = Metrics("f")
    metrics.ended(EndedRequest("cancelled", 5, 0, None, None, 1.0))
    metrics.ended(EndedRequest("length", 5, 1, 0.1, 0.2, 1.0))
    page = metrics.page().decode()
    counts = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in page.splitlines())
        if name.endswith("_count")
    }
    assert sorted(counts.values()) == [0, 1, 1, 2, 2, 2], counts


def test_health_says_that_the_engine_was_closed(model: LanguageModel) -> None:
    asking = Asking(model)
    assert asking("GET", "/health").json() == {"status": "ok"}
    asking.engine.close()
    response = asking("GET", "/health")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "closed")


def test_errors_of_ours_that_no_request_caused_are_told_and_others_are_not() -> None:
    for error, message, code in (
        (CacheError("the cache is damaged"), "the cache is damaged", None),
        (ValueError("the secret"), "internal error: the server's log says more", "internal"),
    ):
        made = api_error(error)
        assert (made.status, str(made), made.code) == (500, message, code)
        assert made.__cause__ is error


def test_a_lack_of_memory_is_the_servers_and_may_pass() -> None:
    told = "there is too little memory for this request now: ask again, or for less"
    device = DeviceOutOfMemory("cuda:0", 8, "no memory")
    for error, message in ((MemoryError("std::bad_alloc"), told), (device, str(device))):
        made = api_error(error)
        assert (made.status, str(made), made.code) == (503, message, "out_of_memory")
        assert made.headers["retry-after"] == "1"


def test_requests_have_a_time_at_most(model: LanguageModel) -> None:
    asking = Asking(model, request_timeout=0.05)
    with asking.engine:
        response = asking.post({"prompt": "ROMEO:", "max_tokens": 1000, "ignore_eos": True})
        made = response.json()
        assert made["usage"]["completion_tokens"] < 1000
        assert made["choices"][0]["finish_reason"] == "length"
        assert asking.engine.stats.expired == 1
