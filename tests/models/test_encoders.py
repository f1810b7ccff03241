"""Encoders: transformers' hidden states and scores, llama-server's vectors, tokens; equal bits in a batch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_models import ENCODERS, write_encoder
from golden_encoders import DOCUMENTS, QUERY, TEXTS

import aleator
from aleator.cli import main
from aleator.core.cancellation import cancelled_by
from aleator.core.errors import ContextFull, FileFormatError, ParameterError, UnsupportedModel
from aleator.models import build_decoder, open_weights
from aleator.models.encoder import Encoder
from aleator.models.native_decoder import inherited
from aleator.text.special_tokens import Pair
from tests.models.check_transformers import relative, renamed

transformers: Any = pytest.importorskip("transformers")
torch: Any = pytest.importorskip("torch")
DATA = Path(__file__).parents[1] / "data" / "encoders"
SIZES = {
    "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 66,
}  # fmt: skip
WORDS = ["the", "queen", "king", "##s", "##ing", "lov", "is", ",", "a", "##a", "##b", "b"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def saved(model: Any, folder: Path) -> Path:
    """Random weights, and a WordPiece tokenizer."""
    for values in model.parameters():
        values.data.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens = [*SPECIAL, *WORDS]
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.save(str(folder / "tokenizer.json"))


def states(model: Any, ids: list[int], **given: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids]), **given)


def check_score(model: Any, folder: Path) -> None:
    loaded = aleator.load(saved(model, folder))
    (found,) = loaded.rerank("the queen", ["is loving a king"])
    ids, _ = loaded.tokenizer.encode_pair("the queen", "is loving a king")
    assert found.score == pytest.approx(float(states(model, ids).logits[0, 0]), abs=2e-5)


IDS = [(7 * i * i + 3 * i + 5) % 120 for i in range(60)]


def encoders() -> dict[str, Any]:
    """transformers' models with random weights."""
    made = transformers
    few = {**SIZES, "max_position_embeddings": 64}
    modern = {
        **few, "local_attention": 8, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
        "cls_token_id": 2, "sep_token_id": 3,
    }  # fmt: skip
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    both = {
        **few, **ends, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8,
        "sliding_window": 8, "sliding_window_pattern": 3, "use_bidirectional_attention": True,
    }  # fmt: skip
    rope = {"rope_theta": 1000.0, "rope_type": "default"}
    return {
        "bert": lambda: made.BertModel(made.BertConfig(**few)),
        "roberta": lambda: made.RobertaModel(made.RobertaConfig(**SIZES, pad_token_id=1)),
        "xlm-roberta": lambda: made.XLMRobertaModel(
            made.XLMRobertaConfig(**SIZES, pad_token_id=1, type_vocab_size=1)
        ),
        "nomic-bert": lambda: made.NomicBertModel(
            made.NomicBertConfig(**few, rope_parameters=rope)
        ),
        "jina-bert-v3": lambda: made.JinaEmbeddingsV3Model(
            made.JinaEmbeddingsV3Config(**few, pad_token_id=0, bos_token_id=2, eos_token_id=3)
        ),
        "modern-bert": lambda: made.ModernBertModel(made.ModernBertConfig(**modern)),
        "modern-bert-silu": lambda: made.ModernBertModel(
            made.ModernBertConfig(**modern, hidden_activation="silu")
        ),
        "eurobert": lambda: made.EuroBertModel(
            made.EuroBertConfig(**few, **ends, num_key_value_heads=2)
        ),
        "gemma-embedding": lambda: made.Gemma3TextModel(made.Gemma3TextConfig(**both)),
    }


@pytest.mark.parametrize("name", list(encoders()))
def test_hidden_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = encoders()[name]()
    decoder = build_decoder(open_weights(saved(model, tmp_path)))
    assert isinstance(decoder, Encoder)
    ids = [3 if i == 1 else i for i in IDS]  # in roberta 1 pads, and has no position
    (got,) = decoder.states([ids])
    wanted = states(model, ids).last_hidden_state[0].numpy()
    assert relative(got, wanted) < 2e-6


