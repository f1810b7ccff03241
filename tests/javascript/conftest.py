"""Node, for the tests of the npm package, and windows on the page without a server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import site_page

import aleator
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.hub.bundled import bundled_model
from tests.javascript import firefox
from tests.javascript.site_engine import Ask
from tests.javascript.site_window import TEXT, Served, Window
from tests.playground import browser as chromium
from tests.playground.conftest import Client

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "js" / "src"


def logits_of(path: Path, tokens: list[int], type_k: str = "f16", type_v: str = "f16") -> str:
    """The logits after each token, as this package computes them: their bytes."""
    context = Context(
        build_decoder(open_weights(path)),
        n_ctx=len(tokens),
        type_k=type_k,
        type_v=type_v,
        n_threads=1,
        device="cpu",
    )
    rows = [np.asarray(context.decode(Batch.one([t], i))) for i, t in enumerate(tokens)]
    return np.concatenate(rows).tobytes().hex()


def needs(*programs: str) -> None:
    """Skip the test without these programs, or without the built package."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not (PACKAGE / "aleator.wasm").is_file():
        pytest.skip("js/src/aleator.wasm is missing: make wasm")


class Run(Protocol):
    """Has Node, with these flags, do the cases."""

    def __call__(
        self, what: str, cases: list[dict[str, Any]], flags: tuple[str, ...] = ()
    ) -> list[Any]: ...


Refuses = Callable[..., None]
Talks = Callable[..., list[Any]]


class Values(Protocol):
    """The values of codes in JavaScript."""

    def __call__(
        self, *codes: str, given: Any = None, flags: tuple[str, ...] = ()
    ) -> list[Any]: ...


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Has Node do the cases."""
    needs("node")

    def run(what: str, cases: list[dict[str, Any]], flags: tuple[str, ...] = ()) -> list[Any]:
        asked = tmp_path / f"{what}.json"
        package = (PACKAGE / "index.js").as_uri()
        asked.write_text(json.dumps({"what": what, "cases": cases, "package": package}))
        driver = Path(__file__).parent / "run.mjs"
        done = subprocess.run(
            ["node", *flags, driver, asked], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results: list[Any] = json.loads(done.stdout)
        return results

    return run


@pytest.fixture
def values(run: Run) -> Values:
    """What run.mjs calls a value, of each of these codes, or their errors; the path is the bundled model's."""

    def values(*codes: str, given: Any = None, flags: tuple[str, ...] = ()) -> list[Any]:
        path = str(bundled_model())
        return run("value", [{"code": code, "path": path, "given": given} for code in codes], flags)

    return values


@pytest.fixture
def talks(run: Run) -> Talks:
    """What the bundled model's chats answer to messages with each of these options, or their errors."""

    def talks(messages: Any, *options: dict[str, Any]) -> list[Any]:
        case = {"path": str(bundled_model()), "messages": messages}
        return run("talks", [{**case, "options": each} for each in options])

    return talks


@pytest.fixture
def refuses(values: Values) -> Refuses:
    """Checks that codes are refused, each with an error of a kind that has some words in it."""

    def refuses(said: Mapping[str, str], kind: str = "ParameterError") -> None:
        for (code, words), told in zip(said.items(), values(*said), strict=True):
            assert (told.get("error"), words in told["message"]) == (kind, True), (code, told)

    return refuses


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as the site has it."""
    made = tmp_path_factory.mktemp("site") / "try"
    site_page.write_page(made)
    (made / "package.json").write_text('{"type": "module"}')  # Node asks for it
    return made


@pytest.fixture
def ask(run: Run, written: Path) -> Ask:
    """Has the page's engine answer requests in turn."""

    def ask(asked: list[dict[str, Any]], path: Path | None = None) -> list[Any]:
        case = {"folder": written.as_uri(), "path": str(path or bundled_model()), "asked": asked}
        [answers] = run("requests", [case])
        found: list[Any] = answers
        return found

    return ask


@pytest.fixture(scope="module")
def client(model: aleator.LanguageModel) -> Iterator[Client]:
    with model.engine(n_seq_max=4) as engine:
        yield Client(model, engine)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs()
    made = tmp_path_factory.mktemp("site")
    site_page.write_page(made / "try")
    return made


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    made = Served(folder)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def window(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Window]:
    kind = chromium if request.param == "chromium" else firefox
    if kind.missing():
        pytest.skip(f"{kind.missing()} is not installed")
    if request.param == "chromium":
        with chromium.Browser() as made:
            yield Window(made, made.until)
            assert made.reports() == [] or all("cut.gguf" in each for each in made.reports())
    else:
        with firefox.Firefox(tmp_path_factory.mktemp("profile")) as other:
            yield Window(other, firefox.until)


@pytest.fixture
def wanted(model: aleator.LanguageModel) -> list[str]:
    """The tokens of the text as Python writes it."""
    made = model.generate(TEXT["prompt"], preset="llama.cpp", seed=7, max_tokens=16)
    return [model.vocab.token_bytes(token).decode().replace("\n", "↵") for token in made.tokens]
