"""Arguments of every cache's verbs: what is no exact integer in range is refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aleator.cache import devices
from aleator.cache.devices import CPU, checked_device
from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.options import END, position_range
from aleator.cache.pools.attention import first_of
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import AleatorError, InvalidBatch, NotCopyable, ParameterError
from aleator.generate import Batch, Context
from tests.cache.decoders import decoder_of

MODELS = ("llama", "gemma3", "mamba", "jamba")
by_model = pytest.mark.parametrize("model", MODELS)


def context(name: str = "llama", **options: Any) -> Context:
    return Context(decoder_of(name), **{"n_ctx": 64, "n_seq_max": 3, "type_v": "f32", **options})


def decode(ctx: Context, n: int = 6) -> None:
    ctx.decode(Batch.one(range(n)))


BAD: list[Any] = [0.5, "0", None, True, [0]]


@by_model
@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_every_verb_refuses_what_is_no_integer(model: str, bad: Any) -> None:
    ctx = context(model, n_rollback=4, prefix=PrefixConfig())
    decode(ctx)
    cache = ctx.cache
    handle = cache.sequence(2)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("seq", lambda: cache.seq_rm(bad)),
        ("p0", lambda: cache.seq_rm(0, bad)),
        ("p1", lambda: cache.seq_rm(0, 0, bad)),
        ("src", lambda: cache.seq_cp(bad, 1)),
        ("dst", lambda: cache.seq_cp(0, bad)),
        ("p0", lambda: cache.seq_cp(0, 1, bad)),
        ("p1", lambda: cache.seq_cp(0, 1, 0, bad)),
        ("seq", lambda: cache.seq_keep(bad)),
        ("seq", lambda: cache.seq_add(bad, 0, -1, 1)),
        ("delta", lambda: cache.seq_add(0, 0, -1, bad)),
        ("p0", lambda: cache.seq_add(0, bad, -1, 1)),
        ("divisor", lambda: cache.seq_div(0, 0, -1, bad)),
        ("p1", lambda: cache.seq_div(0, 0, bad, 2)),
        ("seq", lambda: cache.seq_pos_min(bad)),
        ("seq", lambda: cache.seq_pos_max(bad)),
        ("seq", lambda: cache.state_write(bad)),
        ("seq", lambda: cache.state_read(b"", bad)),
        ("seq", lambda: cache.session_write([1], bad)),
        ("tokens", lambda: cache.session_write([bad])),
        ("tokens", lambda: cache.session_write([2**40])),
        ("tokens", lambda: cache.keep(0, [bad])),
        ("tokens", lambda: cache.reuse(1, [bad, bad])),
        ("blob", lambda: cache.state_read(bad, 0)),
        ("blob", lambda: cache.session_read(bad, 0)),
        ("n", lambda: handle.truncate(bad)),
        ("start", lambda: handle.drop(bad, 3)),
        ("stop", lambda: handle.drop(0, bad)),
        ("namespace", lambda: cache.keep(0, [0, 1], 5)),  # type: ignore[arg-type]
        ("namespace", lambda: cache.match([0, 1], None)),  # type: ignore[arg-type]
    ]
    if bad is not None:
        calls += [("id", lambda: cache.sequence(bad)), ("upto", lambda: handle.fork(bad))]
    before = cache.state_write()
    for parameter, call in calls:
        with pytest.raises(ParameterError) as caught:
            call()
        assert caught.value.parameter == parameter, caught.value
    assert cache.state_write() == before
    assert cache.seq_pos_max(0) == 5


@by_model
def test_every_verb_refuses_what_is_out_of_range(model: str) -> None:
    ctx = context(model)
    decode(ctx)
    cache = ctx.cache
    before = cache.state_write()
    for call in (
        lambda: cache.seq_rm(3),
        lambda: cache.seq_rm(-2),
        lambda: cache.seq_cp(0, 5),
        lambda: cache.seq_cp(-1, 0),
        lambda: cache.seq_keep(-1),
        lambda: cache.seq_keep(7),
        lambda: cache.seq_pos_max(3),
        lambda: cache.seq_pos_max(-1),
        lambda: cache.seq_pos_min(-1),
        lambda: cache.seq_add(3, 0, -1, 1),
        lambda: cache.seq_add(0, 0, -1, 2**31),
        lambda: cache.seq_div(0, 0, -1, 0),
        lambda: cache.seq_div(0, 0, -1, -1),
    ):
        with pytest.raises(ParameterError, match="must lie in"):
            call()
    assert cache.state_write() == before


@by_model
def test_numpy_integers_are_integers(model: str) -> None:
    ctx = context(model, n_rollback=4)
    one = np.int64
    ctx.decode(Batch.one(np.arange(6), pos=one(0), seq=one(1)))  # type: ignore[arg-type]
    batch = Batch()
    batch.add(one(3), one(6), [one(1)])  # type: ignore[arg-type, list-item]
    ctx.decode(batch)
    ctx.cache.seq_rm(one(1), one(5), one(-1))  # type: ignore[arg-type]
    assert ctx.cache.seq_pos_max(one(1)) == 4  # type: ignore[arg-type]


@by_model
def test_what_was_put_into_a_batch_by_hand_is_checked_when_it_is_decoded(model: str) -> None:
    ctx = context(model)
    changes: list[tuple[str, list[Any]]] = [
        ("tokens", [1.9, 2]),
        ("tokens", ["1", 2]),
        ("positions", [0.0, 1]),
        ("positions", ["0", 1]),
        ("sequences", [[0.0], [0.0]]),
        ("sequences", [[1, 1], [1, 1]]),
        ("sequences", [["0"], ["0"]]),
    ]
    for field, values in changes:
        batch = Batch.one([1, 2], pos=0)
        setattr(batch, field, values)
        with pytest.raises(InvalidBatch):
            ctx.decode(batch)
        assert ctx.cache.used == 0
    for bad in (None, "text", [1, 2]):
        with pytest.raises(InvalidBatch, match="decode takes a Batch, not"):
            ctx.decode(bad)  # type: ignore[arg-type]


@by_model
@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("prefix", "x"),
        ("prefix", True),
        ("prefix", {}),
        ("device", "gpu"),
        ("device", "meta"),
        ("device", "cuda:99"),
        ("device", 1.5),
        ("n_threads", 10**6),
        ("n_threads", 1.5),
        ("n_threads_batch", 10**6),
        ("n_threads_batch", "2"),
        ("n_ctx", "64"),
        ("n_rollback", True),
        ("type_k", 5),
    ],
)
def test_contexts_refuse_at_construction(model: str, option: str, bad: Any) -> None:
    if model == "mamba" and option == "type_k":
        pytest.skip("a model of states alone stores no keys")
    if str(bad).startswith("cuda"):
        pytest.importorskip("torch")
    options: dict[str, Any] = {option: bad}
    with pytest.raises(ParameterError, match=option) as caught:
        context(model, **options)
    assert caught.value.parameter == option


def test_a_context_on_cuda_is_refused_where_there_is_none() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    with pytest.raises(ParameterError, match="device='cuda': torch finds 0 CUDA devices here"):
        context(device="cuda")
    assert checked_device("device", torch.device("cpu")) == checked_device("device", "cpu") == CPU


@by_model
def test_copies_and_pickles_are_refused_with_the_way_out(model: str) -> None:
    ctx = context(model)
    decode(ctx)
    things: list[Any] = [ctx, ctx.cache, ctx.cache.sequence(1), *ctx.cache.pools]
    for thing in things:
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotCopyable, match=r"state_write\(\).*state_read\(\)") as caught:
                call(thing)
            assert isinstance(caught.value, (AleatorError, TypeError))
    other = context(model)  # what the message says
    other.cache.state_read(ctx.cache.state_write())
    assert other.cache.seq_pos_max(0) == 5


@by_model
def test_sizes_of_an_instance_and_what_is_recurrent(model: str) -> None:
    cache = context(model).cache
    stored: list[tuple[int, int]] = []
    for pool in cache.pools:
        if isinstance(pool, RecurrentPool):
            stored.append((sum(t.nbytes for t in pool.conv), sum(t.nbytes for t in pool.ssm)))
        else:
            rows = first_of(pool).rows
            stored.append((rows.keys.nbytes, rows.values.nbytes))
    assert (cache.bytes_k, cache.bytes_v) == tuple(map(sum, zip(*stored, strict=True)))
    assert cache.total_size == cache.bytes_k + cache.bytes_v > 0
    assert bool(cache.recurrent) == (model in ("mamba", "jamba"))
    if cache.recurrent:
        assert cache.recurrent.bytes_k + cache.recurrent.bytes_v > 0


def test_distances_and_divisors_up_to_their_bounds() -> None:
    cache = KVCache([LayerShape(1, 8, 8)], 8, rotate=lambda layer, keys, deltas: keys)
    with cache.step() as step:
        step.place(np.array([5], np.int32), np.zeros(1, np.int32), np.ones((1, 1), np.uint64))
    for divisor, position in ((1, 5), (2, 2), (2**31 - 1, 0)):
        cache.seq_div(0, 0, -1, divisor)
        assert cache.seq_pos_max(0) == position
    cache.seq_add(0, 0, -1, 2**31 - 2)
    cache.seq_add(0, 0, -1, 2 - 2**31)
    assert cache.seq_pos_max(0) == 0
    for name, value in (("divisor", 0), ("divisor", 2**31), ("delta", 2**31), ("delta", -(2**31))):
        with pytest.raises(ParameterError) as caught:
            (cache.seq_div if name == "divisor" else cache.seq_add)(0, 0, -1, value)
        assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((-1, -1), (0, END)),
        ((-5, 0), (0, 0)),
        ((0, 1), (0, 1)),
        ((3, END), (3, END)),
        ((END - 1, END + 1), (END - 1, END)),
        ((END, END - 1), (END, END - 1)),
        ((2**40, 2**40), (END, END)),
        ((1, -2), (1, END)),
    ],
)
def test_ranges_of_positions(given: tuple[int, int], expected: tuple[int, int]) -> None:
    assert position_range(*given) == expected


@pytest.mark.parametrize(
    ("name", "count", "found"),
    [
        ("cpu", 0, "cpu"),
        ("cpu:3", 0, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda", 0, None),
        ("cuda:0", 1, "cuda:0"),
        ("cuda:1", 1, None),
        ("cuda:1", 2, "cuda:1"),
        ("cuda:2", 2, None),
        ("cuda:12345", 99999, None),
        ("mps", 1, None),
        ("CPU", 1, None),
    ],
)
def test_names_of_devices(
    name: str, count: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda what: count)
    if found is None:
        with pytest.raises(ParameterError, match="device="):
            checked_device("device", name)
    else:
        assert str(checked_device("device", name)) == found
        assert [str(d) for d in devices.checked_devices(name, 2)] == [found] * 2
        assert len(devices.checked_devices([name], 1)) == 1


def test_devices_in_words() -> None:
    sizes = devices.sizes_by_device(
        [(CPU, 2**20), (devices.Device("cuda", 0), 2**19), (CPU, 2**20)]
    )
    assert sizes == {"cpu": 2**21, "cuda:0": 2**19}
    assert devices.described(sizes) == "cpu 2.00 MiB + cuda:0 0.50 MiB"
    assert [devices.described({}), devices.described({"cuda:1": 7})] == ["cpu", "cuda:1"]
