"""Finds what pages cite but does not exist: files, anchors, pictures, results, tests, targets of make.

Pages that the source names are checked too.

``tools/docs.py --check`` fails with these lines.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDERS = (
    "benchmarks", "docs", "examples", "licences", "native", "packages", "requirements", "src",
    "tests", "tools", r"\.github", r"\.ci",
)  # fmt: skip
ROOMS = ("", "src/aleator", "native", "docs")
"""Folders that a path in code may start from."""
THEIRS = {
    "common/arg.cpp": "llama.cpp's",
    "common/download.cpp": "llama.cpp's",
    "src/models/NAME.cpp": "llama.cpp's",
    "docs/gguf.md": "ggml's",
    "docs/syntax.md": "llguidance's",
}
"""Paths outside this repository, and where they belong."""
TO_BE_WRITTEN = re.compile(r"top_share|helium|count_tokens")
"""Files that readers of docs/adding-a-sampler.md and docs/adding-an-architecture.md create."""

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(
    r"(?:(!)\[[^\]\[]*)?\]\(<?([^)\s>]+)>?(?: +\"[^\"\n]*\")?\)"
    r"|<(?:img|source)\b[^>]*?\bsrc(?:set)?=[\"']([^\"']+)"
    r"|<a\b[^>]*?\bhref=[\"']([^\"']+)|^\[[^\]\n]+\]: +<?([^\s>]+)",
    re.MULTILINE,
)
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_IDENTITY = re.compile(r"\bid=[\"']([^\"']+)")
_PATH = re.compile(rf"(?<![\w/.~-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w/*](?:::\w+)?(?![\w/<{{])")
_SOURCE = re.compile(r"[a-z_]+(?:/[\w.-]+)*/[\w.-]+\.(?:py|pyi|cpp|hpp|toml|json|md|npz)")
_RESULT = re.compile(r"(?<![\w/.])([a-z][a-z0-9_]*\.20\d\d-\d\d-\d\d)(\.md|\.json|\.png)?\b")
_PAGE = re.compile(r"(?<![\w/])docs/[a-z-]+\.md\b")
_TARGET = re.compile(r"^(?:\$ )?make ([a-z][a-z-]*(?: [a-z][a-z-]*)*)", re.MULTILINE)


def broken(root: Path) -> list[str]:
    """Broken citations in a checkout's pages, one per line: file, line, what is wrong."""
    pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    results = sorted((root / "benchmarks" / "results").glob("*.md"))
    sources = [
        file
        for folder, kind in (("src", "py"), ("native", "?pp"), ("tools", "py"))
        for file in sorted((root / folder).rglob(f"*.{kind}"))
    ]
    return [
        f"{file.relative_to(root)}:{text[:place].count(chr(10)) + 1}: {what}"
        for file in [*pages, *results, *sources]
        for text in [file.read_text()]
        for place, what in sorted(_of_file(root, file, text))
    ]


def _of_file(root: Path, file: Path, text: str) -> Iterator[tuple[int, str]]:
    if file.suffix != ".md":
        for match in _PAGE.finditer(text):
            if not (_elsewhere(match[0]) or (root / match[0]).exists()):
                yield match.start(), f"no such page: {match[0]}"
        return
    yield from _links(file, text)
    # A changelog and results name files as they were.
    if file.name != "CHANGELOG.md" and file.parent.name != "results":
        yield from _paths(root, text)
        yield from _targets(root, text)


def _links(page: Path, text: str) -> Iterator[tuple[int, str]]:
    """Links and pictures of a page, and the anchors that they name."""
    for match in _LINK.finditer(_without_code(text)):
        kind = "picture" if match[1] or match[3] else "link"
        target, _, anchor = next(each for each in match.groups()[1:] if each).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / target if target else page
        if not file.exists():
            yield match.start(), f"no such file of a {kind}: {target}"
        elif anchor and anchor not in _anchors(file):
            yield match.start(), f"no such anchor: {target}#{anchor}"


def _paths(root: Path, text: str) -> Iterator[tuple[int, str]]:
    """Paths from the root, paths in code from a folder of sources, and results by their names alone."""
    for match in _PATH.finditer(text):
        path, _, name = match[0].partition("::")
        if not (_elsewhere(path) or any(root.glob(path.rstrip("/")))):
            yield match.start(), f"no such path: {path}"
        elif name and not re.search(rf"\b{name}\b", (root / path).read_text()):
            yield match.start(), f"no such name: {match[0]}"
    for match in _RESULT.finditer(text):
        if not any((root / "benchmarks" / "results").glob(f"{match[1]}{match[2] or '.*'}")):
            yield match.start(), f"no such result: {match[0]}"
    for match in _CODE.finditer(text):
        path = match[1]
        if not _SOURCE.fullmatch(path) or _PATH.match(path) or _elsewhere(path):
            continue
        if not any((root / room / path).exists() for room in ROOMS):
            yield match.start(), f"no such path: {path}"


def _elsewhere(path: str) -> bool:
    return path in THEIRS or TO_BE_WRITTEN.search(path) is not None


def _targets(root: Path, text: str) -> Iterator[tuple[int, str]]:
    """Targets of make, in code."""
    makefile = root / "Makefile"
    known = (
        re.findall(r"^([a-z-]+):", makefile.read_text(), re.MULTILINE) if makefile.exists() else []
    )
    for code in [*_FENCE.finditer(text), *_CODE.finditer(_without_fences(text))]:
        inner = code[1] if code.re is _CODE else code[0]
        for match in _TARGET.finditer(inner):
            for target in match[1].split():
                if target not in known:
                    yield code.start(), f"no such target of make: {target}"


def _without_fences(text: str) -> str:
    """The text with blocks of code replaced by as many blanks."""
    return _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _without_code(text: str) -> str:
    return _CODE.sub(lambda match: " " * len(match[0]), _without_fences(text))


@cache
def _anchors(file: Path) -> frozenset[str]:
    """Anchors of a file that exist both on GitHub and on the site; their rules differ."""
    text = file.read_text()
    found = set(_IDENTITY.findall(text))
    if file.suffix == ".md":
        counted: dict[str, int] = {}
        for heading in _HEADING.findall(_without_fences(text)):
            plain = (
                re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
            )
            ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
            site = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
            github = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
            counted[github] = counted.get(github, 0) + 1
            if github == site and counted[github] == 1:
                found.add(github)
    return frozenset(found)
