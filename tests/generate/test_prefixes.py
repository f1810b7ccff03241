"""All generations use one prompt cache: batches, and those that start while another is under way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.generate.prompt_tiers import PromptTiers
from aleator.generate.tiered_prefixes import TieredPrefixes
from aleator.models.hub.bundled import bundled_model

GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


def ids(n: int, start: int = 5) -> list[int]:
    return [start + (7 * i) % 60 for i in range(n)]


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba", "jamba"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = replace(SPECS[request.param], n_vocab=2048, context=512)
    folder = tmp_path_factory.mktemp(request.param)
    return write_model(folder / "m.gguf", spec, tokenizer_from=bundled_model())


def test_a_batch_reuses_what_a_single_call_computed(path: Path) -> None:
    model = aleator.load(path, n_threads=1)
    forgetful = aleator.load(path, n_threads=1, prompt_cache=False)
    prompt = ids(150)
    first = model.generate(prompt, **GREEDY)
    assert first.tokens
    prompts = [[*prompt, 9, 8], [*prompt[:90], 3, 4], ids(40, 70)]
    made = model.generate_batch(prompts, **GREEDY)
    expected = forgetful.generate_batch(prompts, **GREEDY)
    assert [g.tokens for g in made] == [g.tokens for g in expected]
    reused = made[0].stats.reused_tokens
    assert reused > 150 // 2
    assert made[0].stats.prompt_tokens == sum(map(len, prompts)) - reused
    assert expected[0].stats.reused_tokens == 0


def test_it_is_measured_how_fast_prompts_are_computed(path: Path) -> None:
    model = aleator.load(path, n_threads=1, cache_ram=2**20)
    tiers = model.prompt_tiers
    assert tiers is not None
    assert tiers.computing.seconds(1) is None
    model.generate(ids(100), **GREEDY).wait()
    assert (tiers.computing.seconds(1) or 0) > 0


def test_what_a_batch_computed_is_reused(path: Path) -> None:
    model = aleator.load(path, n_threads=1)
    prompts = [ids(100), ids(80, 40)]
    assert all(g.tokens for g in model.generate_batch(prompts, **GREEDY))
    again = model.generate_batch([[*prompt, 3] for prompt in prompts], n=2, **GREEDY)
    assert again[0].tokens
    assert again[0].stats.reused_tokens > 90
    single = model.generate([*prompts[1], 4], **GREEDY)
    assert single.tokens
    assert single.stats.reused_tokens > 40


def test_one_that_starts_while_another_is_under_way_reuses_too(path: Path) -> None:
    model = aleator.load(path, n_threads=1)
    forgetful = aleator.load(path, n_threads=1, prompt_cache=False)
    prompt = ids(120)
    expected = forgetful.generate(prompt, **GREEDY).tokens
    assert model.generate(prompt, **GREEDY).tokens == expected
    under_way = model.generate(ids(60, 70), **GREEDY)
    next(under_way)
    second = model.generate(prompt, **GREEDY)
    assert second.tokens == expected
    assert second.stats.reused_tokens > 60
    assert under_way.tokens == forgetful.generate(ids(60, 70), **GREEDY).tokens


def test_reused_as_a_single_call_reuses() -> None:
    prompt = ids(64)
    own = aleator.load(n_threads=1)
    assert own.generate(prompt, **GREEDY).tokens
    single = own.generate([*prompt, 7], **GREEDY)
    assert single.tokens
    batch = own.generate_batch([[*prompt, 8], [*prompt, 9]], **GREEDY)
    assert batch[0].tokens
    assert single.stats.reused_tokens == 64
    assert batch[0].stats.reused_tokens == 2 * 64


def test_rows_are_copied_bit_for_bit(path: Path) -> None:
    model, prompt = aleator.load(path, n_threads=1), ids(100)
    assert model.generate(prompt, **GREEDY).tokens
    own = model.generate([*prompt, 8], **GREEDY, logprobs=3)
    assert own.tokens
    assert own.stats.reused_tokens == 100
    under_way = model.generate(ids(60, 70), **GREEDY)
    next(under_way)
    lent = model.generate([*prompt, 8], **GREEDY, logprobs=3)
    assert lent.logprobs == own.logprobs
    assert lent.stats.reused_tokens >= 64


def test_a_full_cache_is_no_error() -> None:
    model = aleator.load(n_ctx=48, n_threads=1)
    under_way = model.generate(ids(30), max_tokens=18, temperature=0.0, ignore_eos=True)
    next(under_way)
    other = model.generate(ids(40, 70), max_tokens=8, temperature=0.0, ignore_eos=True)
    assert len(other.tokens) == 8
    assert len(under_way.tokens) == 18


def test_namespaces_share_nothing() -> None:
    model = aleator.load(n_threads=1)
    prompt = ids(64)
    assert model.generate(prompt, **GREEDY, namespace="alice").tokens
    for namespace, reused in (("bob", 0), ("", 0), ("alice", 63)):
        single = model.generate(prompt, **GREEDY, namespace=namespace)
        next(single)
        single.cancel()
        assert single.stats.reused_tokens == reused, namespace
    batch = model.generate_batch([prompt, [*prompt, 3]], **GREEDY, namespace="carol")
    assert batch[0].tokens
    assert batch[0].stats.reused_tokens == 0


def test_without_a_prompt_cache_nothing_is_lent() -> None:
    model = aleator.load(n_threads=1, prompt_cache=False)
    for _ in range(2):
        made = model.generate_batch([ids(64), ids(64)], **GREEDY)
        assert made[0].tokens
        assert made[0].stats.reused_tokens == 0
    assert model._context is None


def test_the_order_of_loading_options_does_not_matter() -> None:
    """What is kept under a name is found again, whatever the order in which options were given."""
    model = aleator.load(n_threads=1)
    context = model.own_context()
    tiers: Any = PromptTiers(1, 0)
    options = {"type_k": "f16", "a": [1], "n": 3}
    names = {
        TieredPrefixes(context.cache, context, tiers, model.identity, dict(order))._identity
        for order in itertools.permutations(options.items())
    }
    tiers.close()
    assert len(names) == 1
    others = TieredPrefixes(context.cache, context, tiers, model.identity, options | {"n": 4})
    assert others._identity not in names
