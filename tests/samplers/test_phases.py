"""Chains that differ by phase: marks, histories, states, rollbacks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import ParameterError, SamplerChain, SamplingParams
from aleator.core.errors import StateError
from aleator.samplers import ReferenceChain, TopK, sample_batch
from aleator.samplers.as_json import params_as_json, params_from_json
from aleator.samplers.params import ALL
from aleator.samplers.phases import tree
from tests.samplers.steps import Texts

KEY = Path(__file__).parents[1] / "golden" / "watermark_key.txt"
TEXTS = [b"a", b"b", b"<t", b">", b"</", b"t>", b"t", b"x<t>y", b"<think>", b"</think>", b"`", b" "]
SIZE = len(TEXTS)
MARKS = {"begin": "<t>", "end": "</t>"}
VOCAB = Texts(TEXTS)
THINKING = {"temperature": 1.5, **MARKS}
ANSWER = {"temperature": 0.4, "repeat_penalty": 1.4, "repeat_last_n": -1}
PHASES: dict[str, Any] = {"thinking": THINKING, "answer": ANSWER}


def params(**given: Any) -> SamplingParams:
    return SamplingParams.preset("llama.cpp", **{"seed": 5, "phases": PHASES, "top_k": 0, **given})


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(3).normal(0, 2, (n, SIZE)).astype(np.float32)


def after(tokens: list[int], phases: Any) -> str:
    chain = params(phases=phases).chain(VOCAB)
    chain.accept_many(tokens, generated=True)
    return chain.phase


@pytest.mark.parametrize(
    ("tokens", "phase"),
    [
        ([], "answer"),
        ([2], "answer"),
        ([2, 3], "thinking"),
        ([2, 5], "answer"),
        ([2, 2, 3], "thinking"),
        ([7], "thinking"),  # all of the mark within a token
        ([7, 4, 5], "answer"),
        ([2, 3, 0, 4, 6, 3], "answer"),
        ([2, 3, 4, 4, 5], "answer"),  # "</</t>"
        ([2, 3, 4, 5, 2, 3], "thinking"),  # a second time
        ([4, 5], "answer"),  # an end without a beginning
    ],
)
def test_marks_are_found_in_the_bytes(tokens: list[int], phase: str) -> None:
    assert after(tokens, PHASES) == phase


def test_marks_of_several_phases() -> None:
    phases = {
        "thinking": {"begin": 8, "end": 9},
        "code": {"begin": "`", "end": "`", "temperature": 0.1},
        "rest": {"begin": "b b"},
        "start": "thinking",
    }
    assert after([], phases) == "thinking"
    assert after([10], phases) == "thinking"
    assert after([9], phases) == "answer"
    assert after([9, 10], phases) == after([9, 10, 10, 10], phases) == "code"
    assert after([9, 10, 10], phases) == "answer"
    assert after([9, 1, 11, 1, 10, 8], phases) == "rest"  # to the end of the text


def test_a_tree_of_marks_whose_ends_begin_others() -> None:
    following, phase, tokens = tree(((0, b"aab", 1), (0, b"ba", 1), (1, b"c", 0)), 2)
    assert tokens.shape == (0, 3)

    def walk(text: bytes) -> int:
        node = 0
        for byte in text:
            node = int(following[node, byte])
        return int(phase[node])

    assert [walk(each) for each in (b"aaab", b"aba", b"abba", b"aab", b"ab", b"aabc")] == [
        1, 1, 1, 1, 0, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("histories", ["shared", "own"])
@pytest.mark.parametrize("draw", ["inverse", "gumbel"])
def test_a_phase_draws_what_its_chain_draws_alone(histories: str, draw: str) -> None:
    given = params(phases={**PHASES, "histories": histories}, draw=draw, frequency_penalty=0.3)
    chain, by_name = given.chain(VOCAB), given.by_phase()
    prompt, made = [0, 2, 3, 1], list[int]()
    chain.accept_many(prompt)
    for at, row in enumerate(rows(120)):
        phase = chain.phase
        alone = by_name[phase].chain(VOCAB)
        alone.accept_many(prompt)
        drew = chain.phases[len(prompt) :]
        for token, by in zip(made, drew, strict=True):
            if histories == "shared" or by == phase:
                alone.accept(token, generated=True)
        alone.position = at
        made.append(chain.sample(row))
        assert made[-1] == alone.sample(row)
    assert {"thinking", "answer"} == set(chain.phases[len(prompt) :])
    assert chain.history == prompt + made
    reference = ReferenceChain(given.chain(VOCAB))
    for token in prompt:
        reference.accept(token)
    for row, token in zip(rows(120), made, strict=True):
        assert reference.apply(row).selected == token
        reference.accept(token, generated=True)


def test_what_explains_says_the_phase() -> None:
    chain = params().chain(VOCAB)
    chain.accept_many([2, 3], generated=True)
    made = chain.explain(rows(1)[0], VOCAB)
    assert made.phase == "thinking"
    assert made.draw is not None
    assert [stage.label for stage in made.active][-2:] == ["temperature=1.5", "dist"]
    assert "position 2; phase thinking" in made.table()
    assert made.draw.token.id == chain.clone().sample(rows(1)[0])
    assert made.to_dict()["phase"] == "thinking"
    assert chain.present.phase == ""
    assert SamplerChain(params().by_phase()["answer"].list(VOCAB)).explain(rows(1)[0]).phase == ""


@pytest.mark.parametrize("histories", ["shared", "own"])
def test_rollback_state_pickle_and_batch(histories: str) -> None:
    given = params(phases={**PHASES, "histories": histories, "answer": {**ANSWER, "mirostat": 2}})
    made = given.chain(VOCAB)
    made.accept_many([0, 1])
    drawn = [made.sample(row) for row in rows(60)]
    phases = made.phases
    assert len(set(phases)) == 2
    made.rollback(33)
    assert made.phases == phases[:-33]
    other = given.chain(VOCAB)
    other.state_read(made.state_write())
    third = pickle.loads(pickle.dumps(made))
    fourth = made.clone()
    several = [made, other, third, fourth]
    for at, row in enumerate(rows(60)[27:], start=27):
        assert sample_batch(several, np.stack([row] * 4)) == [drawn[at]] * 4
    assert all(each.phases == phases for each in several)
    made.reset()
    assert (made.phase, made.phases) == ("answer", [])
    other = params().chain(VOCAB)
    with pytest.raises(StateError, match="other"):
        other.state_read(third.state_write())
    damaged = bytearray(third.state_write())
    damaged[-3] ^= 1
    with pytest.raises(StateError):
        given.chain(VOCAB).state_read(bytes(damaged))


def test_a_prompt_brings_the_start_back() -> None:
    chain = params(phases={**PHASES, "start": "thinking"}).chain(VOCAB)
    chain.accept_many([4, 5], generated=True)
    assert chain.phase == "answer"
    chain.accept(0)
    assert chain.phase == "thinking"
    chain.rollback(1)
    assert chain.phase == "answer"


def test_a_grammar_holds_for_all_phases() -> None:
    given = params(grammar='root ::= "<t>" [ab]+ "</t>" [ab]+', phases=PHASES)
    chain = given.chain(VOCAB)
    for row in rows(40):
        chain.sample(row)
    text = b"".join(TEXTS[token] for token in chain.history).decode()
    assert text.startswith("<t>")
    assert set(text[3:]) - set("</t>") <= set("ab")


def test_a_chain_of_phases_has_the_seed_that_it_draws_with() -> None:
    chain = params(seed=None).chain(VOCAB)
    same = SamplerChain(list(chain), seed=chain.seed)
    for row in rows(9):
        draw = chain.explain(row).draw
        assert draw is not None
        assert draw.seed == chain.seed
        assert chain.sample(row) == same.sample(row)
    assert params().chain(VOCAB).seed == 5


def test_a_phase_without_xtc_keeps_the_seed() -> None:
    own = {"samplers": "top_k", "top_k": 9}
    params = SamplingParams(seed=3, xtc_probability=0.5, phases={"answer": own})
    assert params.by_phase()["answer"].values()["seed"] == 3
    row = np.arange(50, dtype=np.float32) / 9
    first, second = params.chain(), params.chain()
    assert [first.sample(row) for _ in range(20)] == [second.sample(row) for _ in range(20)]


def test_samplers_before_the_phases_are_explained() -> None:
    chain = params().chain(VOCAB)
    chain.insert(0, TopK(1))
    names = [sampler.name for sampler in chain.present]
    assert names[0] == "top_k"
    assert len(names) == len(chain.present.kernels.samplers)
    explained = chain.explain(rows(1)[0])
    assert [stage.name for stage in explained.stages if stage.n_removed] == ["top_k"]
    assert explained.draw is not None
    assert explained.draw.token.id == chain.sample(rows(1)[0])


def test_a_phase_by_the_name_of_a_preset() -> None:
    """Its parameters are the preset's, whatever the request's own are, but for those of the whole text."""
    given = SamplingParams(
        seed=5, temperature=1.3, xtc_probability=0.5, ignore_eos=True, stop_token_ids=[3],
        phases={"thinking": "greedy", "answer": {"preset": "akunu-code", "min_p": 0.2}},
    )  # fmt: skip
    of_texts: dict[str, Any] = {"seed": 5, "ignore_eos": True, "stop_token_ids": [3]}
    made = given.by_phase()
    assert made["thinking"] == SamplingParams.preset("greedy", **of_texts)
    assert made["answer"] == SamplingParams.preset("akunu-code", min_p=0.2, **of_texts)
    mirostat = SamplingParams(phases={"answer": {"preset": "llama.cpp", "mirostat": 2}})
    assert mirostat.by_phase()["answer"] == SamplingParams.preset("llama.cpp", mirostat=2)
    assert params_from_json(json.loads(json.dumps(params_as_json(given))), 5) == given
    assert given.replace(phases=given.phases) == given
    marks = {"preset": "neutral", "draw": "watermark"}
    keyed = SamplingParams(watermark_key_file=KEY, phases={"answer": marks})
    assert keyed.by_phase()["answer"].watermark_key_file == keyed.watermark_key_file


def test_parameters_as_json() -> None:
    given = params(
        phases={
            **PHASES,
            "answer": {"logit_bias": {3: -np.inf}},
            "histories": "own",
            "start": "answer",
        }
    )
    made = params_as_json(given)
    assert params_from_json(made, 5) == given
    assert set(params_as_json(SamplingParams(seed=3, top_k=4))) == {"samplers", "top_k"}
    assert set(params_as_json(SamplingParams())) == {"samplers"}
    assert given.replace(phases=given.phases) == given


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        ({"thnking": {"temperature": 1}}, "how 'thnking' begins"),
        ({"thinking": {"temprature": 1}}, "in 'thinking': .*did you mean temperature"),
        ({"thinking": {"temperature": -1, **MARKS}}, "in 'thinking': temperature=-1"),
        ({"thinking": {"seed": 1, **MARKS}}, "has seed, which holds for a whole text"),
        ({"thinking": {"grammar": "root ::= [a]"}}, "has grammar, which"),
        ({"thinking": "greddy"}, "in 'thinking': there is no preset 'greddy'; the names are llama.cpp, "),
        ({"thinking": {"preset": 3}}, "there is no preset 3"),
        ({"answer": ""}, "there is no preset ''"),
        ({"answer": {"preset": "greedy", "samplers": "top_k", "min_p": 0.1}}, "min_p=0.1 would have no"),
        ({"answer": {"begin": "x"}}, "'answer' has marks"),
        ({"code": {"end": "x"}}, "how 'code' begins"),
        ({"code": {"begin": "\ud800"}}, "surrogate"),
        ({"code": {"begin": "ab"}, "more": {"begin": "xaby"}}, "has begun by 'ab' already"),
        ({"code": {"begin": 3}, "more": {"begin": 3}}, "has begun by 3 already"),
        ({"answer": {}, "start": "code"}, "start='code'"),
        ({"answer": {}, "start": ["answer"]}, r"start=\['answer'\]"),
        ({"answer": {}, "histories": "mine"}, "give shared or own"),
        ({"histories": "own"}, "has no phase"),
        ({"answer": {"mirostat": 1, "draw": "gumbel"}}, "in 'answer': draw="),
        ({"answer": 3}, "give a mapping"),
        ("thinking", "give a mapping"),
    ],
)  # fmt: skip
def test_what_is_refused(phases: Any, says: str) -> None:
    with pytest.raises(ParameterError, match=says) as caught:
        SamplingParams(phases=phases)
    assert caught.value.parameter == "phases"


def test_what_a_chain_cannot_be_made_of() -> None:
    with pytest.raises(ParameterError, match="are both given, and draws"):
        params(numerics="llama.cpp")
    with pytest.raises(ParameterError, match="needs the vocabulary"):
        params().chain()
    with pytest.raises(ParameterError, match="how 'thinking' begins"):
        params(phases={"thinking": {}}).chain(VOCAB)
    with pytest.raises(ParameterError, match="mark 12 is no token"):
        params(phases={"code": {"begin": 12}}).chain(VOCAB)
    assert params(phases={"code": {"begin": 3}}).chain().phase == "answer"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (['{"answer": 5}', "answer:top_k=1"], "'answer' is 5 already, and cannot have top_k"),
        (["histories=own", "histories:begin=x"], "'histories' is 'own' already"),
        (['{"a":' * 200_000], "is not JSON"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        ALL["phases"].read(words)


def test_what_adapts_has_no_reference() -> None:
    with pytest.raises(ParameterError, match="adapts to its own draws: it has no reference"):
        ReferenceChain(params(mirostat=2).chain(VOCAB)).apply(rows(1)[0])
