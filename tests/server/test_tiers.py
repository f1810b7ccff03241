"""A server with memory and disk below its cells: slots, keys, and servers that share a directory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.cache.disk_store import DiskStore
from aleator.cache.formats import state_file
from aleator.generate import session
from tests.generate.test_prompt_tiers import reading_is_worth_it as reading_is_worth_it
from tests.server.conftest import Client
from tests.server.live import Live, in_thread

PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 18
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}


@contextmanager
def serving(
    folder: Path, tier: str = "cache_disk", n_ctx: int = 1024, **options: Any
) -> Iterator[Client]:
    """A server as after a start; what it keeps is written when it ends."""
    below: dict[str, Any] = {tier: 2**28, "cache_dir": str(folder / "prompts")}
    model = aleator.load(n_threads=1, **below)
    with model.engine(n_seq_max=2, n_ctx=n_ctx) as engine:
        yield Client(model, engine, slot_save_path=str(folder), **options)
    assert model.prompt_tiers is not None
    model.prompt_tiers.close(60)
    assert not model.prompt_tiers.counts


def complete(client: Client, prompt: object = PROMPT, **more: Any) -> dict[str, Any]:
    made = client.made("/completion", prompt=prompt, seed=1, **{"n_predict": 8, **more})
    tiers = client.service.model.prompt_tiers
    assert tiers is not None
    assert tiers.flush(60)
    return made


def act(client: Client, number: int, action: str) -> Any:
    response = client.post(f"/slots/{number}?action={action}", filename="talk.bin")
    assert response.status_code == 200, response.text
    return response.json()


def blocks(folder: Path) -> list[Path]:
    return sorted((folder / "prompts" / "blocks").iterdir())


def test_a_slot_goes_on_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        first = complete(client, id_slot=1)
        assert first["timings"]["cache_n"] == 0
    with serving(tmp_path) as client:
        assert complete(client, id_slot=0)["timings"]["cache_n"] == 0
        assert complete(client)["timings"]["cache_n"] == 0
        again = complete(client, id_slot=1)
        assert again["timings"]["cache_n"] >= 256
        assert again["content"] == first["content"]


def test_a_restore_that_finds_no_room_leaves_what_the_tiers_have(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        complete(client, id_slot=0)
        saved = act(client, 0, "save")["n_saved"]
    with serving(tmp_path, "cache_ram", n_ctx=256) as client:
        assert saved > 256
        complete(client, PROMPT[:600], id_slot=1)
        response = client.post("/slots/1?action=restore", filename="talk.bin")
        assert response.status_code == 400, response.text
        assert complete(client, PROMPT[:600], id_slot=1)["timings"]["cache_n"] >= 128


@pytest.mark.parametrize("tier", ["cache_disk", "cache_ram"])
def test_erased_is_erased_in_all_tiers(tier: str, tmp_path: Path) -> None:
    with serving(tmp_path, tier) as client:
        complete(client)
        kept = blocks(tmp_path) if tier == "cache_disk" else []
        complete(client, id_slot=1)
        complete(client, PROMPT[:400] + "All:\nSpeak, speak.\n\n" * 20, id_slot=1)
        client.post("/slots/1?action=erase")
        assert complete(client, id_slot=1)["timings"]["cache_n"] == 0
        client.post("/slots/1?action=erase")
        assert tier == "cache_ram" or blocks(tmp_path) == kept
        assert complete(client)["timings"]["cache_n"] > 0


def test_what_must_not_be_cached_reaches_no_tier(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        complete(client, cache_prompt=False)
        for _ in range(2):
            made = client.made("/v1/chat/completions", **CHAT, cache_prompt=False)
            assert made["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        complete(client, "JULIET:")
        assert blocks(tmp_path) == []
        complete(client, id_slot=1)
        complete(client, "ROMEO:", id_slot=1, cache_prompt=False)
        assert blocks(tmp_path) == []


SAYS: dict[str, Any] = {"messages": CHAT["messages"]}
FEW: dict[str, Any] = {"options": {"num_predict": 4}, "stream": False}
DIALECTS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": PROMPT, "n_predict": 4},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 4},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 4},
    "/v1/messages": {**SAYS, "max_tokens": 4},
    "/api/chat": {**SAYS, **FEW},
    "/api/generate": {"prompt": PROMPT, "raw": True, **FEW},
}


@pytest.mark.parametrize("path", DIALECTS)
def test_no_dialect_caches_what_must_not_be(path: str, tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        model, engine, body = client.service.model, client.service.engine, DIALECTS[path]
        body = {**body, "model": client.service.name}

        def computed(**more: Any) -> bool:
            """Whether the prompt was computed."""
            before = engine.stats.prompt_tokens
            client.made(path, **body, **more)
            tiers = model.prompt_tiers
            assert tiers is not None
            assert tiers.flush(60)
            return engine.stats.prompt_tokens - before > 200

        for _ in range(2):
            assert computed(cache_prompt=False)
            assert blocks(tmp_path) == []
        assert computed()
        kept = blocks(tmp_path)
        assert kept
        assert not computed()
        assert computed(cache_prompt=False)
        assert blocks(tmp_path) == kept
        assert not computed(cache_prompt=True)
        assert client.refused(path, **body, cache_prompt="yes")


def test_no_step_touches_a_slot_s_file_or_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def noting(owner: Any, name: str) -> None:
        done = getattr(owner, name)

        def called(*args: Any, **options: Any) -> Any:
            threads.add(threading.current_thread().name)
            return done(*args, **options)

        monkeypatch.setattr(owner, name, called)

    with serving(tmp_path) as client:
        complete(client, id_slot=1)
        for i in range(8):
            complete(client, f"{i} JULIET:\nO Romeo, Romeo! wherefore art thou?\n" * 16)
        for name in ("find", "get", "put", "touch", "drop", "_read"):
            noting(DiskStore, name)
        for module in (session, state_file):
            noting(module, "read_state_file" if module is session else "_parse")
        assert act(client, 1, "save")["n_saved"] >= 256
        assert act(client, 0, "restore")["n_restored"] >= 256
        client.post("/slots/1?action=erase")
    assert threads
    assert "aleator-engine" not in threads


def test_a_slot_is_saved_from_the_disk_when_others_have_its_cells(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        first = complete(client, id_slot=1, return_tokens=True)
        for i in range(8):
            complete(client, f"{i} JULIET:\nO Romeo, Romeo! wherefore art thou?\n" * 16)
        saved = act(client, 1, "save")
        assert saved["n_saved"] >= first["tokens_cached"] - 128
        more = {"n_predict": 20, "return_tokens": True, "temperature": 1.0}
        alone = complete(client, cache_prompt=False, **more)
    with serving(tmp_path) as client:
        assert act(client, 0, "restore")["n_restored"] == saved["n_saved"]
        gone_on = complete(client, id_slot=0, **more)
        assert gone_on["timings"]["cache_n"] >= saved["n_saved"] - 20
        assert gone_on["tokens"] == alone["tokens"]


# Keys and servers


@contextmanager
def live(folder: Path) -> Iterator[Live]:
    """A server with two keys, of a model of its own."""
    model = aleator.load(
        n_threads=1, cache_disk=2**28, cache_ram=2**24, cache_dir=str(folder / "prompts")
    )
    with in_thread(
        model, engine={"n_seq_max": 2, "n_ctx": 2048}, api_key=("key-a", "key-b")
    ) as made:
        yield made
        tiers = model.prompt_tiers
        assert tiers is not None
        assert tiers.flush(60)


def cached(server: Live, key: str, salt: str = "") -> tuple[int, Any]:
    """Cached tokens of the prompt, and what was answered."""
    body = {**CHAT, "seed": 3, "cache_salt": salt}
    status, _, answer = server.post(
        "/v1/chat/completions", body, {"authorization": f"Bearer {key}"}
    )
    assert status == 200, answer
    made = json.loads(answer)
    return made["usage"]["prompt_tokens_details"]["cached_tokens"], made["choices"]


def test_a_hit_of_another_key_looks_like_a_miss(tmp_path: Path) -> None:
    with live(tmp_path) as server:
        n, answer = cached(server, "key-a")
        assert n == 0
    with live(tmp_path) as server:
        assert cached(server, "key-b") == (0, answer)
        assert cached(server, "key-a", "a salt") == (0, answer)
        n, again = cached(server, "key-a")
        assert n >= 256
        assert again == answer
    with live(tmp_path) as server:  # now it is on disk for both
        assert cached(server, "key-b")[0] == n


def test_two_servers_share_a_directory(tmp_path: Path) -> None:
    with ExitStack() as both:
        one, other = (both.enter_context(live(tmp_path)) for _ in range(2))
        assert cached(one, "key-a")[0] == 0
        assert one.model is not None
        tiers = one.model.prompt_tiers
        assert tiers is not None
        assert tiers.flush(60)  # it writes beside its answer
        assert tiers.tell()["disk"]["written"] >= 2
        n, answer = cached(other, "key-a", "")
        assert n >= 256
        assert answer == cached(one, "key-a")[1]
