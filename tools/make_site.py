"""Build the documentation site: the pages of docs/, their pictures, and the committed results.

    make site                       into build/site/html
    python tools/make_site.py --pages    the pages alone, without mkdocs
    make site PYODIDE=FOLDER             with a button at the tutorials' blocks of Python (site_python.py)

The site loads nothing from elsewhere; this script fails if a page would.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

import site_python
from site_page import FOLDER, WASM, sampler_pages, write_page

from docs import on_the_site as on_the_site

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "site"
PAGES, HTML = BUILD / "pages", BUILD / "html"
TOP_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the repository's root, by their names on the site, which begins with README."""
INDEX = "all-pages.md"
"""docs/README.md on the site."""
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]*)(#[^)\s]*)?\)")
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")
_DRAWING = re.compile(r"^```text\n(?=(?:(?!```)[\s\S])*[│─])", re.MULTILINE)
_LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(https?:)?//[^"'\s>]+"""
)
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):(<code>)~?")
_TEST = re.compile(r"<td><code>([a-z_]+::)")
_FILE = re.compile(r"\b(docs|benchmarks/results)/([\w.-]+)\.md\b")
_APART = re.compile(r"(<(pre|code|a|script|nav)\b.*?</\2>|<[^>]*>)", re.DOTALL)
_RELATIONS = re.compile(r"""rel=["']?(?:canonical|alternate|next|prev)""")


def main() -> int:
    """Write the pages, and build the site of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", action="store_true", help="the pages alone")
    parser.add_argument("--pyodide", type=Path, help="a folder of Pyodide's release")
    arguments = parser.parse_args()
    write_pages(arguments.pyodide)
    if arguments.pages:
        return 0
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=ROOT, check=True
    )
    polish()
    foreign = loaded_from_elsewhere()
    for each in foreign:
        print(f"loads from elsewhere: {each}", file=sys.stderr)
    return 1 if foreign else 0


def write_pages(pyodide: Path | None = None) -> None:
    """Write the pages for mkdocs: links point into the site, or name a file's path."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for folder in ("images", "pages"):
        shutil.copytree(ROOT / "docs" / folder, PAGES / folder)
    shutil.copy(ROOT / "docs" / "site.css", PAGES / "site.css")
    sources = {path.name: path for path in (ROOT / "docs").glob("*.md")}
    sources[INDEX] = sources.pop("README.md")
    sources |= {page: ROOT / name for name, page in TOP_PAGES.items()}
    for name, text in sampler_pages().items():
        (PAGES / name).write_text(text)
    if WASM.is_file():
        write_page(PAGES / FOLDER)
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    (PAGES / "results").mkdir()
    if pyodide:
        site_python.write_python(PAGES / site_python.FOLDER, pyodide)
    for name, path in sources.items():
        text = on_the_site(path.read_text())
        runs = pyodide and name.startswith("tutorial")
        (PAGES / name).write_text(linked(path, site_python.with_buttons(text) if runs else text))
    for path in (ROOT / "benchmarks" / "results").glob("*.png"):
        shutil.copy(path, PAGES / "results" / path.name)
    for path in results:
        text = path.read_text().replace("](../../docs/", "](../")
        (PAGES / "results" / path.name).write_text(deeper(whole_pipes(text)))


def linked(path: Path, text: str) -> str:
    """A page's text with links that hold in the site."""

    def place(match: re.Match[str]) -> str:
        name, target, anchor = match[1], match[2], match[3] or ""
        if not target or ":" in target:
            return match[0]
        file = (path.parent / target).resolve()
        if file.is_relative_to(ROOT / "docs"):
            inside = file.relative_to(ROOT / "docs")
            if name.endswith(f"{file.stem}.md]"):  # readers of the site know no files
                name = f"[{title(file)}]"
            return f"{name}({INDEX if str(inside) == 'README.md' else inside}{anchor})"
        if file.parent == ROOT / "benchmarks" / "results" and file.suffix in (".md", ".png"):
            return f"{name}(results/{file.name}{anchor})"
        if file.name in TOP_PAGES and file.parent == ROOT:
            return f"{name}({TOP_PAGES[file.name]}{anchor})"
        where = file.relative_to(ROOT) if file.is_relative_to(ROOT) else target
        label = name.removeprefix("!").strip("[]")
        return f"{label} (`{where}`)" if str(where) not in label else label

    text = _LINK.sub(place, text).replace("```python no-run\n", "```python\n")
    return deeper(whole_pipes(_DRAWING.sub("``` { .text .drawing }\n", text)))


def whole_pipes(text: str) -> str:
    """Text whose tables have plain pipes in code: GitHub asks for a backslash, which mkdocs would show."""

    def row(match: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace("\\|", "|"), match[0])

    return _ROW.sub(row, text)


def deeper(text: str) -> str:
    """Text in which the contents of list items are indented by four spaces, as mkdocs needs."""
    lines, code = text.split("\n"), False
    for i, line in enumerate(lines):
        code ^= line.lstrip().startswith("```")
        if not code and re.match(r" {2,3}[^ ]", line):
            lines[i] = f"    {line.lstrip()}"
    return "\n".join(lines)


def title(page: Path) -> str:
    """A page's first heading."""
    return page.read_text().partition("# ")[2].partition("\n")[0]


def polish() -> None:
    """Remove Sphinx's roles from the pages; let long names break, and make files links."""
    for page in HTML.rglob("*.html"):
        text = page.read_text()
        plain = _TEST.sub(r'<td><code class="test">\1<wbr>', _ROLE.sub(r"\1", text)).replace(
            "::</p>", ":</p>"
        )
        plain = named(plain, "../" if page.parent.name == "results" else "")
        if plain != text:
            page.write_text(plain)


def named(page: str, up: str) -> str:
    """A page of HTML with links instead of names of documentation files.

    Args:
        page: The page.
        up: The relative path to the site's first page.
    """

    def link(match: re.Match[str]) -> str:
        file = ROOT / match[0]
        if not file.is_file() or match[2] == "README":
            return match[0]
        folder = "results/" if "/" in match[1] else ""
        return f'<a href="{up}{folder}{match[2]}.html">{html.escape(title(file), quote=False)}</a>'

    head, body, rest = page.partition("<article")
    parts = _APART.split(rest)
    return (
        head
        + body
        + "".join(
            _FILE.sub(link, part) if i % 3 == 0 else part
            for i, part in enumerate(parts)
            if i % 3 != 2  # the name of the tag
        )
    )


def loaded_from_elsewhere() -> list[str]:
    """What pages of the site would load from elsewhere."""
    found = []
    for page in HTML.rglob("*.html"):
        for match in _LOADED.finditer(page.read_text()):
            if not _RELATIONS.search(match[0]):
                found.append(f"{page.relative_to(HTML)}: {match[0][:120]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
