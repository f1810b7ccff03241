"""Runs llama-server's own tests against llama-server and against ``aleator serve``, with one model for all.

    python tools/llama_server_tests.py --llama-cpp DIRECTORY --llama-server PROGRAM --model FILE
                                       --python PYTHON [--out FILE.md] [--only ours|theirs] [FILE ...]

The tests start a server themselves, with their own flags and with models that they would download.  Here they
start this file instead: it replaces their model by the given one, translates the flags for ``aleator serve`` if
asked to, and becomes the server.  ``PYTHON`` has the packages that the tests need
(tools/server/tests/requirements.txt); they run in a copy of their directory.  A flag that ``aleator serve``
lacks ends with status 3 and its name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

FILES = (
    "basic", "completion", "tokenize", "template", "infill", "slot_save", "security", "ctx_shift", "ignore_eos",
    "metrics", "chat_completion", "compat_anthropic", "compat_oai_responses",
)  # fmt: skip

VALUED = {
    "--port": "--port", "--host": "--host", "--temp": "--temp", "--seed": "--seed", "--threads": "--threads",
    "--batch-size": "--batch-size", "--ubatch-size": "--ubatch-size", "--parallel": "--parallel",
    "-ctk": "-ctk", "-ctv": "-ctv", "--n-predict": "--n-predict", "--slot-save-path": "--slot-save-path",
    "--api-key": "--api-key", "--spec-draft-n-max": "--spec-draft-n-max",
}  # fmt: skip
"""Flags with a value that both have."""
SWITCHES = ("--no-slots", "--context-shift")
"""Flags without a value that both have."""
NOTHING = {
    "--offline": 0, "--model-url": 1, "--hf-repo": 1, "--hf-file": 1, "--model": 1, "--n-gpu-layers": 1,
    "--cont-batching": 0, "--embedding": 0, "--metrics": 0, "--swa-full": 0, "--slots": 0, "--tags": 1,
    "--verbose": 0, "--jinja": 0, "--no-jinja": 0, "--reasoning-format": 1, "--no-ui": 0, "--cache-ram": 1,
    "-fa": 1, "--pooling": 1, "--spec-draft-n-min": 1, "--kv-unified": 0, "--no-cache-idle-slots": 0,
}  # fmt: skip
"""Flags that ask for defaults or for the model, with their numbers of values."""

EXTERNAL = (
    "--model", "one", "--host", "127.0.0.1", "--temp", "0.8", "--seed", "42", "--alias", "tinyllama-2",
    "--ctx-size", "512", "--batch-size", "32", "--parallel", "2", "--n-predict", "64", "--slots", "--metrics",
)  # fmt: skip
"""Flags that most of the tests use."""
PLUGIN = """
import sys

def pytest_collection_finish(session):
    sys.modules["utils"].ServerPreset.load_all = staticmethod(lambda: None)
"""
"""The tests would load every model of theirs first."""


def become(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become the server that a test wants."""
    program, model = environment["SERVER_PROGRAM"], environment["SERVER_MODEL"]
    threads = environment.get("SERVER_THREADS", "2")
    own, given = list(words), dict[str, str]()
    arguments: list[str] = []
    if environment["SERVER_KIND"] == "theirs":
        while own:
            word = own.pop(0)
            if word in ("--model", "--model-url", "--hf-repo", "--hf-file"):
                own.pop(0)
            else:
                arguments.append(word)
        router = "--model" not in words and "--hf-repo" not in words and "--model-url" not in words
        place = [] if router else ["--model", model]
        os.execv(program, [program, *arguments, *place, "-t", threads])
    while own:
        word = own.pop(0)
        if word in VALUED:
            arguments += [VALUED[word], own.pop(0)]
        elif word in SWITCHES:
            arguments.append(word)
        elif word == "--chat-template-file":
            arguments += ["--chat-template", Path(own.pop(0)).read_text()]
        elif word == "--alias":
            for name in own.pop(0).split(","):
                arguments += ["--alias", name]
        elif word == "--ctx-size":
            given[word] = own.pop(0)
        elif word in NOTHING:
            del own[: NOTHING[word]]
        else:
            print(f"aleator serve has no {word}", file=sys.stderr)
            return 3
    if "--ctx-size" in given:  # llama-server divides it among the slots
        total = int(given["--ctx-size"])
        slots = int(words[words.index("--parallel") + 1]) if "--parallel" in words else 1
        share = total if "--kv-unified" in words else total // slots
        arguments += ["--ctx-size", str(share), "--n-cells", str(total)]
    # The tests ask for models by OpenAI's names.
    arguments += ["--any-model", "-t", threads, "--no-cache-disk"]
    os.execv(program, [program, "serve", "-m", model, *arguments])


