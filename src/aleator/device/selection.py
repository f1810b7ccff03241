"""The choices of ``auto``: the kernels of a device chain, and whether decode steps are captured in graphs.

The Triton kernels and CUDA graphs are chosen where ``aleator doctor --gpu --enable`` has run their checks and
recorded which passed.  The file is valid only for the GPU and the versions with which it was written.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from aleator.core.records import dataclass

log = logging.getLogger(__name__)

KERNELS = ("auto", "triton", "torch", "host")
RESULTS = "ALEATOR_GPU_RESULTS"
"""The environment variable that names another results file."""


@dataclass(frozen=True)
class Machine:
    """The machine and versions for which results are valid."""

    gpu: str  # the name of the CUDA device
    torch: str  # version
    triton: str  # version; "": it is not installed
    aleator: str  # version


def this_machine(device: torch.device) -> Machine:
    """The current machine and its versions."""
    triton = importlib.metadata.version("triton") if find_spec("triton") is not None else ""
    return Machine(
        torch.cuda.get_device_name(device),
        torch.__version__,
        triton,
        importlib.metadata.version("aleator"),
    )


def results_file() -> Path:
    """The file of results."""
    named = os.environ.get(RESULTS)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aleator/gpu.json"


def write_results(machine: Machine, passed: list[str]) -> Path:
    """Write which checks have passed on a machine; return the file."""
    path = results_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": asdict(machine), "passed": passed}, indent=1) + "\n")
    passed_on.cache_clear()
    return path


@cache
def passed_on(machine: Machine) -> frozenset[str]:
    """Names of the checks that have passed on a machine, from its file."""
    try:
        found = json.loads(results_file().read_text())
        if found["machine"] == asdict(machine):
            return frozenset(str(name) for name in found["passed"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is no file, or it cannot be read
    if machine.triton:
        log.warning(
            "%s with Triton %s has not been checked: device chains take PyTorch's operations, many times "
            "slower than the kernels; 'aleator doctor --gpu --enable' checks and turns them on",
            machine.gpu, machine.triton,
        )  # fmt: skip
    return frozenset()


def kernels_for(device: torch.device) -> str:
    """The kernels of ``kernels="auto"`` on a device: the fastest that are known to work there."""
    if device.type == "cpu":
        return "host"
    if device.type == "cuda" and torch.cuda.is_available() and find_spec("triton") is not None:
        return "triton" if "triton" in passed_on(this_machine(device)) else "torch"
    return "torch"


def captures_graphs(device: torch.device) -> bool:
    """Whether ``capture=None`` captures decode steps in CUDA graphs on a device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return "graphs" in passed_on(this_machine(device))
