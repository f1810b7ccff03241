"""Guesses change how fast a text is made, never which."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.core.errors import ParameterError
from aleator.engine.request_states import RequestStateMaker
from aleator.generate import Batch, Context, model_runner, prompt_lookup, request_state
from aleator.generate import speculative as speculation
from aleator.generate.draft_models import DraftContext, DraftModel
from aleator.generate.prompt_lookup import REMEMBERED, DraftHistory, PromptLookup
from aleator.generate.speculative import Draft, Speculation
from aleator.language_model import base
from aleator.models.hub.bundled import bundled_model

REPEATING = "ROMEO:\nO, she doth teach the torches. O, she doth teach the torches. O, she doth"
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 2},
    {"temperature": 0.7, "seed": 2, "repetition_penalty": 1.1, "dry_multiplier": 0.5},
    {"mirostat": 2, "seed": 3},
    {"seed": 4, "logprobs": 2, "stop": ["the"]},
    {"seed": 5, "grammar": 'root ::= [a-z ]{30} "."'},
    {"seed": 6, "numerics": "llama.cpp", "grammar": 'root ::= [a-z ]{30} "."'},
)


def small(folder: Path, arch: str, seed: int) -> Path:
    spec = replace(SPECS[arch], n_vocab=2048, type="Q8_0", seed=seed)
    path = folder / f"{arch}-{seed}.gguf"
    return write_model(path, spec, tokenizer_from=bundled_model())


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes time, so that how much is guessed does not depend on the machine's speed and load."""
    for module in (model_runner, request_state, speculation):
        monkeypatch.setattr(module, "perf_counter", lambda: 0.0)
    # Nor does what other tests' texts have gained count
    monkeypatch.setattr(RequestStateMaker, "_experience_of", lambda *others: None)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> aleator.LanguageModel:
    """With itself as the model that guesses, so that guesses are right."""
    path = small(tmp_path_factory.mktemp("models"), "llama", 1)
    return aleator.load(path, n_threads=1, model_draft=str(path))


class Oracle:
    """Guesses what is known to come, but for some tokens."""

    def __init__(self, tokens: Sequence[int], wrong: Sequence[int] = ()) -> None:
        self.tokens, self.wrong, self.asked = list(tokens), set(wrong), 0

    def draft(self, tokens: Sequence[int], n: int) -> list[int]:
        self.asked += 1
        at = len(tokens)
        return [
            0 if at + i in self.wrong else token for i, token in enumerate(self.tokens[at : at + n])
        ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spec_type", ["ngram", "draft"])
def test_the_tokens_are_the_same(
    target: aleator.LanguageModel, spec_type: str, options: dict[str, Any]
) -> None:
    plain = target.generate(REPEATING, max_tokens=48, **options)
    guessed = target.generate(REPEATING, max_tokens=48, spec_type=spec_type, **options)
    assert guessed.tokens == plain.tokens
    assert (guessed.text, guessed.stop_reason) == (plain.text, plain.stop_reason)
    assert guessed.logprobs == plain.logprobs
    assert plain.stats.draft_n == 0
    assert 0 <= guessed.stats.draft_n_accepted <= guessed.stats.draft_n
    if spec_type == "draft" and "grammar" not in options:
        assert guessed.stats.draft_n_accepted > 0.4 * guessed.stats.draft_n > 0


def test_right_guesses_save_steps_and_wrong_ones_are_taken_back(
    target: aleator.LanguageModel,
) -> None:
    plain = target.generate("ROMEO:", max_tokens=60, seed=1, ignore_eos=True)
    whole = [*plain.request.tokens, *plain.tokens]
    n = len(plain.request.tokens)
    for wrong in ((), (n + 5, n + 30), range(n, n + 60)):
        oracle = Oracle(whole, wrong)
        made = target.generate("ROMEO:", max_tokens=60, seed=1, ignore_eos=True, drafter=oracle)
        assert made.tokens == plain.tokens
        assert made.stats.draft_n >= made.stats.draft_n_accepted
        assert made.stats.draft_n >= made.stats.drafts >= bool(made.stats.draft_n)
        if wrong == ():
            assert made.stats.draft_n == made.stats.draft_n_accepted > 30
    assert made.stats.draft_n_accepted == 0
    assert oracle.asked < 12  # it was switched off


def test_requests_of_an_engine_speculate_each_for_itself(target: aleator.LanguageModel) -> None:
    plain = [target.generate(REPEATING, max_tokens=40, seed=s, logprobs=1) for s in range(4)]
    with aleator.Engine(target, n_seq_max=3) as engine:
        made = [
            engine.submit(REPEATING, max_tokens=40, seed=s, logprobs=1, spec_type=kind)
            for s, kind in enumerate(["ngram", "draft", "none", "ngram"])
        ]
        for one, other in zip(plain, made, strict=True):
            assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs)
        again = engine.submit(REPEATING, max_tokens=40, seed=0, spec_type="ngram")
        assert again.tokens == plain[0].tokens
        assert again.stats.draft_n_accepted > 0  # it has seen the text before
        stats = engine.stats
    assert stats.draft_n >= stats.draft_n_accepted > 0


