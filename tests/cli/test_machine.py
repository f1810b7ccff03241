"""aleator doctor finds what makes models slow; the machine's files are made up."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aleator import LanguageModel
from aleator.cli import doctor
from tests.cli.conftest import Command


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with four processors where nothing is slow."""
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "usable_processors", lambda: 4)
    monkeypatch.setattr(doctor, "memory_limit", lambda: 8 << 30)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("aleator.core.host.isa", lambda: "v4")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    write(tmp_path, "proc/cpuinfo", "flags\t: fpu avx2 avx512f\n")
    write(tmp_path, "proc/meminfo", "MemAvailable: 8000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_slow(root: Path) -> None:
    assert list(doctor.slow_settings()) == []


@pytest.mark.parametrize(
    ("name", "text", "title", "finding"),
    [
        ("sys/fs/cgroup/cpu.max", "150000 100000", "quota", "1.5 processors' time on 4 processors"),
        ("proc/meminfo", "MemAvailable: 100000 kB\n", "memory", "0.1 GiB are free"),
        (
            "proc/meminfo",
            "MemAvailable: 8000000 kB\nSwapTotal: 9000000 kB\nSwapFree: 0 kB\n",
            "memory",
            "swapped out",
        ),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n", "frequency", "governor"),
    ],
)  # fmt: skip
def test_files_of_the_system(root: Path, name: str, text: str, title: str, finding: str) -> None:
    write(root, name, text)
    [(found, what)] = doctor.slow_settings()
    assert (found, finding in what) == (title, True)


def test_an_older_control_group(root: Path) -> None:
    (root / "sys/fs/cgroup/cpu.max").unlink()
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    [(title, what)] = doctor.slow_settings()
    assert (title, "-t 2" in what) == ("quota", True)


def test_an_instruction_set_below_the_processors(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aleator.core.host.isa", lambda: "v3")
    [(title, what)] = doctor.slow_settings()
    assert (title, "can do v4" in what) == ("instructions", True)


@pytest.mark.parametrize(
    ("asked", "finding"), [("1", "unset it, or give -t 4"), ("9", "more than")]
)
def test_threads(root: Path, monkeypatch: pytest.MonkeyPatch, asked: str, finding: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    [(title, what)] = doctor.slow_settings()
    assert (title, finding in what) == ("threads", True)


def test_fewer_processors_than_there_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    [(title, what)] = doctor.slow_settings()
    assert (title, "4 of 8 processors" in what) == ("threads", True)


def test_doctor_says_it(root: Path, aleator: Command) -> None:
    write(root, "sys/fs/cgroup/cpu.max", "100000 100000")
    result = aleator("doctor")
    assert result.code == 0
    assert "quota          SLOW: the container has 1 processors' time" in result.out


def test_what_other_processors_can_do_is_not_known(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("aleator.core.host.isa", lambda: "base")
    assert list(doctor.slow_settings()) == []


def test_a_quota_of_all_processors_and_lines_without_numbers_are_not_slow(root: Path) -> None:
    write(root, "sys/fs/cgroup/cpu.max", "400000 100000")
    write(root, "proc/meminfo", "Odd:\n\nMemAvailable: 8000000 kB\n")
    assert list(doctor.slow_settings()) == []


def test_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    about = SimpleNamespace(name="Pretended", total_memory=80 << 30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: about)
    assert doctor.cuda().startswith("2 x Pretended, 80 GiB, CUDA ")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.cuda() == "not looked for without torch; models run on the CPU"


def test_a_machine_that_writes_two_texts_for_one_seed_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = iter(("one", "two"))
    generate = lambda *given, **options: SimpleNamespace(text=next(texts))  # noqa: E731
    monkeypatch.setattr(LanguageModel, "generate", generate)
    with pytest.raises(RuntimeError, match="the same seed wrote 'one' and then 'two'"):
        doctor.bundled()
