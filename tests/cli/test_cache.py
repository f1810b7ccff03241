"""``aleator cache``: what the prompt cache has on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import aleator
from aleator.cli import main
from aleator.generate import prompt_tiers
from aleator.generate.options import read_size

PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 40


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = aleator.load(cache_disk=2**30, cache_dir=str(tmp_path / "c"), n_threads=1)
    model.generate(PROMPT, max_tokens=1, seed=1).wait()
    assert model.prompt_tiers is not None
    model.prompt_tiers.close(60)
    return tmp_path / "c"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["cache", *words]) == 0
    return capsys.readouterr().out


def test_show_list_verify_prune_and_clear(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--cache-dir", str(directory))
    blocks = sorted((directory / "blocks").iterdir())
    shown = json.loads(told(capsys, *where, "--json"))
    assert shown["entries"] == len(blocks) >= 3
    assert shown["size"] == sum(each.stat().st_size for each in blocks)
    assert list(shown["models"].values()) == [shown["size"]]
    assert f"entries: {len(blocks)}" in told(capsys, "show", *where)
    listed = json.loads(told(capsys, "list", *where, "--json"))
    assert sorted(each["tokens"] for each in listed) == [128 * (i + 1) for i in range(len(blocks))]
    assert len(told(capsys, "list", *where).splitlines()) == len(blocks)
    data = bytearray(blocks[0].read_bytes())
    data[-1] ^= 1
    blocks[0].write_bytes(data)
    checked = json.loads(told(capsys, "verify", *where, "--json"))
    assert (checked["sound"], checked["damaged"]) == (len(blocks) - 1, 1)
    size = blocks[1].stat().st_size
    pruned = json.loads(told(capsys, "prune", "--size", "0.5M", *where, "--json"))
    assert 0 < pruned["size"] <= 2**19
    assert pruned["removed"] == len(blocks) - 1 - pruned["size"] // size
    (left,) = json.loads(told(capsys, "list", *where, "--json"))
    assert json.loads(told(capsys, "pin", left["key"][:20], *where, "--json"))["pinned"] == 1
    assert "pinned" in told(capsys, "list", *where)
    told(capsys, "prune", "--size", "0", *where)
    assert len(list((directory / "blocks").iterdir())) == 1
    assert json.loads(told(capsys, "unpin", left["key"], *where, "--json"))["pinned"] == 0
    told(capsys, "pin", left["key"], *where)
    told(capsys, "clear", *where)
    assert list((directory / "blocks").iterdir()) == []


def test_where_nothing_is_cached_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing is cached" in told(capsys, "--cache-dir", str(tmp_path / "none"))
    assert told(capsys, "--json", "--cache-dir", str(tmp_path / "none")) == "{}\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lits"], "list"),
        (["prune"], "--size"),
        (["list", "--size", "3"], "--size"),
        (["prune", "--size", "much"], "8G"),
        (["pin"], "KEY"),
        (["show", "3f"], "KEY"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "size"),
    [("512", 2**29), ("200M", 200 * 2**20), ("8G", 2**33), ("1.5 GiB", 3 * 2**29), ("0", 0)],
)
def test_sizes(word: str, size: int) -> None:
    assert read_size("cache_disk", word) == size


def test_a_key_that_is_none(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("", "xyz"):
        assert main(["cache", "pin", key, "--cache-dir", str(directory)]) == 2
        assert "keys begin with" in capsys.readouterr().err


def test_chats_are_kept_unless_they_should_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "aleator" / "prompts"
    words = ["-p", "ROMEO:", "-n", "1", "--seed", "1", "-t", "1"]
    for command in (
        ["chat", "-st", "--no-cache-disk"],
        ["chat", "-st", "--no-prompt-cache"],
        ["generate"],
    ):
        assert main([*command, *words]) == 0
        assert "prompt cache: " not in capsys.readouterr().err
        assert not kept.exists()
    assert main(["chat", "-st", *words]) == 0
    assert (
        f"prompt cache: {kept}, up to 4,096 MiB (--no-cache-disk: none)" in capsys.readouterr().err
    )
    assert kept.exists()


def test_a_default_makes_no_cache_smaller(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.cli.options.CHAT_CACHE_DISK", 1)
    kept = set((directory / "blocks").iterdir())
    assert kept
    words = ["-p", "ROMEO:", "-n", "1", "--seed", "1", "-t", "1", "--cache-dir", str(directory)]
    assert main(["chat", "-st", *words]) == 0
    assert kept <= set((directory / "blocks").iterdir())
    assert main(["chat", "-st", *words, "--cache-disk", "1K"]) == 0
    assert not list((directory / "blocks").iterdir())


def test_a_command_goes_on_from_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "-p", PROMPT, "-n", "5", "--seed", "1", "-t", "1"]
    words += ["--cache-disk", "64M", "--cache-dir", str(tmp_path / "c")]
    texts = []
    for _ in range(2):
        assert main(words) == 0
        texts.append(capsys.readouterr().out)
        assert all(tiers.flush(60) for tiers in list(prompt_tiers._open))
    assert texts[0] == texts[1]
    assert list((tmp_path / "c" / "blocks").glob("*.block"))


def test_a_directory_that_cannot_be_written_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aleator.cli.cache.DiskStore.usable", False)
    assert main(["cache", "--cache-dir", str(directory)]) == 2
    assert f"--cache-dir {directory}: it cannot be written" in capsys.readouterr().err
