"""Multi-step decoding gives the tokens of single steps, and leaves the same behind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import aleator
from aleator.core.errors import CacheFull, ParameterError
from aleator.device.chain import DeviceChain
from aleator.generate import Batch, Context
from aleator.generate.decode_steps import DecodeResult, DecodeStart
from aleator.generate.device_token_sampler import DeviceTokenSampler
from aleator.generate.multi_step import DecodeLoop
from aleator.samplers import SamplerChain
from aleator.samplers import index as S
from tests.conftest import MakeDecoder
from tests.device.inside import inside
from tests.generate.test_token_sampler import PROMPTS, check_equal

SAMPLERS: list[Any] = [
    S.Penalties(repetition_penalty=1.3),
    S.TopK(top_k=20),
    S.Temperature(temperature=1.2),
    S.Dist(),
]


class Stepwise:
    """The same by single steps, on the host."""

    def __init__(self, context: Context, chains: list[SamplerChain], ends: Any = ()) -> None:
        self.context, self.chains, self.ends = context, chains, set(ends)

    def run(self, starts: list[DecodeStart], n: int) -> list[DecodeResult]:
        found = []
        for start in starts:
            made, token = DecodeResult(), start.token
            for pos in range(start.pos, start.pos + min(n, start.limit)):
                row = self.context.decode(Batch.one([token], pos, start.seq))[0]
                token = self.chains[start.row].sample(row)
                made.tokens.append(token)
                if token in self.ends and start.heeds_ends:
                    break
            found.append(made)
        return found


class Pair:
    """Two contexts with the same texts: one for a loop, one for single steps."""

    def __init__(
        self,
        decoder: Any,
        prompts: list[list[int]],
        multi_step: int,
        ends: Any = (),
        **options: Any,
    ) -> None:
        self.multi_step = multi_step
        self.contexts = [
            Context(
                decoder, n_ctx=200, n_seq_max=4, **{"type_k": "f32", "type_v": "f32", **options}
            )
            for _ in range(2)
        ]
        chains = [SamplerChain(SAMPLERS, seed=row) for row in range(4)]
        n_vocab = decoder.config.n_vocab
        self.chain = DeviceChain(SAMPLERS, 4, n_vocab, kernels="torch", logprobs=2)
        self.starts = []
        for row, prompt in enumerate(prompts):
            for token in prompt:
                chains[row].accept(token)
            self.chain.set_row(row, chains[row])
            for context in self.contexts:
                context.decode(Batch.one(prompt[:-1], 0, row))
            self.starts.append(DecodeStart(row, row, prompt[-1], len(prompt) - 1, 1000))
        self.loop = DecodeLoop(
            self.contexts[0], self.chain, multi_step, n_vocab=n_vocab, ends=ends, capture=False
        )
        self.steps = Stepwise(self.contexts[1], chains, ends)

    def step(self, starts: list[DecodeStart]) -> list[DecodeStart]:
        found = self.loop.run(starts)
        expected = self.steps.run(starts, self.multi_step)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        after = []
        for start, made in zip(starts, found, strict=True):
            n = len(made.tokens)
            pos = start.pos + n
            for context in self.contexts:
                assert context.cache.seq_pos_max(start.seq) == pos - 1
            chain = self.steps.chains[start.row]
            assert inside(self.chain).histories.length[start.row].item() == len(chain.history)
            assert inside(self.chain).histories.position[start.row].item() == chain.position
            after.append(replace(start, token=made.tokens[-1], pos=pos, limit=start.limit - n))
        caches = [context.cache for context in self.contexts]
        assert caches[0].used == caches[1].used
        caches[0].check()
        for layer in range(len(caches[0].shapes)):
            for start in starts:
                cells = [cache.cells.seq_cell_list(start.seq) for cache in caches]
                for read in ("read_keys", "read_values"):
                    mine, its = (
                        getattr(cache, read)(layer, own)
                        for cache, own in zip(caches, cells, strict=True)
                    )
                    torch.testing.assert_close(mine, its, atol=2e-3, rtol=2e-3)
        return after


PROMPT_IDS = [[3, 5, 7, 9], [4, 4, 2], [8, 1, 6, 3, 2, 2]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {}),
        ("llama", {"flash_attn": False, "type_v": "f16"}),
        ("llama", {"k_storage": "raw"}),
        ("llama-yarn", {"policy": "streams"}),
        ("qwen2", {"type_k": "q8_0", "type_v": "q8_0"}),
        ("qwen3", {"v_layout": "channel"}),
        ("llama-tied-mha", {"compat": "llama-2024"}),
    ],
)
def test_equals_single_steps(name: str, options: dict[str, Any], make_decoder: MakeDecoder) -> None:
    pair = Pair(make_decoder(name), PROMPT_IDS, 5, **options)
    starts = pair.starts
    for _ in range(3):
        starts = pair.step(starts)
    starts = pair.step(starts[1:2])  # one alone, with the others' cells in between
    assert starts[0].pos == 2 + 20


def test_each_ends_where_it_ends(make_decoder: MakeDecoder) -> None:
    pair = Pair(make_decoder("llama"), PROMPT_IDS, 8, ends=range(0, 64, 4))
    starts = [
        replace(pair.starts[0], limit=3),
        pair.starts[1],
        replace(pair.starts[2], heeds_ends=False),
    ]
    lengths = []
    for _ in range(4):
        after = pair.step(starts)
        lengths += [b.pos - a.pos for a, b in zip(starts, after, strict=True)]
        starts = [replace(f, limit=3 if i == 0 else 100) for i, f in enumerate(after)]
    assert max(lengths[::3]) <= 3
    assert min(lengths[1::3]) < 8  # an end came
    assert set(lengths[2::3]) == {8}


def test_a_shift_is_seen(make_decoder: MakeDecoder) -> None:
    pair = Pair(make_decoder("llama"), [PROMPT_IDS[2]], 4, type_k="f16")
    (start,) = pair.step(pair.starts)
    for context in pair.contexts:
        context.cache.seq_rm(0, 1, 3)
        context.cache.seq_add(0, 3, -1, -2)
    (start,) = pair.step([replace(start, pos=start.pos - 2)])


def test_shared_cells(make_decoder: MakeDecoder) -> None:
    pair = Pair(make_decoder("llama"), PROMPT_IDS[:2], 4)
    for context in pair.contexts:
        context.cache.seq_cp(0, 2, 0, -1)
    pair.steps.chains[2] = SamplerChain(SAMPLERS, seed=9, completion=1)
    pair.chain.set_row(2, pair.steps.chains[2])
    starts = [*pair.starts, replace(pair.starts[0], row=2, seq=2)]
    for _ in range(2):
        starts = pair.step(starts)


def test_logprobs_of_every_token(make_decoder: MakeDecoder) -> None:
    pair = Pair(make_decoder("llama"), PROMPT_IDS[:1], 3)
    (made,) = pair.loop.run(pair.starts)
    row = pair.contexts[1].decode(Batch.one([pair.starts[0].token], pair.starts[0].pos, 0))[0]
    want = torch.from_numpy(row).double().log_softmax(0)
    assert made.logprobs[0] == pytest.approx(want[made.tokens[0]].item(), abs=1e-4)
    assert made.top_ids[0] == want.topk(2).indices.tolist()
    assert len(made.top_logprobs) == 3


def test_what_fails_changes_nothing(
    make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(make_decoder("llama"), PROMPT_IDS[:2], 6)
    cache, decoder = pair.contexts[0].cache, pair.loop.decoder
    compute, calls = decoder.compute, []

    def interrupted(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compute(*given)

    before = cache.cells.positions.tolist(), inside(pair.chain).histories.length.tolist()
    monkeypatch.setattr(decoder, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pair.loop.run(pair.starts)
    assert before == (cache.cells.positions.tolist(), inside(pair.chain).histories.length.tolist())
    monkeypatch.undo()
    with pytest.raises(CacheFull):
        DecodeLoop(pair.contexts[0], pair.chain, 300, n_vocab=decoder.config.n_vocab).run(
            pair.starts
        )
    assert before == (cache.cells.positions.tolist(), inside(pair.chain).histories.length.tolist())
    pair.step(pair.starts)
    assert pair.loop.run([]) == []


def test_a_row_that_cannot_draw_keeps_what_it_has_drawn(
    make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, whole = (Pair(make_decoder("llama"), PROMPT_IDS[:2], 6) for _ in range(2))
    cache, decoder = pair.contexts[0].cache, pair.loop.decoder
    compute, calls = decoder.compute, []

    def poisoned(*given: Any) -> Any:
        calls.append(1)
        logits = compute(*given)
        if len(calls) == 4:
            logits[1] = torch.nan
        return logits

    expected = whole.steps.run(whole.starts, 6)
    monkeypatch.setattr(decoder, "compute", poisoned)
    first, second = pair.loop.run(pair.starts)
    assert (first.tokens, first.failed) == (expected[0].tokens, False)
    assert (second.tokens, second.failed) == (expected[1].tokens[:3], True)
    assert inside(pair.chain).histories.length.tolist()[:2] == [4 + 6, 3 + 3]
    assert cache.seq_pos_max(1) == pair.starts[1].pos + 2  # all but the last token
    monkeypatch.undo()
    again = replace(pair.starts[1], token=second.tokens[-1], pos=pair.starts[1].pos + 3, limit=3)
    (rest,) = pair.loop.run([again])
    assert rest.tokens == expected[1].tokens[3:]


def test_free_cells_may_hold_anything(make_decoder: MakeDecoder) -> None:
    pair = Pair(make_decoder("llama"), PROMPT_IDS[:2], 6)
    cache = pair.contexts[0].cache
    free = np.flatnonzero(cache.cells.positions < 0)
    for side in (cache.keys, cache.values):
        for layer in side.layers:
            layer[free] = np.nan
    pair.step(pair.starts)


class PretendedGraphs:
    """torch.cuda's names for graphs, on the CPU: what is done while capturing is undone; a replay does it."""

    def __init__(self, loop: DecodeLoop) -> None:
        self._loop, self.captures, self.replays = loop, 0, 0

    def _state(self) -> list[torch.Tensor]:
        chain, cache = self._loop.chain, self._loop.context.cache
        own = [vars(part).values() for part in (self._loop, self._loop.cells, chain.report)]
        backend = inside(chain)
        places = [backend.histories.tensors, *(p.rows.values() for p in backend.program.places)]
        layers = [[torch.from_numpy(t) for t in s.layers] for s in (cache.keys, cache.values)]
        found = [t for group in (*own, *places, *layers) for t in group]
        return [t for t in found if isinstance(t, torch.Tensor)]

    @contextmanager
    def graph(self, graph: Any, *_: Any, **__: Any) -> Iterator[None]:
        before = [(tensor, tensor.clone()) for tensor in self._state()]
        yield
        for tensor, old in before:
            tensor.copy_(old)
        self.captures += 1

    def replay(self) -> None:
        self.replays += 1
        self._loop._step()

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, made in (
            ("current_stream", lambda device: stream),
            ("Stream", lambda device: stream),
            ("stream", lambda chosen: nullcontext()),
            ("CUDAGraph", lambda: SimpleNamespace(replay=self.replay)),
            ("graph", self.graph),
        ):
            monkeypatch.setattr(torch.cuda, name, made)


