"""Draft heads change how fast a text is made, never which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.cache.kv_cache import KVCache
from aleator.core.threads import pool
from aleator.generate import Batch, draft_heads
from aleator.generate.draft_heads import COUNTED, MOST_MISSED, RATES, HeadDrafts, HeadText
from aleator.generate.speculative import Draft, Speculation
from aleator.models import draft_head
from aleator.models.draft_head import BUNDLED, BUNDLED_GUESSES, BUNDLED_NEW, MOST_NEW, MTP
from aleator.models.hub.bundled import bundled_head
from aleator.samplers import Dist, Greedy, Penalties, SamplerChain
from tests.generate.test_speculation import OPTIONS, REPEATING
from tests.generate.test_speculation import steady as steady
from tests.models.heads import Recorder, write_eagle3, write_mtp

GUESS: dict[str, Any] = {"spec_type": "draft", "spec_draft_n_max": 4}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tokens are guessed in every step, whether that pays or not."""
    monkeypatch.setattr(Speculation, "n_guesses", lambda _, room, *others: min(room, 3))
    monkeypatch.setattr(Speculation, "least_probability", lambda *others: 0.0)


def text_of(model: aleator.LanguageModel, n_texts: int = 1) -> HeadText:
    """A text that a greedy chain draws."""
    shared = model.request_states.shared_drafts(2048, n_texts).drafts
    assert isinstance(shared, HeadDrafts)
    return shared.model(model.generate("ROMEO:", max_tokens=1, temperature=0).chain)


def guesses(text: HeadText, tokens: list[int], n: int = 4, least: float = 0.0) -> list[int]:
    draft = Draft(text, tokens, n, least)
    text.shared.guess([draft])
    return draft.found


@pytest.fixture(scope="module")
def bundled() -> aleator.LanguageModel:
    return aleator.load(n_threads=1, model_draft=BUNDLED)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_tokens_are_the_same(
    bundled: aleator.LanguageModel, options: dict[str, Any], always: None
) -> None:
    plain = bundled.generate(REPEATING, max_tokens=48, **options)
    guessed = bundled.generate(REPEATING, max_tokens=48, **GUESS, **options)
    assert guessed.tokens == plain.tokens
    assert (guessed.text, guessed.stop_reason) == (plain.text, plain.stop_reason)
    assert guessed.logprobs == plain.logprobs
    assert guessed.stats.draft_n > 0


def test_the_bundled_head_guesses_well(bundled: aleator.LanguageModel, always: None) -> None:
    """Most greedy guesses are right; a head that sees the wrong states or places guesses hardly any."""
    right = 0
    for name in ("ROMEO", "KING HENRY VI", "First Citizen"):
        made = bundled.generate(
            f"{name}:\n", max_tokens=100, temperature=0, ignore_eos=True, **GUESS
        )
        made.wait()
        right += made.stats.draft_n_accepted
    assert right > 150  # of 300 tokens


@pytest.mark.parametrize("arch", ["qwen35", "qwen3next", "deepseek2", "glm4moe", "random eagle3"])
def test_the_tokens_are_the_same_with_every_kind_of_head(arch: str, tmp_path: Path) -> None:
    if arch == "random eagle3":
        write_eagle3(tmp_path)
        model = aleator.load(n_threads=1, model_draft=str(tmp_path))
    else:
        model = aleator.load(write_mtp(tmp_path, arch), n_threads=1, model_draft=MTP)
    each: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"seed": 3, "temperature": 0.4})
    for options in each:
        plain = model.generate("ROMEO:", max_tokens=60, ignore_eos=True, **options)
        guessed = model.generate("ROMEO:", max_tokens=60, ignore_eos=True, **GUESS, **options)
        assert guessed.tokens == plain.tokens
        assert guessed.stats.draft_n > 0


def test_requests_of_an_engine_share_a_head(bundled: aleator.LanguageModel, always: None) -> None:
    prompts = [REPEATING, "KING HENRY VI:\nO", REPEATING, "First Citizen:"]
    plain = [bundled.generate(p, max_tokens=60, seed=i) for i, p in enumerate(prompts)]
    with aleator.Engine(bundled, n_seq_max=3) as engine:
        made = [engine.submit(p, max_tokens=60, seed=i, **GUESS) for i, p in enumerate(prompts)]
        assert [each.tokens for each in made] == [each.tokens for each in plain]
        assert engine.stats.draft_n_accepted > 0


