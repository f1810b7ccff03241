"""The page's files: nothing from elsewhere, nothing inline, small, and unchanged where they are others'."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp

import aleator
from aleator.server.app import create_guarded
from aleator.server.options import ServerOptions
from aleator.server.playground.saved import PAGE
from aleator.server.service import Service
from tests.playground.conftest import Client, MakeClient

FOLDER = Path(str(PAGE))
FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("*")
    if path.suffix in (".html", ".js", ".mjs", ".css", ".svg")
)


def test_the_page_is_at_the_root_with_a_strict_policy(client: Client) -> None:
    response = client.request("GET", "/")
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag in re.findall(r"<script[^>]*>(.*?)</script>", response.text, re.DOTALL):
        assert tag == ""
    assert not re.search(r"\son\w+=|style=", response.text)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_with_its_type_and_asks_nobody_else(client: Client, name: str) -> None:
    response = client.request("GET", f"/playground/{name}")
    assert response.status_code == 200
    assert response.content == (FOLDER / name).read_bytes()
    if name.endswith(("js", "mjs")):
        assert response.headers["content-type"].startswith("text/javascript")
    assert response.headers["x-content-type-options"] == "nosniff"
    if not name.startswith("vendor/"):
        outside = set(re.findall(r"https?://[^\s\"'`)]+", response.text))
        assert outside <= {"http://www.w3.org/2000/svg"}
        assert "innerHTML" not in response.text


def test_every_module_that_is_imported_is_there() -> None:
    for name in FILES:
        if name.endswith(".js"):
            for wanted in re.findall(r'from "(\./[^"]+)"', (FOLDER / name).read_text()):
                assert (FOLDER / name).parent.joinpath(wanted).is_file(), (name, wanted)


def test_the_page_is_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in FILES) < 300_000


def test_vendored_modules_are_those_of_the_manifest() -> None:
    script = Path(__file__).parents[2] / "tools/vendor_browser.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "../routes.py", "%2e%2e/routes.py", "vendor", "vendor/manifest.json", ".x.js"],
)
def test_other_files_are_not_served(client: Client, path: str) -> None:
    assert client.request("GET", f"/playground/{path}").status_code == 404


def test_the_page_needs_no_key_and_its_endpoints_do(model: aleator.LanguageModel) -> None:
    with model.engine(n_seq_max=1) as engine:
        service = Service(model, engine, ServerOptions(api_key=("secret",)))
        app = create_guarded(service).app
        paths = ("/", "/playground/main.js", "/api/playground", "/v1/models")
        assert [status(app, path) for path in paths] == [200, 200, 401, 401]
        assert status(app, "/api/playground", authorization="Bearer secret") == 200
        assert status(app, "/playground/../api/playground") != 200


def status(app: ASGIApp, path: str, **headers: str) -> int:
    async def ask() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get(path, headers=headers)).status_code

    return asyncio.run(ask())


def test_a_server_without_the_playground_has_neither_page_nor_endpoints(
    make_client: MakeClient,
) -> None:
    other = make_client(playground=False)
    assert other.request("GET", "/").status_code == 404
    assert other.request("GET", "/api/playground").status_code == 404
    assert other.request("GET", "/v1/models").status_code == 200
