"""Several steps that draw by themselves, before the host looks: as single steps, and nothing else is left."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aleator.core.errors import ParameterError
from aleator.device.chain import DeviceChain
from aleator.generate import Batch, Context
from aleator.generate.decode_steps import DecodeStart
from aleator.generate.device_token_sampler import ChainDraw
from aleator.generate.logprobs import top_logprobs
from aleator.generate.multi_step import check_model
from aleator.generate.replayed_steps import ReplayLoop
from aleator.models.placement import EXACT
from aleator.samplers import SamplerChain
from tests.conftest import MakeDecoder
from tests.device.inside import inside
from tests.generate.test_multi_step import SAMPLERS, Stepwise

ROWS = 5


class Drawing:
    """A context whose steps draw, as they do on a device; ``bad``: rows without a logit, by step."""

    def __init__(self, context: Context) -> None:
        self.context, self.cache = context, context.cache
        self.bad: dict[int, list[int]] = {}
        self.steps, self.most = 0, ROWS

    def decode(self, batch: Batch, draw: ChainDraw) -> None:
        self.steps += 1
        if len(batch) <= self.most:
            arrays = {k: torch.from_numpy(each) for k, each in draw.arrays(len(batch)).items()}
            batch.tokens = draw.inputs(torch.tensor(batch.tokens), arrays).tolist()
            logits = torch.from_numpy(self.context.decode(batch))
            logits[self.bad.get(self.steps, [])] = torch.nan
            draw.begin()
            draw.made = draw.compute(logits, arrays)


class Both:
    """A loop, and single steps with the host's chains, after the same prompts in random rows and sequences."""

    def __init__(self, decoder: Any, dice: random.Random, logprobs: int | None) -> None:
        self.n_vocab = (
            decoder.config.n_vocab - 3
        )  # the output matrix has more rows than there are tokens
        self.contexts = [Context(decoder, n_ctx=200, n_seq_max=7, n_threads=1) for _ in range(2)]
        self.chains = [SamplerChain(SAMPLERS, seed=row) for row in range(ROWS)]
        self.device = DeviceChain(
            SAMPLERS, ROWS, self.n_vocab, kernels="torch", max_tokens=64, logprobs=logprobs
        )
        self.ends = dice.sample(range(self.n_vocab), self.n_vocab // 5)
        self.rows: list[Any] = []
        draws = partial(ChainDraw, self.device, torch.zeros(ROWS, dtype=torch.int64))
        sampler = SimpleNamespace(chain=self.device, draws=draws)
        self.drawing = Drawing(self.contexts[0])
        given: tuple[Any, Any] = self.drawing, sampler
        self.loop = ReplayLoop(*given, 4, self.ends)
        single: Any = SimpleNamespace(decode=self.decode)
        self.single = Stepwise(single, self.chains, self.ends)
        self.starts = []
        for row, seq in zip(dice.sample(range(ROWS), 3), dice.sample(range(7), 3), strict=True):
            prompt = [dice.randrange(self.n_vocab) for _ in range(dice.randint(2, 6))]
            for token in prompt:
                self.chains[row].accept(token)
            self.device.set_row(row, self.chains[row])
            for context in self.contexts:
                context.decode(Batch.one(prompt[:-1], 0, seq))
            limit, heeds = dice.randint(1, 9), dice.random() < 0.7
            self.starts.append(DecodeStart(row, seq, prompt[-1], len(prompt) - 1, limit, heeds))

    def decode(self, batch: Batch) -> Any:
        self.rows.append(self.contexts[1].decode(batch)[:, : self.n_vocab])
        return self.rows[-1]

    def state(self) -> tuple[Any, ...]:
        """What is left in the cache, and the lengths of histories."""
        ends = [self.contexts[0].cache.seq_pos_max(seq) for seq in range(7)]
        return ends, inside(self.device).histories.length.tolist()

    def check(self) -> None:
        ends = [self.contexts[1].cache.seq_pos_max(seq) for seq in range(7)]
        assert self.state() == (ends, [len(chain.history) for chain in self.chains])


@pytest.mark.parametrize("seed", range(8))
def test_equals_single_steps(seed: int, make_decoder: MakeDecoder) -> None:
    top = (None, 0, 2)[seed % 3]
    both = Both(make_decoder("llama"), random.Random(seed), top)
    for _ in range(3):
        both.rows = []
        found = both.loop.run(both.starts)
        expected = both.single.run(both.starts, 4)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        assert not any(each.failed for each in found)
        both.check()
        rows = iter(both.rows)
        for each in found:
            told = [top_logprobs(next(rows)[0], token, 2, bytes) for token in each.tokens]
            wanted = [] if top is None else [one.chosen.logprob for one in told]
            assert each.logprobs == pytest.approx(wanted, abs=1e-6)
            best = [] if top is None else [[b.token for b in one.top[:top]] for one in told]
            assert each.top_ids == best
            assert len(each.top_logprobs) == len(each.logprobs)
        both.starts = [
            replace(s, token=f.tokens[-1], pos=s.pos + len(f.tokens), limit=s.limit % 4 + 1)
            for s, f in zip(both.starts, found, strict=True)
        ]
    assert both.loop.run([]) == []


def test_a_row_that_cannot_draw_ends_alone(make_decoder: MakeDecoder) -> None:
    both = Both(make_decoder("llama"), random.Random(1), None)
    starts = [replace(start, limit=9, heeds_ends=False) for start in both.starts]
    both.drawing.bad = {2: [1]}
    found = both.loop.run(starts)
    expected = both.single.run(
        [replace(s, limit=1 if i == 1 else 4) for i, s in enumerate(starts)], 4
    )
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.failed for each in found] == [False, True, False]
    both.check()  # what it drew after that is taken back


