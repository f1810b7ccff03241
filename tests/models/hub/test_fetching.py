"""Models are fetched from a server with the hub's interface, kept, listed and removed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import aleator
from aleator.cli import main
from aleator.core.errors import FileFormatError, HubError, ParameterError
from aleator.models.hub.bundled import bundled_model
from aleator.models.hub.fetching import Unreachable, _receive, one_line, required_hub
from aleator.models.hub.located import located
from aleator.models.hub.names import HubName
from aleator.models.sentence_transformers import modules_of_directory
from tests.models.builders import write_gguf
from tests.models.hub.server import COMMIT, Hub, serving

REPO = "org/tiny-GGUF"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with two repositories; the cache is empty, and the library asks nobody else."""
    small = write_gguf(tmp_path / "made.gguf").read_bytes()
    files = {
        REPO: {
            "README.md": b"#",
            "m-Q8_0.gguf": small,
            "m-Q4_K_M.gguf": bundled_model().read_bytes(),
        },
        "org/plain": {"config.json": b"{}", "model.safetensors": b"12345678", "x.bin": b"no"},
    }
    cache = tmp_path / "cache"
    with serving(Hub(files)) as hub:
        for name in ("ENDPOINT", "HF_HUB_CACHE"):
            value = hub.address if name == "ENDPOINT" else str(cache)
            monkeypatch.setattr(constants, name, value)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield hub


def test_a_model_is_fetched_once_and_loaded(hub: Hub) -> None:
    model = aleator.load(f"hf:{REPO}", n_threads=1)
    assert model.weights.path.name == "m-Q4_K_M.gguf"
    assert model.generate("ROMEO:", max_tokens=4, seed=1).text
    assert located(f"hf:{REPO}:q4_k_m") == model.weights.path
    assert len(hub.fetched("Q4_K_M.gguf")) == 1
    assert located(f"hf:{REPO}/m-Q8_0.gguf").name == "m-Q8_0.gguf"
    assert located(f"hf:{REPO}@{COMMIT}") == model.weights.path


def test_without_the_hub_it_is_taken_from_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(HubError, match="offline, and it was not fetched before"):
        located(f"hf:{REPO}", offline=True)
    assert not hub.asked
    path = located(f"hf:{REPO}")
    before = len(hub.asked)
    assert located(f"hf:{REPO}", offline=True) == path
    assert len(hub.asked) == before
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        assert located(f"hf:{REPO}") == path
    assert caplog.text.count("cannot be reached") == 1
    with pytest.raises(HubError, match="there are Q4_K_M"):
        located(f"hf:{REPO}:Q8_0", offline=True)


def test_a_download_that_broke_off_goes_on(hub: Hub) -> None:
    hub.breaks = 1_000_000
    size = bundled_model().stat().st_size
    with pytest.raises(HubError, match="cannot be reached"):
        located(f"hf:{REPO}")
    partial = next(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))
    held = partial.stat().st_size
    assert 0 < held < size
    hub.breaks = None
    hub.asked.clear()
    path = located(f"hf:{REPO}")
    assert hub.fetched("Q4_K_M.gguf") == [f"bytes={held}-"]
    assert path.read_bytes() == bundled_model().read_bytes()
    assert not partial.exists()


def test_bytes_with_another_checksum_are_refused_and_forgotten(hub: Hub) -> None:
    hub.false.add("m-Q8_0.gguf")
    with pytest.raises(FileFormatError, match="SHA-256"):
        located(f"hf:{REPO}:Q8_0")
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))
    hub.false.clear()
    assert located(f"hf:{REPO}:Q8_0").read_bytes() == hub.files[REPO]["m-Q8_0.gguf"]


def test_a_safetensors_repository_is_a_directory(hub: Hub) -> None:
    folder = located("hf:org/plain")
    assert sorted(each.name for each in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert located("hf:org/plain", offline=True) == folder


def test_an_encoder_pools_as_its_repository_says(hub: Hub) -> None:
    kind = "sentence_transformers.models."
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{kind}{path[2:] or 'Transformer'}"}
        for i, path in enumerate(("", "1_Pooling"))
    ]
    hub.files["org/encoder"] = {
        "config.json": b"{}",
        "model.safetensors": b"12345678",
        "modules.json": json.dumps(modules).encode(),
        "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
    }
    folder = located("hf:org/encoder")
    assert (folder / "config.json").exists()
    assert modules_of_directory(folder).pooling == "cls"
    assert located("hf:org/encoder", offline=True) == folder


