"""Slots: what is shown, and texts that are saved, restored and erased."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.generate.session import Session
from aleator.server.dialects import llama_slots
from aleator.server.dialects.llama_slots import LONGEST_NAME, Slots, check_name
from aleator.server.options import ServerOptions
from aleator.server.service import Service
from tests.server.conftest import Client, MakeClient

FRANCE, GERMANY = (
    "What is the capital of France, my lord?",
    "What is the capital of Spain, my lord?",
)


@pytest.fixture
def saving(make_client: MakeClient, tmp_path: Path) -> Iterator[Client]:
    client = make_client(slot_save_path=str(tmp_path))
    yield client
    for number in range(4):
        client.request("POST", f"/slots/{number}?action=erase")


def act(client: Client, number: int | str, action: str, name: str | None = None) -> Any:
    body = {} if name is None else {"json": {"filename": name}}
    return client.request("POST", f"/slots/{number}?action={action}", **body)


def complete(client: Client, prompt: object, number: int = -1, **more: Any) -> dict[str, Any]:
    return client.made(
        "/completion", prompt=prompt, id_slot=number, seed=1, **{"n_predict": 20, **more}
    )


def test_a_slot_goes_on_from_its_own_text_and_from_no_other(saving: Client) -> None:
    first = complete(saving, FRANCE, 1)
    assert first["timings"]["cache_n"] == 0
    assert first["id_slot"] == 1
    assert complete(saving, FRANCE, 1)["timings"]["prompt_n"] == 1
    other = complete(saving, FRANCE, 2)
    assert other["timings"]["cache_n"] == 0
    assert other["content"] == first["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_a_slot_too(saving: Client, stream: bool) -> None:
    said = [{"role": "user", "content": FRANCE}]
    asked: dict[str, Any] = {"messages": said, "max_tokens": 8, "seed": 1, "ignore_eos": True}
    asked |= {"n": 2, "id_slot": 2}
    path = "/v1/chat/completions"
    alone = saving.made(path, **{**asked, "id_slot": -1})
    if stream:
        events = saving.stream(path, **asked, stream_options={"include_usage": True})
        told = events[-1]["usage"]
    else:
        made = saving.made(path, **asked)
        assert made["choices"] == alone["choices"]
        told = made["usage"]
    assert told["prompt_tokens_details"]["cached_tokens"] == 0
    n = told["prompt_tokens"]
    assert saving.made(path, **asked)["usage"]["prompt_tokens_details"]["cached_tokens"] == n - 1
    saved = act(saving, 2, "save", "chat").json()
    assert n <= saved["n_saved"] <= n + 8
    counted = saving.made(f"{path}/input_tokens", messages=said)
    assert counted["input_tokens"] == n
    assert saving.refused(path, **{**asked, "id_slot": 99})["param"] == "id_slot"


def test_a_restored_slot_goes_on_to_the_bit(saving: Client, tmp_path: Path) -> None:
    first = complete(saving, FRANCE, 1, return_tokens=True)
    n = first["tokens_evaluated"] + 20 - 1
    saved = act(saving, 1, "save", "talk.bin").json()
    assert saved["n_saved"] == n == first["tokens_cached"]
    assert saved["n_written"] == (tmp_path / "talk.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    differs = complete(saving, GERMANY, 1)["timings"]["prompt_n"]
    restored = act(saving, 0, "restore", "talk.bin").json()
    assert restored["n_restored"] == n
    assert restored["n_read"] == saved["n_written"]
    assert complete(saving, GERMANY, 0)["timings"]["prompt_n"] == differs

    ids = saving.made("/tokenize", content=FRANCE, add_special=True)["tokens"]
    text = [*ids, *first["tokens"]]
    assert act(saving, 0, "restore", "talk.bin").json()["n_restored"] == n
    more = {"n_probs": 5, "return_tokens": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    gone_on = complete(saving, text, 0, **more)
    fresh = complete(saving, text, -1, cache_prompt=False, **more)
    assert gone_on["timings"]["cache_n"] == n
    assert fresh["timings"]["cache_n"] == 0
    assert gone_on["tokens"] == fresh["tokens"]
    assert gone_on["completion_probabilities"] == fresh["completion_probabilities"]


def test_a_restore_replaces_what_the_slot_had(saving: Client) -> None:
    complete(saving, FRANCE, 1)
    act(saving, 1, "save", "one.bin")
    complete(saving, "ROMEO: she speaks", 0)
    act(saving, 0, "restore", "one.bin")
    assert complete(saving, "ROMEO: she speaks", 0, n_predict=1)["timings"]["cache_n"] <= 1
    again = act(saving, 0, "save", "two.bin").json()
    assert again["n_saved"] >= 1


def test_an_erased_slot_computes_all_anew(saving: Client) -> None:
    first = complete(saving, FRANCE, 3)
    assert act(saving, 3, "erase").json() == {"id_slot": 3, "n_erased": first["tokens_cached"]}
    assert act(saving, 3, "erase").json()["n_erased"] == 0
    again = complete(saving, FRANCE, 3)
    assert again["timings"]["cache_n"] == 0
    assert again["content"] == first["content"]
    complete(saving, FRANCE, 3, cache_prompt=False)
    assert act(saving, 3, "save", "kept.bin").json()["n_saved"] == first["tokens_cached"]


REFUSED: dict[str, dict[str, Any]] = {
    "no grammar": {"prompt": GERMANY, "grammar": "root ::= ("},
    "one is too long": {"prompt": [GERMANY, [5] * 5000]},
}


@pytest.mark.parametrize("why", [*REFUSED, "chat: no grammar"])
def test_who_is_refused_erases_no_slot(why: str, saving: Client) -> None:
    complete(saving, FRANCE, 3)
    path, body = "/completion", REFUSED.get(why, {})
    if not body:
        messages = [{"role": "user", "content": GERMANY}]
        path, body = "/v1/chat/completions", {"messages": messages, "grammar": "root ::= ("}
    saving.refused(path, **body, id_slot=3, cache_prompt=False)
    assert complete(saving, FRANCE, 3)["timings"]["prompt_n"] == 1


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_who_finds_the_queue_full_erases_no_slot(path: str, model: aleator.LanguageModel) -> None:
    with model.engine(n_seq_max=1, max_queue=2) as engine:
        client = Client(model, engine)
        complete(client, FRANCE, 0)
        many: dict[str, Any] = {"prompt": [GERMANY] * 4}
        if path != "/completion":
            many = {"messages": [{"role": "user", "content": GERMANY}], "n": 4}
        client.refused(path, 429, **many, id_slot=0, cache_prompt=False)
        assert engine.stats.submitted == 1
        assert complete(client, FRANCE, 0)["timings"]["prompt_n"] == 1


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../talk", "a/b", "/etc/passwd", "a\\b", ".hidden", "a..b", "a.", " a", "a ", "a\0b",
     "a\nb", "a\u2215b", "\uff0e\uff0e", "a:b", "a*", "é" * LONGEST_NAME, "\ufffd", "\x7f"],
)  # fmt: skip
def test_names_with_parts_of_paths_are_refused(saving: Client, tmp_path: Path, name: str) -> None:
    def found() -> list[Path]:
        """Not what is in folders of other tests, whose threads may still end."""
        return sorted([*tmp_path.parent.iterdir(), *tmp_path.rglob("*")])

    complete(saving, FRANCE, 1, n_predict=1)
    before = found()
    for action in ("save", "restore"):
        response = act(saving, 1, action, name)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "filename"
    assert found() == before


@pytest.mark.parametrize("name", ["talk.bin", "Gespräch 1", "a-b_c.d", "x" * LONGEST_NAME])
def test_other_names_are_taken(name: str) -> None:
    check_name(name)


def test_links_are_not_followed(saving: Client, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    (tmp_path / "talk.bin").symlink_to(elsewhere)
    complete(saving, FRANCE, 1, n_predict=1)
    assert act(saving, 1, "save", "talk.bin").status_code == 400
    assert elsewhere.read_bytes() == b"mine"


def test_files_of_one_namespace_are_not_found_in_another(
    model: aleator.LanguageModel, tmp_path: Path, served_engine: aleator.Engine
) -> None:
    slots = Slots(Service(model, served_engine, ServerOptions(slot_save_path=str(tmp_path))))
    mine, theirs = slots._path(0, "mine", "a.bin"), slots._path(0, "theirs", "a.bin")
    assert mine.parent != theirs.parent != tmp_path
    assert mine.parent.parent == theirs.parent.parent == tmp_path
    assert slots.namespace(0, "mine") != slots.namespace(1, "mine") != slots.namespace(0, "theirs")


def test_texts_of_many_salts_are_not_all_remembered(
    model: aleator.LanguageModel, served_engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_slots, "MOST_TEXTS", 2)
    slots = Slots(Service(model, served_engine, ServerOptions()))
    for salt in ("a", "b", "a", "c"):
        slots.remember(0, salt, Session((1, 2), 1))
    assert list(slots._slots) == [("a", 0), ("c", 0)]


@pytest.mark.parametrize(
    ("number", "action", "status"),
    [("9", "save", 400), ("-1", "save", 400), ("x", "erase", 400), ("0", "burn", 400), ("0", "", 400),
     ("2", "save", 400), ("0", "restore", 404)],
)  # fmt: skip
def test_other_actions_are_refused(saving: Client, number: str, action: str, status: int) -> None:
    response = act(saving, number, action, "nothing.bin")
    assert response.status_code == status, response.text
    assert response.json()["error"]["message"]


def test_files_of_other_models_and_damaged_ones_are_refused(
    saving: Client, tmp_path: Path, model: aleator.LanguageModel
) -> None:
    complete(saving, FRANCE, 1)
    act(saving, 1, "save", "talk.bin")
    data = (tmp_path / "talk.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(data[:-64])
    (tmp_path / "other.bin").write_bytes(b"GGUF" + data)
    (tmp_path / "empty.bin").touch()
    for name in ("cut.bin", "other.bin", "empty.bin"):
        response = act(saving, 1, "restore", name)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert name in message
        assert str(tmp_path) not in message
    assert (
        complete(saving, FRANCE, 1, n_predict=1)["timings"]["prompt_n"] == 1
    )  # nothing has changed


def test_without_a_directory_nothing_is_saved(make_client: MakeClient, tmp_path: Path) -> None:
    for action in ("save", "restore", "erase"):
        assert act(make_client(), 0, action, "a.bin").status_code == 501
    with pytest.raises(ParameterError, match="slot_save_path"):
        make_client(slot_save_path=str(tmp_path / "missing"))


def test_a_session_of_the_library_can_be_restored(
    saving: Client, model: aleator.LanguageModel, tmp_path: Path
) -> None:
    made = model.generate(FRANCE, max_tokens=20, seed=1)
    held = model.save_session(tmp_path / "session.bin", made)
    assert act(saving, 2, "restore", "session.bin").json()["n_restored"] == held
    text = [*made.request.tokens, *made.tokens]
    assert complete(saving, text, 2, n_predict=1)["timings"]["cache_n"] == held


def test_a_session_whose_context_was_shifted_is_no_slot(
    saving: Client, model: aleator.LanguageModel, tmp_path: Path
) -> None:
    made = model.generate(
        FRANCE, max_tokens=model.n_ctx, ignore_eos=True, context_shift=True, seed=1
    )
    model.save_session(tmp_path / "shifted.bin", made)
    response = act(saving, 2, "restore", "shifted.bin")
    assert response.status_code == 400
    assert "context shifts have changed the text" in response.text


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import aleator
    from aleator.generate.session import Session, write_session
    from aleator.generate.session_file import SessionFile
    from aleator.generate.session import Rows

    path, how = Path(sys.argv[1]), sys.argv[2]
    model = aleator.load()

    def die(*given):
        os.kill(os.getpid(), signal.SIGKILL)

    if how == "rename":
        Path.replace = die
    else:
        os.fsync = die
    with SessionFile(path, new=True):
        write_session(path, Session((1, 2, 3), 3), Rows(0, b"x" * 100000, b"", b""), model.identity)
"""