def test_several_completions_of_a_prompt_and_guidance(bundled: aleator.LanguageModel) -> None:
    plain = bundled.generate_batch([REPEATING], n=3, max_tokens=30, seed=1)
    made = bundled.generate_batch([REPEATING], n=3, max_tokens=30, seed=1, **GUESS)
    assert [each.tokens for each in made] == [each.tokens for each in plain]
    options: dict[str, Any] = {"max_tokens": 30, "guidance_scale": 1.5, "seed": 1}
    assert (
        bundled.generate(REPEATING, **options).tokens
        == bundled.generate(REPEATING, **GUESS, **options).tokens
    )


def test_a_context_shift_starts_the_guesses_anew(
    bundled: aleator.LanguageModel, always: None
) -> None:
    options: dict[str, Any] = {
        "max_tokens": 150,
        "seed": 1,
        "ignore_eos": True,
        "context_shift": True,
    }
    with aleator.Engine(bundled, n_seq_max=2, n_ctx=128) as engine:
        plain, guessed = (
            engine.submit("ROMEO:", **options),
            engine.submit("ROMEO:", **GUESS, **options),
        )
        assert plain.tokens == guessed.tokens
        assert guessed.stats.context_shifts > 1
        assert guessed.stats.draft_n_accepted > 0


def test_a_heads_guesses_do_not_depend_on_how_its_states_arrive(
    bundled: aleator.LanguageModel,
) -> None:
    """In one piece or many, with guesses between, or with wrong ones taken back."""
    text = [*bundled.prompt_tokens(REPEATING)]
    context = bundled.context(n_ctx=256)
    context.decode(Batch.one(text))
    hidden = context.hidden
    assert hidden is not None
    n = len(text) - 1
    whole = text_of(bundled)
    whole.add_hidden(0, hidden[:n])
    wanted = guesses(whole, text)
    assert len(wanted) == 4
    pieces = text_of(bundled)
    for at in range(n):
        pieces.add_hidden(at, hidden[at : at + 1])
        if at % 3 == 0 and at < n - 1:
            guesses(pieces, text[: at + 2])
    assert guesses(pieces, text) == wanted
    assert guesses(whole, text) == []  # nothing new was shown
    behind = text_of(bundled)
    behind.add_hidden(0, hidden[: n - 1])
    assert guesses(behind, text) == []


def test_several_texts_get_the_guesses_that_each_gets_alone(
    bundled: aleator.LanguageModel,
) -> None:
    first = text_of(bundled, 2)
    texts = [first, first.shared.model(first.chain), first.shared.model(first.chain)]
    tokens = [bundled.prompt_tokens(each) for each in ("ROMEO:\nO", REPEATING, "JULIET:")]
    hidden = []
    for each in tokens:
        context = bundled.context(n_ctx=256)
        context.decode(Batch.one(each))
        assert context.hidden is not None
        hidden.append(context.hidden[:-1])
    for text, states in zip(texts, hidden, strict=True):
        text.add_hidden(0, states)
    drafts = [Draft(text, each, n) for text, each, n in zip(texts, tokens, (2, 5, 3), strict=True)]
    first.shared.guess(drafts)
    assert [len(each.found) for each in drafts] == [2, 5, 0]  # there are places for two
    for draft, states in zip(drafts[:2], hidden, strict=False):
        alone = text_of(bundled)
        alone.add_hidden(0, states)
        assert guesses(alone, [*draft.tokens], draft.n) == draft.found
    texts[0].end()
    assert len(guesses(texts[2], [*tokens[2]], 3)) == 3


def test_guesses_end_where_they_are_not_probable_enough(bundled: aleator.LanguageModel) -> None:
    tokens = bundled.prompt_tokens(REPEATING)
    context = bundled.context(n_ctx=256)
    context.decode(Batch.one(tokens))
    assert context.hidden is not None
    found = []
    for right, least in ((1.0, 0.5), (0.6, 0.5), (0.6, 0.7), (0.8, 0.5)):
        text = text_of(bundled)
        text._right = [COUNTED * right] * len(RATES)
        text.add_hidden(0, context.hidden[:-1])
        found.append(len(guesses(text, [*tokens], 6, least)))
    assert found == [BUNDLED_GUESSES, 1, 0, 3]  # 0.8 ** 3 > 0.5 > 0.8 ** 4


