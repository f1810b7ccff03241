"""What requests have the model and its cache do, and what is counted of it, is as recorded.

Texts alone do not show it: guesses, cached prefixes and forced tokens change no token.  ALEATOR_RECORD=1
records a change that is meant.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.cache.cache import Cache
from aleator.generate import Batch, Context
from aleator.generate.completion import ONCE, Stats
from aleator.models.hub.bundled import bundled_model
from tests.drawn import recorded
from tests.generate.test_grammar import DIALOGUE, PERSON
from tests.generate.test_speculation import REPEATING, small
from tests.generate.test_speculation import steady as steady

Texts = list[aleator.Generation]
COUNTED = [each.name for each in fields(Stats) if not each.name.endswith("seconds")]
VERBS = ("seq_rm", "seq_cp", "seq_add", "reuse", "keep")
MARK = "ROMEO: <think>\n"
LOOP = {"repeats": 3, "min_tokens": 24, "temperature": 1.5, "for": 8}


def digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


class Watch:
    """Notes what contexts decode, and what their caches are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Any] = []
        self.asked: list[Any] = []
        decode = Context.decode

        def decoded(context: Context, batch: Batch, draw: Any = None) -> Any:
            sequences = [list(seqs) for seqs in batch.sequences]
            self.batches.append((list(batch.tokens), batch.positions, sequences, batch.outputs()))
            return decode(context, batch, draw)

        monkeypatch.setattr(Context, "decode", decoded)
        for name in VERBS:
            monkeypatch.setattr(Cache, name, self.noting(name, getattr(Cache, name)))

    def noting(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def asked(cache: Cache, *given: Any) -> Any:
            plain = [
                (each.startswith(ONCE), each[:1]) if isinstance(each, str)
                else each if isinstance(each, int) else list(each)
                for each in given
            ]  # fmt: skip
            result = verb(cache, *given)
            self.asked.append((name, plain, result))
            return result

        return asked

    def account(self) -> list[Any]:
        sizes = Counter(len(tokens) for tokens, *_ in self.batches)
        verbs = Counter(name for name, *_ in self.asked)
        return [str(sorted(sizes.items())), digest(self.batches), dict(verbs), digest(self.asked)]


def batches(model: aleator.LanguageModel, **options: Any) -> Texts:
    """Prompts that begin alike, in other orders, twice."""
    prompts = ["ROMEO:\nWhat light", "ROMEO:\nWhat light is it", "JULIET:", "ROMEO:\nWhat"]
    options = {"max_tokens": 6, "seed": 3, **options}
    made = model.generate_batch(prompts, n=2, **options)
    made[0].wait()
    return [*made, *model.generate_batch([*prompts[::-1], prompts[1] + " that"], **options)]


def one(prompt: str = "ROMEO:", **options: Any) -> Callable[..., Texts]:
    def make(model: aleator.LanguageModel) -> Texts:
        return [model.generate(prompt, **{"max_tokens": 40, "seed": 3, **options})]

    return make


def several(prompt: str = "ROMEO:", **options: Any) -> Callable[..., Texts]:
    def make(model: aleator.LanguageModel) -> Texts:
        return model.generate_batch([prompt, "A"], n=2, **{"max_tokens": 30, "seed": 3, **options})

    return make


def continued(model: aleator.LanguageModel, tmp_path: Path) -> Texts:
    """Sessions: after context shifts, and with a part of the text."""
    made: Texts = []
    for options in ({"context_shift": True, "n_keep": 2}, {}):
        asked: dict[str, Any] = {"ignore_eos": True, "seed": 3, **options}
        first = model.generate("ROMEO:", max_tokens=70 if options else 9, **asked)
        model.save_session(tmp_path / "s", first)
        rest = model.generate(model.load_session(tmp_path / "s"), max_tokens=9, **asked)
        rest.wait()
        made += [first, rest]
    return made


def beams(model: aleator.LanguageModel) -> Texts:
    for options in ({}, {"stochastic": True, "num_return_sequences": 3}, {"early_stopping": True}):
        for again in range(2):
            found = model.beams("ROMEO:", num_beams=3 + again, max_tokens=7, seed=3, **options)
            assert len(found) >= 1
    return []


WHERE: dict[str, dict[str, Any]] = {
    "small": {"n_ctx": 48},
    "draft": {"model_draft": str(bundled_model())},
    "pieces": {"n_ubatch": 8, "n_ctx": 256},
    "bare": {"prompt_cache": False},
}
"""Options of loading, by the first word of a case."""
CASES: dict[str, Callable[..., Texts]] = {
    "plain": batches,
    "pieces": batches,
    "bare": batches,
    "small, full": several(max_tokens=None, ignore_eos=True),
    "small, exactly full": one(max_tokens=None, ignore_eos=True, echo=True, logprobs=1),
    "small, shifts": several(max_tokens=110, context_shift=True, n_keep=3, ignore_eos=True),
    "small, shifts of all": one(max_tokens=110, context_shift=True, n_keep=0, ignore_eos=True),
    "small, sessions": continued,
    "grammar": several(grammar=DIALOGUE, max_tokens=60),
    "schema": several(json_schema=PERSON, max_tokens=60),
    "schema, one by one": one(json_schema=PERSON, max_tokens=60, jump_forward=False),
    "schema, short": one(json_schema=PERSON, max_tokens=25),
    "ngram": several(REPEATING, spec_type="ngram", temperature=0.2),
    "ngram, shifts": one(REPEATING, spec_type="ngram", temperature=0.2, max_tokens=80, context_shift=True),
    "ngram, grammar": one(REPEATING, spec_type="ngram", grammar=DIALOGUE),
    "ngram, guidance": one(REPEATING, spec_type="ngram", guidance_scale=1.5, temperature=0),
    "draft": several(REPEATING, spec_type="draft", temperature=0.8),
    "draft, few": one(spec_type="draft", spec_draft_n_max=2, stop=["the"]),
    "strings": several(banned_strings=["the", "e ", "you"], logprobs=1),
    "small, strings": one(banned_strings=["the", "ou"], max_tokens=None, ignore_eos=True),
    "healed": several("ROMEO:\nWhat lig", heal=True, banned_strings=["light"]),
    "guidance": several(guidance_scale=2, negative_prompt="JULIET:\nWhat light is it"),
    "pieces, guidance": several(guidance_scale=2, negative_prompt="JULIET:\n" * 9),
    "budget": several(MARK, reasoning_budget=4, reasoning_budget_grace=3),
    "loops": several(temperature=0, max_tokens=90, stop_loops=LOOP),
    "kept": several(logprobs=2, kept=True, stop=["the", "e,"]),
    "beams": beams,
    "device": one(sampling_device="device", logprobs=1, max_tokens=8),
}  # fmt: skip


def told(made: Texts) -> list[Any]:
    """What is counted of texts, those of one run once."""
    texts = [
        [len(each.tokens), digest(each.tokens), each.stop_reason, each.stop_string] for each in made
    ]
    runs = {id(each.stats): each.stats for each in made}
    counts = [[getattr(stats, name) for name in COUNTED] for stats in runs.values()]
    return [texts, counts]


@pytest.mark.parametrize("name", CASES)
def test_what_a_request_has_done(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "device" in name:
        pytest.importorskip("torch")
    model = aleator.load(n_threads=1, **WHERE.get(name.partition(",")[0], {}))
    watch = Watch(monkeypatch)
    case = CASES[name]
    made = case(model, tmp_path) if case is continued else case(model)
    account = [*told(made), *watch.account()]
    assert account == recorded("accounts", name, account)


@pytest.mark.parametrize("arch", ["gemma3", "jamba", "mamba"])
def test_what_windows_and_states_have_done(
    arch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = aleator.load(small(tmp_path, arch, 3), n_threads=1, n_ctx=96, n_ubatch=24)
    watch = Watch(monkeypatch)
    made = batches(model)
    made[0].wait()
    made += several(REPEATING, spec_type="ngram", temperature=0.1, max_tokens=20)(model)
    account = [*told(made), *watch.account()]
    assert account == recorded("accounts", arch, account)
