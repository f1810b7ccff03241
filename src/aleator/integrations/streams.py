"""Streams of text over HTTP that survive the server's processes: a broken one is requested again and resumed.

A text of ``aleator serve`` is a function of the request and its seed, so a repeated request first sends what
the broken one sent.  That part is compared and skipped, and the rest is yielded::

    from aleator.integrations.streams import TextStream

    for piece in TextStream("http://127.0.0.1:8000/v1/completions", {"prompt": "ROMEO:", "max_tokens": 400}):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from aleator.core.errors import AleatorError, ParameterError

AGAIN = (408, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""
NO_ROUTE = "/-/routes for available routes"
"""What a proxy of Ray Serve answers, with status 404, before it knows the application."""
CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class RequestRefused(AleatorError):
    """The server refuses the request, and would refuse it again; ``status`` is that of its response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status


class StreamBroken(AleatorError):
    """No attempt reached the end of the stream."""


class StreamDiffers(AleatorError):
    """A repeated request has another text: from another model, or a server other than Aleator's."""


class _Ended(Exception):
    """An attempt ended before the stream did; the request can be repeated."""


class TextStream(Iterator[str]):
    """The pieces of one text, complete even if connections break.

    Args:
        url: The URL of ``/v1/completions`` or ``/v1/chat/completions``.
        body: The request; without a ``seed`` one is drawn.
        headers: Such as ``{"Authorization": "Bearer KEY"}``.
        attempts: Maximum number of successive requests without a new piece.
        pause: Seconds before the first repetition; doubled before each further one.
        timeout: Seconds without a byte after which a connection counts as broken.

    Attributes:
        seed: Seed of the text.
        text: The text yielded so far.
        repeated: How often the request was repeated.
        finish_reason: Why the text ended; None before that.
        headers: Headers of the latest response.

    Raises:
        ParameterError: The URL is not valid, or the request asks for several texts.
    """

    def __init__(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        attempts: int = 6,
        pause: float = 0.5,
        timeout: float = 60.0,
    ) -> None:
        self._at = urlsplit(url)
        if self._at.scheme not in CONNECTIONS or not self._at.hostname:
            raise ParameterError(
                f"url={url!r}: give http://HOST:PORT/v1/completions, or with https"
            )
        for name in ("n", "best_of"):
            if body.get(name, 1) != 1:
                raise ParameterError(f"{name}={body[name]!r}: a stream has one text: leave it out")
        if attempts < 1:
            raise ParameterError(f"attempts={attempts}: give 1 or more")
        given = body.get("seed")
        self.seed = secrets.randbelow(2**32 - 1) if given in (None, -1) else int(str(given))
        self._body = json.dumps({**body, "seed": self.seed, "stream": True}).encode()
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._attempts, self._pause, self._timeout = attempts, pause, timeout
        self.text, self.repeated = "", 0
        self.finish_reason: str | None = None
        self.headers: Mapping[str, str] = {}
        self._pieces = self._all()

    def __next__(self) -> str:
        return next(self._pieces)

    def _all(self) -> Iterator[str]:
        """Yield pieces, with repeated attempts where needed."""
        failed, pause = 0, self._pause
        while True:
            before = len(self.text)
            try:
                yield from self._attempt()
                return
            except (_Ended, OSError, http.client.HTTPException) as error:
                failed = 1 if len(self.text) > before else failed + 1
                pause = self._pause if failed == 1 else 2 * pause
                if failed >= self._attempts:
                    raise StreamBroken(
                        f"the stream broke {failed} times in a row, the last time with {error!r:.200}"
                    ) from error
            time.sleep(pause)
            self.repeated += 1

    def _attempt(self) -> Iterator[str]:
        """Yield new pieces of one request, to the end of the text."""
        seen = 0
        for piece in self._asked():
            old = self.text[seen : seen + len(piece)]
            if not piece.startswith(old):
                raise StreamDiffers(
                    f"after {seen} characters the repeated text has {piece!r:.60}, and the first {old!r:.60}"
                )
            seen += len(piece)
            new = piece[len(old) :]
            if new:
                self.text += new
                yield new
        if seen < len(self.text):
            raise StreamDiffers(
                f"the repeated text has {seen} characters, and the first had {len(self.text)}"
            )

    def _asked(self) -> Iterator[str]:
        """Yield all pieces of one request; _Ended if it breaks off."""
        connection = CONNECTIONS[self._at.scheme](
            str(self._at.hostname), self._at.port, timeout=self._timeout
        )
        try:
            path = f"{self._at.path}?{self._at.query}" if self._at.query else self._at.path
            connection.request("POST", path, self._body, self._headers)
            response = connection.getresponse()
            self.headers = dict(response.getheaders())
            if response.status != 200:
                said = response.read(4096).decode("utf-8", "replace")
                if response.status in AGAIN or (response.status == 404 and NO_ROUTE in said):
                    raise _Ended(f"status {response.status}: {said:.200}")
                raise RequestRefused(response.status, said)
            while line := response.readline():
                if not line.endswith(b"\n"):
                    raise _Ended("the stream broke within a line")
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield from self._read(json.loads(data))
        finally:
            connection.close()
        raise _Ended("the stream has no end")

    def _read(self, event: Mapping[str, Any]) -> Iterator[str]:
        """The text of an event."""
        if "error" in event:
            raise _Ended(f"{event['error']!r:.200}")
        for choice in event.get("choices", ()):
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            piece = choice.get("text", choice.get("delta", {}).get("content"))
            if piece:
                yield piece
