"""``aleator doctor``: what is installed, and what it can do."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from aleator.cli import FAILED
from aleator.cli.arguments import Parser
from aleator.cli.terminal import write
from aleator.core.errors import AleatorError, ParameterError
from aleator.core.memory import memory_limit
from aleator.core.packages import required_torch
from aleator.core.version import __version__

EXAMPLES = """\
Every line is checked by trying it.  What makes models slow here (threads, instruction
set, the share of the processors, memory) is a line with SLOW.  The exit code is 0
when text can be generated, else 1.
With --gpu it compares all that runs on a GPU with the host instead; the exit code
is 0 when all of it is equal.
"""

EXTRAS = {
    "tokenizers": ("cli", "text to tokens of Hugging Face models"),
    "jinja2": ("cli", "chat templates"),
    "rich": ("cli", "progress bars"),
    "torch": ("torch", "CUDA, chains on devices, the decoder in PyTorch"),
    "huggingface_hub": ("hub", "models by name: -hf, hf:ORG/NAME"),
    "llguidance": ("grammar", "JSON schemas, regular expressions"),
    "matplotlib": ("plot", "pictures of aleator explain"),
}
ROOT = Path("/")
"""Root of the system's files."""
SMALL = 2 << 30
"""Bytes of memory below which most models do not fit."""
INSTRUCTIONS = {"v4": "avx512f", "v3": "avx2"}
"""Instruction sets of the native code, best first, and the processor's flag for each."""
ORDER = ("base", "v3", "v4")


def add_arguments(parser: Parser) -> None:
    group = parser.group("GPU")
    group.switch("--gpu", "compare samplers, operator and graphs on the GPU with the host")
    group.switch("--enable", "with --gpu: make what passes the default on this machine")


