"""Links of pages as the site has them (tools/make_site.py)."""

from __future__ import annotations

from pathlib import Path

import make_site
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("README.md", "[a](docs/chat.md#tools)", "[a](chat.md#tools)"),
        ("README.md", "![a](docs/images/x.png)", "![a](images/x.png)"),
        ("README.md", "[a](docs/README.md)", "[a](all-pages.md)"),
        ("docs/tutorial.md", "[a](README.md)", "[a](all-pages.md)"),
        ("docs/README.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/README.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("docs/x.md", "[a](../benchmarks/results/b.md)", "[a](results/b.md)"),
        ("docs/x.md", "[a](https://example.org/)", "[a](https://example.org/)"),
        ("docs/x.md", "[a](#here)", "[a](#here)"),
        ("docs/x.md", "[a](../examples/simple.py)", "a (`examples/simple.py`)"),
    ],
)
def test_links_hold_in_the_site(page: str, link: str, expected: str) -> None:
    assert make_site.linked(ROOT / page, link) == expected