def test_rates_are_learnt_up_to_the_first_wrong_guess(bundled: aleator.LanguageModel) -> None:
    text = text_of(bundled)
    assert text.rates() == pytest.approx(RATES)
    text.seen(1, [3, 3, 5, 7])
    text.learn(2)
    wanted = [*RATES]
    wanted[3] = (COUNTED * RATES[3] + 2) / (COUNTED + 2)
    wanted[5] = COUNTED * RATES[5] / (COUNTED + 1)
    assert text.rates() == pytest.approx(wanted)


def test_of_a_long_text_the_last_states_are_held(bundled: aleator.LanguageModel) -> None:
    made = text_of(bundled)
    rows = np.arange(1500, dtype=np.float32).repeat(768).reshape(1500, 3, 256)
    for at in range(0, 1500, 500):
        made.add_hidden(at, rows[at : at + 500])
    made.add_hidden(1500, rows[:100])
    assert len(made.begin([5] * 1601)) == BUNDLED_NEW
    held = np.concatenate(made.waiting)[:, 0, 0]
    assert held.tolist() == [*range(100 - BUNDLED_NEW, 100)]
    made.add_hidden(1600, rows[:20])
    assert len(made.begin([5] * 1621)) == BUNDLED_NEW
    held = np.concatenate(made.waiting)[:, 0, 0]
    assert held.tolist() == [*range(120 - BUNDLED_NEW, 100), *range(20)]
    made.add_hidden(0, rows[:7])  # another text
    assert len(made.begin([5] * 8)) == 7
    made.add_hidden(7, rows)
    assert len(made.begin([5] * 1508)) == BUNDLED_NEW


def test_a_head_of_another_model_is_shown_long_prompts(tmp_path: Path) -> None:
    """It may have learnt to look far back, and is cheap beside a large model."""
    write_eagle3(tmp_path)
    made = text_of(aleator.load(n_threads=1, model_draft=str(tmp_path)))
    made.add_hidden(0, np.ones((MOST_NEW + 9, 3, 256), np.float32))
    tokens = [5] * (MOST_NEW + 10)
    assert len(made.begin(tokens)) == MOST_NEW == 1024
    assert guesses(made, tokens)
    assert made.sure == MOST_NEW


def test_states_that_wait_do_not_keep_those_of_other_texts(bundled: aleator.LanguageModel) -> None:
    """A step may compute a long prompt beside the one token of this text."""
    made, batch = text_of(bundled), np.ones((500, 3, 256), np.float32)
    made.add_hidden(0, batch[7:8])
    (held,) = made.waiting
    assert held.base is None
    assert np.array_equal(held, batch[7:8])


def test_after_a_pause_a_head_is_shown_the_last_tokens_only(
    bundled: aleator.LanguageModel,
) -> None:
    """To compute all that was missed would cost more than the guess can save."""
    made, rows = text_of(bundled), np.ones((100, 3, 256), np.float32)
    made.add_hidden(0, rows)
    guesses(made, [5] * 101, 2)
    for at in range(100, 160):
        made.add_hidden(at, rows[:1])
    assert len(made.begin([5] * 161)) == MOST_MISSED
    assert made.sure == BUNDLED_NEW  # what it was shown before stays
    guesses(made, [5] * 161, 2)
    assert made.sure == BUNDLED_NEW + MOST_MISSED
    made.add_hidden(200, rows[:2])  # some were not even kept
    assert len(made.begin([5] * 203)) == 2
    assert made.sure == BUNDLED_NEW + MOST_MISSED
    made.add_hidden(100, rows[:2])  # a context shift
    assert made.sure == 0


