"""The contract with SGLang, as read from the wheel of version 0.5.23; SGLang itself was never run."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aleator import ParameterError, SamplerChain, SamplingParams
from aleator import samplers as S
from tests.integrations.stand_ins import SGLANG, adapter, install

V = 150
GIVEN = {"preset": "vllm", "repetition_penalty": 1.4, "top_k": 30, "temperature": 1.2, "seed": 3}


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch, SGLANG, "0.5.23")
    return adapter(monkeypatch, "sglang")


def request(prompt: list[int], **given: Any) -> dict[str, Any]:
    """Custom parameters as the scheduler passes them on."""
    req = SimpleNamespace(origin_input_ids=prompt, output_ids=[], inflight_middle_chunks=0)
    return {"__req__": req, **given}


def chain(prompt: list[int], **changes: Any) -> Any:
    values = {**GIVEN, **changes}
    made = SamplingParams.preset(str(values.pop("preset")), **values).chain()
    made.accept_many(prompt)
    return made


def test_rows_of_a_batch(sglang: Any) -> None:
    torch.manual_seed(0)
    processor = sglang.AleatorLogitProcessor()
    asked = [
        request([3, 4, 3], aleator=json.dumps(GIVEN)),
        request([5]),
        request([6, 6], aleator=GIVEN | {"seed": 4}),
    ]
    chains = [chain([3, 4, 3]), None, chain([6, 6], seed=4)]
    late: list[int] = []
    for step in range(8):
        rows = torch.randn(3, V) * 3
        before = rows.clone()
        out = processor(rows, asked)
        assert torch.equal(out[1], before[1])
        for i in (0, 2):
            token = chains[i].sample(before[i])
            assert int(out[i].argmax()) == token
            assert int(torch.isfinite(out[i]).sum()) == 1
            if i == 0:
                asked[0]["__req__"].output_ids.append(token)
            else:  # the overlapping schedule: known a step later
                late.append(token)
                asked[2]["__req__"].output_ids[:] = late[: step + step % 2]


def test_prompts_in_pieces_draw_nothing(sglang: Any) -> None:
    asked = request([3], aleator=GIVEN)
    asked["__req__"].inflight_middle_chunks = 1
    rows = torch.randn(1, V)
    before = rows.clone()
    assert torch.equal(sglang.AleatorLogitProcessor()(rows, [asked]), before)
    assert "__aleator__" not in asked


def test_what_cannot_be_done_is_logged(sglang: Any, caplog: pytest.LogCaptureFixture) -> None:
    processor, rows = sglang.AleatorLogitProcessor(), torch.randn(2, V)
    before = rows.clone()
    guessed = request([3], aleator=GIVEN)
    assert torch.equal(processor(rows, [guessed, guessed]), before)
    assert "speculative decoding" in caplog.text
    assert torch.equal(
        processor(rows, [request([1], aleator="{"), request([1], aleator=3)]), before
    )
    assert "not JSON" in caplog.text
    assert "not a mapping" in caplog.text
    rows[:] = -torch.inf
    processor(rows, [request([1], aleator=GIVEN), request([2], aleator=GIVEN)])
    assert "cannot be drawn from" in caplog.text
    assert torch.equal(processor(before.clone(), None), before)


def test_fields_are_checked_by_the_client(sglang: Any) -> None:
    fields = sglang.request_fields(GIVEN)
    assert fields["custom_logit_processor"] == "AleatorLogitProcessor"
    assert json.loads(fields["sampling_params"]["custom_params"]["aleator"]) == GIVEN
    with pytest.raises(ParameterError, match="top_q"):
        sglang.request_fields({"top_q": 3})
    with pytest.raises(ParameterError, match="give a mapping"):
        sglang.request_fields(SamplingParams())


def test_the_sampling_backend(sglang: Any) -> None:
    sglang.register()
    assert SGLANG["sglang.srt.layers.sampler"]["registered"]["aleator"] is sglang.AleatorSampler
    torch.manual_seed(1)
    logits = torch.randn(3, V) * 3
    info = SimpleNamespace(
        temperatures=torch.tensor([[0.7], [1.0], [1.4]]),
        top_ks=torch.tensor([20, 1 << 30, 7]),
        top_ps=torch.tensor([0.9, 0.5, 1.0]),
        min_ps=torch.tensor([0.0, 0.0, 0.05]),
        sampling_seed=torch.tensor([1, 2, 3]),
    )
    positions = torch.tensor([9, 4, 40])
    output = SimpleNamespace(next_token_logits=logits.clone())
    drawn, capture = sglang.AleatorSampler().forward(output, info, positions)
    assert capture is None
    for i, row in enumerate(logits):
        samplers = [
            S.Temperature(float(info.temperatures[i, 0])),
            S.TopK(int(info.top_ks[i])),
            S.TopP(float(info.top_ps[i])),
            S.MinP(float(info.min_ps[i])),
            S.Dist(),
        ]
        made = SamplerChain(samplers, seed=i + 1)
        made.position = int(positions[i])
        assert int(drawn[i]) == made.sample(row)
    info.sampling_seed = None
    with pytest.raises(ParameterError, match="enable-deterministic-inference"):
        sglang.AleatorSampler().forward(output, info, positions)
