"""Links of pages as the site has them (tools/make_site.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_site
import pytest
import site_page

import aleator
import docs

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("README.md", "[a](docs/chat.md#tools)", "[a](chat.md#tools)"),
        ("README.md", "[docs/chat.md](docs/chat.md#tools)", "[Chat](chat.md#tools)"),
        ("docs/tutorial.md", "[chat.md](chat.md)", "[Chat](chat.md)"),
        ("README.md", "![a](docs/images/x.png)", "![a](images/x.png)"),
        ("README.md", "[a](docs/README.md)", "[a](all-pages.md)"),
        ("docs/tutorial.md", "[a](README.md)", "[a](all-pages.md)"),
        ("docs/README.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/README.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("docs/x.md", "[a](../benchmarks/results/b.md)", "[a](results/b.md)"),
        ("docs/x.md", "![a](../benchmarks/results/b.png)", "![a](results/b.png)"),
        ("docs/x.md", "[a](https://example.org/)", "[a](https://example.org/)"),
        ("docs/x.md", "[a](#here)", "[a](#here)"),
        ("docs/x.md", "| `<\\|a\\|>` \\| b | `c\\|` |", "| `<|a|>` \\| b | `c|` |"),
        ("docs/x.md", "- a\n  - b\n\n  c", "- a\n    - b\n\n    c"),
        ("docs/x.md", "```\n  a\n```\n\n1. b\n   c", "```\n  a\n```\n\n1. b\n    c"),
        ("docs/x.md", "```text\na ─> b\n```", "``` { .text .drawing }\na ─> b\n```"),
        ("docs/x.md", "```text\na\n```\n─", "```text\na\n```\n─"),
        ("docs/x.md", "```python no-run\na\n```", "```python\na\n```"),
        ("docs/x.md", "a `b\\|c`", "a `b\\|c`"),
        ("docs/x.md", "[a](../examples/simple.py)", "a (`examples/simple.py`)"),
    ],
)
def test_links_hold_in_the_site(page: str, link: str, expected: str) -> None:
    assert make_site.linked(ROOT / page, link) == expected


def test_the_site_has_all_tables() -> None:
    pages = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    made = "".join(docs.on_the_site(page) for page in pages)
    assert "<!-- on the site" in "".join(pages)
    assert "<!-- on the site" not in made
    assert "| `n_ctx` | `-c`, `--ctx-size` |" in made


def test_every_sampler_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_page, "WASM", tmp_path / "none.wasm")
    without = site_page.sampler_pages()
    assert set(without) == {f"sampler-{cls.name}.md" for cls in aleator.samplers.SAMPLERS}
    assert all(
        "class: aleator.samplers." in page and "<" not in page.partition("```")[0]
        for page in without.values()
    )
    monkeypatch.setattr(site_page, "WASM", Path(__file__))
    made = site_page.sampler_pages()
    with_picture = {name for name, page in made.items() if "<aleator-live " in page}
    assert with_picture == {f"sampler-{name}.md" for name in site_page.LIVE}


@pytest.mark.parametrize(("name", "values"), site_page.LIVE.items())
def test_a_live_picture_begins_with_its_sampler_at_work(name: str, values: dict[str, Any]) -> None:
    chain = aleator.SamplingParams(**values).chain()
    assert name in [sampler.name for sampler in chain if not sampler.neutral]


def test_the_reference_says_what_forwarded_attributes_are() -> None:
    griffe: Any = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(str(docs.ROOT / "tools" / "griffe_records.py"))
    name = "aleator.generate.generation"
    module = griffe.load(name, search_paths=[str(docs.ROOT / "src")], extensions=extensions)
    member = module["Generation.seed"]
    assert (member.docstring.value, member.labels) == ("The seed in effect.", {"property"})


def test_names_of_files_are_links() -> None:
    page = (
        "<title>docs/chat.md</title><article><p>see docs/chat.md.</p><code>docs/chat.md</code> "
        "<a href='docs/chat.md'>docs/chat.md</a> docs/no-such.md benchmarks/results/wheels.2026-11-23.md"
    )
    made = make_site.named(page, "../")
    assert made.startswith("<title>docs/chat.md</title><article>")
    assert '<p>see <a href="../chat.html">Chat</a>.</p><code>docs/chat.md</code>' in made
    assert "<a href='docs/chat.md'>docs/chat.md</a> docs/no-such.md" in made
    assert '<a href="../results/wheels.2026-11-23.html">' in made


def test_pipes_in_tables_of_results() -> None:
    row = "| `a\\|b` | failed: `c\\|d` | e\\|f |"
    assert (
        make_site.whole_pipes(f"`a\\|b`\n\n{row}") == "`a\\|b`\n\n| `a|b` | failed: `c|d` | e\\|f |"
    )
