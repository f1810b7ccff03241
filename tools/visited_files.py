"""Files of the package that a text, and a streamed chat over HTTP, visit once the model is loaded.

    python tools/visited_files.py [--out FILE]

A profile of calls in all threads sees each function that begins or goes on; bodies of modules, and what runs
while a module is imported, are left out.  Each case runs twice: the first run also makes what later ones use
again, such as the context.  Calls from a file into one that is built from it (imports it, be it by way of
others) are listed apart: the calling file must have been given the function, as a callable or with an object.
"""

from __future__ import annotations

import http.client
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from run_report import Report, command, machine, parser

import aleator
from aleator.cli import main as main_of_aleator

PACKAGE = f"{Path(aleator.__file__).parent}{os.sep}"
CASES = {
    "text": 'aleator.load().generate("ROMEO:", max_tokens=1).wait()',
    "chat": "POST /v1/chat/completions, stream, max_tokens=8, to aleator serve --no-cache-disk",
}
Call = tuple[str, str, str]
"""The calling file ("": none of the package), the called file, and their functions."""


class Profile:
    """The package's calls in this thread and in those that begin from now on, while they are recorded.

    Attributes:
        runs: for each recorded run the first call from each file to each file, in order.
    """

    def __init__(self) -> None:
        self.runs: list[list[Call]] = []
        self._seen: set[tuple[str, str]] | None = None
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record a run."""
        self.runs.append([])
        self._seen = set()
        yield
        self._seen = None

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        seen = self._seen
        if seen is None or event != "call" or not _is_function(frame):
            return
        caller = _caller(frame)
        pair = (_file(caller) if caller else "", _file(frame))
        if pair in seen or _is_importing(frame):
            return
        seen.add(pair)
        names = [each.f_code.co_qualname for each in (caller, frame) if each]
        self.runs[-1].append((*pair, " -> ".join(names)))


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(PACKAGE)


def _is_function(frame: FrameType) -> bool:
    """Whether it is a function of the package, not the body of a module or a class."""
    code = frame.f_code
    return code.co_filename.startswith(PACKAGE) and bool(code.co_flags & inspect.CO_OPTIMIZED)


def _caller(frame: FrameType) -> FrameType | None:
    """The package's function that called it, if any; generated methods are left out."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename.startswith("<string>"):
        caller = caller.f_back
    return caller if caller is not None and _is_function(caller) else None


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the body of one of the package's modules is running."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def text(profile: Profile) -> None:
    """Generate one token, twice."""
    model = aleator.load()
    for prompt in ("ROMEO:", "JULIET:"):
        with profile.recorded():
            model.generate(prompt, max_tokens=1).wait()


def chat(profile: Profile) -> None:
    """Have ``aleator serve``, in this process, stream two answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    asking = threading.Thread(target=_ask, args=(profile, port))
    asking.start()
    main_of_aleator(["serve", "--port", str(port), "--no-cache-disk"])
    asking.join()


def _ask(profile: Profile, port: int) -> None:
    """Ask for answers once the server is ready, and end it."""
    try:
        _request(port, "GET", "/health")
        for content in ("Good morrow.", "Good night."):
            message = {"role": "user", "content": content}
            body = {"messages": [message], "stream": True, "max_tokens": 8, "seed": 1}
            with profile.recorded():
                answer = _request(port, "POST", "/v1/chat/completions", json.dumps(body))
            if not answer.endswith(b"data: [DONE]\n\n"):
                raise SystemExit(f"not a whole stream: {answer!r}")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _request(port: int, method: str, path: str, body: str | None = None) -> bytes:
    """The answer of the server, which may not listen yet."""
    for _ in range(600):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            return connection.getresponse().read()
        except ConnectionRefusedError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise SystemExit("the server does not listen")


RUNS: dict[str, Callable[[Profile], None]] = {"text": text, "chat": chat}


def upwards(calls: Sequence[Call]) -> list[tuple[Call, bool]]:
    """The calls into files that are built from the calling one, and whether that imports the called one."""
    import grimp  # of import-linter

    graph = grimp.build_graph("aleator", exclude_type_checking_imports=True, cache_dir=None)
    for each in graph.find_modules_directly_imported_by("aleator"):  # the public names
        graph.remove_import(importer="aleator", imported=each)

    def module(file: str) -> str:
        return f"aleator.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"

    once = {call[:2]: call for call in reversed(calls)}
    return [
        (call, graph.direct_import_exists(importer=module(call[0]), imported=module(call[1])))
        for call in reversed(once.values())
        if call[0] not in ("", call[1])
        and graph.chain_exists(importer=module(call[1]), imported=module(call[0]))
    ]


def main() -> None:
    """Run each case in a process of its own, and report."""
    parsing = parser(__doc__, "the file for the report")
    parsing.add_argument("--case", choices=RUNS, help="one case in this process, as JSON")
    arguments = parsing.parse_args()
    if arguments.case:
        profile = Profile()
        RUNS[arguments.case](profile)
        sys.setprofile(None)
        print(json.dumps(profile.runs))
        return
    report = Report("Files that a text and a chat visit", f"    {command(__file__)}", machine())
    for case, what in CASES.items():
        out = subprocess.check_output([sys.executable, __file__, "--case", case], text=True)
        runs = json.loads(out.splitlines()[-1])
        first, second = ([(a, b, how) for a, b, how in run] for run in runs)
        visited = [list(dict.fromkeys(call[1] for call in run)) for run in (first, second)]
        numbers = [len(each) for each in visited]
        report.say("", f"## `{what}`", "")
        report.say(f"{numbers[0]} files in the first run, {numbers[1]} in the second.", "")
        report.table(":", "file", "first visited by", "second run")
        calls = {call[1]: call[2] for call in reversed([*first, *second])}
        for number, file in enumerate(dict.fromkeys([*visited[0], *visited[1]]), 1):
            report.row(number, file, f"`{calls[file]}`", "again" * (file in visited[1]))
        report.say("", "Calls into files that are built from the calling one:", "")
        report.table("from", "to", "call", "imports it")
        for (lower, upper, how), imports in upwards([*first, *second]):
            report.row(lower, upper, f"`{how}`", "yes" if imports else "no")
    report.write(arguments.out)


if __name__ == "__main__":
    main()
