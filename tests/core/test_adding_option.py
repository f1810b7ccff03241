"""docs/options.md, "Adding an option", done in a copy of the package: everything picks the option up."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import aleator
from aleator import _native
from aleator.models.hub.bundled import bundled_model
from tests.copies import python

ROOT = Path(__file__).parents[2]
USE = """
import inspect
import sys
from aleator.cli.generate import add_arguments
from aleator.cli.arguments import Parser
from aleator.core.errors import ParameterError
from aleator.core.options import declarations, json_schema
from aleator.generate.options import GenerateOptions
from aleator.language_model import load

model = load(sys.argv[1])
made = [model.generate("A", max_tokens=3, seed=1, capitals=capitals) for capitals in (False, True)]
assert [generation.request.options.capitals for generation in made] == [False, True]
assert made[1].text == made[0].text.upper() != made[0].text
try:
    model.generate("A", capitals="loud")
except ParameterError as error:
    assert error.parameter == "capitals"
else:
    raise AssertionError
assert "capitals" in inspect.signature(model.generate).parameters
assert json_schema(declarations(GenerateOptions).values())["properties"]["capitals"]["default"] is False
parser = Parser("generate", "write text", "")
add_arguments(parser)
assert parser.parse(["-p", "x", "--capitals"]).capitals is True
print("done")
"""


RETURNS = '        return "".join(self._finished().pieces)\n'
"""The line of ``Generation.text`` that the page changes."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the page names, with the page followed."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(
        Path(aleator.__file__).parent,
        root / "src" / "aleator",
        ignore=shutil.ignore_patterns("data", "__pycache__"),
    )
    shutil.copy(_native.__file__, root / "src" / "aleator")
    for folder in ("docs", "tools", "tests/golden"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns("data", "__pycache__")
        )
    for file in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / file, root / file)
    page = (ROOT / "docs" / "options.md").read_text().partition("## Adding an option")[2]
    blocks = re.findall(r"    ```text\n(.*?)    ```", page, flags=re.DOTALL)  # within a list
    declared, used, named = (re.sub("^    ", "", block, flags=re.MULTILINE) for block in blocks)
    insert(root, "generate/options.py", "    jump_forward: bool = host_option(", declared)
    insert(root, "generate/generation.py", RETURNS, used)
    insert(root, "cli/options.py", '    "reasoning_budget", ', named)
    return root


def insert(root: Path, name: str, above: str, lines: str) -> None:
    """Put lines of the page before a place in a file."""
    path = root / "src" / "aleator" / name
    text = path.read_text()
    assert text.count(above) == 1
    path.write_text(text.replace(above, lines + above))


@pytest.mark.slow
def test_an_option_is_a_field_its_use_and_a_name(copied: Path) -> None:
    pytest.importorskip("torch")  # for the docs
    python(copied, "tools/stubs.py")
    python(copied, "tools/docs.py")
    assert "| `capitals` | `--capitals` | off |" in python(
        copied, "tools/docs.py", "generate_options"
    )
    assert "    capitals: bool\n" in (copied / "src/aleator/keywords.pyi").read_text()
    assert "capitals" in (copied / "tests/golden/declared.txt").read_text()
    assert "done" in python(copied, "-c", USE, str(bundled_model()))
