"""Tokens that are drawn in the graph of their step are those of the host, and several steps need no host."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from make_models import SPECS
from wide_models import SMALL, write_model

import aleator
from aleator.core.errors import CacheFull, ParameterError
from aleator.device import cases
from aleator.device.backends.triton import chain as triton_chain
from aleator.device.chain import DeviceChain
from aleator.generate import Batch, Context, device_token_sampler
from aleator.generate.decode_steps import DecodeStart
from aleator.generate.device_token_sampler import ChainDraw
from aleator.generate.replayed_steps import ReplayLoop
from aleator.language_model import LanguageModel
from aleator.models import build_decoder, open_weights
from aleator.models.triton.decoder import Computed, Graphs, Made, TritonStep
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain
from tests.device.inside import inside
from tests.generate.test_multi_step import SAMPLERS, Stepwise
from tests.models.kernels.recorded_graph import RecordedGraph

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PROMPTS = [[3, 5, 7, 9], [4, 4]]
OPTIONS: dict[str, Any] = {
    "seed": 7, "max_tokens": 3, "temperature": 1.3, "top_k": 12, "repetition_penalty": 1.4,
    "presence_penalty": 0.3, "ignore_eos": True,
}  # fmt: skip
EVERY = bool(os.environ.get("ALEATOR_ALL"))
"""Whether what is slow under the interpreter runs too."""


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[ChainDraw]:
    """What has drawn; chains are Triton's."""
    made: list[ChainDraw] = []
    begin = ChainDraw.begin

    def noted(self: ChainDraw) -> None:
        made.append(self)
        begin(self)

    monkeypatch.setattr(ChainDraw, "begin", noted)

    def chain(*args: Any, **options: Any) -> DeviceChain:
        return DeviceChain(*args, **{**options, "kernels": "triton"})

    monkeypatch.setattr(device_token_sampler, "DeviceChain", chain)
    return made


def small(folder: Path, name: str, n_layers: int) -> Path:
    """A small model with so many layers."""
    spec: Any = SMALL[name]
    return write_model(folder / "m.gguf", replace(spec, n_layers=n_layers))


def both(path: Path, **options: Any) -> list[LanguageModel]:
    """A model in native code and in Triton."""
    plain = aleator.load(path, **{"n_threads": 1, "n_ctx": 64, "prompt_cache": False, **options})
    decoder = build_decoder(plain.weights, "cpu", form="triton")
    return [plain, LanguageModel(plain.weights, decoder, plain.tokenizer, options=plain.options)]


def made(model: LanguageModel, **options: Any) -> list[tuple[list[int], str, list[int]]]:
    """Tokens, why they end, and the chain's history, of each text."""
    texts = model.generate_batch(PROMPTS, **{**OPTIONS, **options})
    return [(each.tokens, each.stop_reason, each.chain.history) for each in texts]


@pytest.mark.parametrize(
    "name", ["jamba", *(["llama", "qwen3moe", "gemma3-pattern-2"] if EVERY else [])]
)
def test_a_step_draws(
    name: str, tmp_path: Path, graphs: list[RecordedGraph], draws: list[ChainDraw]
) -> None:
    plain, ours = both(small(tmp_path, name, 2))
    assert made(ours, sampling_device="device") == made(plain)
    assert len(draws) == 2  # the first tokens come after the prompts
    assert all(each.made is not None for each in draws)
    assert max(each.replays for each in graphs) == 1


@pytest.mark.parametrize("name", ["qwen3moe", *(["llama"] if EVERY else [])])
def test_several_steps_need_no_host(
    name: str, tmp_path: Path, graphs: list[RecordedGraph], draws: list[ChainDraw]
) -> None:
    plain, ours = both(small(tmp_path, name, 1))
    several: dict[str, Any] = {"sampling_device": "device", "multi_step": 2}
    assert made(ours, **several) == made(plain)
    assert [each._fed for each in draws] == [False, True]
    assert [each.replays for each in graphs] == [0, 1]  # the end of the prompt is captured too


def test_reports_of_several_steps(
    tmp_path: Path, graphs: list[RecordedGraph], draws: list[ChainDraw]
) -> None:
    plain, ours = both(write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1)))
    options: dict[str, Any] = {"seed": 3, "top_k": 3, "logprobs": 1, "max_tokens": 3}
    right = plain.generate(PROMPTS[0], **options)
    theirs = ours.generate(PROMPTS[0], **options, sampling_device="device", multi_step=2)
    assert theirs.tokens == right.tokens
    for mine, its in zip(right.logprobs or [], theirs.logprobs or [], strict=True):
        assert its.chosen.logprob == pytest.approx(mine.chosen.logprob, abs=1e-9)
    assert len(draws) == 2


