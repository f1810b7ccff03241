"""``aleator playground``: the page that shows and changes every draw, in the browser."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import add_model_options, pick
from aleator.cli.serve import serve, server_options
from aleator.cli.terminal import note
from aleator.server.options import ServerOptions

if TYPE_CHECKING:
    from aleator.server.service import Service

EXAMPLES = """\
Serves the model on this machine only and opens the page in the browser where there
is one (docs/playground.md).  Ctrl-C ends it.

examples:
  aleator playground
  aleator playground -m model.gguf
  aleator playground --no-open --port 8000
"""

SERVER = pick(("host", "port", "playground_memory"), ServerOptions)


def add_arguments(parser: Parser) -> None:
    group = parser.group("playground")
    group.switch("--no-open", "print the address only")
    add_declared(group, SERVER)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> None:
    options = server_options({**given(arguments, SERVER), "log_requests": False})
    if arguments.port is None and taken(options):
        options = options.replace(port=0)

    def announced(_: Service, where: str) -> None:
        note(f"the playground is at {where}/ (Ctrl-C ends it)")
        if not arguments.no_open and has_browser():
            threading.Thread(target=webbrowser.open, args=(f"{where}/",), daemon=True).start()

    serve(arguments, options, {}, {}, announced)


def taken(options: ServerOptions) -> bool:
    """Whether something already listens on the default port."""
    with socket.socket() as trial:
        trial.settimeout(1)
        return trial.connect_ex((options.host, options.port)) == 0


def has_browser() -> bool:
    """Whether there is a screen for a browser: without one, a text browser would open in this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
