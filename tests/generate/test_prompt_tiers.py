"""A text that starts from memory or disk is the text that starts from nothing, bit for bit."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model
from wide_models import MODELS

import aleator
from aleator.cache.disk_store import DiskStore
from aleator.cache.formats import pieces
from aleator.generate import prompt_tiers, tiered_prefixes
from aleator.generate.completion import OWN, one_time_namespace
from aleator.models import weights
from aleator.models.hub.bundled import bundled_model

GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
KINDS = ["llama", "gemma3", "mamba", "jamba", "gpt-oss"]


def ids(n: int, start: int = 5) -> list[int]:
    return [start + (7 * i) % 60 for i in range(n)]


@pytest.fixture(autouse=True)
def reading_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast a busy machine computes small models, what a tier has is read."""
    monkeypatch.setattr(tiered_prefixes.TieredPrefixes, "computed", lambda *_: None)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {}
    for name in KINDS:
        wide: dict[str, Any] = {} if "mamba" in name else {"head_dim": 32}  # whole blocks of q8_0
        spec = replace(SPECS[name], n_vocab=2048, context=1024, **wide)
        made[name] = write_model(folder / f"{name}.gguf", spec, tokenizer_from=bundled_model())
    return made


def load(path: Path | None, **options: Any) -> aleator.LanguageModel:
    return aleator.load(path, n_threads=1, **options)


def made(model: aleator.LanguageModel, prompt: list[int], **options: Any) -> tuple[Any, ...]:
    """Tokens, the bits of every row of logits, and tokens of the prompt that were not computed."""
    rows: list[bytes] = []
    generation = model.generate(
        prompt, on_logits=lambda chain, row: rows.append(row.tobytes()), **{**GREEDY, **options}
    )
    assert generation.tokens
    tiers = model.prompt_tiers
    assert tiers is None or tiers.flush(30)
    return generation.tokens, rows, generation.stats.reused_tokens


