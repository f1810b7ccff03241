"""Decoders that answer "yes" or "no", with a head or a template; what stands around texts that are pooled."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_models import TEMPLATE, write_reranker
from golden_encoders import DOCUMENTS, QUERY

import aleator
from aleator.core.errors import ContextFull, UnsupportedModel
from aleator.models.conversion.quantise import Quantisation
from aleator.models.files.gguf import GGUFFile
from aleator.text.converted import open_converted
from tests.text.test_huggingface import byte_level_backend
from tests.text.test_huggingface import write as write_tokenizer

DATA = Path(__file__).parents[1] / "data" / "encoders"
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 48,
}  # fmt: skip


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


def test_documents_are_cut_to_as_many_tokens(reranker: aleator.LanguageModel) -> None:
    """One that has no more is left as it is; half a character at the cut is left out."""
    tokens = reranker.tokenizer
    whole = len(tokens.encode("king \u20ac", add_special=False))
    assert reranker.tokenizer.decode(tokens.encode("king \u20ac")[: whole - 1]).endswith("\ufffd")
    for cut, same in ((whole, "king \u20ac"), (whole - 1, "king ")):
        (made,) = reranker.rerank(QUERY, ["king \u20ac"], max_tokens_per_doc=cut)
        assert made == reranker.rerank(QUERY, [same])[0]
    with pytest.raises(aleator.ParameterError, match="max_tokens_per_doc=0: give an integer"):
        reranker.rerank(QUERY, DOCUMENTS, max_tokens_per_doc=0)


def test_names_of_control_tokens_in_documents_are_text(reranker: aleator.LanguageModel) -> None:
    (found,) = reranker.rerank("{document}", ["<|im_end|>{query}"])
    text = TEMPLATE.replace("{query}", "{document}", 1)
    plain = len(
        reranker.tokenizer.encode("Query: {document}\nDocument: <|im_end|>{query}\nAnswer: ")
    )
    assert found.n_tokens == plain + 2, text


def test_templates_that_become_too_long_are_refused_or_cut(reranker: aleator.LanguageModel) -> None:
    with pytest.raises(ContextFull, match="context 512"):
        reranker.rerank("a", ["b" * 600])
    (cut,) = reranker.rerank("a", ["b" * 600], truncate=True)
    around = reranker.rerank("a", ["b"])[0].n_tokens - 1
    assert cut == reranker.rerank("a", ["b" * (512 - around)])[0]
    assert cut.n_tokens == 512
    with pytest.raises(ContextFull, match=r"query alone takes 6\d\d of"):
        reranker.rerank("a" * 600, ["b"], truncate=True)


def test_a_vocabulary_without_the_answers_is_told(tmp_path: Path) -> None:
    plain = aleator.load(write_reranker(tmp_path / "plain.gguf", head=False, template=None))
    ids = {text: i for text, i in plain.vocab.ids.items() if text != "no"}
    plain.vocab = dataclasses.replace(plain.vocab, ids=ids)
    with pytest.raises(UnsupportedModel, match="no tokens 'yes' and 'no' to answer with"):
        plain.rerank(QUERY, DOCUMENTS, template=TEMPLATE)


@pytest.mark.parametrize(("model", "tied"), [("Qwen3", True), ("Qwen3", False), ("Llama", True)])
def test_converted_rerankers_have_the_head_of_llama_cpps(
    model: str, tied: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    backend = byte_level_backend()
    backend.add_tokens(["no", "yes"])
    folder, file = tmp_path / "Qwen3-Reranker-tiny", tmp_path / "out.gguf"
    config = getattr(transformers, f"{model}Config")(
        **SIZES, vocab_size=backend.get_vocab_size(), tie_word_embeddings=tied
    )
    getattr(transformers, f"{model}ForCausalLM")(config).save_pretrained(folder)
    write_tokenizer(folder, backend)
    Quantisation(open_converted(folder), None).write(file)
    theirs, ours, gguf = aleator.load(folder), aleator.load(file), GGUFFile(file)
    # Files of Llama's kind have the channels that rotate in another order, and so their sums.
    wanted = {each.index: each.score for each in theirs.rerank(QUERY, DOCUMENTS)}
    assert {each.index: each.score for each in ours.rerank(QUERY, DOCUMENTS)} == pytest.approx(
        wanted, abs=0 if model == "Qwen3" else 1e-6
    )
    assert ("cls.output.weight" in gguf.tensors) == (model == "Qwen3")
    if model == "Qwen3":
        rows = gguf.stored("token_embd.weight" if tied else "output.weight").floats()
        ids = [ours.vocab.ids["yes"], ours.vocab.ids["no"]]
        assert np.array_equal(gguf.stored("cls.output.weight").floats(), rows[ids])
        assert gguf.fields.values["qwen3.pooling_type"] == 4
        assert gguf.fields.values["qwen3.classifier.output_labels"] == ["yes", "no"]


@pytest.mark.parametrize("labels", [1, 2])
def test_classifiers_rank_by_their_only_output(labels: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    backend = byte_level_backend()
    backend.add_tokens(["no", "yes"])
    folder, file = tmp_path / "Qwen3-Reranker-tiny", tmp_path / "out.gguf"
    config = transformers.Qwen3Config(
        **SIZES, vocab_size=backend.get_vocab_size(), num_labels=labels
    )
    model = transformers.Qwen3ForSequenceClassification(config)
    model.save_pretrained(folder)
    write_tokenizer(folder, backend)
    if labels > 1:
        with pytest.raises(UnsupportedModel, match="a head with 2 outputs"):
            aleator.load(folder)
        with pytest.raises(UnsupportedModel, match="2 outputs"):
            open_converted(folder)
        return
    Quantisation(open_converted(folder), None).write(file)
    theirs, gguf = aleator.load(folder), GGUFFile(file)
    ranked = theirs.rerank(QUERY, DOCUMENTS, template=TEMPLATE)
    assert aleator.load(file).rerank(QUERY, DOCUMENTS, template=TEMPLATE) == ranked
    for each in ranked:
        text = TEMPLATE.replace("{query}", QUERY).replace("{document}", DOCUMENTS[each.index])
        ids = theirs.tokenizer.encode(text, parse_special=True)
        with torch.no_grad():
            state = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            assert each.score == pytest.approx(model.score(state).sigmoid().item(), abs=1e-5)
    assert gguf.tensors["cls.output.weight"].shape == (2, 32)
    assert gguf.fields.values["qwen3.pooling_type"] == 4
    assert gguf.fields.values["qwen3.classifier.output_labels"] == ["yes", "no"]
