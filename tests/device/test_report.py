"""What a step reports is what the host's functions say of the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.core.errors import LogitsError
from aleator.device.cases import FAMILIES, SAMPLERS, rows_of
from aleator.device.chain import DeviceChain
from aleator.device.token_bits import pack, unpack
from aleator.generate.logprobs import top_logprobs
from aleator.samplers import Candidates, SamplerChain
from aleator.samplers import index as S

TAILED: list[Any] = [
    S.TopK(top_k=15),
    S.Temperature(temperature=0.6),
    S.TailFree(tfs_z=0.9),
    S.Dist(),
]
CHAINS = {
    **{name: SAMPLERS[name] for name in ("greedy", "default", "hot", "gumbel", "mirostat_v2")},
    "tailed": TAILED,
}


@pytest.mark.parametrize("kernels", ["torch", "host"])
@pytest.mark.parametrize("name", CHAINS)
def test_logprobs_and_what_was_kept(name: str, kernels: str) -> None:
    batch, n, top = 3, 70, 5
    device = DeviceChain(CHAINS[name], batch, n, kernels=kernels, logprobs=top, kept=True)
    chains = [SamplerChain(CHAINS[name], seed=row) for row in range(batch)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for step, family in enumerate(FAMILIES):
        z = rows_of(family, batch, n, step)
        tokens = device.sample(torch.from_numpy(z)).tolist()
        report = device.report
        kept = unpack(report.kept, torch.arange(n)[None]).numpy()
        for row, chain in enumerate(chains):
            candidates = Candidates(z[row])
            chain.apply(candidates)
            assert candidates.selected == tokens[row]
            chain.accept(tokens[row], generated=True)
            assert np.flatnonzero(kept[row]).tolist() == candidates.ids.tolist()
            want = top_logprobs(z[row], tokens[row], top, lambda _: b"")
            close = pytest.approx(want.chosen.logprob, abs=1e-12)
            assert report.logprobs[row].item() == close
            assert report.top_ids[row].tolist() == [entry.token for entry in want.top]
            for value, entry in zip(report.top_logprobs[row].tolist(), want.top, strict=True):
                assert value == pytest.approx(entry.logprob, abs=1e-12) or value == entry.logprob
            w = np.asarray(candidates._native.weights).astype(float)  # type: ignore[union-attr]
            with np.errstate(divide="ignore"):
                logs = dict(zip(candidates.ids.tolist(), np.log(w / w.sum()), strict=True))
            assert report.kept_logprobs[row].item() == pytest.approx(logs[tokens[row]], abs=1e-12)
            order = np.lexsort((candidates.ids, -candidates.logits))[:top]
            ids = candidates.ids[order].tolist()
            assert report.kept_top_ids[row].tolist() == ids + [-1] * (top - len(ids))
            found = report.kept_top_logprobs[row].tolist()
            wanted = [logs[i] for i in ids] + [-np.inf] * (top - len(ids))
            np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("kernels", ["torch", "host"])
def test_a_row_that_chooses_nothing(kernels: str) -> None:
    device = DeviceChain(TAILED, 3, 40, kernels=kernels, logprobs=2, kept=True)
    z = torch.from_numpy(rows_of("normal", 3, 40))
    z[1] = torch.nan
    live = torch.tensor([True, True, False])
    assert (device.sample(z, live=live) >= 0).tolist() == [True, False, False]
    assert device.report.logprobs[1:].tolist() == [-torch.inf] * 2
    assert device.report.kept_logprobs[1:].tolist() == [-torch.inf] * 2
    assert device.report.kept_top_ids[1].tolist() == [-1, -1]
    assert device.report.kept[1].tolist() == [0, 0]
    assert device.report.kept[0].tolist() != [0, 0]


@pytest.mark.parametrize("kernels", ["torch", "host"])
def test_before_is_before_the_mask(kernels: str) -> None:
    device = DeviceChain([S.Dist()], 1, 33, kernels=kernels, logprobs=1)
    z = torch.arange(33.0)[None]
    allowed = torch.tensor([[1 << 4, 0]], dtype=torch.int32)
    assert device.sample(z, allowed).tolist() == [4]
    assert device.report.top_ids.tolist() == [[32]]
    assert device.report.logprobs[0].item() == pytest.approx(z.double().log_softmax(1)[0, 4].item())
    assert device.report.kept_logprobs.tolist() == [0.0]
    assert device.report.kept.numel() == 0
    with pytest.raises(LogitsError):
        device.sample(z, allowed[:, :1])


def test_packing_is_the_other_way_round_of_unpacking() -> None:
    for n in (1, 31, 32, 33, 200):
        bits = torch.rand(4, n, generator=torch.Generator().manual_seed(n)) < 0.5
        assert torch.equal(unpack(pack(bits), torch.arange(n)[None]), bits)
