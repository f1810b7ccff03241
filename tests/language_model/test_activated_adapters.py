"""Adapters that hold from their last invocation tokens in a prompt on (aLoRA)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.generate import Batch, Context
from aleator.models.adapters import Chosen, held_at
from tests.language_model.test_adapters import OPTIONS, bundled_pairs
from tests.models.adapters import write_adapter

INVOKED = [198, 40, 13]
TEXT = [52, *range(300, 330), *INVOKED, 77, 401, *INVOKED, 61, 500]
START = 36
KEY = "adapter.alora.invocation_tokens"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same matrices twice: one adapter holds for all of a text."""
    folder, pairs = tmp_path_factory.mktemp("adapters"), bundled_pairs(1)
    return {
        name: write_adapter(folder / f"{name}.gguf", pairs, fields)
        for name, fields in (("whole", {}), ("late", {KEY: INVOKED}))
    }


@pytest.fixture(scope="module")
def adapted(files: dict[str, Path]) -> aleator.LanguageModel:
    return aleator.load(adapters=files, n_threads=1)


def made(model: aleator.LanguageModel, text: list[int], chosen: Any = "late") -> list[int]:
    return model.generate(text, adapters=chosen, **OPTIONS).tokens


@pytest.mark.parametrize("n_ubatch", [5, 64])
def test_bits_are_those_of_two_adapters_one_after_the_other(
    adapted: aleator.LanguageModel, n_ubatch: int
) -> None:
    adapters = adapted.decoder.adapters

    def context() -> Context:
        return Context(adapted.decoder, n_ctx=64, n_ubatch=n_ubatch, n_threads=1)

    late = context()
    begun = adapters.begun(adapters.chosen((("late", 0.5, ""),)), TEXT)
    assert [digest.partition("@")[2] for _, _, digest in begun] == [str(START)]
    late.adapters.set(0, begun)
    rows = np.array(late.decode(Batch.one(TEXT, logits=True)))
    steps = context()
    steps.adapters.set(0, ())
    wanted = [steps.decode(Batch.one(TEXT[:START], logits=True))]
    steps.adapters.set(0, (("whole", 0.5, ""),))
    wanted.append(steps.decode(Batch.one(TEXT[START:], START, logits=True)))
    assert rows.tobytes() == np.concatenate(wanted).tobytes()


def test_one_that_is_not_invoked_is_none(adapted: aleator.LanguageModel) -> None:
    """So the text finds what the prompt cache has of the model without adapters."""
    text = TEXT[:31]
    plain = made(adapted, text, {})
    again = adapted.generate(text, adapters="late", **OPTIONS)
    assert again.tokens == plain
    assert again.stats.reused_tokens > 10
    context = adapted.context(n_ctx=64)
    context.adapters.set(0, (("late", 1.0, ""),))  # nothing says where it begins
    rows = context.decode(Batch.one(TEXT, logits=True))
    context = adapted.context(n_ctx=64)
    context.adapters.set(0, ())
    assert (
        np.array(rows).tobytes() == np.array(context.decode(Batch.one(TEXT, logits=True))).tobytes()
    )


def test_the_prompt_cache_tells_places_apart(
    adapted: aleator.LanguageModel, files: dict[str, Path]
) -> None:
    earlier = TEXT[: START - 1]
    texts = [earlier, TEXT, earlier, TEXT]
    alone = [made(aleator.load(adapters=files, n_threads=1), each) for each in texts[:2]]
    assert [made(adapted, each) for each in texts] == 2 * alone
    again = adapted.generate(TEXT, adapters="late", **OPTIONS)
    assert again.tokens == alone[1]
    assert again.stats.reused_tokens > 10
    assert made(adapted, TEXT, "whole") != alone[1] != made(adapted, TEXT, {})