def test_llama_embed_is_eurobert_under_another_name(tmp_path: Path) -> None:
    model = encoders()["eurobert"]()
    renamed(saved(model, tmp_path), lambda fields: fields.update(model_type="llama_bidirec"))
    decoder = build_decoder(open_weights(tmp_path))
    assert isinstance(decoder, Encoder)
    (got,) = decoder.states([IDS])
    assert relative(got, states(model, IDS).last_hidden_state[0].numpy()) < 2e-6


@pytest.mark.parametrize("name", list(ENCODERS))
def test_vectors_and_tokens_are_those_of_llama_server(name: str, tmp_path: Path) -> None:
    golden = np.load(DATA / f"{name}.npz")
    model = aleator.load(write_encoder(tmp_path / "model.gguf", ENCODERS[name]))
    for i, text in enumerate(TEXTS):
        assert list(model.request_maker.tokens(text, whole=True)) == golden[f"tokens-{i}"].tolist()
    # llama.cpp's sums are in another order, and its Q8_0 rounds activations in another way.  GELU from a table
    # of float16 makes steps of either: transformers with it differs as much between float32 and float64.
    for pooling in ("mean", "cls", "last"):
        got = model.embed(TEXTS, pooling, normalize=False)
        wanted = golden[f"vectors-{pooling}"]
        assert relative(got, wanted) < (2e-2 if name == "bert-q8" else 2e-4), pooling
    if ENCODERS[name].head:
        ranked = model.rerank(QUERY, DOCUMENTS)
        scores = golden["scores"]
        assert [each.index for each in ranked] == np.argsort(-scores).tolist()
        assert max(abs(each.score - scores[each.index]) for each in ranked) < 5e-4


@pytest.mark.parametrize("name", list(ENCODERS))
def test_a_text_has_the_same_bits_alone_and_in_a_batch(name: str, tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_encoder(tmp_path / "model.gguf", ENCODERS[name])))
    assert isinstance(decoder, Encoder)
    texts = [[(i * k + 3) % 100 for i in range(n)] for k, n in ((1, 64), (3, 1), (5, 17), (7, 40))]
    alone = [next(iter(decoder.states([text]))) for text in texts]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2, 0, 0]):
        together = list(decoder.states([texts[i] for i in order]))
        assert all(np.array_equal(made, alone[i]) for made, i in zip(together, order, strict=True))


def test_many_texts_are_computed_in_parts(tmp_path: Path, monkeypatch: Any) -> None:
    decoder = build_decoder(open_weights(write_encoder(tmp_path / "m.gguf", ENCODERS["bert"])))
    assert isinstance(decoder, Encoder)
    texts = [[2, 5 + i, 3] for i in range(9)]
    whole = list(decoder.states(texts))
    monkeypatch.setattr("aleator.models.encoder.TOKENS", 7)
    parts = list(decoder.states(texts))
    assert len(parts) == 9
    assert all(map(np.array_equal, whole, parts))


