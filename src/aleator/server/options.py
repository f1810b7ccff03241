"""Options of ``aleator serve`` that are the server's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from aleator.core.options import Options, host_option
from aleator.generate.options import MOST, MOST_BYTES, read_size, texts


def several(name: str, help: str, **declared: Any) -> Any:
    """Declare an option that may be given several times; ``declared`` as for ``option``."""
    kind = {"checker": partial(texts, name), "annotation": "str | Iterable[str]"}
    return host_option(help, (), **kind, **declared)


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """Options of the server."""

    host: str = host_option(
        "address to listen on; 0.0.0.0 lets other machines in",
        "127.0.0.1", flags=("--host",), metavar="ADDRESS",
    )  # fmt: skip
    port: int = host_option(
        "port to listen on; 0: any that is free", 8080, low=0, high=65535, flags=("--port",)
    )
    uds: str | None = host_option(
        "listen on this unix socket, and on no port", None, flags=("--uds",), metavar="PATH"
    )
    ssl_keyfile: str | None = host_option(
        "private key for HTTPS, in PEM form",
        None, flags=("--ssl-keyfile", "--ssl-key-file"), metavar="FILE",
    )  # fmt: skip
    ssl_certfile: str | None = host_option(
        "certificate for HTTPS, in PEM form",
        None, flags=("--ssl-certfile", "--ssl-cert-file"), metavar="FILE",
    )  # fmt: skip
    alias: tuple[str, ...] = several(
        "alias", "name of the model in requests and responses, beside the file's; several may be given",
        flags=("-a", "--alias"), metavar="NAME", aliases=("aliases",),
    )  # fmt: skip
    models: str | None = host_option(
        "serve several models, loaded when requests name them: those of a directory, or of a TOML file "
        "(docs/server.md)",
        None, flags=("--models", "--models-dir"), metavar="DIRECTORY|FILE.toml", shown="one model",
    )  # fmt: skip
    models_memory: int | None = host_option(
        "bytes that the loaded ones of several models may take together; on the command line a number without "
        "a unit is MiB",
        None, low=1, high=MOST_BYTES, flags=("--models-memory",), metavar="SIZE",
        reader=partial(read_size, "models_memory"), shown="three quarters of the machine's",
    )  # fmt: skip
    models_max: int | None = host_option(
        "how many of several models are loaded at the same time",
        None, low=1, high=MOST, flags=("--models-max",), shown="as many as the memory holds",
    )  # fmt: skip
    any_model: bool = host_option(
        "take requests for any model's name, and answer with this one, or the default of several",
        False, flags=("--any-model",),
    )  # fmt: skip
    lenient: bool = host_option(
        "log fields that are not known, or cannot be honoured, instead of refusing the request",
        False, flags=("--lenient",),
    )  # fmt: skip
    chat_template: str | None = host_option(
        "Jinja template that writes messages as text, in place of the model's; on the command line also "
        "the name of a file that has it",
        None, flags=("--chat-template",), metavar="TEMPLATE",
    )  # fmt: skip
    slots: bool = host_option(
        "tell at /slots what is under way: lengths and sampling parameters, no text",
        True, off_flags=("--no-slots",), off_help="do not tell at /slots what is under way",
    )  # fmt: skip
    slot_save_path: str | None = host_option(
        "directory in which requests may save slots, and from which they may restore them; it must exist",
        None, flags=("--slot-save-path",), metavar="DIRECTORY", shown="slots cannot be saved",
    )  # fmt: skip
    n_cells: int | None = host_option(
        "cells of the KV cache, for all requests and cached prefixes together: the memory that the server has",
        None, low=1, high=MOST, flags=("--n-cells",), shown="--parallel times --ctx-size",
    )  # fmt: skip
    api_key: tuple[str, ...] = several(
        "api_key",
        "key that requests must bring (Authorization: Bearer KEY, or x-api-key: KEY); several may be given. "
        "The list of processes shows it: a file is better",
        flags=("--api-key",), metavar="KEY",
    )  # fmt: skip
    api_key_file: str | None = host_option(
        "file with keys, a line each; lines that begin with # are none",
        None, flags=("--api-key-file",), metavar="FILE",
    )  # fmt: skip
    allowed_host: tuple[str, ...] = several(
        "allowed_host",
        "name under which the server is asked (header Host), beside localhost; several may be given",
        flags=("--allowed-host",), metavar="NAME",
        shown="where it listens on this machine only: localhost, 127.0.0.1 and ::1; else any",
    )  # fmt: skip
    cors_origin: tuple[str, ...] = several(
        "cors_origin",
        "origin of pages in browsers that may use the server, such as http://localhost:3000, or * for any; "
        "several may be given",
        flags=("--cors-origin",), metavar="ORIGIN",
    )  # fmt: skip
    max_body_bytes: int = host_option(
        "bytes of a request's body", 2**23, low=1024, high=2**30, flags=("--max-body-bytes",)
    )
    max_connections: int = host_option(
        "connections at the same time; fewer where the system allows fewer open files",
        4096, low=1, high=10**6, flags=("--max-connections",),
    )  # fmt: skip
    request_timeout: float | None = host_option(
        "seconds that a request has, its time in the queue included; then it ends with what it has",
        None, low=0, open_low=True, flags=("--request-timeout",), shown="no limit",
    )  # fmt: skip
    client_timeout: float = host_option(
        "seconds that a client may take to send a request's head, or its body, or to read what it is sent",
        30.0, low=0.1, high=86400, flags=("--client-timeout",),
    )  # fmt: skip
    grammar_timeout: float = host_option(
        "seconds that a grammar, schema or regular expression may take to be compiled",
        10.0, low=0.1, high=86400, flags=("--grammar-timeout",),
    )  # fmt: skip
    drain_timeout: float = host_option(
        "seconds that requests under way have to come to their end after the first SIGTERM or Ctrl-C",
        30.0, low=0, high=86400, flags=("--drain-timeout",),
    )  # fmt: skip
    log_format: str = host_option(
        "how the log is written: text, or json with an object a line; it never has prompts or texts",
        "text", choices=("text", "json"), flags=("--log-format",),
    )  # fmt: skip
    log_requests: bool = host_option(
        "log a line for each request",
        True, off_flags=("--no-log-requests",), off_help="log no line for each request, only what went wrong",
    )  # fmt: skip
    playground: bool = host_option(
        "the page at / that shows and changes every draw, and its endpoints (docs/playground.md)",
        True, off_flags=("--no-playground",), off_help="do not serve the playground",
    )  # fmt: skip
    playground_memory: int = host_option(
        "MiB of logits that the playground keeps, so that steps can be drawn again; the oldest are forgotten",
        256, low=0, high=2**20, flags=("--playground-memory",), metavar="MIB",
    )  # fmt: skip
