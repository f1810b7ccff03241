"""Other chains over kept logits: steps, whole texts, and many draws."""

from __future__ import annotations

import numpy as np

from tests.playground.conftest import Client, MakeClient

PROMPT = "JULIET:\n"


def test_the_same_chain_draws_the_same_tokens(client: Client) -> None:
    for chain in ({"preset": "llama.cpp"}, {"preset": "neutral", "mirostat": 2}):
        text = client.write(prompt=PROMPT, seed=5, max_tokens=30, **chain)
        found = client.post(f"/texts/{text.id}/resample", **chain)
        assert found == {"steps": 30, "changed": {}, "forgotten": 0, "refused": None}


def test_greedy_would_have_taken_the_most_likely_tokens(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=5, max_tokens=30, preset="neutral")
    found = client.post(f"/texts/{text.id}/resample", preset="greedy")
    recording = client.recording(text)
    best = {str(i): int(np.argmax(recording.logits(i))) for i in range(30)}
    changed = {step: token["id"] for step, token in found["changed"].items()}
    assert changed == {k: v for k, v in best.items() if v != text.tokens[int(k)]}
    assert changed


def test_a_step_is_explained_with_another_chain(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=5, max_tokens=6, preset="neutral")
    found = client.post(f"/texts/{text.id}/step", step=4, preset="neutral", top_k=1)
    assert found["draw"]["token"]["id"] == int(np.argmax(client.recording(text).logits(4)))
    assert found["token"]["id"] == text.tokens[4]
    top_k = next(stage for stage in found["stages"] if stage["name"] == "top_k")
    assert top_k["after"]["candidates"] == 1
    assert len(top_k["likely_removed"]) == 5
    assert client.refused(f"/texts/{text.id}/step", step=6)["param"] == "step"


def test_steps_after_a_loop_are_explained_with_their_temperature(client: Client) -> None:
    loops = {"repeats": 3, "min_tokens": 24, "temperature": 1.5, "for": 8}
    text = client.write(
        prompt="ROMEO:", seed=1, max_tokens=120, temperature=0, ignore_eos=True, stop_loops=loops
    )
    kinds = [
        next(s["label"] for s in client.post(f"/texts/{text.id}/step", step=step)["stages"]
             if s["name"] == "temperature")
        for step in range(0, 120, 3)
    ]  # fmt: skip
    assert len(set(kinds)) == 2
    warm = 3 * next(i for i, kind in enumerate(kinds) if kind != kinds[0])
    found = client.post(f"/texts/{text.id}/step", step=warm)
    assert found["draw"]["token"]["id"] == found["token"]["id"] == text.tokens[warm]
    branch = client.write(parent=text.id, at=warm, seed=1, max_tokens=4, temperature=0)
    assert branch.start["inherited"] == warm


def test_another_chain_has_the_seed_of_the_text(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=77, max_tokens=3, preset="neutral")
    found = client.post(f"/texts/{text.id}/step", step=0, preset="neutral", temperature=0.5)
    assert found["draw"]["seed"] == 77


def test_a_grammar_that_the_text_breaks_is_told(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=5, max_tokens=6, preset="neutral")
    found = client.post(f"/texts/{text.id}/resample", preset="neutral", regex="[0-9]+")
    assert found["refused"] == 0


def test_a_thousand_draws_are_near_the_exact_probabilities(client: Client) -> None:
    text = client.write(prompt=PROMPT, seed=5, max_tokens=4, preset="llama.cpp")
    n = 1000
    for body in (
        {},
        {"preset": "llama.cpp", "numerics": "llama.cpp"},
        {"preset": "neutral", "top_k": 5},
    ):
        found = client.post(f"/texts/{text.id}/draws", step=3, n=n, **body)
        assert sum(each["count"] for each in found["tokens"]) == n
        for each in found["tokens"]:
            if each["exact"] is not None:
                spread = (n * each["exact"] * (1 - each["exact"])) ** 0.5
                assert abs(each["count"] - n * each["exact"]) <= 5 * spread + 1e-9
    assert client.refused(f"/texts/{text.id}/draws", step=3, n=10_001)["param"] == "n"


def test_logits_are_kept_within_their_bound(make_client: MakeClient) -> None:
    small = make_client(playground_memory=1)  # 128 rows of 2,048 float32
    text = small.write(prompt=PROMPT, seed=5, max_tokens=150, preset="neutral")
    assert text.end["kept_bytes"] <= text.end["kept_limit"] == 2**20
    assert small.get()["memory"] == {"limit": 2**20, "used": 2**20, "rows": 128}
    error = small.refused(f"/texts/{text.id}/step", 410, step=0)
    assert error["code"] == "logits_forgotten"
    assert "--playground-memory" in error["message"]
    assert small.post(f"/texts/{text.id}/step", step=149)["token"]["id"] == text.tokens[149]
    found = small.post(f"/texts/{text.id}/resample", preset="neutral")
    assert found == {"steps": 150, "changed": {}, "forgotten": 22, "refused": None}


def test_a_text_whose_logits_are_gone_is_told_without_them(make_client: MakeClient) -> None:
    small = make_client(playground_memory=0)
    for chain in ({"preset": "llama.cpp"}, {"preset": "neutral", "mirostat": 2}):
        text = small.write(prompt=PROMPT, seed=5, max_tokens=6, **chain)
        assert text.tokens == small.model.generate(PROMPT, seed=5, max_tokens=6, **chain).tokens
        for told in text.steps:
            assert told["forgotten"]
            assert told["before"] is None
            assert (told["stages"], told["top"]) == ([], [])


def test_a_text_that_is_given_up_frees_what_no_branch_needs(make_client: MakeClient) -> None:
    own = make_client(playground_memory=4)
    text = own.write(prompt=PROMPT, seed=5, max_tokens=20, preset="neutral")
    branch = own.write(parent=text.id, at=9, token=5, max_tokens=5, preset="neutral")
    assert own.get()["memory"]["rows"] == 25
    assert own.request("DELETE", f"/api/playground/texts/{text.id}").status_code == 204
    assert own.get()["memory"] == {"limit": 2**22, "used": 15 * 8192, "rows": 15}
    assert own.post(f"/texts/{branch.id}/step", step=2)["token"]["id"] == text.tokens[2]
    assert own.refused(f"/texts/{text.id}/step", 404, step=0)["code"] == "no_such_text"
    assert own.request("DELETE", f"/api/playground/texts/{text.id}").status_code == 404
