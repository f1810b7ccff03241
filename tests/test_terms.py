"""Words that docs/terms.md replaces, and docstrings that do not stand alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPLACED = {
    r"kept texts?|keep_texts|keeps? texts": "cached prefix, prompt cache",
    r"steps?[ _]ahead": "multi-step decoding",
    r"sample_on\b": "sampling_device",
    r"no word between": "without a host round trip",
    r"\bbunch": "batch, run of steps",
    r"\b(keys?|quer(y|ies)|heads?) (is|are|were) turned|turned (keys|back by)|\bturns? (keys|heads)": "rotated",
    r"texts (may )?(part|differ from)\b|\btext parts\b|\bparts? from (llama|it|one|there)\b": "diverge",
    r"\bwhat crosses|\bcross to the (host|device)|\b(not|tokens) cross\b": "transfer",
    r"(to|cannot|must|still) be turned\b|\bturned by a Hadamard|elements turned": "rotated",
}
# What refuses an old spelling has to say it.
REFUSES = r"\bformer=|\brenamed\("
SPEAK_OF_THEM = {"docs/terms.md", "tests/test_terms.py", "CHANGELOG.md"}


def files(*patterns: str) -> list[Path]:
    folders = ("src", "native", "docs", "examples", "benchmarks", "tools")
    found = [
        p for folder in folders for pattern in patterns for p in (ROOT / folder).rglob(pattern)
    ]
    return [p for p in found if "results" not in p.parts] + [ROOT / "README.md"]


def test_replaced_words_are_not_used() -> None:
    found = []
    for path in files("*.py", "*.md", "*.cpp", "*.hpp"):
        name = path.relative_to(ROOT).as_posix()
        if name in SPEAK_OF_THEM:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for pattern, better in REPLACED.items():
                if re.search(pattern, line, re.IGNORECASE) and not re.search(REFUSES, line):
                    found.append(f"{name}:{number}: {line.strip()[:80]} -> {better}")
    assert not found, "\n".join(found)


def test_docstrings_stand_alone() -> None:
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                if text.startswith("The same"):
                    found.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}")
                if re.search(r"^(Parameters|Returns|Raises|Attributes)\n-+$", text, re.MULTILINE):
                    found.append(f"{path.relative_to(ROOT)}: NumPy style")
    assert not found, "\n".join(found)
