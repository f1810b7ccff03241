from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Client, MakeClient

KEY = Path(__file__).parents[1] / "golden" / "watermark_key.txt"
DETECT = "/watermark/detect"


@pytest.fixture
def marking(make_client: MakeClient) -> Client:
    return make_client(defaults={"watermark_key_file": KEY, "preset": "neutral"})


def test_a_text_is_found_by_the_server_s_key(marking: Client) -> None:
    body: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 80, "seed": 5, "temperature": 1}
    marked = marking.made("/v1/completions", draw="watermark", aleator_replay=True, **body)
    plain = marking.made("/v1/completions", **body)
    (record,) = marked["aleator_replay"]
    assert KEY.read_text().strip() not in str(marked)
    assert str(KEY) not in str(marked)
    assert record["params"]["watermark_key_file"].startswith("fingerprint:")
    found = marking.made(DETECT, content=marked["choices"][0]["text"])
    assert found["object"] == "watermark"
    assert found["log10_p"] < -10
    assert marking.made(DETECT, content=plain["choices"][0]["text"])["p_value"] > 1e-3
    ids = marking.made(DETECT, content=[5, 6, 7], watermark_ngram=2)
    assert (ids["n_tokens"], ids["n_scored"]) == (3, 1)


def test_a_tournament_is_found(marking: Client) -> None:
    body: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 80, "seed": 5, "temperature": 1}
    made = marking.made("/v1/completions", draw="synthid", **body)
    found = marking.made(DETECT, content=made["choices"][0]["text"], draw="synthid")
    assert found["log10_p"] < -5
    assert found["layers"] == 30
    assert marking.refused(DETECT, content="x", draw="gumbel")["param"] == "draw"


def test_clients_name_no_file(marking: Client, client: Client) -> None:
    body: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 2, "draw": "watermark"}
    for path in ("/v1/completions", DETECT):
        own = body if path != DETECT else {"content": "x"}
        error = marking.refused(path, watermark_key_file=str(KEY), **own)
        assert error["param"] == "watermark_key_file"
        assert str(KEY) not in error["message"]
    assert "a watermark needs a key" in client.refused("/v1/completions", **body)["message"]
    assert "a watermark needs a key" in client.refused(DETECT, content="x")["message"]


def test_what_is_wrong_is_told(marking: Client) -> None:
    assert marking.refused(DETECT)["param"] == "content"
    assert marking.refused(DETECT, content=[10**6])["param"] == "content"
    assert marking.refused(DETECT, content="x", watermark_ngram=0)["param"] == "watermark_ngram"
    assert "did you mean content" in marking.refused(DETECT, contents="x")["message"]
