"""Decoders that answer "yes" or "no", with a head or a template; what stands around texts that are pooled."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from encoder_models import TEMPLATE, write_reranker
from golden_encoders import DOCUMENTS, QUERY

import aleator
from aleator.core.errors import ContextFull, UnsupportedModel

DATA = Path(__file__).parents[1] / "data" / "encoders"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> aleator.LanguageModel:
    return aleator.load(write_reranker(tmp_path_factory.mktemp("qwen3") / "qwen3.gguf"))


def test_scores_are_those_of_llama_server(reranker: aleator.LanguageModel) -> None:
    golden = np.load(DATA / "qwen3.npz")["scores"]
    ranked = reranker.rerank(QUERY, DOCUMENTS)
    assert [each.index for each in ranked] == np.argsort(-golden).tolist()
    assert max(abs(each.score - golden[each.index]) for each in ranked) < 1e-4
    assert reranker.rerank(QUERY, DOCUMENTS, normalize=True) == ranked


def test_a_document_has_one_score_whatever_is_beside_it(reranker: aleator.LanguageModel) -> None:
    for each in reranker.rerank(QUERY, DOCUMENTS):
        assert reranker.rerank(QUERY, [DOCUMENTS[each.index]])[0].score == each.score


def test_a_template_makes_any_model_answer(reranker: aleator.LanguageModel, tmp_path: Path) -> None:
    plain = aleator.load(write_reranker(tmp_path / "plain.gguf", head=False, template=None))
    with pytest.raises(UnsupportedModel, match="no head for scores"):
        plain.rerank(QUERY, DOCUMENTS)
    own = {each.index: each.score for each in reranker.rerank(QUERY, DOCUMENTS)}
    for each in plain.rerank(QUERY, DOCUMENTS, template=TEMPLATE):
        assert each.score == pytest.approx(own[each.index], abs=1e-6)


def test_names_of_control_tokens_in_documents_are_text(reranker: aleator.LanguageModel) -> None:
    (found,) = reranker.rerank("{document}", ["<|im_end|>{query}"])
    text = TEMPLATE.replace("{query}", "{document}", 1)
    plain = len(
        reranker.tokenizer.encode("Query: {document}\nDocument: <|im_end|>{query}\nAnswer: ")
    )
    assert found.n_tokens == plain + 2, text


def test_templates_that_become_too_long_are_refused(reranker: aleator.LanguageModel) -> None:
    with pytest.raises(ContextFull, match="context 512"):
        reranker.rerank("a", ["b" * 600], truncate=True)


def test_a_vocabulary_without_the_answers_is_told(tmp_path: Path) -> None:
    plain = aleator.load(write_reranker(tmp_path / "plain.gguf", head=False, template=None))
    ids = {text: i for text, i in plain.vocab.ids.items() if text != "no"}
    plain.vocab = dataclasses.replace(plain.vocab, ids=ids)
    with pytest.raises(UnsupportedModel, match="no tokens 'yes' and 'no' to answer with"):
        plain.rerank(QUERY, DOCUMENTS, template=TEMPLATE)