def run(arguments: argparse.Namespace) -> int:
    if arguments.gpu:
        return gpu(arguments.enable)
    if arguments.enable:
        raise ParameterError("enable", "--enable is for 'aleator doctor --gpu'")
    line("aleator", __version__)
    line("python", f"{platform.python_version()} on {platform.platform()}")
    line("processors", f"{os.cpu_count()}, {platform.machine()}")
    attempt("native code", native)
    line("numpy", importlib.metadata.version("numpy"))
    missing = set()
    for package, (extra, use) in EXTRAS.items():
        try:
            line(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            missing.add(extra)
            line(package, f"MISSING ({use}): pip install 'aleator[{extra}]'")
    attempt("cuda", cuda)
    for title, finding in slow_settings():
        line(title, f"SLOW: {finding}")
    sound = attempt("bundled model", bundled)
    line("in all", "text can be generated" if sound else "text cannot be generated: see above")
    return 0 if sound else 1


def gpu(enable: bool) -> int:
    """Run the checks of :mod:`aleator.cli.gpu`; print what is on, and how to turn on the rest."""
    torch = required_torch("aleator doctor --gpu")
    if not torch.cuda.is_available():
        line("gpu", "none: torch finds no CUDA device, so nothing was checked")
        return FAILED
    from aleator.cli.gpu import checks
    from aleator.device.selection import passed_on, this_machine, write_results

    device = torch.device("cuda", torch.cuda.current_device())
    machine, all_checks = this_machine(device), checks()
    line("gpu", machine.gpu)
    passed = []
    for check in all_checks:
        if attempt(check.name, lambda run=check.run: run(device) or "passed"):  # type: ignore[misc]
            passed.append(check.name)
    if enable:
        where = write_results(machine, passed)
        line("results", f"written to {where}: what passed is the default here")
    else:
        enabled = passed_on(machine)
        for check in all_checks:
            if check.name in passed and check.enables and check.name not in enabled:
                line(check.name, f"not a default: ask for {check.enables}, or run with --enable")
    return 0 if len(passed) == len(all_checks) else 1


def line(title: str, finding: str) -> None:
    write(f"{title:<14} {finding}\n")


def attempt(title: str, check: Callable[[], str]) -> bool:
    """Print what a check finds, or why it fails; return whether it succeeded."""
    try:
        line(title, check())
    except (ImportError, AleatorError, OSError, RuntimeError) as error:
        line(title, f"FAILS: {error}")
        return False
    return True


def native() -> str:
    """The native module and the instruction set it uses."""
    from aleator.core.host import isa

    names = {"base": "baseline", "v3": "AVX2", "v4": "AVX-512"}
    return f"works, instruction set: {names.get(isa(), isa())}"


def cuda() -> str:
    """The GPU, if torch sees one."""
    if find_spec("torch") is None:
        return "not looked for without torch; models run on the CPU"
    import torch

    if not torch.cuda.is_available():
        version = torch.version.cuda
        built = f"torch built for CUDA {version}" if version else "torch for CPU"
        return f"none ({built}); models run on the CPU"
    properties = torch.cuda.get_device_properties(0)
    return (
        f"{torch.cuda.device_count()} x {properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
        f"CUDA {torch.version.cuda}"
    )


def bundled() -> str:
    """Load the bundled model, and generate twice with equal results."""
    from aleator.language_model import load

    model = load()
    first, second = (
        model.generate("ROMEO:", max_tokens=8, temperature=0.8, seed=1).text for _ in range(2)
    )
    if first != second:
        raise RuntimeError(f"the same seed wrote {first!r} and then {second!r}")
    config = model.weights.config
    return (
        f"works: {config.architecture}, {model.weights.n_parameters / 1e6:.1f} M parameters, "
        f"{model.weights.size_bytes / 2**20:.1f} MiB"
    )


def slow_settings() -> Iterator[tuple[str, str]]:
    """Settings that slow things down: a title, and the setting with its remedy."""
    return chain(_threads(), _instructions(), _quota(), _frequency(), _memory())


def usable_processors() -> int:
    """Processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def cores() -> int:
    """Cores among the processors, each of which may run two threads; 0: unknown."""
    found = set()
    for block in _read("proc/cpuinfo").split("\n\n"):
        fields = dict(re.findall(r"^(\w[\w ]*?)\s*: *(.*)$", block, re.MULTILINE))
        if "core id" in fields:
            found.add((fields.get("physical id", "0"), fields["core id"]))
    return len(found)


def _threads() -> Iterator[tuple[str, str]]:
    usable, there = usable_processors(), os.cpu_count() or 1
    if usable < there:
        yield (
            "threads",
            f"the process may use {usable} of {there} processors (taskset, or a container)",
        )
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) < min(usable, cores() or usable):
        yield (
            "threads",
            f"OMP_NUM_THREADS={asked}: unset it, or give -t {min(usable, cores() or usable)}",
        )
    if asked.isdecimal() and int(asked) > usable:
        yield "threads", f"OMP_NUM_THREADS={asked} is more than the {usable} processors: unset it"


def _instructions() -> Iterator[tuple[str, str]]:
    from aleator.core.host import isa

    if platform.machine() not in ("x86_64", "AMD64"):
        return
    flags, used = _read("proc/cpuinfo").split(), isa()
    best = next((name for name, flag in INSTRUCTIONS.items() if flag in flags), "base")
    if used in ORDER and ORDER.index(used) < ORDER.index(best):
        how = " (ALEATOR_ISA is set: unset it)" if os.environ.get("ALEATOR_ISA") else ""
        yield "instructions", f"native code runs as {used}, the processor can do {best}{how}"


def _quota() -> Iterator[tuple[str, str]]:
    quota, _, period = _read("sys/fs/cgroup/cpu.max").strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        quota = _read("sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = _read("sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return
    share = int(quota) / int(period)
    if share < usable_processors():
        yield (
            "quota",
            f"the container has {share:g} processors' time on {usable_processors()} processors: threads wait "
            f"for each other; give -t {max(1, int(share))}, or raise the quota",
        )


def _frequency() -> Iterator[tuple[str, str]]:
    governor = _read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    if governor == "powersave" and "intel_pstate" not in _read(
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
    ):
        yield "frequency", "the governor is powersave: cpupower frequency-set -g performance"


def _memory() -> Iterator[tuple[str, str]]:
    found = re.findall(r"^(\w+): +(\d+)", _read("proc/meminfo"), re.MULTILINE)
    fields = {name: int(kibibytes) << 10 for name, kibibytes in found}
    known = fields.get("MemAvailable"), memory_limit()
    free = min((each for each in known if each), default=None)
    if free is not None and free < SMALL:
        yield (
            "memory",
            f"{free / 2**30:.1f} GiB are free: a model larger than that is read from disk at every token",
        )
    swapped = fields.get("SwapTotal", 0) - fields.get("SwapFree", 0)
    if swapped > SMALL:
        yield (
            "memory",
            f"{swapped / 2**30:.1f} GiB are swapped out: close what uses them, or --mlock",
        )


def _read(name: str) -> str:
    try:
        return (ROOT / name).read_text()
    except OSError:
        return ""