def test_a_split_model_is_fetched_whole(hub: Hub) -> None:
    names = [f"q/m-Q4_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.files["org/split"] = {name: name.encode() for name in names}
    first = located("hf:org/split")
    assert first.parts[-2:] == ("q", "m-Q4_0-00001-of-00002.gguf")
    assert first.with_name("m-Q4_0-00002-of-00002.gguf").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["models"], 0, ""),
        (["generate", "-hf", REPO, "--offline", "-p", "x"], 3, "it was not fetched before"),
    ],
)
def test_a_process_that_has_imported_nothing_else(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    program = "import sys; from aleator.cli import main; sys.exit(main(sys.argv[1:]))"
    (tmp_path / "cache").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, said in done.stderr) == (code, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "path",
    ["../../x.gguf", "/tmp/x.gguf", "a/../../x.gguf", "..\\x.gguf", "./x.gguf", "a//x.gguf",
     "a\nb.gguf", "a\x1b[31m.gguf", "x\0.gguf"],
)  # fmt: skip
def test_a_path_that_leads_out_of_the_repository_is_refused(hub: Hub, path: str) -> None:
    hub.files["org/hostile"] = {path: b"GGUF"}
    with pytest.raises(HubError, match="is no path of a file in it"):
        located("hf:org/hostile")
    assert [method for method, _, _ in hub.asked] == ["GET"]  # the list alone
    assert not Path(constants.HF_HUB_CACHE).exists()


@pytest.mark.parametrize(
    "listing",
    [b"<html>Log in</html>", b"[]", b"{}",
     b'{"siblings": [{}]}', b'{"id": "a/b", "siblings": [{"rfilename": 5}]}'],
)  # fmt: skip
def test_what_is_no_hub_ends_in_one_line(
    hub: Hub, listing: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.listing = listing
    assert main(["models", "--fetch", f"hf:{REPO}"]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("aleator: error: hf:org/tiny-GGUF: ")


def test_a_commit_that_leads_out_of_the_cache_is_refused(hub: Hub) -> None:
    hub.commit = "../../../../out"
    with pytest.raises(HubError, match="as the ETag or commit of m-Q4_K_M"):
        located(f"hf:{REPO}")
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_an_answer_without_bytes_ends_the_download(hub: Hub) -> None:
    hub.sends = lambda data: b""
    with pytest.raises(HubError, match=r"the answer ends after 0 of [\d,]+ bytes"):
        located(f"hf:{REPO}:Q8_0")


def test_an_answer_with_more_bytes_is_refused_and_forgotten(hub: Hub) -> None:
    hub.sends = lambda data: data + bytes(100)
    with pytest.raises(FileFormatError, match="more arrived than"):
        located(f"hf:{REPO}:Q8_0")
    assert not [each for each in Path(constants.HF_HUB_CACHE).rglob("blobs/*") if each.is_file()]


def test_a_repository_without_all_parts_is_refused(hub: Hub) -> None:
    names = [f"m-Q4_0-0000{i}-of-00003.gguf" for i in (1, 3)]
    hub.files["org/split"] = dict.fromkeys(names, b"GGUF")
    with pytest.raises(HubError, match="2 of the 3 parts of m-Q4_0 are there"):
        located("hf:org/split")
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_what_a_broken_download_left_is_removed_and_no_model(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.breaks = 1_000_000
    with pytest.raises(HubError):
        located(f"hf:{REPO}")
    index = "model.safetensors.index.json"
    shard = "model-00001-of-00002.safetensors"
    hub.files["org/part"] = {"config.json": b"{}", index: b"{}", shard: bytes(3_000_000)}
    hub.files["org/part"][shard.replace("1-of", "2-of")] = b"12345678"
    hub.breaks = 1_000_000
    with pytest.raises(HubError):
        located("hf:org/part")
    assert main(["models"]) == 0
    assert "hf:" not in capsys.readouterr().out
    for repo in (REPO, "org/part"):
        assert main(["models", "--remove", f"hf:{repo}"]) == 0
    assert "removed hf:org/part, 1.0 MiB" in capsys.readouterr().out
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))
    assert main(["models", "--remove", f"hf:{REPO}"]) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:org/gated", "the model is gated: accept its conditions at http"),
        ("hf:org/absent", "there is no such repository, or it is private"),
        (f"hf:{REPO}@old", "no revision 'old'"),
        (f"hf:{REPO}:Q2_K", "there are Q4_K_M, Q8_0"),
        (
            "hf:org/many:Q2_K",
            "there are A0, A1, A10, A11, A12, A13, A14, A15, A16, A17, A18, A19, A2, "
            "A20, A21, A22, A23, A24, A25, A26, ...\n",
        ),
    ],
)
def test_errors_are_one_line(
    hub: Hub, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files["org/many"] = {f"m-A{i}.gguf": b"GGUF" for i in range(99)}
    hub.files["org/gated"] = {"m-Q4_K_M.gguf": b"secret"}
    hub.gated.add("org/gated")
    assert main(["generate", "-m", name, "-p", "x", "-n", "1"]) == 3
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["hf:a/b--c", "hf:a/b..c", "hf:a/b.git", "hf:a/" + "x" * 100])
def test_names_that_the_hub_does_not_have(hub: Hub, name: str) -> None:
    with pytest.raises(ParameterError, match="model='hf:a/"):
        located(name)


