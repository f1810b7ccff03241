"""Beams against those of transformers, on a small Llama with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aleator import LanguageModel
from aleator.models import build_decoder, open_weights
from aleator.text import Tokenizer, Vocabulary
from tests.integrations.small_llama import V, small_llama

PROMPT, MOST, N = [5, 9, 20, 33], 10, 4
ENDS = list(range(2, 60))
"""So many that texts end at all lengths."""

Models = tuple[Any, LanguageModel]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    theirs, folder = small_llama(1, spread=0.2), tmp_path_factory.mktemp("llama")
    theirs.save_pretrained(folder)
    weights, tokenizer = open_weights(folder), Tokenizer(Vocabulary.without_text(V, folder))
    decoder = build_decoder(weights)
    return theirs, LanguageModel(weights, decoder, tokenizer, type_k="f32", type_v="f32")


def generated(model: Any, **options: Any) -> Any:
    """What transformers' search finds."""
    return model.generate(
        torch.tensor([PROMPT]), num_beams=N, num_return_sequences=N, max_new_tokens=MOST, do_sample=False,
        eos_token_id=ENDS, return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip


def theirs_of(model: Any, **options: Any) -> tuple[list[tuple[int, ...]], list[float]]:
    """The tokens of transformers' texts, each with the one that ended it, and their scores."""
    made, texts = generated(model, **options), []
    for row in made.sequences[:, len(PROMPT) :].tolist():
        ended = [i for i, token in enumerate(row) if token in ENDS]
        texts.append(tuple(row[: ended[0] + 1 if ended else MOST]))
    return texts, made.sequences_scores.tolist()


def found_by(model: LanguageModel, n: int = N, max_tokens: int = MOST, **options: Any) -> Any:
    return model.beams(
        PROMPT, num_beams=n, num_return_sequences=n, max_tokens=max_tokens, **options
    )


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [1.0, 0.0, -1.0, 2.0])
def test_beams_are_those_of_transformers(models: Models, early: bool | str, penalty: float) -> None:
    theirs, ours = models
    texts, scores = theirs_of(theirs, length_penalty=penalty, early_stopping=early)
    found = found_by(ours, length_penalty=penalty, early_stopping=early, stop_token_ids=ENDS)
    assert [each.tokens for each in found] == texts
    assert [each.score for each in found] == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize(
    ("their_name", "our_name", "value"),
    [("no_repeat_ngram_size", "no_repeat_ngram_size", 1), ("min_new_tokens", "min_tokens", 3)],
)
def test_probabilities_are_those_of_what_is_left(
    models: Models, their_name: str, our_name: str, value: float
) -> None:
    """As with ``renormalize_logits``, which transformers recommends."""
    theirs, ours = models
    options: dict[str, Any] = {their_name: value, "renormalize_logits": True}
    sampling: dict[str, Any] = {our_name: value}
    texts, scores = theirs_of(theirs, length_penalty=0.0, **options)
    found = found_by(ours, length_penalty=0.0, stop_token_ids=ENDS, **sampling)
    assert [each.tokens for each in found] == texts
    assert [each.score for each in found] == pytest.approx(scores, rel=1e-5)


def test_tokens_have_the_scores_that_transformers_gives_them(models: Models) -> None:
    """As its tests of transition scores ask: their sum over the length is the score of a text."""
    theirs, ours = models
    made = generated(theirs, length_penalty=1.5)
    each = theirs.compute_transition_scores(made.sequences, made.scores, made.beam_indices)
    found = found_by(ours, length_penalty=1.5, stop_token_ids=ENDS)
    for beam, row in zip(found, each.tolist(), strict=True):
        assert list(beam.logprobs) == pytest.approx(row[: len(beam.tokens)], rel=1e-4)
        assert beam.score == pytest.approx(sum(row) / len(beam.tokens) ** 1.5, rel=1e-4)


def test_an_end_below_the_best_beams_is_no_text(models: Models) -> None:
    """As its test of the beam scorer asks: an end token counts among the best ``num_beams`` children only."""
    _, ours = models
    order = [beam.tokens[0] for beam in found_by(ours, 200, 1)]
    for width in (1, 3):
        found = found_by(ours, width, 3, early_stopping=True, stop_token_ids=[order[width]])
        assert (order[width],) not in [beam.tokens for beam in found]
        inside = found_by(ours, width, 3, length_penalty=-10.0, stop_token_ids=[order[width - 1]])
        assert (order[width - 1],) in [beam.tokens for beam in inside]
