"""transformers with Aleator's sampling and cache on a CUDA device; skipped without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aleator import SamplingParams

pytest.importorskip("aleator.integrations.transformers", exc_type=ImportError)  # also if it is old

from aleator.integrations.transformers import AleatorLogitsProcessor, aleator_generate
from aleator.integrations.transformers_cache import AleatorCache
from aleator.integrations.transformers_layers import held_by
from tests.integrations.small_llama import alone, padded, small_llama

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

PROMPTS = [[5, 6, 7, 8, 9, 5, 6], [11], [20, 21, 20, 21, 20]]
CHAINS: list[dict[str, Any]] = [
    {"temperature": 1.2, "top_k": 60},
    {"repetition_penalty": 1.3, "dry_multiplier": 0.8, "dry_sequence_breakers": ()},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
]
N = 12


@pytest.fixture(scope="module")
def device() -> Any:
    return small_llama().to("cuda")


@pytest.fixture(scope="module")
def expected() -> list[list[list[int]]]:
    """What the rows' chains draw on the CPU; logits differ in their last bits, and no token hangs on them."""
    model = small_llama()
    return [
        [
            alone(model, p, SamplingParams.preset("llama.cpp", **chain, seed=seed).chain(), N)
            for seed, p in enumerate(PROMPTS)
        ]
        for chain in CHAINS
    ]


@pytest.mark.parametrize("i", range(len(CHAINS)))
def test_a_padded_batch(device: Any, expected: list[list[list[int]]], i: int) -> None:
    ids, mask = (tensor.cuda() for tensor in padded(PROMPTS))
    sampling = {"preset": "llama.cpp", **CHAINS[i]}
    processor = AleatorLogitsProcessor(sampling, seeds=[0, 1, 2], attention_mask=mask)
    options: dict[str, Any] = {"attention_mask": mask, "do_sample": False, "max_new_tokens": N}
    out = device.generate(ids, logits_processor=[processor], **options)
    assert out[:, ids.shape[1] :].tolist() == expected[i]
    options |= {"custom_generate": aleator_generate, "sampling": sampling, "seeds": [0, 1, 2]}
    out = device.generate(ids, **options)
    assert out[:, ids.shape[1] :].tolist() == expected[i]


def test_our_cache(device: Any, expected: list[list[list[int]]]) -> None:
    ids = torch.tensor([PROMPTS[0]]).cuda()
    cache = AleatorCache(device, 128, type_k="f32", type_v="f32")
    out = device.generate(
        ids,
        **held_by(device, cache),
        custom_generate=aleator_generate,
        sampling={"preset": "llama.cpp", **CHAINS[0]},
        seeds=[0],
        do_sample=False,
        max_new_tokens=N,
    )
    assert out[0, ids.shape[1] :].tolist() == expected[0][0]
