"""Code in the documentation runs, or is listed with the reason; commands that are shown are understood."""

from __future__ import annotations

import json
import re
import shlex
import struct
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cited import broken

import aleator
from aleator.cli import COMMANDS
from aleator.cli.arguments import Parser
from aleator.core.errors import ParameterError
from tests.test_readme import EXECUTED

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

ELSEWHERE = {
    "adding-a-sampler": "tests/samplers/test_adding.py follows its steps in a copy of the package",
    "adding-an-architecture": "tests/models/test_adding.py follows its steps in a copy of the package",
    "adding-an-endpoint": "tests/server/test_adding.py follows its steps in a copy of the package",
    "integrations": "needs the packages of others; tests/integrations has its examples where they are",
}
"""Pages whose Python blocks do not run here."""

NOT_RUN = (
    "from openai import", "from vllm import", "anthropic", "ollama", "httpx", "hf:ORG/NAME",
    "torch.cuda", "device=",
)  # fmt: skip
"""What blocks of ```py have, that need a running server, a network or a GPU."""

REFUSED = ("--lora-init-without-apply", "-cnv")
"""Parts of commands that are shown for their errors."""


def test_what_pages_cite_is_there() -> None:
    assert broken(ROOT) == []


CITED = """# A page

## Two words

[a](other.md#part), [b](#two-words), ![c](images/a.png), `tests/a.py::test_a`, `core/b.py`, `common/arg.cpp`,
docs/*.md, benchmarks/results/speed.2026-01-02.md, `speed.2026-01-02`, `not/a path`, [d](https://example.org/#x).
```
make demo
[not a link](nowhere.md)
```
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one page, and all that it cites."""
    files = {
        "docs/page.md": CITED,
        "docs/other.md": "## Part\n## Twice\n## Twice\n## A & b\n",
        "docs/images/a.png": "",
        "tests/a.py": "def test_a() -> None: ...",
        "src/aleator/core/b.py": '"""See docs/page.md, and ggml\'s docs/gguf.md."""',
        "benchmarks/results/speed.2026-01-02.md": "[page](../../docs/page.md) of `tools/gone.py`",
        "CHANGELOG.md": "`tools/gone.py` went",
        "Makefile": "demo: setup\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_there_is_not_broken(checkout: Path) -> None:
    assert broken(checkout) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("[a](none.md)", "no such file of a link: none.md"),
        ("![a](images/none.png)", "no such file of a picture: images/none.png"),
        ('<img src="images/none.png">', "no such file of a picture: images/none.png"),
        ('<source srcset="images/none.png">', "no such file of a picture: images/none.png"),
        ('[a](none.md "its title")', "no such file of a link: none.md"),
        ("[a [b]](none.md)", "no such file of a link: none.md"),
        ("[![a](images/a.png)](none.md)", "no such file of a link: none.md"),
        ('<a href="none.md">', "no such file of a link: none.md"),
        ("[a][b]\n[b]: none.md", "no such file of a link: none.md"),
        ("[a](other.md#none)", "no such anchor: other.md#none"),
        ("[a](#none)", "no such anchor: #none"),
        # The second heading of a name, and one with a sign, have another anchor on the site.
        ("[a](other.md#twice-1)", "no such anchor: other.md#twice-1"),
        ("[a](other.md#a--b)", "no such anchor: other.md#a--b"),
        ("see tests/none.py", "no such path: tests/none.py"),
        ("see tools/none_*", "no such path: tools/none_*"),
        ("`tests/a.py::test_none`", "no such name: tests/a.py::test_none"),
        ("`core/none.py`", "no such path: core/none.py"),
        ("speed.2026-01-03", "no such result: speed.2026-01-03"),
        ("speed.2026-01-02.json", "no such result: speed.2026-01-02.json"),
        ("`make demo none`", "no such target of make: none"),
        ("```\nmake none\n```", "no such target of make: none"),
    ],
)
def test_what_is_not_there_is_broken(checkout: Path, line: str, wrong: str) -> None:
    (checkout / "docs/second.md").write_text((checkout / "docs/other.md").read_text() + line)
    at = 5 + line.count("\n[")  # where a link is told apart from its name
    assert broken(checkout) == [f"docs/second.md:{at}: {wrong}"]


def test_pages_that_the_source_names_are_there(checkout: Path) -> None:
    (checkout / "docs/page.md").unlink()
    assert broken(checkout) == [
        "benchmarks/results/speed.2026-01-02.md:1: no such file of a link: ../../docs/page.md",
        "src/aleator/core/b.py:1: no such page: docs/page.md",
    ]


def test_every_page_with_code_is_decided() -> None:
    for path in PAGES[2:]:
        if "```python" in path.read_text():
            assert path.stem in {*EXECUTED, *ELSEWHERE}, path.name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_does_not_run_has_a_reason(path: Path) -> None:
    for block in re.findall(r"```py\n(.*?)```", path.read_text(), re.DOTALL):
        assert any(part in block for part in NOT_RUN), block
        compile(block, path.name, "exec")


def shown(path: Path) -> list[str]:
    """The commands of a page, one a line."""
    found = []
    for block in re.findall(r"```(?:sh|bash|console|text)?\n(.*?)```", path.read_text(), re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [
            match[1] for line in lines if (match := re.match(r"\$? ?(aleator [a-z].*)", line))
        ]
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_are_understood(path: Path) -> None:
    for line in shown(path):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # goes on in the next line
        for stop in ("|", ">", "&&", "&", "2>"):
            words = words[: words.index(stop)] if stop in words else words
        command = words[1]
        if command.startswith("-"):
            continue
        assert command in COMMANDS, line
        module: Any = import_module(f"aleator.cli.{command.replace('-', '_')}")
        parser = Parser(command, COMMANDS[command], "")
        module.add_arguments(parser)
        refused = [part for part in REFUSED if part in words]
        with pytest.raises(ParameterError) if refused else nullcontext():
            parser.parse(words[2:])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), names)


def height(markdown: str) -> int:
    """About how many pixels a hub's page gives to a text: a column of 774 in letters of 16."""
    pixels = 64
    for block in re.split(r"\n\n|(```.*?```)", markdown, flags=re.DOTALL):
        text = re.sub(r"\]\([^)]*\)", "", (block or "").strip())
        picture = re.match(r"!\[.*?\]\((.*?)\)", (block or "").strip())
        if picture:
            wide, high = struct.unpack(">II", (ROOT / picture[1]).read_bytes()[16:24])
            pixels += high * 774 // wide + 22
        elif text.startswith("```"):
            pixels += 48 + round(19.7 * (text.count("\n") - 1))
        elif text.startswith("#"):
            pixels += 62
        elif text.startswith("- "):
            items = " ".join(text.split()).split(" - ")
            pixels += 12 + sum(28 + 24 * (len(item) // 102) for item in items)
        elif text:
            pixels += 40 + 24 * (len(" ".join(text.split())) // 106)
    return pixels


def test_the_readme_fits_two_screens() -> None:
    assert height((ROOT / "README.md").read_text()) <= 2000


def test_the_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    pages |= {"index.md", "all-pages.md"}  # README, and that of docs/ (tools/make_site.py)
    assert {page for page in pages if page not in nav} == set()


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text().splitlines()
    public = [getattr(aleator, name) for name in aleator.__all__]
    wanted = {
        f"::: {each.__module__}.{each.__qualname__}"
        for each in public
        if not isinstance(each, ModuleType) and each.__module__ != "aleator.core.errors"
    }
    assert sorted(wanted - set(page)) == []
    assert "::: aleator.core.errors" in page
