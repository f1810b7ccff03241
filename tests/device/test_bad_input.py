"""Bad logits, rows and parameters: refused by name, or a flag that changes no other row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.cases import SAMPLERS, expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain
from tests.device.inside import inside
from tests.device.templates import KERNELS, TEMPLATE
from tests.device.test_mixed_chains import TAILS

BAD_INPUT: list[tuple[Any, dict[str, Any], str]] = [
    (torch.zeros(5, 64), {}, "have 5 rows: this chain takes 1 to 4"),
    (torch.zeros(0, 64), {}, "have 0 rows"),
    (torch.zeros(1, 63), {}, "rows of 64"),
    (torch.zeros(1, 64, dtype=torch.float64), {}, "float16"),
    (torch.zeros(1, 64, device="meta"), {}, "logits are on meta, the chain on cpu"),
    (np.zeros((1, 64), np.float32), {}, "must be"),
    (torch.zeros(1, 64), {"allowed": torch.zeros(1, 1, dtype=torch.int32)}, "allowed"),
    (torch.zeros(1, 64), {"allowed": torch.zeros(1, 2, dtype=torch.int64)}, "allowed"),
    (torch.zeros(1, 64), {"allowed": torch.zeros(1, 2).int().to("meta")}, "allowed are on meta"),
    (torch.zeros(2, 64), {"live": torch.ones(3, dtype=torch.bool)}, "live"),
    (torch.zeros(2, 64), {"live": torch.ones(2)}, "live"),
]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("logits", "options", "message"), BAD_INPUT)
def test_refuses_logits(logits: Any, options: Any, message: str, kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 4, 64, kernels=kernels)
    with pytest.raises(LogitsError, match=message):
        device.sample(logits, **options)
    z = rows_of("normal", 4, 64)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(4)]
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)  # nothing had changed


BAD_ROWS = {
    "nan": np.nan,
    "all -inf": -np.inf,
    "+inf": np.inf,  # all equal: a draw among all
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("samplers", ["default", "mirostat_v2", "gumbel", "greedy", "tail"])
def test_bad_rows_have_a_flag_and_change_no_other(name: str, samplers: str, kernels: str) -> None:
    chosen = TAILS["dry"] if samplers == "tail" else SAMPLERS[samplers]
    device = DeviceChain(chosen, 4, 64, kernels=kernels)
    chains = [SamplerChain(chosen, seed=row) for row in range(4)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for step in range(4):
        z = rows_of("normal", 4, 64, step)
        z[step] = BAD_ROWS[name]
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z)
        assert (tokens[step] == -1) == (name != "+inf")


@pytest.mark.parametrize("kernels", KERNELS)
def test_views_in_any_layout(kernels: str) -> None:
    z = rows_of("normal", 3, 64)
    base = torch.from_numpy(z)
    wide = torch.zeros(3, 200)
    wide[:, 100:164] = base
    every_other = torch.zeros(6, 128)
    every_other[::2, ::2] = base
    views = [base.T.contiguous().T, wide[:, 100:164], every_other[::2, ::2], base[[0, 0, 0]][:1]]
    views.append(torch.zeros(1, 64).expand(3, 64))
    views.append(base.clone().requires_grad_())
    for view in views:
        device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
        chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(len(view))]
        assert device.sample(view).tolist() == expected(
            chains, np.ascontiguousarray(view.detach().numpy())
        )
    allowed = torch.full((3, 4), -1, dtype=torch.int32)[:, ::2]
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(3)]
    device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
    assert device.sample(base, allowed).tolist() == expected(chains, z)


@pytest.mark.parametrize("kernels", KERNELS)
def test_parameters_out_of_range_name_row_and_parameter(kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 4, 64, kernels=kernels)
    for name, make in (
        ("top_k", lambda: S.TopK(top_k=2**31)),
        ("top_p", lambda: S.TopP(top_p=-0.5)),
        ("min_p", lambda: S.MinP(min_p=-0.1)),
        ("temperature", lambda: S.Temperature(temperature=float("nan"))),
    ):
        with pytest.raises(ParameterError, match=name) as caught:
            device.set_row(2, SamplerChain([make(), S.Dist()]))
        assert caught.value.parameter == name
    long = SamplerChain([S.Dist()])
    long.accept(64)
    bias = SamplerChain([S.LogitBias(logit_bias={64: 1.0}), S.Dist()])
    other = SamplerChain([S.Dist()], numerics="llama.cpp")
    for name, chain, message in (
        ("logit_bias", bias, r"^row 2: logit_bias names token 64: the vocabulary has 0 to 63"),
        ("token", long, r"^row 2: token=64 is out of range: give 0 to 63"),
        ("numerics", other, r"^row 2: "),
    ):
        with pytest.raises(ParameterError, match=message) as caught:
            device.set_row(2, chain)
        assert caught.value.parameter == name
    z = rows_of("normal", 4, 64)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(4)]
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


class NoBytes:
    apply = apply_device = print


def test_refuses_parameters() -> None:
    moved = SamplerChain([S.Dist()])
    moved.position = 7
    device = DeviceChain(TEMPLATE, 2, 64, max_tokens=3, kernels="torch")
    calls: list[tuple[str, Any]] = [
        ("numerics", lambda: device.set_row(0, SamplerChain([S.Greedy()], numerics="llama.cpp"))),
        (
            "logit_bias",
            lambda: device.set_row(0, SamplerChain([S.LogitBias(logit_bias={64: 1.0}), S.Dist()])),
        ),
        ("row", lambda: device.set_row(2)),
        ("position", lambda: device.set_row(0, moved)),
        ("kernels", lambda: DeviceChain(TEMPLATE, 1, 64, kernels="gpu")),
        ("kernels", lambda: DeviceChain(TEMPLATE, 1, 64, device="cuda", kernels="host")),
        ("row", lambda: device.accept(-1, 0)),
        ("token", lambda: device.accept(0, 64)),
        ("token", lambda: device.accept(0, 1.7)),  # type: ignore[arg-type]
        ("chain", lambda: device.set_row(0, [S.Dist()])),  # type: ignore[arg-type]
        ("rows", lambda: device.permute([None, 0])),  # type: ignore[list-item]
        ("template", lambda: DeviceChain(None, 1, 64)),  # type: ignore[arg-type]
        ("device", lambda: DeviceChain(TEMPLATE, 1, 64, device="gpu")),
        ("kept", lambda: DeviceChain(TEMPLATE, 1, 64, kept="yes")),  # type: ignore[arg-type]
        ("dtype", lambda: DeviceChain.bytes_for(TEMPLATE, 1, 64, dtype=torch.int32)),
        ("rows", lambda: device.permute([0, 0])),
        ("batch", lambda: device.before_replay(-1)),
        ("n", lambda: device.rollback(0, 1)),
        ("max_batch", lambda: DeviceChain(TEMPLATE, 0, 64)),
        ("n_vocab", lambda: DeviceChain(TEMPLATE, 1, 2**20 + 1)),
        ("samplers", lambda: DeviceChain([NoBytes(), S.Dist()], 1, 9, kernels="torch")),
    ]
    for name, call in calls:
        with pytest.raises(ParameterError) as caught:
            call()
        assert caught.value.parameter == name
    for _ in range(3):
        device.accept(0, 1)
    with pytest.raises(ParameterError, match="max_tokens"):
        device.accept(0, 1)
    with pytest.raises(ParameterError, match="max_tokens"):
        device.sample(torch.zeros(1, 64))
    device.rollback(0, 2)
    with pytest.raises(ParameterError, match="capture the step"):
        device.before_replay(1)  # there was no step yet that might have been captured
    device.sample(torch.zeros(1, 64))
    device.rollback(0, 1)
    device.before_replay(1)
    device.before_replay(1)  # the device holds no more than it did: it was not replayed
    device.sample(torch.zeros(1, 64))


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_bad_row_does_not_change_another(kernels: str) -> None:
    z = rows_of("normal", 3, 64)
    z[1] = np.nan
    device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(3)]
    tokens = device.sample(torch.from_numpy(z)).tolist()
    assert tokens == expected(chains, z)
    assert tokens[1] == -1
    if kernels == "torch":
        assert inside(device).histories.position.tolist() == [1, 0, 1]
    for row in range(3):
        device.accept(row, 5)
        device.rollback(row, 1)
    z = rows_of("ties", 3, 64)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("name", ["penalties", "mirostat_v2", "default"])
def test_a_full_row_may_stay_beside_others(name: str) -> None:
    device = DeviceChain(SAMPLERS[name], 3, 64, max_tokens=4, kernels="torch")
    chains = [SamplerChain(SAMPLERS[name], seed=0) for _ in range(3)]
    for token in (5, 6, 5, 7):
        device.accept(1, token)
        chains[1].accept(token)
    others = torch.tensor([True, False, True])
    for step in range(3):
        z = rows_of("normal", 3, 64, step)
        tokens = device.sample(torch.from_numpy(z), live=others).tolist()
        assert [tokens[0], tokens[2]] == expected([chains[0], chains[2]], z[[0, 2]])
        assert tokens[1] == -1
    assert inside(device).histories.tokens[1].tolist() == [5, 6, 5, 7]
    assert inside(device).histories.length.tolist() == [3, 4, 3]
    assert inside(device).histories.generated[1].tolist() == [False] * 4
    for live in (None, ~others):
        with pytest.raises(ParameterError, match="row 1 holds 4 tokens, and max_tokens=4"):
            device.sample(torch.zeros(3, 64), live=live)
    device.before_replays([1, 0, 1])
    with pytest.raises(ParameterError, match="row 0 holds 3 tokens, and max_tokens=4"):
        device.before_replays([2, 0, 0])
    device.rollback(1, 3)
    chains[1].rollback(3)
    z = rows_of("normal", 3, 64, 9)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(KERNELS == ("triton",), reason="this is the process of its own")
def test_bad_input_under_triton_s_interpreter() -> None:
    these = "triton and (bad_rows or views or out_of_range)"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-k", these, "-W", "ignore::RuntimeWarning", __file__,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 17  # type: ignore[index]
