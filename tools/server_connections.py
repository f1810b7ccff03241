"""Opens many connections to a server, and looks at whether it still answers, and at what is left.

    python tools/server_connections.py [--connections 10000] [-m MODEL] [--out FILE.md]

``aleator serve`` runs in a process of its own and takes that many connections.  They are opened in turns: some
say nothing, some send half of a head, some half of a body, some ask once and stay.  While all are open

- a completion on a connection that was there before has the text that it had alone;
- one connection too many is told 503, and others are let in again once some have gone;
- the server's memory is bounded.

Then all go, so must the files that the server had open for them, and all come once more, which takes no more
memory.  SIGTERM must end it with exit code 0.  Prints figures and a verdict; exit code 1 if something is wrong.
Both processes need as many open files as there are connections: ``ulimit -n``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BODY = {"prompt": "ROMEO:", "max_tokens": 12, "seed": 5}
HALF = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n"
    + b" " * 2000
)
ASK = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
KINDS = (b"", b"POST /v1/completions HTTP/1.1\r\nhost: loc", HALF, ASK)
"""What a connection sends at first: nothing, half of a head, half of a body, a whole request."""
KIB_EACH = 64.0
"""Memory that a connection may take."""
MARGIN_KIB = 16384.0
"""That they may take more when they come once more: what allocators keep."""
PROGRAM = "import sys; from aleator.cli import main; sys.exit(main())"
SPARE = 64
PATIENCE = 300.0
"""Seconds; also what clients have for a head or a body, so that none is cut off meanwhile."""


def rss_kib(pid: int) -> int:
    """Memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


def files(pid: int) -> int:
    """Open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def allowed(wanted: int) -> int:
    """How many connections this system allows, at most ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted + SPARE if hard == resource.RLIM_INFINITY else min(wanted + SPARE, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
    return min(wanted, limit - SPARE)


def completion(connection: http.client.HTTPConnection) -> Any:
    """The choices of a fixed request."""
    connection.request("POST", "/v1/completions", json.dumps(BODY))
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {data[:200]!r}")
    return json.loads(data)["choices"]


def told(connection: socket.socket) -> bytes:
    """What comes at first; b"" where the connection was closed."""
    connection.settimeout(PATIENCE)
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


def until(holds: Any, what: str, wrong: list[str]) -> None:
    """Wait until something holds; note where it never does."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            wrong.append(f"never: {what}")
            return
        time.sleep(0.05)


def run(connections: int, model: str | None = None) -> tuple[dict[str, float], list[str]]:
    """Open so many connections to a server of its own; figures, and what was wrong."""
    n, wrong = allowed(connections), list[str]()
    command = [
        sys.executable, "-c", PROGRAM, "serve", "--port", "0", "--parallel", "2", "-c", "512",
        "--max-connections", str(n), "--client-timeout", str(PATIENCE), "--no-log-requests",
        *(["-m", model] if model else []),
    ]  # fmt: skip
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    many: list[socket.socket] = []
    try:
        port = 0
        for line in server.stderr or ():
            found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
            if found:
                port = int(found[1])
                break
        known = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        expected = completion(known)
        before_files, kib = files(server.pid), [rss_kib(server.pid)]
        for _ in range(2):
            began = time.monotonic()
            for i in range(n - 1):  # one is known
                many.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
                many[-1].sendall(KINDS[i % len(KINDS)])
            until(
                lambda: files(server.pid) >= before_files + n - 1,
                "all connections are there",
                wrong,
            )
            opened = time.monotonic() - began
            asked = many[3 :: len(KINDS)]
            answered = sum(b" 200 " in told(each) for each in asked)
            if answered != len(asked):
                wrong.append(f"{len(asked) - answered} of {len(asked)} requests had no answer")
            if completion(known) != expected:
                wrong.append("another text beside many connections")
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one_more:
                if b" 503 " not in told(one_more):
                    wrong.append("one connection too many was let in")
            kib.append(rss_kib(server.pid))
            while many:
                many.pop().close()
            until(lambda: files(server.pid) <= before_files, "all connections have gone", wrong)
        kib_each, again = (kib[1] - kib[0]) / n, (kib[2] - kib[1]) / n
        if kib_each > KIB_EACH or again * n > MARGIN_KIB:
            wrong.append(f"a connection takes {kib_each:.1f} KiB, and {again:.1f} more again")
        if completion(known) != expected:
            wrong.append("another text afterwards")
        known.close()
        server.send_signal(signal.SIGTERM)
        if server.wait(PATIENCE):
            wrong.append(f"exit code {server.returncode}")
    finally:
        for each in many:
            each.close()
        server.kill()
        server.wait()
        if server.stderr is not None:
            server.stderr.close()
    return {
        "connections": n,
        "seconds": opened,
        "kib_each": kib_each,
        "again": again,
    }, wrong


def main() -> int:
    """Run, print, and say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("-m", "--model")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures, wrong = run(args.connections, args.model)
    text = (
        f"`server_connections.py {' '.join(sys.argv[1:])}`: {figures['connections']:,.0f} connections open at "
        f"the same time, in {figures['seconds']:.1f} s, {figures['kib_each']:.1f} KiB of memory each, "
        f"{figures['again']:.1f} KiB more when they had gone and came again. "
        f"{'; '.join(wrong) if wrong else 'Nothing was wrong.'}\n"
    )
    print(text, end="")
    if args.out is not None:
        args.out.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
