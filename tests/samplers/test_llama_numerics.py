"""numerics="llama.cpp" against what llama.cpp itself did: tests/golden, written by tools/golden_llama.py."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from golden_rows import row
from numpy.typing import NDArray

from aleator import samplers as S
from aleator.core import host
from aleator.samplers.params import in_range

if TYPE_CHECKING:
    from aleator import LanguageModel

GOLDEN = Path(__file__).parent.parent / "golden"
MODEL = Path(__file__).parents[2] / "src" / "aleator" / "data" / "shakespeare.gguf"
STEMS = sorted(path.stem for path in GOLDEN.glob("*.json"))
BY_NAME: dict[str, Any] = {cls.name: cls for cls in S.SAMPLERS}


@cache
def tokenizer() -> Any:
    from aleator.text import Tokenizer, Vocabulary

    return Tokenizer(Vocabulary.from_gguf(MODEL))


def chain_of(described: list[Any]) -> S.SamplerChain:
    made: list[S.Sampler] = []
    for name, values in described:
        if name == "infill":
            made.append(infill())
            continue
        if values.get("dry_sequence_breakers"):
            values = {**values, "tokenizer": tokenizer()}
        # The cases are in llama.cpp's words, which take more for "off" than ours.
        made.append(BY_NAME[name](**in_range(values, ("llama.cpp",), lambda _: None)))
    return S.SamplerChain(made, numerics="llama.cpp")


@cache
def infill() -> S.Infill:
    return S.Infill(tokenizer())


def digest(native: host.LlamaCandidates) -> str:
    hashed = hashlib.sha256()
    for field in (native.ids, native.logits, native.p):
        hashed.update(field.tobytes())
    return hashed.hexdigest()[:16]


def apply(chain: S.SamplerChain, logits: NDArray[np.float32]) -> host.LlamaCandidates:
    candidates = S.Candidates(logits)
    chain.apply(candidates)
    assert isinstance(candidates._native, host.LlamaCandidates)
    return candidates._native


def cases(stem: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / f"{stem}.json").read_text())["cases"]
    return found


@pytest.mark.parametrize("stem", STEMS)
def test_every_kept_set_order_bit_and_token_is_llama_cpps(stem: str) -> None:
    checked = 0
    for case in cases(stem):
        if "steps" not in case:
            continue
        chain = chain_of(case["chain"])
        for token in case["accepted"]:
            chain.accept(token)
        logits = row(*case["row"])
        for expected in case["steps"]:
            native = apply(chain, logits)
            seen = {
                "size": len(native),
                "first": native.ids[:6].tolist(),
                "sorted": native.sorted,
                "selected": native.selected,
                "digest": digest(native),
            }
            assert seen == expected, (case["chain"], case["row"], case["accepted"])
            checked += 1
    assert checked or stem == "chain"


@pytest.mark.parametrize("stem", [s for s in STEMS if any("tokens" in c for c in cases(s))])
def test_runs_with_state_give_llama_cpps_tokens(stem: str) -> None:
    for case in cases(stem):
        if "tokens" not in case:
            continue
        chain = chain_of(case["chain"])
        family, n, q = case["rows"]
        rows = [row(family, n, q, step) for step in range(min(7, len(case["tokens"])))]
        tokens, sizes, last = [], [], ""
        for step in range(len(case["tokens"])):
            native = apply(chain, rows[step % 7])
            assert native.selected is not None
            tokens.append(native.selected)
            sizes.append(len(native))
            chain.accept(native.selected, generated=True)
            last = digest(native)
        assert (tokens, sizes, last) == (case["tokens"], case["sizes"], case["digest"]), case[
            "chain"
        ]
        again = chain_of(case["chain"])
        assert [again.sample(rows[s % 7]) for s in range(len(tokens))] == tokens


def test_a_model_generates_with_llama_cpps_numbers(model: LanguageModel) -> None:
    def text(**options: Any) -> str:
        return "".join(model.generate("ROMEO:", max_tokens=12, temperature=1.5, **options))

    first = text(seed=5, numerics="llama.cpp", dry_multiplier=0.8)
    assert text(seed=5, numerics="llama.cpp", dry_multiplier=0.8) == first
    assert text(seed=5, numerics="portable", dry_multiplier=0.8) != first
    assert text(seed=5, numerics="llama.cpp", mirostat=2) != first


def test_every_sampler_of_llama_cpp_has_golden_cases() -> None:
    here_only = {"token_mask", "top_a", "softmax", "tail_free", "min_tokens", "bad_words"}
    here_only |= {
        "no_repeat_ngram",
        "epsilon_cutoff",
        "eta_cutoff",
        "smoothing",
        "p_less",
        "top_h",
        "min_k",
    }
    assert {cls.name for cls in S.SAMPLERS} - here_only | {"chain"} == set(STEMS)
