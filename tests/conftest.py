"""The bundled model; small models with random weights, and llama.cpp's logits for them."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import os
import random
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import quick_interpreter
from hypothesis import HealthCheck, Phase, settings

from tests.drawn import drawn as drawn
from tests.optional import missing
from tests.torch_threads import one_torch_thread as one_torch_thread

if TYPE_CHECKING:
    from aleator import LanguageModel
    from aleator.models.decoder import Decoder


quick_interpreter.install()
# A busy machine is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# For tools/mutate_python.py: that a test fails is enough, and how little it needs to does not matter.
settings.register_profile(
    "no_shrinking", settings.get_profile("patient"), phases=[Phase.explicit, Phase.generate]
)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """Skip a file that imports an optional package which is not installed."""
    name = missing(collector.path) if isinstance(collector, pytest.Module) else ""
    if not name:
        return None
    why = (str(collector.path), 0, f"Skipped: {name} is not installed")
    return pytest.CollectReport(collector.nodeid, "skipped", why, [])


def pytest_collection_finish() -> None:
    """Modules and the list of tests stay as they are: garbage is looked for among what tests make."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own, for a minute at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def limited() -> None:
        async with asyncio.timeout(60):
            names = inspect.signature(pyfuncitem.obj).parameters
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(limited())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Bring coverage's trace function back after tests that have one of their own."""
    tracing = sys.gettrace()
    try:
        yield
    finally:
        if sys.gettrace() is not tracing:
            sys.settrace(tracing)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """A thread that a test left behind may not keep the process from ending: say where it is, and end."""
    gc.unfreeze()  # nanobind looks for what is left

    def leave() -> None:
        print("the process does not end by itself", file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        sys.stdout.flush()
        os._exit(int(exitstatus))

    last = threading.Timer(180, leave)
    last.daemon = True
    last.start()


MakeDecoder = Callable[[str], "Decoder"]


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered between runs stays out of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def same_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that a test does not give are drawn, but the same in every run."""
    monkeypatch.setattr(secrets, "randbelow", random.Random(request.node.nodeid).randrange)


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    """The bundled model, on one thread."""
    import aleator

    return aleator.load(n_threads=1)


@pytest.fixture(scope="session")
def make_decoder(tmp_path_factory: pytest.TempPathFactory) -> MakeDecoder:
    """The decoder of a model that tools/make_models.py names."""
    from make_models import SPECS, write_model

    from aleator.models import build_decoder, open_weights

    folder = tmp_path_factory.mktemp("models")
    made: dict[str, Decoder] = {}

    def make(name: str) -> Decoder:
        if name not in made:
            path = write_model(folder / f"{name}.gguf", SPECS[name])
            made[name] = build_decoder(open_weights(path))
        return made[name]

    return make


@pytest.fixture(scope="session")
def llama(make_decoder: MakeDecoder) -> Decoder:
    """The decoder of the model "llama"."""
    return make_decoder("llama")
