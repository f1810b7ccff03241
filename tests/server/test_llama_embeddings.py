"""llama-server's ``/embedding``: shapes, norms, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import aleator
from aleator.server.dialects.embeddings import normalized
from tests.server.conftest import Client, MakeClient

TEXTS = ["ROMEO:\nO, she doth teach", "JULIET:"]


@pytest.fixture(scope="module")
def plain(make_client: MakeClient) -> Client:
    return make_client()


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_vectors_are_the_models(plain: Client, model: aleator.LanguageModel, path: str) -> None:
    made = plain.post(path, content=TEXTS).json()
    assert [each["index"] for each in made] == [0, 1]
    vectors = np.asarray([each["embedding"][0] for each in made])
    np.testing.assert_allclose(vectors, model.embed(TEXTS), rtol=1e-5, atol=1e-6)
    one = plain.post(path, input=TEXTS[0], pooling="last", embd_normalize=-1).json()
    alone = model.embed(TEXTS[0], "last", normalize=False)
    assert one[0]["embedding"][0] == alone.tolist()


@pytest.mark.parametrize("power", [1, 2, 3, 7, 1024])
def test_norms_are_1(power: int) -> None:
    vectors = np.random.default_rng(1).normal(0, 100, (3, 50)).astype(np.float32)
    made = normalized(vectors, power).astype(np.float64)
    largest = np.abs(made).max(1)
    scaled = np.abs(made) / largest[:, None]
    norms = largest * (scaled**power).sum(1) ** (1 / power)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)


def test_the_largest_of_norm_0_is_32760() -> None:
    vectors = np.asarray([[1.0, -4.0], [0.0, 0.0]], np.float32)
    assert normalized(vectors, 0).tolist() == [[8190.0, -32760.0], [0.0, 0.0]]
    assert not normalized(vectors, 2)[1].any()


@pytest.mark.parametrize(
    "body", [{}, {"content": "a", "input": "b"}, {"content": "a", "pooling": "rank"},
             {"content": "a", "embd_normalize": -2}, {"content": "a", "contents": "b"}],
)  # fmt: skip
def test_other_bodies_are_refused(plain: Client, body: dict[str, str]) -> None:
    assert plain.post("/embedding", **body).status_code == 400
