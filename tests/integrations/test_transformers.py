"""transformers writes what Aleator draws on its logits: alone, in padded batches, with caches and guesses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig, StaticCache

from aleator import LanguageModel, ParameterError, SamplingParams
from aleator.core.errors import LogitsError
from aleator.integrations.device_texts import DeviceTexts
from aleator.integrations.transformers import AleatorLogitsProcessor, aleator_generate, use_in
from aleator.integrations.transformers_layers import held_by
from tests.integrations.small_llama import V, alone, padded, small_llama

PROMPTS = [[5, 6, 7, 8, 9, 5, 6], [11], [20, 21, 20, 21, 20]]
SAMPLING = {
    "preset": "llama.cpp",
    "repetition_penalty": 1.3,
    "dry_multiplier": 0.8,
    "dry_sequence_breakers": (),
    "temperature": 1.2,
    "top_k": 60,
}
N = 12


@pytest.fixture(scope="module")
def llama() -> Any:
    return small_llama()


def expected(model: Any, seeds: list[int], **changes: Any) -> list[list[int]]:
    values = {**SAMPLING, **changes}
    preset = str(values.pop("preset"))
    return [
        alone(model, prompt, SamplingParams.preset(preset, **values, seed=seed).chain(), N)
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]


def test_a_padded_batch_with_a_seed_for_each_row(llama: Any) -> None:
    ids, mask = padded(PROMPTS)
    processor = AleatorLogitsProcessor(SAMPLING, seeds=[1, 2, 3], attention_mask=mask)
    out = llama.generate(
        ids, attention_mask=mask, logits_processor=[processor], do_sample=False, max_new_tokens=N
    )
    assert out[:, ids.shape[1] :].tolist() == expected(llama, [1, 2, 3])


@pytest.mark.parametrize("cache", ["none", "dynamic", "static", "given", "chunked"])
def test_custom_generate_with_every_cache(llama: Any, cache: str) -> None:
    ids, mask = padded(PROMPTS)
    options: dict[str, Any] = {
        "none": {"use_cache": False},
        "dynamic": {},
        "static": held_by(llama, StaticCache(llama.config, max_cache_len=64)),
        "given": held_by(llama, DynamicCache(config=llama.config)),
        "chunked": {"prefill_chunk_size": 3, **held_by(llama, DynamicCache(config=llama.config))},
    }[cache]
    out = llama.generate(
        ids,
        attention_mask=mask,
        custom_generate=aleator_generate,
        sampling=SAMPLING,
        seeds=[1, 2, 3],
        do_sample=False,
        max_new_tokens=N,
        **options,
    )
    assert out[:, ids.shape[1] :].tolist() == expected(llama, [1, 2, 3])


def test_custom_generate_goes_on_from_a_cache(llama: Any) -> None:
    first, cache = torch.tensor([PROMPTS[0]]), DynamicCache(config=llama.config)
    with torch.no_grad():
        llama(first[:, :-2], **held_by(llama, cache))
    out = llama.generate(
        first,
        custom_generate=aleator_generate,
        sampling=SAMPLING,
        seeds=[1],
        **held_by(llama, cache),
        do_sample=False,
        max_new_tokens=N,
    )
    assert out[0, len(PROMPTS[0]) :].tolist() == expected(llama, [1, 2, 3])[0]


def test_completions_of_one_prompt_draw_independently(llama: Any) -> None:
    params = SamplingParams.preset("llama.cpp", seed=4, temperature=1.5)
    out = llama.generate(
        torch.tensor([PROMPTS[0]]),
        custom_generate=aleator_generate,
        sampling=params,
        do_sample=True,
        top_k=0,
        num_return_sequences=3,
        max_new_tokens=N,
    )
    want = [alone(llama, PROMPTS[0], params.chain(completion=i), N) for i in range(3)]
    assert out[:, len(PROMPTS[0]) :].tolist() == want
    assert want[0] != want[1] != want[2]


@pytest.mark.parametrize("way", ["processor", "custom_generate", "prompt_lookup"])
@pytest.mark.parametrize("sampler", [{}, {"mirostat": 2}])
def test_guesses_change_nothing(llama: Any, way: str, sampler: dict[str, Any]) -> None:
    assistant = small_llama(layers=1)
    assistant.generation_config.num_assistant_tokens = 4
    ids = torch.tensor([PROMPTS[0]])
    given = SAMPLING | {"temperature": 0.3} | sampler
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": N}
    if way == "custom_generate":
        options |= {"custom_generate": aleator_generate, "sampling": given, "seeds": [1]}
        options["assistant_model"] = assistant
    else:
        options["logits_processor"] = [AleatorLogitsProcessor(given, seeds=[1])]
        options |= (
            {"assistant_model": assistant}
            if way == "processor"
            else {"prompt_lookup_num_tokens": 3}
        )
    out = llama.generate(ids, **options)
    assert (
        out[0, ids.shape[1] :].tolist() == expected(llama, [1, 2, 3], temperature=0.3, **sampler)[0]
    )


def test_streamers_and_returned_parts(llama: Any) -> None:
    out = llama.generate(
        torch.tensor([PROMPTS[0]]),
        custom_generate=aleator_generate,
        sampling=SAMPLING,
        seeds=[1],
        do_sample=False,
        max_new_tokens=4,
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert len(out.logits) == 4
    assert out.past_key_values.get_seq_length() == len(PROMPTS[0]) + 3


def test_a_grammar_ends_rows_of_a_batch(llama: Any) -> None:
    """Rows that are complete are padded by transformers; their chains are not asked for more."""
    params = SamplingParams(allowed_token_ids=[2, 30, 31], seed=5)
    llama.generation_config.eos_token_id = 2
    try:
        ids, mask = padded(PROMPTS)
        out = llama.generate(
            ids,
            attention_mask=mask,
            logits_processor=[AleatorLogitsProcessor(params, attention_mask=mask)],
            do_sample=False,
            max_new_tokens=N,
        )
    finally:
        llama.generation_config.eos_token_id = None
    for prompt, row in zip(PROMPTS, out[:, ids.shape[1] :].tolist(), strict=True):
        want = alone(llama, prompt, params.chain(), N)
        end = want.index(2) + 1 if 2 in want else N
        assert row[:end] == want[:end]
        assert set(row[end:]) <= {0}


def test_refusals(llama: Any) -> None:
    ids, mask = padded(PROMPTS)
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 3}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_beams": 3, "do_sample": False}, "num_beams"),
        ({"do_sample": True}, "do_sample"),
        ({"do_sample": True, "num_return_sequences": 2, "top_k": 4}, "do_sample"),
        ({"do_sample": False, "seeds": [1]}, "settings"),
        ({"do_sample": False, "sampling": {"top_q": 3}}, "top_q"),
    ]
    for given, name in cases:
        call = {"sampling": SAMPLING} | given
        with pytest.raises(ParameterError) as error:
            llama.generate(ids, custom_generate=aleator_generate, **options, **call)
        assert error.value.parameter == name
    with pytest.raises(ParameterError, match="num_beams=1"):
        llama.generate(
            ids,
            logits_processor=[AleatorLogitsProcessor(SAMPLING, attention_mask=mask)],
            num_beams=2,
            do_sample=False,
            **options,
        )
    with pytest.raises(ParameterError, match="penalties looks at the prompt"):
        llama.generate(
            ids, logits_processor=[AleatorLogitsProcessor(SAMPLING)], do_sample=False, **options
        )
    wrong = AleatorLogitsProcessor(SAMPLING, attention_mask=mask[:, 1:])
    with pytest.raises(ParameterError, match="shape"):
        llama.generate(ids, logits_processor=[wrong], do_sample=False, **options)
    used = AleatorLogitsProcessor(SAMPLING, seeds=[1], attention_mask=mask[:1])
    used(ids[:1], torch.randn(1, V))
    with pytest.raises(ParameterError, match="for each call"):
        used(ids, torch.randn(3, V))
    with pytest.raises(ParameterError, match="other prompts than before"):
        used(ids[1:2], torch.randn(1, V))
    with pytest.raises(ParameterError, match="num_return_sequences"):
        AleatorLogitsProcessor(SAMPLING, num_return_sequences=0)


def test_continuous_batching(llama: Any) -> None:
    config = GenerationConfig(do_sample=False, max_new_tokens=N, eos_token_id=-1, pad_token_id=0)
    seeds = [1, 2, 3]
    model = small_llama()  # its attention is switched for good
    manager = model.init_continuous_batching(
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=16, use_async_batching=False, use_cuda_graph=False
        ),
    )
    use_in(manager)
    manager.start()
    try:
        names = {
            manager.add_request(prompt, aleator=SAMPLING | {"seed": seed}): i
            for i, (prompt, seed) in enumerate(zip(PROMPTS, seeds, strict=True))
        }
        greedy = manager.add_request(PROMPTS[1])
        done: dict[str, list[int]] = {}
        for _ in range(600):
            result = manager.get_result(timeout=0.1)
            if result is not None and result.is_finished():
                assert result.error is None
                done[result.request_id] = result.generated_tokens
            if len(done) == 4:
                break
    finally:
        manager.stop(block=True)
    want = expected(llama, seeds)
    assert {i: done[name] for name, i in names.items()} == dict(enumerate(want))
    with torch.no_grad():
        plain = llama.generate(torch.tensor([PROMPTS[1]]), do_sample=False, max_new_tokens=N)
    assert done[greedy] == plain[0, 1:].tolist()


def test_continuous_batching_refuses_to_work_ahead(llama: Any) -> None:
    config = GenerationConfig(do_sample=False, max_new_tokens=N, eos_token_id=-1)
    manager = small_llama().init_continuous_batching(
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=16, use_async_batching=True, use_cuda_graph=False
        ),
    )
    with pytest.raises(ParameterError, match="use_async_batching"):
        use_in(manager)


@pytest.mark.parametrize("kernels", ["host", "torch"])
def test_texts_on_a_device(kernels: str) -> None:
    """The way that logits on a GPU take, with a device's chains on the CPU."""
    torch.manual_seed(0)
    params = SamplingParams.preset("llama.cpp", repetition_penalty=1.5, top_k=50)
    chains = [params.replace(seed=seed).chain() for seed in range(4)]
    texts = DeviceTexts(4, V, torch.device("cpu"), 64, kernels)
    for row, chain in enumerate(chains):
        texts.begin(row, chain)
    own: list[list[int]] = [[] for _ in chains]
    for step in range(8):
        rows = [0, 1, 2, 3] if step % 2 else [2, 0]
        logits = torch.randn(len(rows), V) * 3
        for row in rows:
            texts.follow(row, own[row])
        drawn = texts.draw(rows, logits).tolist()
        assert drawn == [chains[row].sample(x) for row, x in zip(rows, logits, strict=True)]
        for row, token in zip(rows, drawn, strict=True):
            own[row].append(token)
    texts.follow(3, [*own[3][:2], 9])
    chains[3].rollback(len(own[3]) - 2)
    chains[3].accept(9, generated=True)
    row_logits = torch.randn(1, V)
    assert texts.draw([3], row_logits).tolist() == [chains[3].sample(row_logits[0])]