@pytest.mark.parametrize("how", ["fsync", "rename"])
def test_a_save_that_is_killed_leaves_the_old_file(
    saving: Client, tmp_path: Path, how: str
) -> None:
    complete(saving, FRANCE, 1)
    act(saving, 1, "save", "talk.bin")
    old = (tmp_path / "talk.bin").read_bytes()
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "talk.bin"), how],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "talk.bin").read_bytes() == old
    assert len(list(tmp_path.glob(".talk.bin.*.partial"))) == 1
    assert act(saving, 0, "restore", "talk.bin").status_code == 200
    assert act(saving, 1, "save", "talk.bin").status_code == 200
    assert sorted(each.name for each in tmp_path.iterdir()) == ["talk.bin"]


def test_slots_show_what_is_under_way_and_no_text(make_client: MakeClient) -> None:
    client = make_client()
    idle = client.get("/slots").json()
    assert [each["id"] for each in idle] == [0, 1, 2, 3]
    assert not any(each["is_processing"] or "params" in each for each in idle)
    engine, was_seen, together = client.service.engine, threading.Event(), itertools.count()

    def wait_while_both_write(*given: object) -> None:
        if engine.stats.running < 2:
            time.sleep(0.01)
        elif next(together) == 9:
            assert was_seen.wait(60)

    with ThreadPoolExecutor(2) as pool:
        made = pool.submit(complete, client, "A secret prompt", 2, n_predict=60, ignore_eos=True)
        other = engine.submit(
            "ROMEO:", max_tokens=800, ignore_eos=True, seed=1, on_logits=wait_while_both_write
        )
        seen: list[list[dict[str, Any]]] = []
        while not made.done():
            seen.append(client.get("/slots").json())
            if sum(each["is_processing"] for each in seen[-1]) == 2:
                decoded = seen[-1][2].get("next_token", [{"n_decoded": 0}])[0]["n_decoded"]
                was_seen.set() if decoded else None
        assert made.result()["tokens_predicted"] == 60
        other.cancel()
    busy = next(s for s in seen if s[2]["is_processing"] and s[2]["next_token"][0]["n_decoded"])
    assert busy[2]["params"]["n_predict"] == 60
    assert busy[2]["params"]["seed"] == 1
    assert "secret" not in str(seen)
    assert any(sum(each["is_processing"] for each in s) == 2 for s in seen)
    assert make_client(slots=False).get("/slots").status_code == 501


