"""Adapters of a loaded model: chosen per text, beside others, in sessions, records and the prompt cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.engine.replay import Record, make_again
from aleator.models import open_weights
from aleator.models.hub.bundled import bundled_model
from tests.models.adapters import write_adapter

PROMPT = "ROMEO: What light through yonder window breaks? It is the east"


def bundled_pairs(seed: int) -> dict[str, Any]:
    """A and B of the bundled model's matrices, large enough to change texts."""
    weights, rng = open_weights(bundled_model()), np.random.default_rng(seed)
    made = {}
    for name in weights.names():
        if name.endswith(("attn_q.weight", "attn_v.weight", "ffn_down.weight")):
            out, n_in = weights.stored(name).shape
            a, b = rng.standard_normal((4, n_in)), rng.standard_normal((out, 4))
            made[name] = (0.1 * a).astype(np.float32), (0.1 * b).astype(np.float32)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    name = open_weights(bundled_model()).architecture.name
    return {
        each: write_adapter(folder / f"{each}.gguf", bundled_pairs(i), architecture=name)
        for i, each in enumerate(("old", "new"))
    }


@pytest.fixture(scope="module")
def adapted(files: dict[str, Path]) -> aleator.LanguageModel:
    return aleator.load(adapters=files, n_threads=1)


OPTIONS: dict[str, Any] = {"max_tokens": 24, "seed": 3, "preset": "greedy"}
CHOICES: list[Any] = [{}, "old", {"old": 0.5}, {"old": 1, "new": 0.5}, "new"]


def text(model: aleator.LanguageModel, chosen: Any, **more: Any) -> list[int]:
    return model.generate(PROMPT, adapters=chosen, **OPTIONS, **more).tokens


def test_a_text_without_adapters_is_that_of_a_model_without(
    adapted: aleator.LanguageModel, model: aleator.LanguageModel
) -> None:
    plain = model.generate(PROMPT, **OPTIONS).tokens
    assert text(adapted, None) == text(adapted, {}) == plain
    assert text(adapted, {"old": 0.0}) == plain
    assert text(adapted, "old") != plain


def test_the_prompt_cache_is_kept_apart(
    adapted: aleator.LanguageModel, files: dict[str, Path]
) -> None:
    alone = [text(aleator.load(adapters=files, n_threads=1), each) for each in CHOICES]
    assert len({tuple(each) for each in alone}) == len(CHOICES)
    for _ in range(2):  # the second time from the cache
        assert [text(adapted, each) for each in CHOICES] == alone
    again = adapted.generate(PROMPT, adapters="old", **OPTIONS)
    assert again.tokens == alone[1]
    assert again.stats.reused_tokens > 10


def test_requests_of_an_engine_have_the_bits_that_they_have_alone(
    adapted: aleator.LanguageModel, files: dict[str, Path]
) -> None:
    more: dict[str, Any] = {"max_tokens": 12, "logprobs": 2, "seed": 1}
    fresh = aleator.load(adapters=files, n_threads=1, prompt_cache=False)
    with adapted.engine(n_seq_max=5) as engine:
        made = [engine.submit(PROMPT, adapters=each, **more) for each in CHOICES * 2]
        for each, generation in zip(CHOICES * 2, made, strict=True):
            alone = fresh.generate(PROMPT, adapters=each, **more)
            assert generation.tokens == alone.tokens
            assert generation.logprobs == alone.logprobs


def test_texts_of_one_prompt_have_them_all(adapted: aleator.LanguageModel) -> None:
    """One text computes the prompt, and the others take over its cells."""
    made = adapted.generate_batch([PROMPT], adapters="old", n=3, **OPTIONS)
    assert [each.tokens for each in made] == [text(adapted, "old")] * 3


def test_beams_and_negative_prompts_have_them_too(
    adapted: aleator.LanguageModel, model: aleator.LanguageModel
) -> None:
    more: dict[str, Any] = {"num_beams": 3, "max_tokens": 6}
    plain = adapted.beams(PROMPT, **more)[0]
    assert plain.logprob == model.beams(PROMPT, **more)[0].logprob
    best = adapted.beams(PROMPT, adapters="old", **more)[0]
    assert best.logprob != plain.logprob
    with adapted.engine(n_seq_max=4) as engine:
        search = engine.beams(PROMPT, adapters="old", **more)
        search.wait()
        found = search.beams[0]
    assert (found.logprob, found.tokens) == (best.logprob, best.tokens)
    guided: dict[str, Any] = {"negative_prompt": "HAMLET:", "guidance_scale": 1.5}
    assert text(adapted, "old", **guided) != text(adapted, {}, **guided)


