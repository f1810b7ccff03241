"""tokenize, model-info, bench, doctor: the commands that show things."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from make_models import SPECS, write_model

from aleator import LanguageModel
from aleator.core.token_text import readable
from aleator.models.hub.bundled import bundled_model
from tests.cli.conftest import Command


def test_tokenize(aleator: Command, model: LanguageModel) -> None:
    tokens = model.tokenizer.encode("ROMEO:\nHé")
    result = aleator("tokenize", "-p", r"ROMEO:\nHé")
    lines = result.out.splitlines()
    assert result.code == 0
    assert [int(line.split()[0]) for line in lines] == tokens
    assert lines[0].endswith(" '<|endoftext|>'")
    assert aleator("tokenize", "--ids", stdin="ROMEO:\nHé".encode()).out == f"{tokens}\n"
    rows = json.loads(aleator("tokenize", "--json", "-p", "ROMEO:\nHé").out)
    assert [row["id"] for row in rows] == tokens
    assert b"".join(bytes(row["bytes"]) for row in rows[1:]) == "ROMEO:\nHé".encode()


def test_tokenize_special_tokens(aleator: Command) -> None:
    words = ("tokenize", "--ids", "-p", "<|endoftext|>")
    assert len(json.loads(aleator(*words).out)) > 3  # text of a stranger is text
    assert json.loads(aleator(*words, "--parse-special").out) == [0, 0]
    assert json.loads(aleator(*words, "--no-bos", "--parse-special").out) == [0]


def test_pieces_that_are_no_text_are_shown_as_bytes() -> None:
    assert readable("é\n".encode()) == r"'é\n'"
    assert readable(b"\xc3") == r"b'\xc3'"


def test_model_info(aleator: Command) -> None:
    for words in ([], [str(bundled_model())], ["-m", str(bundled_model())]):
        result = aleator("model-info", *words)
        assert result.code == 0
        assert "architecture             llama\n" in result.out
        assert "parameters               4,951,296\n" in result.out
        assert "F16                    43\n" in result.out
        assert "keys (f16)             1.50 MiB" in result.out
    both = aleator("model-info", "x", "-m", "y")
    assert (both.code, both.out) == (2, "")


def test_model_info_json_and_metadata(aleator: Command) -> None:
    info = json.loads(aleator("model-info", "--json", "--all", "-c", "2048", "-ctk", "f32").out)
    assert info["layers"] == 6
    assert info["tokenizer"]["tokens"] == 2048
    # 6 layers, 2 heads of 64, 2,048 positions: 4 bytes for keys, 2 for values.
    assert info["cache"]["bytes"] == 6 * 2 * 64 * 2048 * (4 + 2)
    assert info["metadata"]["general.architecture"] == "llama"
    assert info["metadata"]["tokenizer.ggml.tokens"][-1] == "... 2048 in all"
    assert info["tensors"]["token_embd.weight"] == ["F16", 2048, 256]


@pytest.mark.parametrize(
    ("name", "lines"),
    [("gemma3", ["window", "8", "0.44 MiB"]), ("mamba", ["inner channels", "128", "0.04 MiB"])],
)
def test_model_info_of_other_architectures(
    aleator: Command, tmp_path: Path, name: str, lines: list[str]
) -> None:
    spec = replace(SPECS[name], n_vocab=2048)
    path = write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model())
    result = aleator("model-info", str(path))
    assert result.code == 0
    assert all(line in result.out for line in lines)
    if name == "gemma3":  # one layer of 8,192 cells and six of 768
        info = json.loads(aleator("model-info", "--json", "-c", "8192", str(path)).out)
        assert info["cache"]["bytes"] == (8192 + 6 * 768) * 2 * 16 * (2 + 2)


@pytest.mark.parametrize("name", ["qwen3moe", "qwen2moe"])
def test_model_info_of_experts(aleator: Command, tmp_path: Path, name: str) -> None:
    spec = replace(SPECS[name], n_vocab=2048)
    path = write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model())
    info = json.loads(aleator("model-info", "--json", str(path)).out)
    shared = {"width of the shared one": spec.n_ff_shared} if spec.n_ff_shared else {}
    assert info["experts"] == {
        "in a layer": spec.n_experts,
        "used for a token": spec.n_used,
        "width": spec.n_ff_expert,
        **shared,
        "layers": spec.n_layers - spec.dense_layers,
    }
    assert "used for a token" in aleator("model-info", str(path)).out


def test_model_info_of_devices(aleator: Command) -> None:
    whole = json.loads(aleator("model-info", "--json").out)
    assert "devices" not in whole
    dtype = ("--dtype", "bfloat16")
    words = ("model-info", "--device-map", "cpu=0:2,cuda:0=2:4,cuda:1=4:6", *dtype)
    parts = json.loads(aleator(*words, "--json").out)["devices"]
    assert [(name, each["layers"]) for name, each in parts.items()] == [
        ("cpu", 2), ("cuda:0", 2), ("cuda:1", 2),
    ]  # fmt: skip
    assert sum(each["cache"] for each in parts.values()) == whole["cache"]["bytes"]
    # The first two layers have the embedding with them.
    assert parts["cuda:0"]["weights"] == parts["cpu"]["weights"] - 2 * 2048 * 256
    assert all(each["bytes"] == each["weights"] + each["cache"] for each in parts.values())
    assert (
        "cuda:0                 layers 2, weights 2.81 MiB, cache 1.00 MiB" in aleator(*words).out
    )
    last = json.loads(aleator("model-info", "-ngl", "2", *dtype, "--json").out)["devices"]
    assert last["cuda"] == parts["cuda:1"]
    exact = aleator(*words[:3])  # the default on a GPU
    assert (exact.code, exact.out) == (2, "")
    assert "or dtype='bfloat16'" in exact.err
    refused = aleator("model-info", "-ngl", "2", "--device-map", "cpu=0:6")
    assert (refused.code, refused.out) == (2, "")
    assert "-ngl and --device-map are both given: choose one" in refused.err


def test_model_info_of_bad_files(aleator: Command, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(bundled_model().read_bytes()[:5000])
    result = aleator("model-info", str(cut))
    assert (result.code, result.out) == (3, "")
    assert f"aleator: error: {cut}: " in result.err


def test_bench(aleator: Command) -> None:
    result = aleator("bench", "-p", "8", "-n", "3", "-r", "2", "-t", "1")
    lines = result.out.splitlines()
    assert result.code == 0
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert [row[-2] for row in rows if set(row[0]) != {"-"}] == ["test", "pp8", "tg3"]
    assert len({line.rindex("|") for line in lines}) == 1


def test_bench_json(aleator: Command) -> None:
    made = json.loads(aleator("bench", "-p", "0", "-n", "3", "-r", "2", "--json").out)
    assert [result["test"] for result in made["results"]] == ["tg3"]
    assert len(made["results"][0]["tokens_per_second"]) == 2
    assert min(made["results"][0]["tokens_per_second"]) > 0
    assert made["n_parameters"] == 4951296


def test_bench_takes_a_larger_cache_and_no_smaller_one(aleator: Command) -> None:
    assert aleator("bench", "-p", "0", "-n", "3", "-r", "1", "-c", "64").code == 0
    small = aleator("bench", "-p", "8", "-n", "3", "-c", "4")
    assert small.code == 2
    assert "-c 4: the tests need 8 positions" in small.err


def test_a_huge_context_is_refused_with_what_it_would_take(
    aleator: Command, tmp_path: Path
) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"prompt": "a"}\n')
    for command in ("bench", "chat", f"batch {asked} {tmp_path}/made.jsonl", "generate -p a"):
        refused = aleator(*command.split(), "-c", "2000000000")
        assert refused.code == 2, command
        assert re.search(r"the KV cache does not fit: .* needs [0-9,]+ MiB", refused.err), command


def test_bench_of_nothing(aleator: Command) -> None:
    assert aleator("bench", "-p", "0", "-n", "0").code == 2


def test_doctor(aleator: Command) -> None:
    result = aleator("doctor")
    assert result.code == 0
    assert "bundled model  works: llama" in result.out
    assert "native code    works, instruction set: " in result.out


def test_doctor_names_what_is_missing(aleator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.cli.doctor.EXTRAS", {"no-such-thing": ("cli", "everything")})
    monkeypatch.setattr("aleator.language_model.model.bundled_model", lambda: Path("nothing.gguf"))
    result = aleator("doctor")
    assert result.code == 1
    assert "no-such-thing  MISSING (everything): pip install 'aleator[cli]'" in result.out
    assert "bundled model  FAILS: nothing.gguf: no such file" in result.out


def test_plan(aleator: Command) -> None:
    pytest.importorskip("torch")
    for words in ([], [str(bundled_model())], ["-m", str(bundled_model()), "--device", "cuda"]):
        result = aleator("plan", "-c", "100", *words)
        assert (result.code, result.err) == (0, "")
        assert (
            "weights 9.64 MiB; steps besides, of up to 512 tokens (n_ubatch): at most "
            in result.out
        )
        assert "MiB; 100 tokens a sequence" in result.out
        assert re.search(r"F16 +43 +9\.44 MiB +9\.62 MiB\n", result.out)
        assert re.search(
            r"16 sequences: .* tokens/s; memory .* MiB, of which cache 4.69", result.out
        )
    assert aleator("plan", "x", "-m", "y").code == 2
    for words in (["--bandwidth", "0"], ["--launch-cost", "x"], ["--device", "cpu"]):
        refused = aleator("plan", *words)
        assert (refused.code, refused.out) == (2, "")


def test_plan_json(aleator: Command) -> None:
    pytest.importorskip("torch")
    words = ("plan", "--json", "-c", "100", "--bandwidth", "1", "--launch-cost")
    slow, fast = (json.loads(aleator(*words, cost).out) for cost in ("10", "0.001"))
    few = json.loads(aleator(*words, "1", "-ub", "64").out)
    assert (slow["n_ubatch"], few["n_ubatch"]) == (512, 64)
    assert few["scratch"] < slow["scratch"]
    assert few["steps"][0]["prompt_tensors"] < slow["steps"][0]["prompt_tensors"]
    assert slow["types"]["F16"]["tensors"] == 43
    assert slow["weights"] == sum(each["on_device"] for each in slow["types"].values())
    assert [step["sequences"] for step in slow["steps"]] == [1, 4, 16]
    for step, other in zip(slow["steps"], fast["steps"], strict=True):
        assert step["memory"] == slow["weights"] + step["cache"] + slow["scratch"]
        # Of steps that are captured, and of those that are not, side by side.
        assert 0 < 2 * max(step["tensors"], step["prompt_tensors"]) < slow["scratch"]
        assert step["launches"] == sum(part["launches"] for part in step["parts"].values())
        assert step["seconds"] == pytest.approx(step["bytes"] / 1e12 + step["launches"] * 1e-5)
        assert other["tokens_per_second"] > step["tokens_per_second"]