def test_rows_end_where_they_end(tmp_path: Path, graphs: list[RecordedGraph]) -> None:
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1))
    contexts = [
        Context(build_decoder(open_weights(path), form=form), n_ctx=16, n_seq_max=3, n_threads=1)
        for form in ("native", "triton")
    ]
    n_vocab, ends = contexts[0].n_vocab, range(0, 64, 2)
    chains = [SamplerChain(SAMPLERS, seed=row) for row in range(3)]
    device = DeviceChain(SAMPLERS, 3, n_vocab, kernels="triton", max_tokens=64)
    starts = []
    for row, prompt in enumerate([*PROMPTS, [8, 1, 6]]):
        for token in prompt:
            chains[row].accept(token)
        device.set_row(row, chains[row])
        for context in contexts:
            context.decode(Batch.one(prompt[:-1], 0, row))
        starts.append(DecodeStart(row, row, prompt[-1], len(prompt) - 1, (9, 2, 9)[row], row != 2))
    sampler: Any = SimpleNamespace(
        chain=device, draws=partial(ChainDraw, device, torch.zeros(3, dtype=torch.int64))
    )
    cache, lengths = contexts[1].cache, inside(device).histories.length
    before = cache.state_write(), lengths.tolist()
    with pytest.raises(CacheFull):
        ReplayLoop(contexts[1], sampler, 5).run([replace(start, limit=5) for start in starts])
    assert (cache.state_write(), lengths.tolist()) == before
    found = ReplayLoop(contexts[1], sampler, 4, ends).run(starts)
    expected = Stepwise(contexts[0], chains, ends).run(starts, 4)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert lengths.tolist() == [len(chain.history) for chain in chains]
    assert len(found[0].tokens) < 4 == len(found[2].tokens)
    assert sum(each.replays for each in graphs) > 2
    for start in starts:
        last = start.pos + len(found[start.row].tokens) - 1
        assert [each.cache.seq_pos_max(start.row) for each in contexts] == [last, last]

    narrow = Context(contexts[1].decoder, n_ctx=16, n_seq_max=3, n_ubatch=2, n_threads=1)
    with pytest.raises(ParameterError, match="multi_step=4 needs the 3 sequences in one micro"):
        ReplayLoop(narrow, sampler, 4).run([replace(start, pos=0) for start in starts])
    assert narrow.cache.used == 0


def test_a_graph_serves_chains_of_the_same_samplers(
    tmp_path: Path, graphs: list[RecordedGraph], draws: list[ChainDraw]
) -> None:
    """Their parameters are in the chain's memory: the next text replays what the first has recorded."""
    plain, ours = both(write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1)))
    captured, kept = [], []
    warmer = {"seed": 8, "temperature": 1.9, "top_k": 9, "repetition_penalty": 1.2}
    for changes in ({}, warmer, {"mirostat": 2, "max_tokens": 2}, {"max_tokens": 2}):
        options = {**OPTIONS, **changes}
        kept.append(ours.generate(PROMPTS[0], **options, sampling_device="device"))
        assert kept[-1].tokens == plain.generate(PROMPTS[0], **options).tokens
        captured.append(len(graphs))
    assert captured == [2, 2, 3, 3]  # the first is of the end of the prompt
    assert [each.replays for each in graphs] == [3, 4, 0]
    assert len({id(draw.chain) for draw in draws}) == 2


class FirstAlone:
    """A graph of which nothing is left, as on CUDA nothing of what it was captured from is."""

    def first(self, step: Computed) -> Made:
        return step()


def test_a_graph_is_kept_no_longer_than_what_draws_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: list[ChainDraw]
) -> None:
    monkeypatch.setattr(Graphs, "new", lambda _: FirstAlone())
    steps, bucket = list[TritonStep](), TritonStep._bucket

    def noted(self: TritonStep, *given: Any) -> Any:
        steps.append(self)
        return bucket(self, *given)

    monkeypatch.setattr(TritonStep, "_bucket", noted)
    _, ours = both(write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1)))
    made(ours, max_tokens=2, sampling_device="device")
    assert len(draws) == 1
    draws.clear()
    gc.collect()
    assert all(owner is steps[0] for owner in steps[0]._buckets)


def test_a_chain_is_as_before_where_memory_lacks_for_other_samplers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = DeviceChain([cases.K, cases.DRAW], 2, 333, kernels="triton")
    chains = [SamplerChain([cases.K, cases.DRAW], seed=row) for row in range(2)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    more = SamplerChain([cases.PENALTIES, cases.K, S.MinP(min_p=0.1), cases.DRAW], seed=5)
    for at in range(2):
        given = iter([None] * at)
        take = triton_chain.TritonChain.set

        def full(self: Any, *args: Any, given: Any = given, take: Any = take) -> None:
            if next(given, 1):
                raise torch.OutOfMemoryError("CUDA out of memory")
            take(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(triton_chain.TritonChain, "set", full)
            with pytest.raises(torch.OutOfMemoryError):
                device.set_row(1, more)
        z = cases.rows_of("ties", 2, 333)
        assert device.sample(torch.from_numpy(z)).tolist() == cases.expected(chains, z)
    device.set_row(1, more)
    z = cases.rows_of("ties", 2, 333)
    assert device.sample(torch.from_numpy(z)).tolist() == cases.expected([chains[0], more], z)