def test_nobody_waits_for_a_slot_who_does_not_want_to(model: aleator.LanguageModel) -> None:
    with model.engine(n_seq_max=1) as engine:
        client = Client(model, engine)
        assert client.get("/slots?fail_on_no_slot=1").status_code == 200
        began, asked = threading.Event(), threading.Event()

        def wait(*given: object) -> None:
            began.set()
            assert asked.wait(60)

        running = engine.submit("ROMEO:", max_tokens=2, ignore_eos=True, seed=1, on_logits=wait)
        assert began.wait(60)
        response = client.get("/slots?fail_on_no_slot=1")
        asked.set()
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "unavailable_error"
        running.wait()


def test_a_salt_has_slots_and_files_of_its_own(saving: Client, tmp_path: Path) -> None:
    complete(saving, FRANCE, 1)
    assert complete(saving, FRANCE, 1, cache_salt="mine")["timings"]["cache_n"] == 0
    assert complete(saving, FRANCE, 1, cache_salt="mine")["timings"]["prompt_n"] == 1
    body = {"filename": "talk.bin", "cache_salt": "mine"}
    assert saving.request("POST", "/slots/1?action=save", json=body).status_code == 200
    assert act(saving, 1, "restore", "talk.bin").status_code == 404
    assert not (tmp_path / "talk.bin").exists()
    assert saving.request("POST", "/slots/3?action=restore", json=body).status_code == 200
    gone = saving.request("POST", "/slots/1?action=erase", json={"cache_salt": "mine"}).json()
    assert gone["n_erased"] > 0
    assert complete(saving, FRANCE, 1)["timings"]["prompt_n"] == 1


def test_a_response_can_hold_its_record(saving: Client) -> None:
    made = complete(saving, FRANCE, 1, aleator_replay=True)
    assert made["aleator_replay"][0]["seed"] == 1
    assert "aleator_replay" not in complete(saving, FRANCE, 1)