def test_a_session_goes_on_with_its_adapters(
    adapted: aleator.LanguageModel,
    model: aleator.LanguageModel,
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    whole = adapted.generate(PROMPT, adapters={"old": 0.5}, **OPTIONS).tokens
    begun = adapted.generate(PROMPT, adapters={"old": 0.5}, **(OPTIONS | {"max_tokens": 10}))
    begun.wait()
    adapted.save_session(tmp_path / "s", begun)
    session = adapted.load_session(tmp_path / "s")
    assert session.restored > 10
    made = adapted.generate(session, **(OPTIONS | {"max_tokens": 14})).tokens
    assert begun.tokens + made == whole
    with pytest.raises(ParameterError, match=r"made with \{'old': 0.5\}"):
        adapted.generate(adapted.load_session(tmp_path / "s"), adapters="old")
    with pytest.raises(ParameterError, match="no adapter 'old'"):
        model.generate(model.load_session(tmp_path / "s"))
    rounded = aleator.load(adapters=files, adapter_type="q8_0", n_threads=1)
    with pytest.raises(ParameterError, match=r"'old' is another .*--lora-type stored"):
        rounded.generate(rounded.load_session(tmp_path / "s"))


def test_records_carry_them(
    adapted: aleator.LanguageModel, model: aleator.LanguageModel, files: dict[str, Path]
) -> None:
    made = adapted.generate(PROMPT, adapters={"new": 0.5}, max_tokens=12, seed=2)
    made.wait()
    record = Record.from_json(json.loads(json.dumps(Record.of(made, adapted, "0").as_json())))
    assert make_again(record, adapted) == record.made
    with pytest.raises(ParameterError, match="no adapter 'new'"):
        make_again(record, model)
    other = aleator.load(adapters={"new": files["old"]}, n_threads=1)
    with pytest.raises(ParameterError, match="another adapter"):
        make_again(record, other)


def test_a_record_without_adapters_has_none_where_one_holds_for_all(
    model: aleator.LanguageModel, files: dict[str, Path]
) -> None:
    made = model.generate(PROMPT, **OPTIONS)
    made.wait()
    record = Record.of(made, model, "0")
    assert make_again(record, aleator.load(adapters={"old": (files["old"], 1)})) == record.made


def test_the_prompt_cache_on_disk_is_kept_apart(files: dict[str, Path], tmp_path: Path) -> None:
    def fresh() -> aleator.LanguageModel:
        made = aleator.load(adapters=files, n_threads=1, cache_disk=2**24, cache_dir=str(tmp_path))
        return made

    prompt = PROMPT * 12
    first = fresh()
    tokens = first.generate(prompt, adapters="old", **OPTIONS).tokens
    assert first.prompt_tiers is not None
    first.prompt_tiers.flush()
    first.prompt_tiers.close()
    second = fresh()
    other = second.generate(prompt, adapters="new", **OPTIONS)
    assert other.tokens
    assert other.stats.reused_tokens == 0
    same = second.generate(prompt, adapters="old", **OPTIONS)
    assert same.tokens == tokens
    assert same.stats.reused_tokens > 100


def test_one_may_hold_for_all_texts(files: dict[str, Path], adapted: Any) -> None:
    made = aleator.load(adapters={"old": (files["old"], 0.5)}, n_threads=1)
    assert text(made, None) == text(adapted, {"old": 0.5})
    assert text(made, {}) == text(adapted, {})


def test_guesses_change_nothing(adapted: aleator.LanguageModel) -> None:
    assert text(adapted, "old", spec_type="ngram") == text(adapted, "old")


def test_bad_choices(adapted: aleator.LanguageModel, files: dict[str, Path]) -> None:
    bad: list[tuple[Any, str]] = [
        ("other", "no adapter 'other'.*old, new"),
        ({"old": float("nan")}, "scale"),
        ({"old": 1e9}, "scale"),
        (5, "adapters=5"),
    ]
    for chosen, words in bad:
        with pytest.raises(ParameterError, match=words):
            adapted.generate(PROMPT, adapters=chosen)
    with pytest.raises(ParameterError, match="no such file"):
        aleator.load(adapters={"x": "/nothing/here.gguf"})
