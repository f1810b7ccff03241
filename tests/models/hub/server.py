"""A server on this machine with the hub's interface: what huggingface_hub asks of it, and no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


@dataclass
class Hub:
    """What it has, and what was asked of it.

    Attributes:
        files: of each repository, by path.
        gated: repositories whose files are given to nobody.
        false: files of which it tells another SHA-256 than theirs.
        breaks: bytes of large files that are sent until the connection breaks off; None: it does not.
        listing: what it answers instead of a list of files; None: the list.
        sends: what is sent instead of a file's bytes.
        commit: what it tells as the commit of files.
        asked: (method, path, Range header) of every request.
        address: where it listens.
    """

    files: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    false: set[str] = field(default_factory=set)
    breaks: int | None = None
    listing: bytes | None = None
    sends: Callable[[bytes], bytes] = bytes
    commit: str = COMMIT
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def fetched(self, name: str) -> list[str]:
        """The Range headers of the requests for a file's bytes."""
        return [r for method, path, r in self.asked if method == "GET" and path.endswith(name)]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Answer requests until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self.about("/".join(parts[2:4]), parts[4:])
            elif parts[2:3] == ["resolve"]:
                self.file("/".join(parts[:2]), "/".join(parts[4:]))
            else:
                self.send(404, b"")

        def about(self, repo: str, rest: list[str]) -> None:
            if repo not in hub.files:
                self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
            elif rest[:1] == ["revision"] and rest[1] not in ("main", COMMIT):
                self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            else:
                names = [{"rfilename": name} for name in reversed(hub.files[repo])]
                about = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": names}
                told = json.dumps(about).encode() if hub.listing is None else hub.listing
                self.send(200, told, {"Content-Type": "application/json"})

        def file(self, repo: str, name: str) -> None:
            if repo in hub.gated:
                self.send(403, b"", {"X-Error-Code": "GatedRepo"})
                return
            if name not in hub.files.get(repo, {}):
                self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            data = hub.files[repo][name]
            digest = hashlib.sha256(data + b"!" * (name in hub.false)).hexdigest()
            headers = {"ETag": f'"{digest}"', "X-Repo-Commit": hub.commit, "Accept-Ranges": "bytes"}
            wanted = self.headers.get("Range")
            if wanted:
                first = int(wanted.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
                data = data[first:]
            if self.command == "GET":
                data = hub.sends(data)
            self.send(206 if wanted else 200, data, headers)

        def send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.breaks is not None and len(data) > 1_000_000:
                self.wfile.write(data[: hub.breaks])
                hub.breaks, self.close_connection = 0, True
                return
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