@pytest.fixture
def makes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What caches of heads were made with."""
    made = list[Any]()

    def cache(*given: Any) -> KVCache:
        made.append(given)
        return KVCache(*given)

    monkeypatch.setattr(draft_head, "KVCache", cache)
    return made


def test_a_heads_cells_serve_the_next_text(
    bundled: aleator.LanguageModel, always: None, makes: list[Any]
) -> None:
    """To make them takes as long as some tokens."""
    texts = [
        bundled.generate("ROMEO:", max_tokens=9, seed=1, ignore_eos=True, **GUESS) for _ in range(3)
    ]
    for each in texts:
        each.wait()
    assert len(makes) <= 1  # an earlier test may have made them
    assert texts[0].tokens == texts[1].tokens == texts[2].tokens
    assert texts[1].stats.draft_n_accepted == texts[2].stats.draft_n_accepted > 0


def test_cells_of_several_texts_are_not_kept(
    bundled: aleator.LanguageModel, makes: list[Any]
) -> None:
    """Those of an engine that has ended may be large."""
    for _ in range(2):
        made = text_of(bundled, 2)
        for end in (2, 3):  # one context's serve its next text
            made.add_hidden(0, np.ones((end - 1, 3, 256), np.float32))
            assert guesses(made, [5] * end)
            made.end()
            assert made.shared.free == [0, 1]
    assert len(makes) == 2


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_guesses_are_what_a_copy_of_the_chain_draws(
    numerics: str, bundled: aleator.LanguageModel
) -> None:
    """With the chain's own state, which stays as it is."""
    tokens, recorder = bundled.prompt_tokens(REPEATING), Recorder()
    context = bundled.context(n_ctx=256)
    context.decode(Batch.one(tokens))
    assert context.hidden is not None
    made = []
    for seed in (3, 4):
        text, recorder.rows = text_of(bundled), []
        text.chain = SamplerChain(
            [recorder, Penalties(repetition_penalty=1.5), Dist()], numerics=numerics, seed=seed
        )
        text.chain.accept_many(tokens)
        text.chain.accept(7, generated=True)
        text.add_hidden(0, context.hidden[:-1])
        before = [*text.chain.history]
        made.append(guesses(text, [*tokens], 6))
        assert [*text.chain.history] == before
        rows, copy = [*recorder.rows], text.chain.clone()
        assert [copy.sample(row) for row in rows] == made[-1]
    assert len(made[0]) == BUNDLED_GUESSES
    assert made[0] != made[1]


def test_a_users_sampler_that_fails_ends_the_guesses_alone(bundled: aleator.LanguageModel) -> None:
    class Fails:
        def __init__(self) -> None:
            self.left = 2

        def apply(self, candidates: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("not today")

    text = text_of(bundled)
    text.chain = SamplerChain([Fails(), Greedy()])
    text.add_hidden(0, np.ones((5, 3, 256), np.float32))
    assert len(guesses(text, [5] * 6)) == 2


def test_a_users_sampler_gets_no_guesses_within_one(bundled: aleator.LanguageModel) -> None:
    """They would be made in the memory of the first ones."""
    text, inner = text_of(bundled, 2), list[list[int]]()
    within = text.shared.model(SamplerChain([Greedy()]))

    class Asks(Recorder):
        def apply(self, candidates: Any) -> None:
            within.add_hidden(0, np.ones((5, 3, 256), np.float32))
            inner.append(guesses(within, [5] * 6))

    text.chain = SamplerChain([Asks(), Greedy()])
    text.add_hidden(0, np.ones((5, 3, 256), np.float32))
    assert len(guesses(text, [5] * 6)) == 4
    assert inner == [[]] * 4
    assert len(guesses(within, [5] * 6)) == 4


def test_a_forks_child_makes_no_guesses(
    bundled: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of its parent may have been in the native head."""
    text = text_of(bundled)
    text.add_hidden(0, np.ones((5, 3, 256), np.float32))
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert guesses(text, [5] * 6) == []


@pytest.mark.parametrize("name", ["eagle3", MTP])
def test_a_head_computes_with_the_contexts_threads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another team of threads for each product would wait for processors that others use."""
    path = write_mtp(tmp_path, "qwen35") if name == MTP else None
    model = aleator.load(path, n_threads=3, model_draft=MTP if path else str(bundled_head()))
    used = set[int | None]()

    def team(n: int | None) -> Any:
        used.add(n)
        return pool(n)

    monkeypatch.setattr(draft_heads, "thread_pool", team)
    monkeypatch.setattr(Speculation, "n_guesses", lambda _, room, *others: min(room, 3))
    assert model.generate("ROMEO:", max_tokens=10, seed=1, **GUESS).tokens
    assert used == {3}