def test_an_error_changes_nothing(make_decoder: MakeDecoder) -> None:
    both = Both(make_decoder("llama"), random.Random(2), None)
    before, given = both.state(), both.drawing.context.cache.state_write()
    starts = [replace(s, limit=3 + (i == 0)) for i, s in enumerate(both.starts)]
    both.drawing.most = 1  # the last step has one sequence, and the first three have too many
    with pytest.raises(ParameterError, match="multi_step=4 needs the 3 sequences in one micro-b"):
        both.loop.run(starts)
    both.drawing.most, decode = ROWS, both.drawing.context.decode

    def fails(batch: Batch) -> Any:
        if both.drawing.steps == 4:
            raise RuntimeError("not today")
        return decode(batch)

    both.drawing.context.decode = fails  # type: ignore[assignment,method-assign]
    with pytest.raises(RuntimeError, match="not today"):
        both.loop.run(starts)
    assert both.drawing.steps == 4
    assert (both.state(), both.drawing.context.cache.state_write()) == (before, given)


@pytest.mark.parametrize(
    ("decoder", "cache", "exact", "why"),
    [
        ({}, {}, "", ""),
        ({"recurrent_shapes": [1]}, {}, "recurrent states", "recurrent states"),
        ({"uses_positions": True}, {}, "", "positions besides rotation"),
        ({}, {"pool": SimpleNamespace(n_pos_per_embd=4)}, "cells that keep token ids", ""),
        ({}, {"pool": SimpleNamespace(n_pos_per_embd=1)}, "", ""),
        ({"config": SimpleNamespace(experts=4, architecture="x")}, {}, "", "which experts of x they"),
        ({"places": ["a", "b"]}, {}, "needs all layers on one device", "needs all layers on one device"),
        ({"places": ["a", "a"]}, {}, "", ""),
        ({}, {"devices": ["cpu", "cuda"]}, "offload_kqv=True", "offload_kqv=True"),
    ],
)  # fmt: skip
def test_models_whose_steps_can_be_run_ahead(
    decoder: dict[str, Any], cache: dict[str, Any], exact: str, why: str
) -> None:
    """Steps that the host plans (exact) may be of models that one graph cannot serve."""
    usual = {
        "recurrent_shapes": [], "uses_positions": False, "places": ["a"], "device": "cpu",
        "config": SimpleNamespace(experts=None, architecture="x"),
    }  # fmt: skip
    for dtype, says in ((EXACT, exact), (torch.float32, why)):
        context: Any = SimpleNamespace(
            decoder=SimpleNamespace(**{**usual, **decoder, "dtype": dtype}),
            cache=SimpleNamespace(**{"pool": object(), "devices": ["cpu"], **cache}),
        )
        if says:
            with pytest.raises(ParameterError, match=says):
                check_model(context)
        else:
            check_model(context)
