"""The page of a server with several models."""

from __future__ import annotations

import pytest

from aleator.models.hub.bundled import bundled_model
from tests.playground.browser import Browser, missing, tokens, write
from tests.server.test_models import listed, serving

if missing():
    pytest.skip(f"{missing()} is not installed", allow_module_level=True)


def test_the_address_says_which_model_the_page_shows(chromium: Browser) -> None:
    with serving([listed(bundled_model(), "one"), listed(bundled_model(), "two")]) as live:
        chromium.open(f"http://127.0.0.1:{live.port}/?model=two")
        write(chromium, 8)
        assert len(tokens(chromium)) == 8
        assert [each["value"] for each in live.states().values()] == ["unloaded", "loaded"]
        chromium.until(
            lambda: "/?model=two#" in chromium.script("return location.href"), "the address"
        )
        assert chromium.reports() == []
