"""docs/adding-an-endpoint.md, done: its blocks go into a copy of the package, whose server has the endpoint."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import aleator
from aleator import _native
from tests.copies import python

ROOT = Path(__file__).parents[2]
USE = """
import aleator
from tests.server.conftest import Client

model = aleator.load()
with model.engine() as engine:
    client = Client(model, engine)
    ask = lambda **body: client.request("POST", "/v1/count", json=body)
    text = "Good morrow, neighbour"
    made = ask(input=text)
    assert made.status_code == 200, made.text
    assert made.json() == {"object": "count", "count": len(model.tokenizer.encode(text))}
    for body, name in (({}, "input"), ({"input": 3}, "input"), ({"input": "a", "inptu": 1}, "inptu")):
        refused = ask(**body)
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert error["param"] == name and name in error["message"], error
    assert client.get("/v1/count").status_code == 405
print("answered")
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with the recipe followed."""
    root = tmp_path_factory.mktemp("repository")
    package = Path(aleator.__file__).parent
    shutil.copytree(package, root / "src" / "aleator", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_native.__file__, root / "src" / "aleator")
    shutil.copytree(
        ROOT / "tools/other_native",
        root / "tools/other_native",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for file in ("tests/__init__.py", "tests/server/__init__.py", "tests/server/conftest.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    page = (ROOT / "docs/adding-an-endpoint.md").read_text()
    module, line = re.findall(r"```(?:python|text)\n(.*?)```", page, flags=re.DOTALL)
    (root / "src/aleator/server/dialects/count_tokens.py").write_text(module)
    index = root / "src/aleator/server/dialects/__init__.py"
    names, routes = "    anthropic,\n    embeddings,\n", "        *operation.ROUTES,\n"
    text = index.read_text()
    assert text.count(names) == text.count(routes) == 1
    index.write_text(
        text.replace(names, "    anthropic,\n    count_tokens,\n    embeddings,\n").replace(
            routes, routes + line
        )
    )
    return root


def test_an_endpoint_is_a_module_and_a_line(copied: Path) -> None:
    assert python(copied, "-c", USE) == "answered\n"