def run(kind: str, arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, str]:
    """Run the tests against one server; return the outcome of each function with its parameters."""
    tests = arguments.llama_cpp / "tools" / "server" / "tests"
    program = arguments.llama_server if kind == "theirs" else arguments.aleator
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tools" / "server" / "tests"
        shutil.copytree(tests, place, ignore=shutil.ignore_patterns("__pycache__", "tmp"))
        (Path(folder) / "models").symlink_to(arguments.llama_cpp.resolve() / "models")
        (place / "one_model.py").write_text(PLUGIN)
        shim = Path(folder) / "server"
        shim.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" --become "$@"\n'
        )
        shim.chmod(0o755)
        environment = {
            **os.environ,
            "LLAMA_SERVER_BIN_PATH": str(shim),
            "SERVER_KIND": kind,
            "SERVER_PROGRAM": str(Path(program).resolve() if kind == "theirs" else program),
            "SERVER_MODEL": str(Path(arguments.model).resolve()),
            "SERVER_THREADS": str(arguments.threads),
            "PYTHONPATH": str(place),
            "OMP_NUM_THREADS": "1",
            "PORT": str(arguments.port),
        }
        result = Path(folder) / "result.xml"
        if arguments.external:
            environment["DEBUG_EXTERNAL"] = "1"
            words = [*EXTERNAL, "--port", str(arguments.port), "--slot-save-path", folder]
            external = subprocess.Popen([str(shim), *words], env=environment)
            time.sleep(arguments.external)
        files = [f"unit/test_{name}.py" for name in names]
        subprocess.run(
            [arguments.python, "-m", "pytest", "-q", "-p", "one_model", "-p", "no:cacheprovider", *files,
             f"--junitxml={result}", "-m", "not slow"],
            cwd=place, env=environment, check=False,
        )  # fmt: skip
        if arguments.external:
            external.terminate()
            external.wait(30)
        return outcomes(result)


def outcomes(result: Path) -> dict[str, str]:
    """The outcome of each test, by file and name."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(result).iter("testcase"):
        file = case.get("classname", "").split("test_", 1)[-1]
        how = "passed"
        for each in case:
            if each.tag in ("failure", "error"):
                how = f"failed: `{_reason(each)}`"
            elif each.tag == "skipped":
                how = "skipped"
        found[f"{file}::{case.get('name')}"] = how
    return found


def _reason(each: ElementTree.Element) -> str:
    """The line with the reason."""
    text = (each.get("message") or each.text or "").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "").replace("|", "/").replace("`", "'")[:140]


def report(found: Mapping[str, Mapping[str, str]]) -> str:
    """A table of all tests."""
    kinds = list(found)
    lines = ["| test | " + " | ".join(kinds) + " |", "|---" * (1 + len(kinds)) + "|"]
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    for name in names:
        told = [found[kind].get(name, "not run") for kind in kinds]
        shown = name.replace("|", "\\|")
        lines.append(f"| `{shown}` | " + " | ".join(told) + " |")
    for kind, each in found.items():
        counts = Counter(how.split(":")[0] for how in each.values())
        lines.append(f"\n{kind}: " + ", ".join(f"{n} {how}" for how, n in counts.items()))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the tests and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--llama-server", metavar="PROGRAM")
    parser.add_argument("--aleator", default=str(Path(sys.executable).with_name("aleator")))
    parser.add_argument("--model", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument(
        "--external",
        type=float,
        metavar="SECONDS",
        help="one server for all tests, with the flags that most ask for, after so many seconds to start",
    )
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE")
    arguments = parser.parse_args()
    kinds = [arguments.only] if arguments.only else ["theirs", "ours"]
    text = report({kind: run(kind, arguments, arguments.files) for kind in kinds})
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--become"]:
        sys.exit(become(sys.argv[2:], os.environ))
    sys.exit(main())