def test_the_flags_of_llama_cpp(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for words in (["-m", f"hf:{REPO}"], ["-hf", REPO], ["-hf", REPO, "-hff", "m-Q4_K_M.gguf"]):
        assert main(["generate", *words, "-p", "ROMEO:", "-n", "4", "--seed", "1"]) == 0
        written.append(capsys.readouterr().out)
    assert main(["generate", "-p", "ROMEO:", "-n", "4", "--seed", "1"]) == 0
    assert written == [capsys.readouterr().out] * 3
    assert main(["model-info", "-hf", f"{REPO}:Q8_0", "--offline"]) == 3
    assert main(["tokenize", "-hf", REPO, "-m", "x", "-p", "x"]) == 2


def test_models_are_listed_and_removed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (REPO, f"{REPO}:Q8_0", "org/plain"):
        assert main(["models", "--fetch", f"hf:{name}"]) == 0
    capsys.readouterr()
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    fetched = ["hf:org/plain", f"hf:{REPO}:Q4_K_M", f"hf:{REPO}:Q8_0"]
    assert names[0] == "(bundled)"
    assert names[-3:] == fetched
    assert lines[0].split()[1:3] == lines[-2].split()[1:3]  # the sizes of equal files
    assert main(["models", "--remove", f"hf:{REPO}:Q4_K_M"]) == 0
    assert "removed" in capsys.readouterr().out
    assert located(f"hf:{REPO}:Q8_0", offline=True).exists()
    assert main(["models", "--remove", f"hf:{REPO}:Q4_K_M"]) == 3
    assert main(["models", "--fetch", "tiny"]) == 2
    assert main(["models", "--remove", f"hf:{REPO}"]) == 0
    assert main(["models", "--remove", "hf:org/plain"]) == 0
    left = [p for p in Path(constants.HF_HUB_CACHE).rglob("blobs/*") if p.is_file()]
    assert left == []


def test_a_machine_without_models(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise ImportError("not in this wheel")

    monkeypatch.setattr("aleator.cli.models.bundled_model", missing)
    monkeypatch.setattr("aleator.cli.models.installed", lambda: [])
    assert main(["models"]) == 0
    assert capsys.readouterr() == ("", "not in this wheel\n")


def test_a_token_goes_to_the_hub_alone(hub: Hub) -> None:
    name = HubName.read(f"hf:{REPO}:Q8_0")
    assert located(str(name), token="hf_x").exists()


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [(404, HubError, "answers 404"), (499, HubError, "answers 499"), (500, Unreachable, "answers 500"),
     (503, Unreachable, "answers 503")],
)  # fmt: skip
def test_errors_of_the_server_are_not_the_user_s(
    status: int, kind: type[HubError], told: str
) -> None:
    import httpx

    library = required_hub("a test")
    request = httpx.Request("GET", "http://hub")
    error = library.errors.HfHubHTTPError(
        "\n \nthe first line\nanother", response=httpx.Response(status, request=request)
    )
    with (
        pytest.raises(HubError, match=f"{told}: the first line$") as caught,
        one_line(library, HubName("a/b")),
    ):
        raise error
    assert type(caught.value) is kind


@pytest.mark.parametrize("extra", [0, 1])
def test_files_that_are_too_large_are_left_to_the_library(
    extra: int, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(hub.files[REPO]["m-Q8_0.gguf"])
    monkeypatch.setattr("aleator.models.hub.fetching.LARGEST", size - extra)
    asked: list[str] = []

    def received(hub: Any, url: str, *rest: Any) -> None:
        asked.append(url)
        _receive(hub, url, *rest)

    monkeypatch.setattr("aleator.models.hub.fetching._receive", received)
    assert located(f"hf:{REPO}:Q8_0").stat().st_size == size
    assert len(asked) == 1 - extra


@pytest.mark.parametrize("extra", [0, 1, 100])
def test_what_is_longer_than_the_file_is_not_continued(hub: Hub, extra: int) -> None:
    small = hub.files[REPO]["m-Q8_0.gguf"]
    hub.breaks = None
    located(f"hf:{REPO}:Q8_0")
    (blob,) = Path(constants.HF_HUB_CACHE).rglob("blobs/*")
    blob.unlink()
    for place in Path(constants.HF_HUB_CACHE).rglob("snapshots/*/*"):
        place.unlink()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(small + bytes(extra))
    hub.asked.clear()
    assert located(f"hf:{REPO}:Q8_0").read_bytes() == small
    assert hub.fetched("Q8_0.gguf") == ([""] if extra else [])
