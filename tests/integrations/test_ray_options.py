"""Wrong options are refused by whoever starts the work, not by workers; Ray itself is stood in for."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.generate.options import THREADS_PER_CORE
from aleator.integrations.ray_generator import Generator, check_engine, check_load
from tests.integrations import stand_ins

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"engine": {"n_seqs": 1}}, "n_seqs", "there is no option 'n_seqs': .*n_seq_max"),
    ({"engine": {"n_seq_max": 0}}, "n_seq_max", r"n_seq_max=0 .*1 to 1024"),
    ({"engine": {"n_seq_max": 512}}, "token_budget", "give more than n_seq_max=512"),
    ({"engine": {"n_ctx": 4}}, "n_ctx", "n_ctx=4: give at least n_seq_max=8"),
    ({"engine": 4}, "engine", "engine=4: give a mapping"),
    ({"load": {"n_thread": 1}}, "n_thread", "there is no option 'n_thread': .*n_threads"),
    ({"load": {"n_threads": 0}}, "n_threads", "n_threads=0 .*1 or more"),
    ({"load": {"type_k": "q3"}}, "type_k", "type_k='q3'"),
    ({"load": {"dtype": "float8"}}, "dtype", "dtype='float8': give float32"),
    ({"load": {"path": "x"}}, "path", "there is no option 'path'"),
    ({"load": "x"}, "load", "load='x': give a mapping"),
]


@pytest.fixture
def nobody_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*given: object, **options: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("aleator.load", load)


def refused(call: Any, given: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        call(**given)
    assert caught.value.parameter == name


@pytest.mark.parametrize(("given", "name", "words"), WRONG)
def test_a_generator_looks_before_it_loads(
    given: dict[str, Any], name: str, words: str, nobody_loads: None
) -> None:
    refused(Generator, given, name, words)


def test_what_the_worker_knows_is_left_to_it() -> None:
    many = THREADS_PER_CORE * (os.cpu_count() or 1) + 1
    assert check_load({"n_threads": many, "device": "cuda:7"}) == {
        "n_threads": many,
        "device": "cuda:7",
    }
    assert check_load({"progress": print}) == {"progress": print}
    assert check_load(None) == {}


def test_defaults_of_engines() -> None:
    assert check_engine(None, max_queue=7)["max_queue"] == 7
    assert check_engine({"max_queue": 3, "n_seq_max": 2}, max_queue=7) == {
        **check_engine(None), "max_queue": 3, "n_seq_max": 2,
    }  # fmt: skip


class Rows:
    """A data set that nothing must be asked of."""

    def map_batches(self, *given: object, **options: object) -> tuple[object, ...]:
        return given


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        *WRONG,
        ({"max_tokens": -5}, "max_tokens", "max_tokens=-5"),
        ({"top_k": "many"}, "top_k", "top_k='many'"),
        ({"preset": "none such"}, "preset", "there is no preset"),
        ({"batch_size": 0}, "batch_size", "give 1 or more"),
    ],
)
def test_generate(
    given: dict[str, Any], name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"ActorPoolStrategy": SimpleNamespace}
    stand_ins.install(monkeypatch, {"ray": {}, "ray.data": data, "pyarrow": {}}, "99")
    module = stand_ins.adapter(monkeypatch, "ray")
    assert module.generate(Rows(), engine={"n_seq_max": 2}, load={"n_threads": 1}) == (Generator,)

    def call(**given: Any) -> None:
        module.generate(None, **given)

    refused(call, given, name, words)


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        *WRONG,
        ({"defaults": {"temperatur": 1}}, "temperatur", "there is no option 'temperatur'"),
        ({"defaults": {"top_k": "many"}}, "top_k", "top_k='many'"),
        ({"server": {"port": 1}}, "port", "port cannot be honoured behind Ray Serve"),
        ({"server": {"n_cells": 4}}, "n_ctx", "n_ctx=4: give at least n_seq_max=8"),
        ({"max_replicas": 0}, "min_replicas", "give 1 or more"),
    ],
)
def test_application(
    given: dict[str, Any], name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    bound: list[tuple[object, ...]] = []

    class Deployment:
        def bind(self, *arguments: object) -> Deployment:
            bound.append(arguments)
            return self

    serve = {
        "deployment": lambda kind, **options: Deployment(),
        "ingress": lambda: lambda kind: kind,
    }
    stand_ins.install(
        monkeypatch,
        {
            "ray": {},
            "ray.serve": serve,
            "ray.serve.config": {"AutoscalingConfig": dict, "RequestRouterConfig": dict},
            "ray.serve.request_router": dict.fromkeys(
                ("PendingRequest", "RequestRouter", "RunningReplica"), object
            ),
        },
        "99",
    )
    module = stand_ins.adapter(monkeypatch, "ray_serve")
    module.application(engine={"n_seq_max": 2}, server={"n_cells": 64}, defaults={"top_k": 5})
    (_, loading, engine, server, defaults), _ = bound
    assert loading == {"n_threads": 1}
    assert engine == check_engine({"n_seq_max": 2, "n_ctx": 64})
    assert (server, defaults) == ({"n_cells": 64, "playground": False}, {"top_k": 5})
    bound.clear()
    refused(module.application, given, name, words)
    assert bound == []
