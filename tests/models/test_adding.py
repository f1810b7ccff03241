"""docs/adding-an-architecture.md, done in a copy of the package; and what the page says of the rest."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
from wide_models import SMALL

import aleator
from aleator import _native
from aleator.models.index import ARCHITECTURES
from tests.copies import python

ROOT = Path(__file__).parents[2]
PACKAGE = Path(aleator.__file__).parent
STEM = "helium"
# "llama" is llama.cpp's layout of state files and SentencePiece's tokenizer too; the others in text/ are
# names of ways to cut text into words, and those in chat/ of forms of calls.
OTHER_MEANINGS = {
    "cache": {"llama"},
    "chat": {"gemma4", "granite", "deepseek", "minimax-m2"},
    "cli": {"llama", "deepseek"},
    "device": {"llama"},
    "generate": {"llama"},
    "server": {"deepseek"},
    "text": {
        "bloom", "exaone", "mellum", "minimax-m2", "exaone4", "gemma4", "glm4", "llama4", "gpt2", "phi3",
        "llama", "mpt", "qwen2", "command-r", "hunyuan-dense", "qwen35", "falcon-h1", "lfm2", "codeshell",
        "dbrx", "starcoder", "refact", "olmo", "falcon", "jais",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests of models, with the guide followed."""
    root = tmp_path_factory.mktemp("repository")
    skipped = shutil.ignore_patterns("data", "__pycache__")
    shutil.copytree(PACKAGE, root / "src" / "aleator", ignore=skipped)
    shutil.copy(_native.__file__, root / "src" / "aleator")
    shutil.copytree(ROOT / "tools" / "other_native", root / "tools" / "other_native")
    (root / "tests" / "models").mkdir(parents=True)
    for file in (
        "pyproject.toml",
        "tests/__init__.py",
        "tests/optional.py",
        "tests/models/__init__.py",
    ):
        shutil.copy(ROOT / file, root / file)
    for check in (ROOT / "tests" / "models").glob("check_*.py"):
        shutil.copy(check, root / "tests" / "models")
    page = (ROOT / "docs" / "adding-an-architecture.md").read_text()
    module, line, test = re.findall(r"```(?:python|text)\n(.*?)```", page, flags=re.DOTALL)
    models = root / "src" / "aleator" / "models"
    (models / "architectures" / f"{STEM}.py").write_text(module)
    (root / "tests" / "models" / "test_configurations.py").write_text(test)
    above = '    "qwen3",\n'
    index = (models / "index.py").read_text()
    assert above in index
    (models / "index.py").write_text(index.replace(above, above + line))
    return root


@pytest.mark.slow
def test_an_architecture_is_a_module_a_line_and_a_test(copied: Path) -> None:
    pytest.importorskip("transformers")
    test = "tests/models/test_configurations.py"
    out = python(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    assert "2 passed" in out


def test_the_index_lists_it_without_torch(copied: Path) -> None:
    listed = python(
        copied,
        "-c",
        "import sys\n"
        "from aleator.models.weights import open_weights\n"
        "from aleator.models.index import ARCHITECTURES\n"
        "assert 'torch' not in sys.modules\n"
        "print(*ARCHITECTURES)\n",
    ).split()
    known = list(ARCHITECTURES)
    after = known.index("qwen3") + 1
    assert listed == [*known[:after], STEM, *known[after:]]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_whole_under_its_stem(name: str) -> None:
    stem = name.replace("-", "_")
    assert ARCHITECTURES[name].name == name
    assert (PACKAGE / "models" / "architectures" / f"{stem}.py").is_file()
    tests = ROOT / "tests" / "models"
    recorded = name in {spec.arch for spec in SMALL.values()}  # tests/models/test_golden.py
    configurations = (tests / "test_configurations.py").read_text()
    assert (
        recorded or f"\ntest_{stem} = " in configurations or (tests / f"test_{stem}.py").is_file()
    ), "it has no test: docs/adding-an-architecture.md, The test"


def test_nothing_outside_models_names_an_architecture() -> None:
    named = set()
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).parts[0]
        if folder == "models":
            continue
        known = set(ARCHITECTURES) - OTHER_MEANINGS.get(folder, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in known:
                named.add((str(path), node.lineno, node.value))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "aleator.models"
            ):
                words = {*str(node.module).split("."), *(alias.name for alias in node.names)}
                named |= {(str(path), node.lineno, name) for name in known & words}
    assert not named


def test_no_module_imports_an_architecture() -> None:
    """Readers that a family shares are imported within ``architectures`` only."""
    folder = PACKAGE / "models" / "architectures"
    known = {name.replace("-", "_") for name in ARCHITECTURES}
    for path in (PACKAGE / "models").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            _, inside, name = node.module.partition("aleator.models.architectures")
            names = {name[1:]} if name else {alias.name for alias in node.names}
            assert not inside or (path.parent == folder and not names & known), path
