"""``aleator doctor``: what is installed and what it can do."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable
from importlib.util import find_spec

from aleator.cli.arguments import Parser
from aleator.cli.machine import slow_settings
from aleator.cli.terminal import write
from aleator.core.errors import AleatorError, ParameterError
from aleator.core.packages import required_torch

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


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    group = parser.group("GPU")
    group.switch("--gpu", help="compare samplers, operator and graphs on the GPU with the host")
    group.switch("--enable", help="with --gpu: make what passes the default on this machine")


def run(arguments: argparse.Namespace) -> int:
    """Write the findings; returns the exit code."""
    if arguments.gpu:
        return gpu(arguments.enable)
    if arguments.enable:
        raise ParameterError("enable", "--enable is for 'aleator doctor --gpu'")
    from aleator.core.version import __version__

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
    """Run the checks of :mod:`aleator.cli.gpu`, and say what is on and how to turn on the rest."""
    torch = required_torch("aleator doctor --gpu")
    if not torch.cuda.is_available():
        line("gpu", "none: torch finds no CUDA device, so nothing was checked")
        return 1
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
    """Write one finding."""
    write(f"{title:<14} {finding}\n")


def attempt(title: str, check: Callable[[], str]) -> bool:
    """Write what a check finds, or why it fails; returns whether it succeeded."""
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
    """Load the bundled model and write with it, twice the same."""
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