def test_a_context_shift_starts_the_guesses_anew(target: aleator.LanguageModel) -> None:
    options: dict[str, Any] = {"max_tokens": 150, "seed": 1, "ignore_eos": True}
    with aleator.Engine(target, n_seq_max=2, n_ctx=128) as engine:
        made = [
            engine.submit("ROMEO:", context_shift=True, spec_type=kind, **options)
            for kind in ("none", "ngram", "draft")
        ]
        assert made[0].tokens == made[1].tokens == made[2].tokens
        assert made[0].stats.context_shifts > 1


def test_a_draft_model_sees_a_text_that_is_another_at_any_length(
    target: aleator.LanguageModel,
) -> None:
    chain = target.generate("ROMEO:", max_tokens=1, seed=1).chain

    def drafter() -> DraftModel:
        return DraftModel(DraftContext(lambda: target.context(128, 2), len(target.vocab)), chain)

    def guesses(made: DraftModel, text: list[int]) -> list[int]:
        draft = Draft(made, text, 2)
        draft.model.shared.guess([draft])
        return draft.found

    text = list(range(60, 90))
    moved = [*text[10:], *text[:10]]
    for other in (moved, [*moved, 5], moved[:20], text):
        made = drafter()
        assert len(guesses(made, text)) == 2
        assert guesses(made, other) == guesses(drafter(), other)
        assert made.cached[: len(other)] == other


def test_a_draft_model_guesses_for_several_texts_in_one_batch(
    target: aleator.LanguageModel,
) -> None:
    chains = [target.generate("ROMEO:", max_tokens=1, seed=s).chain for s in range(3)]
    texts = [list(range(60, 90)), list(range(60, 70)), [5]]
    wanted = [4, 2, 3]
    shared = DraftContext(lambda: target.context(256, 3), len(target.vocab))
    models = [DraftModel(shared, chain) for chain in chains]
    batches: list[int] = []
    decode = shared.context.decode

    def counted(batch: Batch, draw: Any = None) -> Any:
        batches.append(len(batch))
        return decode(batch, draw)

    shared.context.decode = counted  # type: ignore[method-assign]
    drafts = [Draft(*each) for each in zip(models, texts, wanted, strict=True)]
    shared.guess(drafts)
    assert batches == [41, 3, 2, 1]
    for draft, chain in zip(drafts, chains, strict=True):
        own = DraftModel(DraftContext(lambda: target.context(64), len(target.vocab)), chain)
        alone = Draft(own, draft.tokens, draft.n)
        alone.model.shared.guess([alone])
        assert alone.found == draft.found
    late = Draft(DraftModel(shared, chains[0]), texts[0], 2)
    late.model.shared.guess([late])
    assert late.found == []  # there is no sequence left
    models[1].end()
    late.model.shared.guess([late])
    assert late.found == drafts[0].found[:2]


def context_of(engine: aleator.Engine) -> Context:
    loop = engine._loop
    assert loop is not None
    return loop.context