def test_segments_have_vectors_of_their_own_in_transformers_files(tmp_path: Path) -> None:
    torch.manual_seed(2)
    few = {**SIZES, "max_position_embeddings": 64}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**few, num_labels=1))
    loaded = aleator.load(saved(model, tmp_path))
    backend = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    documents = ["a king, loving", "b", "the zebra is a queen"]
    for each in loaded.rerank("The queens", documents):
        given = backend(
            "The queens", documents[each.index], return_tensors="pt", return_token_type_ids=True
        )
        with torch.no_grad():
            wanted = model(given["input_ids"], token_type_ids=given["token_type_ids"]).logits
        assert each.score == pytest.approx(float(wanted[0, 0]), abs=2e-5)
        assert each.n_tokens == given["input_ids"].shape[1]
    probable = loaded.rerank("The queens", documents, normalize=True)
    raw = loaded.rerank("The queens", documents)
    assert [p.score for p in probable] == pytest.approx([1 / (1 + np.exp(-r.score)) for r in raw])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_scores_of_modern_bert_are_those_of_transformers(pooling: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.ModernBertConfig(
        **SIZES, num_labels=1, local_attention=8, pad_token_id=0, classifier_pooling=pooling,
        bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
    )  # fmt: skip
    model = transformers.ModernBertForSequenceClassification(config)
    check_score(model, tmp_path)


def test_scores_of_roberta_are_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = transformers.XLMRobertaConfig(
        **SIZES, num_labels=1, type_vocab_size=1, pad_token_id=0, bos_token_id=2, eos_token_id=3
    )
    model = transformers.XLMRobertaForSequenceClassification(config)
    check_score(model, tmp_path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> aleator.LanguageModel:
    folder = tmp_path_factory.mktemp("bert")
    return aleator.load(write_encoder(folder / "bert.gguf", ENCODERS["bert"]))


def test_the_file_says_how_vectors_are_pooled(bert: aleator.LanguageModel) -> None:
    text = "the king and a queen"
    assert np.array_equal(bert.embed(text), bert.embed(text, "cls"))
    each = bert.embed_tokens([text, "a"])
    assert [len(states) for states in each] == [7, 3]
    assert np.array_equal(bert.embed(text, "last", normalize=False), each[0][-1])


def test_an_encoder_writes_no_text(bert: aleator.LanguageModel) -> None:
    for ask in (
        lambda: bert.generate("the king"),
        lambda: bert.score("the", " king"),
        lambda: bert.prompt_logprobs("the king"),
        lambda: bert.perplexity("the king and the queen and the lord", n_ctx=4),
        lambda: bert.beams("the king"),
    ):
        with pytest.raises(UnsupportedModel, match=r"encoder.*embed\(\) or rerank\(\)"):
            ask()


def test_texts_that_are_too_long_are_refused_or_cut(bert: aleator.LanguageModel) -> None:
    assert bert.n_ctx == 64
    long = "king " * 70
    with pytest.raises(ContextFull, match="72 tokens and the context 64"):
        bert.embed(long)
    cut, short = bert.embed([long, "king"], truncate=True)
    assert np.array_equal(short, bert.embed("king"))
    assert np.array_equal(cut, bert.embed([[2, *[bert.vocab.ids["▁king"]] * 62, 3]])[0])
    assert np.array_equal(bert.embed([[5] * 64 + [6]], truncate=True), bert.embed([[5] * 64]))


def test_numbers_that_are_not_finite_are_errors(
    bert: aleator.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = np.full((3, 32), np.nan, np.float32)
    monkeypatch.setattr(bert.decoder, "states", lambda *given: iter([nan]))
    for work in (bert.embed, bert.embed_tokens):
        with pytest.raises(FileFormatError, match="hidden states are not finite"):
            work("a")
    scoring = aleator.load(write_encoder(tmp_path / "m.gguf", ENCODERS["bert-score"]))
    scoring.rerank("a", ["b"])
    monkeypatch.setattr(scoring._head, "score", lambda state: float("inf"))
    with pytest.raises(FileFormatError, match="scores are not finite"):
        scoring.rerank("a", ["b"])


def test_a_query_is_cut_into_tokens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = aleator.load(write_encoder(tmp_path / "m.gguf", ENCODERS["bert-score"]))
    encode, asked = model.tokenizer.encode, list[str]()

    def noted(text: str, **given: Any) -> list[int]:
        asked.append(text)
        return encode(text, **given)

    monkeypatch.setattr(model.tokenizer, "encode", noted)
    model.rerank("the queen", ["a", "b"])
    assert asked == ["the queen", "a", "b"]
    with pytest.raises(ContextFull, match="query alone takes 102 of"):
        model.rerank("the " * 100, ["a"] * 9, truncate=True)
    assert len(asked) == 5  # nothing is done for the other documents


def test_a_pair_without_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = aleator.load(write_encoder(tmp_path / "m.gguf", ENCODERS["bert-score"]))
    bare = dataclasses.replace(model.tokenizer.vocab, pair=Pair())
    monkeypatch.setattr(model.tokenizer, "vocab", bare)
    with pytest.raises(ParameterError, match=r"documents\[0\] have no tokens"):
        model.rerank("\u200b", ["\u200b"])


def test_work_is_given_up_between_its_parts(bert: aleator.LanguageModel, monkeypatch: Any) -> None:
    monkeypatch.setattr("aleator.models.encoder.TOKENS", 4)
    left = [None, None]
    with cancelled_by(lambda: left.pop()), pytest.raises(IndexError):
        bert.embed(["the king"] * 3)
    assert not left
    assert bert.embed(["the king"] * 3).shape == (3, 64)


def test_a_forks_child_makes_its_own_step(
    bert: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = bert.embed("the king")
    assert isinstance(bert.decoder, Encoder)
    earlier = bert.decoder._made
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert np.array_equal(bert.embed("the king"), wanted)
    assert inherited.pop() is earlier


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"pooling": "other"}, "pooling"),
        ({"pooling": "none"}, "pooling"),
        ({"pooling": "rank"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"truncate": "yes"}, "truncate"),
    ],
)
def test_wrong_options_of_vectors(bert: aleator.LanguageModel, given: Any, parameter: str) -> None:
    with pytest.raises(ParameterError) as caught:
        bert.embed("a", **given)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "texts is empty"),
        (5, "texts=5"),
        ([["a"]], r"texts\[0\]=\['a'\]: give a text, or a list of token ids"),
        ([5, 6], r"texts\[0\]=5"),
        ([[5], [True]], r"texts\[1\]=\[True\]"),
        ([[]], r"texts\[0\] is empty"),
    ],
)
def test_wrong_texts_are_named(bert: aleator.LanguageModel, texts: Any, said: str) -> None:
    for work in (bert.embed, bert.embed_tokens):
        with pytest.raises(ParameterError, match=said):
            work(texts)


