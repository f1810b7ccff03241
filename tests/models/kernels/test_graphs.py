"""Steps of a few tokens are one graph for each bucket, whose replays have the native bits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_models import SPECS
from wide_models import SMALL, write_model

from aleator.cache.storage import tensors
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.triton import decoder, inputs
from tests.models.kernels.recorded_graph import NotCapturableError, RecordedGraph

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


EVERY = bool(os.environ.get("ALEATOR_ALL"))
"""Whether what is slow under the interpreter runs too."""


def both(path: Path, **options: Any) -> list[Context]:
    forms = [build_decoder(open_weights(path), form=form) for form in ("native", "triton")]
    return [Context(form, n_threads=1, **options) for form in forms]


def same(contexts: list[Context], batch: Batch) -> None:
    with np.errstate(all="ignore"):
        right, ours = (np.asarray(each.decode(batch)) for each in contexts)
    assert np.isfinite(right).all()
    assert ours.tobytes() == right.tobytes()


def tokens_of(contexts: list[Context], rng: np.random.Generator, sequences: list[int]) -> Batch:
    """The next token of each sequence."""
    batch = Batch()
    for seq in sequences:
        batch.add(int(rng.integers(contexts[0].n_vocab)), None, [seq], logits=True)
    return batch


def write_prompts(contexts: list[Context], rng: np.random.Generator, n: int) -> None:
    """Prompts of 3 tokens and more, for so many sequences."""
    batch = Batch()
    for seq in range(n):
        for i in range(3 + seq % 4):
            batch.add(int(rng.integers(contexts[0].n_vocab)), i, [seq], logits=seq == 0 and i == 2)
    same(contexts, batch)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma3-pattern-2", "jamba"])
def test_replays_have_the_native_bits(
    name: str, tmp_path: Path, graphs: list[RecordedGraph]
) -> None:
    contexts = both(write_model(tmp_path / "m.gguf", SMALL[name]), n_ctx=64, n_seq_max=4)
    rng = np.random.default_rng(4)
    write_prompts(contexts, rng, 4)
    graphs.clear()
    for rows in ([0], [1], [2, 1, 0], [0, 1, 2, 3]):
        same(contexts, tokens_of(contexts, rng, rows))
    assert [each.replays for each in graphs] == [1, 1]
    assert sum(each.taken for each in graphs) > 0
    kept = [context.cache.state_write() for context in contexts]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    "name", ["llama", *(["qwen3moe", "gemma3-pattern-2", "jamba"] if EVERY else [])]
)
def test_pieces_of_prompts(
    name: str, tmp_path: Path, graphs: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "ROWS", (1, 2))
    monkeypatch.setattr(inputs, "CHUNKS", (4,))
    path = write_model(tmp_path / "m.gguf", SMALL[name])
    contexts, rng = both(path, n_ctx=64, n_seq_max=2, n_ubatch=4), np.random.default_rng(9)
    for seq, n in ((0, 11), (1, 12), (0, 4)):
        first = contexts[0].cache.seq_pos_max(seq) + 1
        tokens = [int(i) for i in rng.integers(contexts[0].n_vocab, size=n)]
        same(contexts, Batch.one(tokens, first, seq=seq))
    # Of pieces without logits, and of those with the last token's, of which one of 3 tokens is padded.
    assert [each.replays for each in graphs] == [3, 2]
    assert len({context.cache.state_write() for context in contexts}) == 1


def test_every_bucket(tmp_path: Path, graphs: list[RecordedGraph]) -> None:
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1))
    contexts, rng = both(path, n_ctx=256, n_seq_max=34), np.random.default_rng(5)
    for n in (1, 2, 3, 5, 9, 17, 33, 34):
        same(contexts, tokens_of(contexts, rng, list(range(n))))
    assert [each.replays for each in graphs] == [0] * 6 + [1]
    outputs: dict[int, torch.Tensor] = contexts[1]._step._outputs  # type: ignore[attr-defined]
    assert sorted(outputs) == [1, 2, 4, 8, 16, 32, 64]  # graphs have no logits of their own


def test_moved_keys_and_raw_keys(tmp_path: Path, graphs: list[RecordedGraph]) -> None:
    """Replays rotate by other distances than the first step did."""
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1))
    every: tuple[dict[str, Any], ...] = ({}, {"k_storage": "raw"})
    for options in every:
        contexts, rng = both(path, n_ctx=64, **options), np.random.default_rng(6)
        write_prompts(contexts, rng, 1)
        graphs.clear()
        for by in (1, 1, 2):  # keys lag behind by 1; by 1 and 2; by 2
            for context in contexts:
                context.cache.seq_rm(0, 0, by)
                context.cache.seq_add(0, by, -1, -by)
            same(contexts, tokens_of(contexts, rng, [0]))
        assert sum(each.replays for each in graphs) == 1, options


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_ends_of_prompts_and_mixed_steps(
    name: str, tmp_path: Path, graphs: list[RecordedGraph]
) -> None:
    spec = replace(SPECS[name], n_layers=1)
    contexts = both(write_model(tmp_path / "m.gguf", spec), n_ctx=64, n_seq_max=3)
    rng = np.random.default_rng(8)
    for a, b in ((3, 2), (4, 4), (5, 1)):
        batch, first = Batch(), contexts[0].cache.seq_pos_max(0) + 1
        for i in range(a):
            batch.add(int(rng.integers(contexts[0].n_vocab)), first + i, [0], logits=i == a - 1)
        own = contexts[0].cache.seq_pos_max(1) + 1
        for i in range(b):
            batch.add(int(rng.integers(contexts[0].n_vocab)), own + i, [1], logits=i == b - 1)
        same(contexts, batch)
    assert [each.replays for each in graphs] == [2]
    assert len({context.cache.state_write() for context in contexts}) == 1


def test_a_longer_text_has_another_graph(tmp_path: Path, graphs: list[RecordedGraph]) -> None:
    contexts = both(
        write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1)), n_ctx=512
    )
    rng = np.random.default_rng(7)
    prompt = [int(i) for i in rng.integers(contexts[0].n_vocab, size=254)]
    same(contexts, Batch.one(prompt))
    graphs.clear()
    for _ in range(4):  # 255, 256, 257 and 258 cells
        same(contexts, tokens_of(contexts, rng, [0]))
    assert [each.replays for each in graphs] == [1, 1]


def test_of_too_many_graphs_none_is_kept(
    tmp_path: Path, graphs: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "MOST_GRAPHS", 2)
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1))
    contexts, rng = both(path, n_ctx=64, n_seq_max=4), np.random.default_rng(5)
    for n, made in ((1, 1), (2, 2), (4, 3), (1, 4)):
        same(contexts, tokens_of(contexts, rng, list(range(n))))
        assert len(graphs) == made


def test_a_step_is_launched_on_the_decoder_s_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches on the current device: of ``cuda:1`` the kernels would read that of ``cuda:0``."""
    launched: list[torch.device] = []

    def current(device: torch.device) -> AbstractContextManager[object]:
        launched.append(device)
        return nullcontext()

    monkeypatch.setattr(decoder, "current", current)
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], n_layers=1))
    context = Context(build_decoder(open_weights(path), form="triton"), n_threads=1, n_ctx=64)
    for logits in (None, True):
        context.decode(Batch.one([1, 2, 3], logits=logits))
        context.cache.seq_rm(0, 0, -1)
    assert launched == [torch.device("cpu")] * 2
    assert isinstance(tensors.current(torch.device("cuda:1")), torch.cuda.device)