@pytest.mark.parametrize(
    ("kind", "types"),
    [*((kind, "f16") for kind in KINDS), *((kind, "q8_0") for kind in KINDS if kind != "mamba")],
)
@pytest.mark.parametrize("tier", ["cache_disk", "cache_ram"])
def test_the_same_bits_as_from_nothing(
    kind: str, types: str, tier: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"type_k": types, "type_v": types}
    below = {tier: 2**30, "cache_dir": str(tmp_path)}
    prompt = ids(400)
    others = [[*prompt, 9, 8], prompt, [*prompt[:390], 3], [*prompt[:300], 3, 4], ids(200, 6)]
    writer = load(paths[kind], **options, **below)
    made(writer, prompt)
    for other in others:
        wanted = made(load(paths[kind], **options), other)
        reader = load(paths[kind], **options, **below)
        if tier == "cache_ram":  # of another process's context, with the memory of this one
            vars(reader)["prompt_tiers"] = writer.prompt_tiers
        got = made(reader, other)
        assert got[:2] == wanted[:2]
        if other[:400] == prompt:
            assert got[2] >= 256
        assert reader.prompt_tiers is not None
        assert not reader.prompt_tiers.counts
        assert "damaged" not in reader.prompt_tiers.tell()[tier.removeprefix("cache_")]


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_edit_the_blocks_before_it_are_used(
    kind: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    """What follows the edit is computed anew, though its tokens are the same; so it is kept again."""
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    text = ids(600)
    edited = [*text[:300], 3, *text[301:]]
    made(load(paths[kind], **below), text)
    got = made(load(paths[kind], **below), edited)
    assert got[:2] == made(load(paths[kind]), edited)[:2]
    assert got[2] == (256 if kind == "llama" else 0)  # others need a state, and those are of ends
    assert made(load(paths[kind], **below), [*edited, 4])[2] >= 512
    assert made(load(paths[kind], **below), [*text, 4])[2] >= 512


def test_batches_and_engines_use_the_tiers(paths: dict[str, Path], tmp_path: Path) -> None:
    for kind, path in paths.items():
        below = {"cache_disk": 2**30, "cache_dir": str(tmp_path / kind), "cache_ram": 2**24}
        prompts = [ids(300), [*ids(300), 4], ids(280, 6)]
        plain = [g.tokens for g in load(path).generate_batch(prompts, **GREEDY)]
        for again in range(2):
            model = load(path, **below)
            batch = model.generate_batch(prompts, **GREEDY)
            assert [g.tokens for g in batch] == plain
            if again:
                assert batch[0].stats.reused_tokens >= 256
            with model.engine(n_seq_max=3, token_budget=100) as engine:
                got = [engine.submit(each, **GREEDY) for each in prompts]
                assert [g.wait() and g.tokens for g in got] == plain
            assert model.prompt_tiers is not None
            model.prompt_tiers.close(60)
            assert not model.prompt_tiers.counts


def test_what_must_not_be_found_is_not(paths: dict[str, Path], tmp_path: Path) -> None:
    """Another namespace, model, type, and texts of one process alone."""
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    prompt = ids(300)
    made(load(paths["llama"], **below), prompt, namespace="a")
    assert made(load(paths["llama"], **below), prompt, namespace="a")[2] == 256
    for options, namespace in (
        ({}, "b"),
        ({}, ""),
        ({"type_k": "q8_0"}, "a"),
        ({"type_v": "f32"}, "a"),
    ):
        model = load(paths["llama"], **below, **options)
        assert made(model, prompt, namespace=namespace)[2] == 0
    other = write_model(
        tmp_path / "other.gguf",
        replace(SPECS["llama"], n_vocab=2048, context=1024, head_dim=32, seed=99),
        tokenizer_from=bundled_model(),
    )
    assert made(load(other, **below), prompt, namespace="a")[2] == 0
    for one in (f"{OWN}session 1", one_time_namespace()):
        made(load(paths["llama"], **below), prompt, namespace=one)
        assert made(load(paths["llama"], **below), prompt, namespace=one)[2] == 0


def test_another_version_of_the_arithmetic_finds_nothing(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    made(load(paths["llama"], **below), ids(300))
    monkeypatch.setattr(weights, "arithmetic_version", lambda _: 10**6)
    assert made(load(paths["llama"], **below), ids(300))[2] == 0


@pytest.mark.parametrize("kind", ["llama", "gemma3", "jamba"])
@pytest.mark.parametrize("seed", range(4))
def test_damage_costs_time_and_nothing_else(
    kind: str, seed: int, paths: dict[str, Path], tmp_path: Path
) -> None:
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    rng, prompt = random.Random(seed), ids(600)
    wanted = made(load(paths[kind]), prompt)
    made(load(paths[kind], **below), prompt)
    blocks = sorted((tmp_path / "blocks").iterdir())
    for path in rng.sample(blocks, rng.randrange(1, len(blocks))):
        data = bytearray(path.read_bytes())
        match rng.randrange(3):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
            case 1:
                path.write_bytes(data[: rng.randrange(len(data))])
            case 2:
                path.unlink()
    for _ in range(2):
        assert made(load(paths[kind], **below), prompt)[:2] == wanted[:2]


def test_a_directory_that_goes_away_costs_nothing(paths: dict[str, Path], tmp_path: Path) -> None:
    model = load(paths["llama"], cache_disk=2**30, cache_dir=str(tmp_path / "c"))
    wanted = made(load(paths["llama"]), ids(300))
    assert made(model, ids(300)) == wanted
    shutil.rmtree(tmp_path / "c")
    assert made(model, ids(310, 6))[:2] == made(load(paths["llama"]), ids(310, 6))[:2]


def test_a_prompt_of_more_bytes_than_may_wait_is_written_while_it_is_computed(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    prompt = ids(700)
    model = load(paths["llama"], **below)
    cells = pieces.cells_of(model.own_context().cache.pool)
    assert cells is not None
    monkeypatch.setattr(prompt_tiers, "QUEUED", 128 * cells.rows.row_bytes * 5 // 2)
    put = prompt_tiers.PromptTiers.put

    def put_and_wait(tiers: prompt_tiers.PromptTiers, *given: Any) -> None:
        put(tiers, *given)
        assert tiers.flush(30)

    monkeypatch.setattr(prompt_tiers.PromptTiers, "put", put_and_wait)
    made(model, prompt)
    assert model.prompt_tiers is not None
    assert model.prompt_tiers.counts["dropped"] == 3
    assert made(load(paths["llama"], **below), prompt)[2] == 640


def test_what_a_full_queue_would_drop_is_not_copied(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_tiers, "QUEUED", 10)
    monkeypatch.setattr(pieces, "write_cells", None)
    model = load(paths["llama"], cache_disk=2**30, cache_dir=str(tmp_path))
    assert made(model, ids(300)) == made(load(paths["llama"]), ids(300))
    assert model.prompt_tiers is not None
    assert model.prompt_tiers.counts["dropped"] >= 2
    assert not model.prompt_tiers.counts["errors"]


def test_what_comes_from_disk_is_in_memory_from_then_on(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    below = {"cache_disk": 2**30, "cache_ram": 2**30, "cache_dir": str(tmp_path)}
    made(load(paths["llama"], **below), ids(300))
    model = load(paths["llama"], **below)
    for tier, others in (("disk", "ram"), ("ram", "disk")):
        assert model.prompt_tiers is not None
        before = model.prompt_tiers.tell()[others].get("bytes_read", 0)
        assert made(model, ids(300))[2] == 256
        assert model.prompt_tiers.tell()[tier]["hits"] == 1
        assert model.prompt_tiers.tell()[others].get("bytes_read", 0) == before
        model.own_context().cache.forget_namespace("")


def test_what_was_dropped_is_written_when_it_is_kept_again(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"cache_disk": 2**30, "cache_ram": 2**30, "cache_dir": str(tmp_path)}
    model = load(paths["llama"], **below)
    with monkeypatch.context() as full:
        full.setattr(prompt_tiers, "QUEUED", 10)
        made(model, ids(300))
    assert not list((tmp_path / "blocks").iterdir())
    model.own_context().cache.forget_namespace("")
    wanted = made(load(paths["llama"]), ids(300))
    with monkeypatch.context() as uncopied:
        uncopied.setattr(pieces, "write_cells", None)
        assert made(model, ids(300)) == (*wanted[:2], 256)  # from memory
    assert len(list((tmp_path / "blocks").iterdir())) == 2
    assert made(load(paths["llama"], **below), ids(300)) == (*wanted[:2], 256)


def test_what_finds_no_room_is_copied_once_for_a_prompt(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again with each piece of it that is computed; but for the next request."""
    model = load(paths["llama"], cache_disk=2**30, cache_dir=str(tmp_path))
    copied, write_cells, put = [], pieces.write_cells, prompt_tiers.PromptTiers.put

    def counted(*given: Any) -> Any:
        copied.append(given[2])
        return write_cells(*given)

    def put_and_wait(tiers: prompt_tiers.PromptTiers, *given: Any) -> None:
        put(tiers, *given)
        assert tiers.flush(30)

    monkeypatch.setattr(pieces, "write_cells", counted)
    monkeypatch.setattr(prompt_tiers.PromptTiers, "put", put_and_wait)
    monkeypatch.setattr(DiskStore, "put", lambda *_: False)
    for _ in range(2):
        with model.engine(n_seq_max=1, token_budget=100) as engine:
            engine.submit(ids(700), **GREEDY).wait()
        assert copied == [0, 128, 256, 384, 512]
        copied.clear()


@pytest.mark.parametrize(("kind", "reused"), [("llama", 256), ("jamba", 250), ("gemma3", 0)])
def test_raw_keys(
    kind: str, reused: int, paths: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are kept as they are; a state of windows has rounded ones, and the log says so."""
    tiered_prefixes._say.cache_clear()
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    wanted = made(load(paths[kind], k_storage="raw"), ids(300))
    for least in (0, reused):
        got = made(load(paths[kind], k_storage="raw", **below), ids(300))
        assert got[:2] == wanted[:2]
        assert got[2] >= least
    assert ("k_storage='raw'" in caplog.text) == (kind == "gemma3")
    assert made(load(paths[kind], **below), ids(300))[2] == 0


def test_what_follows_an_edit_is_computed_again(paths: dict[str, Path], tmp_path: Path) -> None:
    """Tokens behind an edit are the same, and what layers make of them is not, but for the first one's."""
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    text = ids(700)
    edited = [*text[:200], 77, *text[201:]]
    cells, of_layer = [], 0
    for each in (text, edited):
        model = load(paths["llama"], **below)
        wanted = made(load(paths["llama"]), each)
        assert made(model, each) == (*wanted[:2], 128 * (each is edited))
        context = model.own_context()
        context.cache.reuse(0, each)
        pool = pieces.cells_of(context.cache.pool)
        assert pool is not None
        piece = pieces.write_cells(pool, 0, 384, 512)
        assert piece is not None
        cells.append(bytes(piece))
        of_layer = pool.rows.keys.parts[0].row_bytes * 128
    assert cells[0][:of_layer] == cells[1][:of_layer]
    assert cells[0][of_layer:] != cells[1][of_layer:]


def test_a_model_whose_layers_all_have_windows(tmp_path: Path) -> None:
    """Its cells that can be cut store no rows, only positions."""
    path = write_model(tmp_path / "model.gguf", MODELS["olmo2-windows"])
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path / "c")}
    wanted = made(load(path), ids(300))
    for reused in (0, 256):
        model = load(path, **below)
        got = made(model, ids(300))
        assert got[:2] == wanted[:2]
        assert got[2] >= reused
        assert model.prompt_tiers is not None
        assert not model.prompt_tiers.counts