def test_rerank_needs_a_head(bert: aleator.LanguageModel) -> None:
    with pytest.raises(UnsupportedModel, match="no head for scores"):
        bert.rerank("a", ["b"])
    with pytest.raises(UnsupportedModel, match="no head for scores"):
        bert.rerank("a", ["b"], template="{query} {document}")


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"query": " "}, "query"),
        ({"documents": "text"}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"normalize": None}, "normalize"),
        ({"template": "no places"}, "template"),
    ],
)
def test_wrong_arguments_of_rerank(tmp_path: Path, given: Any, parameter: str) -> None:
    model = aleator.load(write_encoder(tmp_path / "m.gguf", ENCODERS["bert-score"]))
    with pytest.raises(ParameterError) as caught:
        model.rerank(**{"query": "a", "documents": ["b"], **given})
    assert caught.value.parameter == parameter


def test_documents_that_are_too_long_are_refused_or_cut(tmp_path: Path) -> None:
    model = aleator.load(write_encoder(tmp_path / "m.gguf", ENCODERS["xlm-roberta"]))
    documents = ["king " * 100, "a dog"]
    with pytest.raises(ContextFull, match="206 tokens"):
        model.rerank("the queen", documents)
    ranked = model.rerank("the queen", documents, truncate=True, top_n=1)
    assert len(ranked) == 1
    everything = model.rerank("the queen", documents, truncate=True, top_n=5)
    assert max(each.n_tokens for each in everything) == 64
    assert len(everything) == 2


def test_an_encoder_computes_on_the_cpu_only(tmp_path: Path) -> None:
    weights = open_weights(write_encoder(tmp_path / "m.gguf", ENCODERS["bert"]))
    with pytest.raises(ParameterError, match="an encoder"):
        build_decoder(weights, dtype="bfloat16")
    with pytest.raises(ParameterError, match="form='torch'"):
        build_decoder(weights, form="torch")


def test_what_is_not_built_is_refused(tmp_path: Path) -> None:
    base = transformers.BertConfig(**SIZES).to_dict()
    for change, what in (
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "relu"}, "relu"),
        ({"is_decoder": True}, "is_decoder"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(base | change))
        with pytest.raises(UnsupportedModel, match=what):
            open_weights(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps(base | {"model_type": "roberta", "pad_token_id": 65})
    )
    with pytest.raises(FileFormatError, match="66 positions begin at 66"):
        open_weights(tmp_path)


def test_model_info_says_how_vectors_and_scores_are_made(tmp_path: Path, capsys: Any) -> None:
    write_encoder(tmp_path / "m.gguf", ENCODERS["bert-score"])
    assert main(["model-info", "-m", str(tmp_path / "m.gguf")]) == 0
    shown = capsys.readouterr().out
    assert "pooling                  rank" in shown
    assert "scores                   of documents" in shown
    assert "output matrix" not in shown


def test_heads_of_several_classes_do_not_rank(tmp_path: Path) -> None:
    few = {**SIZES, "max_position_embeddings": 64}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**few, num_labels=3))
    loaded = aleator.load(saved(model, tmp_path))
    with pytest.raises(UnsupportedModel, match="3 outputs"):
        loaded.rerank("a", ["b"])
    assert np.asarray(loaded.embed("a")).shape == (32,)
