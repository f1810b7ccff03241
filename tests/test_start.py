"""A process that writes a text imports only what it needs: imports are most of the time to the first token."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

THREAD_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
"""How long a thread of NumPy's OpenBLAS spins before it sleeps, as a power of two of clock cycles."""

WRITE = """
import sys
from aleator.cli import main
code = main(["generate", "-p", "ROMEO:", "-n", "1", "-t", "1", "--log-disable"])
print(*sorted(name for name in sys.modules if name.partition(".")[0] != "numpy"), file=sys.stderr)
sys.exit(code)
"""
UNNEEDED = {
    "torch", "jinja2", "rich", "huggingface_hub", "asyncio", "difflib", "sqlite3", "tokenizers",
    "email", "fractions", "hashlib", "hmac", "importlib.metadata", "importlib.resources", "llguidance",
    "lzma", "random", "secrets", "shutil", "socket", "zipfile", "aleator.server",
    "aleator.integrations", "aleator.device.chain", "aleator.engine.engine",
    "aleator.models.adapter_files", "aleator.models.directory",
    "aleator.models.prequantised.directories", "aleator.models.torch_decoder",
}  # fmt: skip
"""Modules that cost milliseconds each, and are for commands, options and errors that most runs do without."""


def test_a_text_is_written_without_what_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", WRITE], capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert "aleator.language_model" in imported
    found = imported & UNNEEDED
    assert not found


COMMAND = """
import gc, os, sys
from aleator.cli import main
sys.argv[1:] = ["generate", "-p", "ROMEO:", "-n", "1", "-t", "1", "--log-disable"]
code = main()
docs = sys.modules["numpy._core._add_newdocs"]
print(gc.isenabled(), gc.get_freeze_count() > 0, hasattr(docs, "__file__"), file=sys.stderr)
print(os.environ["OPENBLAS_THREAD_TIMEOUT"], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("given", [None, "20"])
def test_a_command_looks_for_garbage_once_it_runs_and_has_of_numpy_no_docstrings_nor_spinning_threads(
    given: str | None,
) -> None:
    variables = {name: each for name, each in os.environ.items() if name != THREAD_TIMEOUT}
    if given is not None:
        variables[THREAD_TIMEOUT] = given
    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert done.stderr.split() == ["True", "True", "False", given or "4"]
