"""Fingerprints: of all bytes, and remembered while no file changes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.core import host
from aleator.generate import Context
from aleator.models import build_decoder
from aleator.models.fingerprint import BLOCK, MOST_REMEMBERED, fingerprint, remembered
from aleator.models.hub.bundled import bundled_model
from aleator.models.weights import open_weights
from tests.models.heads import write_mtp


def bytes_of(n: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.uint8)


def test_the_hash_is_xxh64() -> None:
    """Values of the reference implementation, one with a stripe of 32, a word of 4 and odd bytes."""

    def of(data: bytes, seed: int = 0) -> int:
        return int(host.xxh64_blocks(np.frombuffer(data, np.uint8), 1 << 20, seed)[0])

    assert of(b"") == 0xEF46DB3751D8E999
    assert of(b"a") == 0xD24EC4F1A98C6E5B
    assert of(b"abc") == 0x44BC2CF5AD770999
    assert of(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1
    assert of(b"xxhash") == 0x32DD38952C4BC720
    assert of(b"xxhash", 20141025) == 0xB559B98D844E0635


def test_every_byte_and_name_counts() -> None:
    data = bytes_of(2 * BLOCK + 100)
    parts = [("a", data), ("b", bytes_of(5))]
    prints = {fingerprint(parts), fingerprint(parts[::-1]), fingerprint([("c", data), parts[1]])}
    for at in (0, 4095, BLOCK - 1, BLOCK, 2 * BLOCK + 99):
        changed = data.copy()
        changed[at] ^= 1
        prints.add(fingerprint([("a", changed), parts[1]]))
    prints.add(fingerprint([("a", data[:-1]), ("b", data[-1:])]))
    assert len(prints) == 9
    assert fingerprint(parts) == fingerprint(parts)


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "m"
    file.write_bytes(b"x")
    count = 0

    def compute() -> str:
        nonlocal count
        count += 1
        return f"{count:032x}"

    assert remembered([file], compute) != remembered([file], compute)  # it has just changed
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**10)
    first = remembered([file], compute)
    assert remembered([file], compute) == first
    assert remembered([tmp_path / "cache" / ".." / "m"], compute) == first
    store = tmp_path / "cache" / "aleator" / "fingerprints.json"
    assert list(json.loads(store.read_text()).values()) == [first]
    os.utime(file, ns=(1, 1))
    second = remembered([file], compute)
    assert second != first
    file.write_bytes(b"xy")
    assert remembered([file], compute) not in (first, second)
    for damage in (b"", b"[]", b"{", b'{"a": 3}', b"\xff"):
        store.write_bytes(damage)
        assert remembered([file], compute) == remembered([file], compute)
    store.write_text(json.dumps({str(i): "0" * 32 for i in range(2 * MOST_REMEMBERED)}))
    made = remembered([file, file], compute)
    kept = json.loads(store.read_text())
    assert (len(kept), list(kept.values())[-1]) == (MOST_REMEMBERED, made)
    assert [each.name for each in store.parent.iterdir()] == ["fingerprints.json"]
    file.unlink()
    assert remembered([file], compute) != remembered([file], compute)


def test_where_nothing_can_be_remembered_it_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    identity = open_weights(bundled_model()).identity()
    assert identity == open_weights(bundled_model()).identity()
    assert len(identity.fingerprint) == 32
    assert str(identity) == f"{identity.name} ({bundled_model()})"


@pytest.mark.parametrize(("kind", "version"), [("F32", 2), ("BF16", 3)])
def test_only_a_model_with_matrices_in_bf16_is_of_the_new_arithmetic(
    tmp_path: Path, kind: str, version: int
) -> None:
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], type=kind))
    weights = open_weights(path)
    assert weights.identity().arithmetic == version
    assert Context(build_decoder(weights), n_ctx=8).cache.arithmetic == version


@pytest.mark.parametrize("arch", ["deepseek2", "qwen35"])
def test_layers_that_predict_further_tokens_do_not_change_the_arithmetic(
    tmp_path: Path, arch: str
) -> None:
    weights = open_weights(write_mtp(tmp_path, arch, kind="BF16"))
    at = f"blk.{weights.config.n_layers}.nextn.eh_proj.weight"
    assert (weights.stored(at).type, weights.arithmetic) == ("BF16", 2)
