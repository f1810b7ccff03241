"""The npm package as it is packed: in Node and Deno, and in Chromium by the page of its README."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import aleator
from aleator.models.hub.bundled import bundled_model
from tests.javascript.conftest import ROOT, needs
from tests.javascript.site_window import Files, Served

POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; connect-src 'self'"
)
"""What the page may do: nothing that makes code of text, but WebAssembly."""
MOST_BYTES = 2 * 2**20


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the README's page and program, the installed package and a model."""
    needs("npm")
    command = ["npm", "pack", "--silent", "--pack-destination", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "js", check=True, capture_output=True, timeout=120)
    [packed] = tmp_path.glob("*.tgz")
    assert packed.stat().st_size < MOST_BYTES
    with tarfile.open(packed) as file:
        file.extractall(tmp_path / "node_modules", filter="data")
    (tmp_path / "node_modules" / "package").rename(tmp_path / "node_modules" / "aleator")
    for kind, name in (("html", "index.html"), ("js", "main.mjs")):
        found = re.search(
            f"```{kind}\n(.*?)```", (ROOT / "js" / "README.md").read_text(), re.DOTALL
        )
        assert found
        (tmp_path / name).write_text(found[1])
    shutil.copy(bundled_model(), tmp_path / "model.gguf")
    return tmp_path


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with Served(site, {"Content-Security-Policy": POLICY}, Files) as served:
        yield served.root


@pytest.mark.parametrize(
    "program", [("node",), ("deno", "run", "--allow-read")], ids=lambda p: p[0]
)
def test_the_program_of_the_readme_writes_the_same_text(
    site: Path, program: tuple[str, ...]
) -> None:
    needs(program[0])
    (site / "package.json").write_text("{}")  # Deno looks for packages beside it
    done = subprocess.run(
        [*program, "main.mjs"], cwd=site, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == aleator.load().generate("ROMEO:", seed=4, max_tokens=200).text, (
        done.stderr
    )


def test_a_user_of_the_packed_types(site: Path) -> None:
    compiler = ROOT / "build/page/node_modules/.bin/tsc"
    if not compiler.exists():
        pytest.skip("TypeScript is not installed: make page")
    shutil.copy(Path(__file__).parent / "types.mts", site)
    command = [
        str(compiler), "--strict", "--noEmit", "--target", "esnext", "--module", "nodenext", "types.mts",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_version_is_that_of_python() -> None:
    packed = json.loads((ROOT / "js" / "package.json").read_text())
    assert packed["version"] == aleator.__version__


def test_the_page_of_the_readme_writes_the_same_text_in_chromium(address: str) -> None:
    from tests.playground.browser import Browser, missing  # selenium is optional

    if missing():
        pytest.skip(f"{missing()} is not installed")
    with Browser() as browser:
        browser.driver.get(address)
        button = browser.until(
            lambda: [b for b in browser.all("#go") if b.is_enabled()], "the model"
        )[0]
        button.click()
        wanted = aleator.load().generate("ROMEO:", seed=4, max_tokens=200).text
        browser.until(
            lambda: len(browser.script("return text.textContent")) >= len(wanted), "the text"
        )
        assert browser.script("return text.textContent") == wanted
        assert browser.script("return window.reported") == []