def test_an_ended_request_does_not_keep_the_context_of_its_draft_model(
    target: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"max_tokens": 20, "seed": 1, "spec_type": "draft"}
    contexts: list[weakref.ref[Context]] = []
    make = DraftContext.__init__

    def noted(self: DraftContext, context: Any, *given: Any) -> None:
        def made() -> Context:
            new: Context = context()
            contexts.append(weakref.ref(new))
            return new

        make(self, made, *given)

    monkeypatch.setattr(DraftContext, "__init__", noted)
    alone = target.generate(REPEATING, **options)
    assert alone.wait()
    with aleator.Engine(target, n_seq_max=1) as engine:
        served = engine.submit(REPEATING, **options)
        assert served.wait()
        broken = engine.submit(REPEATING, **options | {"max_tokens": 500, "ignore_eos": True})
        while not broken.stats.draft_n:
            next(broken)
        own = context_of(engine)
        decode = own.decode

        def fails(batch: Batch) -> Any:
            monkeypatch.setattr(own, "decode", decode)
            raise RuntimeError("not today")

        monkeypatch.setattr(own, "decode", fails)
        with pytest.raises(RuntimeError, match="not today"):
            broken.wait()
        again = engine.submit(REPEATING, **options)
        assert again.tokens == served.tokens
        assert again.stats.draft_n > 0  # its sequence was given back
    assert alone.tokens == served.tokens
    gc.collect()
    assert [each() for each in contexts] == [None] * 2


def test_models_with_states_speculate_where_they_can_be_rewound(tmp_path: Path) -> None:
    path = small(tmp_path, "mamba", 17)
    model = aleator.load(path, n_threads=1)
    plain = model.generate("ROMEO:", max_tokens=30, seed=1, ignore_eos=True)
    oracle = Oracle([*plain.request.tokens, *plain.tokens], wrong=[20])
    made = model.generate("ROMEO:", max_tokens=30, seed=1, ignore_eos=True, drafter=oracle)
    assert made.tokens == plain.tokens
    assert made.stats.draft_n_accepted > 0
    stiff = aleator.load(path, n_threads=1, n_rollback=0)
    with pytest.raises(ParameterError, match="mamba cannot without states to go back to"):
        stiff.generate("ROMEO:", spec_type="ngram")
    with stiff.engine(n_seq_max=1) as engine, pytest.raises(ParameterError, match="n_rollback=8"):
        engine.submit("ROMEO:", spec_type="ngram")