@pytest.mark.parametrize("tiers", [{}, {"cache_ram": 2**26}])
@pytest.mark.parametrize("before", [{}, "late"])
def test_a_turn_whose_place_moves_finds_the_tokens_before(
    files: dict[str, Path], before: Any, tiers: dict[str, Any]
) -> None:
    """A plain text's, and those before the last turn's place."""
    model = aleator.load(adapters=files, n_threads=1, **tiers)
    turn = [*TEXT, *made(model, TEXT, before), *INVOKED, 77]
    again = model.generate(turn, adapters="late", **OPTIONS)
    assert again.tokens == made(aleator.load(adapters=files, n_threads=1), turn)
    assert again.stats.reused_tokens == (START if before else len(turn) - 5)
    later = model.generate([*turn, 61], adapters="late", **OPTIONS)
    assert later.tokens == made(aleator.load(adapters=files, n_threads=1), [*turn, 61])
    assert later.stats.reused_tokens == len(turn)


def test_a_session_goes_on_from_its_place(adapted: aleator.LanguageModel, tmp_path: Path) -> None:
    whole = made(adapted, TEXT)
    first = adapted.generate(TEXT, adapters="late", **OPTIONS | {"max_tokens": 9})
    first.wait()
    adapted.save_session(tmp_path / "s", first)
    for chosen in (None, "late"):
        session, more = adapted.load_session(tmp_path / "s"), OPTIONS | {"max_tokens": 15}
        assert session.restored > 10
        assert adapted.generate(session, adapters=chosen, **more).tokens == whole[9:]


def test_a_session_that_did_not_invoke_one_may_name_it(
    adapted: aleator.LanguageModel, tmp_path: Path
) -> None:
    made = adapted.generate(TEXT[:31], adapters="late", **OPTIONS)
    made.wait()
    adapted.save_session(tmp_path / "s", made)
    expected, again = (
        adapted.generate(adapted.load_session(tmp_path / "s"), adapters=each, **OPTIONS).tokens
        for each in (None, "late")
    )
    assert again == expected
    plain = adapted.generate(TEXT, adapters={}, **OPTIONS)
    plain.wait()
    adapted.save_session(tmp_path / "plain", plain)
    with pytest.raises(ParameterError, match="made with none"):
        adapted.generate(adapted.load_session(tmp_path / "plain"), adapters="late", **OPTIONS)


def test_tokens_that_healing_takes_back_invoke_it(tmp_path: Path) -> None:
    invoked = aleator.load(n_threads=1).tokenizer.encode("\nJULI")[1:]
    file = write_adapter(tmp_path / "a.gguf", bundled_pairs(1), {KEY: invoked})
    model = aleator.load(adapters={"late": file}, n_threads=1)
    made = model.generate("ROMEO:\nhello\nJULI", adapters="late", heal=True, **OPTIONS)
    at, taken = made.request.taken_back
    assert taken
    ((_, _, digest),) = made.request.options.adapters or ()
    assert digest.endswith(f"@{at + len(taken) - len(invoked)}")


@pytest.mark.parametrize("option", [{"context_shift": True}, {"guidance_scale": 1.5}])
def test_what_moves_positions_is_refused(
    adapted: aleator.LanguageModel, option: dict[str, Any]
) -> None:
    with pytest.raises(ParameterError, match="invocation tokens"):
        adapted.generate(TEXT, adapters="late", **OPTIONS, **option)
    adapted.generate(TEXT[:31], adapters="late", **OPTIONS, **option).wait()


def test_a_place_that_is_none_is_refused(adapted: aleator.LanguageModel) -> None:
    adapters = adapted.decoder.adapters
    digest = dict(zip(adapters.names, (each.digest for each in adapters.loaded), strict=True))
    for name, start in (("late", "-1"), ("late", "x"), ("late", "9" * 10), ("whole", "3")):
        with pytest.raises(ParameterError, match="another adapter"):
            adapters.chosen(((name, 1.0, f"{digest[name]}@{start}"),))
    chosen: Chosen = (("late", 1.0, f"{digest['late']}@3"), ("whole", 1.0, digest["whole"]))
    assert [len(held_at(chosen, position)) for position in (0, 2, 3, 4)] == [1, 1, 2, 2]