def test_capturing_changes_nothing(
    make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No graph is captured here, there is no GPU: but what surrounds it is done as there would be one."""
    pair = Pair(make_decoder("llama"), PROMPT_IDS, 6, ends=range(0, 64, 4))
    graphs = PretendedGraphs(pair.loop)
    graphs.patch(monkeypatch)
    pair.loop.capture = True
    starts = [replace(start, limit=60) for start in pair.starts]
    for _ in range(4):
        starts = pair.step(starts)
    assert (graphs.captures, graphs.replays) == (1, 24)
    rotary = pair.loop.decoder.rotary_of(False)
    read = weakref.ref(rotary.table)
    rotary.angles(torch.zeros(1, dtype=torch.int64), len(rotary.table))  # of a longer context
    assert read() is not rotary.table
    assert read() is not None  # the graph reads it
    for context in pair.contexts:
        context.cache.seq_rm(1, 0, 1)
        context.cache.seq_add(1, 1, -1, -1)
    starts[1] = replace(starts[1], pos=starts[1].pos - 1)
    pair.step([replace(start, limit=3) for start in starts])  # keys are rotated as they are read
    assert (graphs.captures, graphs.replays) == (2, 27)


def test_refuses(make_decoder: MakeDecoder) -> None:
    chain = DeviceChain(SAMPLERS, 1, 300, kernels="torch")
    for name, what in (("gemma3", "windows"), ("mamba", "states"), ("jamba", "states")):
        context = Context(make_decoder(name), n_ctx=64)
        with pytest.raises(ParameterError, match=rf"this one \({name}\) has .*{what}") as caught:
            DecodeLoop(context, chain, 4, n_vocab=300)
        assert caught.value.parameter == "multi_step"
    context = Context(make_decoder("llama"), n_ctx=64)
    for wrong in (0, 4097, True, 2.0, "8"):
        with pytest.raises(ParameterError, match=r"multi_step=.* is out of range") as caught:
            DecodeLoop(context, chain, wrong, n_vocab=300)  # type: ignore[arg-type]
        assert caught.value.parameter == "multi_step"
    on_host = DeviceChain(SAMPLERS, 1, 300, kernels="host", max_tokens=9)
    with pytest.raises(ParameterError, match="not 'host'") as caught:
        DecodeLoop(context, on_host, 4, n_vocab=300)
    assert caught.value.parameter == "kernels"


OPTIONS: dict[str, Any] = {"seed": 5, "logprobs": 2, "max_tokens": 40}


@pytest.mark.parametrize("ahead", [2, 7, 64])
def test_texts_of_a_model(ahead: int, model: aleator.LanguageModel) -> None:
    each: tuple[dict[str, Any], ...] = (
        {"n": 2},
        {"stop": ("e", "the")},
        {"mirostat": 2},
        {"mirostat": 1},
        {"tfs_z": 0.9},  # on the host: steps one by one
        {"temperature": 0.0, "ignore_eos": True},
    )
    for options in each if ahead == 7 else each[:2]:
        one = model.generate_batch(PROMPTS, **OPTIONS, **options)
        other = model.generate_batch(
            PROMPTS, **OPTIONS, **options, sampling_device="device", multi_step=ahead
        )
        for a, b in zip(one, other, strict=True):
            assert a.tokens == b.tokens
            assert (a.text, a.stop_reason) == (b.text, b.stop_reason)
            assert a.chain.history == b.chain.history
            assert a.logprobs is not None
            assert b.logprobs is not None
            for mine, its in zip(a.logprobs, b.logprobs, strict=True):
                assert mine.chosen.logprob == pytest.approx(its.chosen.logprob, abs=1e-3)


def test_a_full_context_and_a_shift() -> None:
    small = aleator.load(n_ctx=32)
    for shift in (False, True):
        options: dict[str, Any] = {"max_tokens": 70, "ignore_eos": True, "context_shift": shift}
        one = small.generate("ROMEO:", seed=2, **options)
        other = small.generate("ROMEO:", seed=2, **options, sampling_device="device", multi_step=9)
        check_equal(one, other)
    assert other.stats.context_shifts > 1


def test_a_text_that_cannot_draw_ends_alone(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"seed": 5, "max_tokens": 9, "sampling_device": "device"}
    expected = [g.tokens for g in model.generate_batch(["KING:", "A"], **options) if g.wait()]
    run = DecodeLoop.run

    def failing(self: DecodeLoop, feeds: list[DecodeStart]) -> list[DecodeResult]:
        found = run(self, feeds)
        for feed, drawn in zip(feeds, found, strict=True):
            if feed.row == 1:
                drawn.tokens, drawn.failed = drawn.tokens[:2], True
        return found

    monkeypatch.setattr(DecodeLoop, "run", failing)
    good, bad = model.generate_batch(["KING:", "A"], **options, multi_step=4)
    with pytest.raises(aleator.LogitsError):
        bad.result()
    assert bad.tokens == expected[1][:3]
    assert good.result()
    assert good.tokens == expected[0]


def test_a_grammar_goes_step_by_step(model: aleator.LanguageModel) -> None:
    options: dict[str, Any] = {"regex": "[a-z]{5,20}!", "seed": 3, "max_tokens": 30}
    one = model.generate("ROMEO:", **options)
    check_equal(one, model.generate("ROMEO:", **options, sampling_device="device", multi_step=4))


def test_multi_step_needs_the_device(model: aleator.LanguageModel) -> None:
    for value, place in ((4, "host"), (0, "device"), (2**20, "device")):
        with pytest.raises(ParameterError):
            model.generate("ROMEO:", sampling_device=place, multi_step=value)


def test_a_draw_is_of_its_own_step() -> None:
    sampler: Any = object.__new__(DeviceTokenSampler)
    sampler._draw = SimpleNamespace(made=torch.tensor([3]))  # of a step that nobody sampled after
    assert sampler.draw(()) is None
    assert sampler._draw is None
