"""Nothing that has not run is a default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aleator.cli import gpu
from aleator.device import selection
from aleator.device.cases import SAMPLERS
from aleator.device.chain import DeviceChain
from tests.cli.conftest import Command

CUDA = torch.device("cuda", 0)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU that there is not, Triton, and a results file that there is not yet."""
    path = tmp_path / "cache" / "gpu.json"
    monkeypatch.setenv(selection.RESULTS, str(path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretended")
    monkeypatch.setattr(selection, "find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 1")
    selection.passed_on.cache_clear()
    return path


def test_the_native_kernels_are_for_the_cpu() -> None:
    assert selection.kernels_for(torch.device("cpu")) == "host"
    assert not selection.captures_graphs(torch.device("cpu"))
    assert DeviceChain(SAMPLERS["top_k"], 1, 9).kernels == "host"


def test_a_gpu_takes_pytorch_and_no_graphs_until_results_say_otherwise(results: Path) -> None:
    assert selection.kernels_for(CUDA) == "torch"
    assert not selection.captures_graphs(CUDA)
    machine = selection.this_machine(CUDA)
    assert selection.write_results(machine, ["torch", "triton"]) == results
    assert selection.kernels_for(CUDA) == "triton"
    assert not selection.captures_graphs(CUDA)
    selection.write_results(machine, ["graphs"])
    assert selection.kernels_for(CUDA) == "torch"
    assert selection.captures_graphs(CUDA)


@pytest.mark.parametrize("field", ["gpu", "torch", "triton", "aleator"])
def test_results_of_another_machine_do_not_count(field: str, results: Path) -> None:
    selection.write_results(selection.this_machine(CUDA), ["triton", "graphs"])
    found = json.loads(results.read_text())
    found["machine"][field] = "another"
    results.write_text(json.dumps(found))
    selection.passed_on.cache_clear()
    assert selection.kernels_for(CUDA) == "torch"
    assert not selection.captures_graphs(CUDA)


def test_no_gpu_is_known_without_a_file(
    results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0")
    assert selection.kernels_for(CUDA) == "torch"
    assert not selection.captures_graphs(CUDA)
    (record,) = caplog.records  # once, not at every chain
    assert "H100 80GB HBM3 with Triton 3.6.0 has not been checked" in record.getMessage()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": 1}', "null"])
def test_a_broken_file_says_nothing(text: str, results: Path) -> None:
    results.parent.mkdir()
    results.write_text(text)
    assert selection.kernels_for(CUDA) == "torch"


def test_without_triton_or_a_gpu(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selection.write_results(selection.this_machine(CUDA), ["triton", "graphs"])
    monkeypatch.setattr(selection, "find_spec", lambda name: None)
    assert selection.kernels_for(CUDA) == "torch"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert selection.kernels_for(CUDA) == "torch"
    assert not selection.captures_graphs(CUDA)


def test_doctor_says_that_there_is_no_gpu(
    aleator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = aleator("doctor", "--gpu")
    assert result.code == 1
    assert result.out.splitlines() == [
        "gpu            none: torch finds no CUDA device, so nothing was checked"
    ]
    assert aleator("doctor", "--enable").code == 2


def test_doctor_turns_on_what_passes(
    aleator: Command, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(device: torch.device) -> None:
        raise gpu.Differs("top_k: row 3 drew 4, the host draws 5")

    made = [
        gpu.Check("triton", lambda device: None, "kernels='triton'"),
        gpu.Check("graphs", fails, "capture=True"),
    ]
    monkeypatch.setattr(gpu, "checks", lambda: made)
    result = aleator("doctor", "--gpu")
    assert result.code == 1
    assert result.out.splitlines() == [
        "gpu            Pretended",
        "triton         passed",
        "graphs         FAILS: top_k: row 3 drew 4, the host draws 5",
        "triton         not a default: ask for kernels='triton', or run with --enable",
    ]
    assert selection.kernels_for(CUDA) == "torch"
    assert aleator("doctor", "--gpu", "--enable").code == 1
    assert selection.kernels_for(CUDA) == "triton"
    assert not selection.captures_graphs(CUDA)


def test_the_checks_notice_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cases = torch.device("cpu"), [("dry", SAMPLERS["dry"]), ("dist", SAMPLERS["dist"])]
    gpu.compare(cpu, "torch", cases, [301])
    with pytest.raises(gpu.Differs, match="row 1 drew 2, the host draws 3"):
        gpu.same([1, 2], [1, 3], "here")
    assert next(check.name for check in gpu.checks()) == "torch"