WAITING: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("_local_scalar_dense", lambda x: x.sum().item()),
    ("__bool__", lambda x: bool(x.sum() > 0)),
    ("__float__", lambda x: float(x[0])),
    ("tolist", lambda x: x.tolist()),
    ("cpu", lambda x: x.cpu()),
    ("numpy", lambda x: x.numpy()),
    ("nonzero", lambda x: x.nonzero()),
    ("index", lambda x: x[x > 0]),
    ("tensor", lambda x: x + torch.tensor([1.0])),
    ("from_numpy", lambda x: x + torch.from_numpy(np.ones(1, np.float32))),
]


@pytest.mark.parametrize(("what", "waits"), WAITING, ids=[each[0] for each in WAITING])
def test_what_no_graph_can_hold_is_refused(
    what: str, waits: Callable[[torch.Tensor], object]
) -> None:
    def step() -> tuple[torch.Tensor, None]:
        x = torch.arange(4.0)
        waits(x)
        return x, None

    with pytest.raises(NotCapturableError, match=what):
        RecordedGraph().first(step)
    step()  # as before


def test_a_replay_reads_what_is_there_then() -> None:
    graph, x = RecordedGraph(), torch.arange(4.0)
    first, drawn = graph.first(lambda: ((x * 2).add_(1).cumsum(0), None))
    assert first.tolist() == [1, 4, 9, 16]
    x.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert graph.replay()[0].tolist() == [3, 4, 5, 6]
    assert drawn is None
    assert graph.taken == 32


def test_captures_wait_for_each_other_each_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's names, on the CPU: PyTorch's stream for captures is that of the first device that had one."""
    begun: list[tuple[str, bool]] = []

    @contextmanager
    def graph(_: object, pool: str, stream: str, capture_error_mode: str) -> Iterator[None]:
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        begun.append((stream, True))
        time.sleep(0.05)
        yield
        begun.append((stream, False))

    for name, made in (
        ("graph_pool_handle", lambda: "pool"), ("Stream", str), ("CUDAGraph", object), ("graph", graph)
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, made)
    graphs = [decoder.Graphs(torch.device("cuda", i)).new() for i in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda each: each.first(lambda: (torch.zeros(1), None)), graphs))
    assert {stream for stream, _ in begun} == {"cuda:0", "cuda:1", "cuda:2"}
    for first, last in zip(begun[::2], begun[1::2], strict=True):
        assert (first[0], first[1], last[1]) == (last[0], True, False)