def test_a_draft_model_brings_states_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their size, unless n_rollback says otherwise."""
    monkeypatch.setattr(base, "ROLLBACK_BYTES", 1)
    path = str(small(tmp_path, "mamba", 17))
    assert aleator.load(path, n_threads=1).context().rewindable(1) == 0
    drafted = aleator.load(path, n_threads=1, model_draft=path)
    made = drafted.generate("ROMEO:", max_tokens=30, temperature=0.0, spec_type="draft")
    assert len(made.tokens) == 30
    assert made.stats.draft_n_accepted > 0
    assert drafted.draft is not None
    assert drafted.draft.context().rewindable(1) == drafted.context().rewindable(1) == 8
    stiff = aleator.load(path, n_threads=1, model_draft=path, n_rollback=0)
    with pytest.raises(ParameterError, match=r"n_rollback=8, or .* model_draft out"):
        stiff.generate("ROMEO:", spec_type="draft")


def test_what_cannot_guess_is_refused(target: aleator.LanguageModel, tmp_path: Path) -> None:
    alone = aleator.load(n_threads=1)
    with pytest.raises(ParameterError, match="load the model with model_draft=PATH"):
        alone.generate("ROMEO:", spec_type="draft")
    with pytest.raises(ParameterError, match="one of none, ngram, draft"):
        alone.generate("ROMEO:", spec_type="eagle")  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(ParameterError, match="multi_step=2 with spec_type"):
        alone.generate("ROMEO:", spec_type="ngram", multi_step=2, sampling_device="device")
    other = tmp_path / "other.gguf"
    write_model(other, SPECS["llama"])
    with pytest.raises(ParameterError, match="another vocabulary"):
        aleator.load(model_draft=str(other))

    class Wild:
        def draft(self, tokens: Sequence[int], n: int) -> list[Any]:
            return [-1]

    with pytest.raises(ParameterError, match="drafter gave -1: give token ids, 0 to 2047"):
        assert target.generate(
            "ROMEO:", drafter=Wild(), max_tokens=30, seed=1, ignore_eos=True
        ).text
    with target.engine(n_seq_max=1) as engine:
        made = engine.submit("ROMEO:", drafter=Wild(), max_tokens=30, seed=1, ignore_eos=True)
        with pytest.raises(ParameterError, match="drafter gave -1"):
            made.wait()
        assert engine.submit("ROMEO:", max_tokens=3, seed=1, ignore_eos=True).wait()


def test_lookup_prefers_longer_runs_and_the_newest_place() -> None:
    lookup = PromptLookup()
    assert list(lookup.draft([1, 2, 3, 9, 2, 3], 5)) == [9, 2, 3, 9, 2]
    assert list(lookup.draft([1, 2, 3, 9, 2, 3, 7, 2, 3], 2)) == [7, 2]
    assert list(lookup.draft([1, 2, 3, 9, 2, 3, 7, 2, 3, 1, 2, 3], 2)) == [9, 2]
    assert list(lookup.draft([5, 6], 2)) == []  # shorter: another text


def test_earlier_texts_are_found_in_their_namespace_until_they_are_forgotten() -> None:
    history = DraftHistory()
    history.add([1, 2, 3, 4, 5], "a")
    assert list(PromptLookup(history, "a").draft([9, 2, 3], 9)) == [4, 5]
    assert list(PromptLookup(history, "b").draft([9, 2, 3], 9)) == []
    history.add([7] * REMEMBERED, "a")
    assert list(PromptLookup(history, "a").draft([9, 2, 3], 9)) == []
    assert list(PromptLookup(history, "a").draft([9, 7, 7], 2)) == [7]


def test_forgetting_a_text_leaves_the_index_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "REMEMBERED", 60)
    draw, history = random.Random(1), DraftHistory()
    learned: list[Sequence[int]] = []
    learn = history._learn

    def noted(name: str, text: tuple[int, ...]) -> None:
        learned.append(text)
        learn(name, text)

    monkeypatch.setattr(history, "_learn", noted)
    held: list[tuple[str, list[int]]] = []
    for n in range(1, 80):
        text = [draw.randrange(3) for _ in range(draw.randrange(20))]
        name = draw.choice("ab")
        history.add(text, name)
        held.append((name, text))
        while sum(len(each) for _, each in held) > 60:
            del held[0]
        anew = DraftHistory()
        for name, each in held:
            anew.add(each, name)
        assert history._after == anew._after
        assert len(learned) == n  # no other text was looked at
    same = tuple(range(25))
    for _ in range(3):
        history.add(same, "c")
    assert list(history.follow((3, 4, 5), 2, "c")) == [6, 7]


def test_a_chain_that_fails_while_a_draft_model_guesses_ends_its_own_text(
    target: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def sample(self, logits: Any) -> int:
            raise RuntimeError("not today")

    chain = DraftModel.chain

    def chain_of(model: DraftModel) -> Any:
        return Broken() if model._chain.seed == 2 else chain(model)

    monkeypatch.setattr(DraftModel, "chain", chain_of)
    monkeypatch.setattr(Speculation, "n_guesses", lambda _, room, *others: min(room, 1))
    given: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "spec_type": "draft"}
    with aleator.Engine(target, n_seq_max=3) as engine:
        made = [engine.submit(REPEATING, seed=s, **given) for s in (1, 2, 3)]
        with pytest.raises(RuntimeError, match="not today"):
            made[1].wait()
        for s in (1, 3):
            plain = target.generate(REPEATING, seed=s, max_tokens=24, ignore_eos=True)
            assert made[s - 1].tokens == plain.tokens


def test_both_sequences_of_guidance_count_for_what_can_be_taken_back(
    target: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    rewindable = Context.rewindable

    def counted(context: Context, n_sequences: int) -> int:
        asked.append(n_sequences)
        return rewindable(context, n_sequences)

    options: dict[str, Any] = {"max_tokens": 8, "guidance_scale": 1.5, "seed": 1}
    plain = target.generate(REPEATING, **options)
    oracle = Oracle([*plain.request.tokens, *plain.tokens])
    monkeypatch.setattr(Context, "rewindable", counted)
    guessed = target.generate(REPEATING, drafter=oracle, **options)
    assert guessed.tokens == plain.tokens
    assert guessed.stats.draft_n_accepted > 0
    assert set(asked[1:]) == {2}  # the first asks whether guesses can be taken back at all