class OnDevice(AleatorLogitsProcessor):
    """The way of a GPU, with a device's chains on the CPU."""

    def _begin(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        super()._begin(input_ids, scores)
        self._device = DeviceTexts(len(scores), scores.shape[1], scores.device, kernels="torch")
        for i, text in enumerate(self._texts):
            self._device.begin(i, text.chain)


def test_rows_on_a_device_are_those_of_the_host() -> None:
    ids, mask = padded(PROMPTS)
    host, device = (
        kind(SAMPLING, seeds=[1, 2, 3], attention_mask=mask)
        for kind in (AleatorLogitsProcessor, OnDevice)
    )
    for step in range(6):
        scores = torch.randn(3, V, generator=torch.Generator().manual_seed(step)) * 3
        out = host(ids, scores)
        assert torch.equal(device(ids, scores), out)
        ids = torch.cat([ids, out.argmax(1, keepdim=True)], 1)
    scores[1] = -torch.inf
    with pytest.raises(LogitsError, match="row 1 has no finite logit"):
        device(ids, scores)


def test_llama_cpps_numbers_are_not_drawn_on_a_device() -> None:
    processor = AleatorLogitsProcessor(SamplingParams(numerics="llama.cpp", seed=1))
    with pytest.raises(ParameterError, match="computed on the CPU: choose 'portable'"):
        processor(torch.tensor([[5]]), torch.empty(1, V, device="meta"))


def test_texts_that_are_complete_draw_no_more(model: LanguageModel) -> None:
    """transformers pads them, whatever is chosen; the other rows go on."""
    params = [SamplingParams(regex=each, seed=1) for each in ("a", "[a-z]{9,20}")]
    processor = AleatorLogitsProcessor(params, vocab=model.tokenizer)
    alone = [each.chain(model.tokenizer) for each in params]
    ids, n_vocab = torch.tensor([[5], [5]]), len(model.vocab)
    for step in range(40):
        scores = torch.randn(2, n_vocab, generator=torch.Generator().manual_seed(step))
        out = processor(ids, scores)
        for chain, row, drawn in zip(alone, scores, out, strict=True):
            if not chain.finished:
                assert drawn.argmax() == chain.sample(row)
        ids = torch.cat([ids, out.argmax(1, keepdim=True)], 1)
        if all(chain.finished for chain in alone):
            break
    assert step > 1
    assert processor(ids, scores)[:, 0].tolist() == [0.0, 0.0]
