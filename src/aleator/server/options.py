"""Options of ``aleator serve`` that are the server's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from aleator.core.options import Options, option
from aleator.generate.options import MOST, texts


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """Options of the server."""

    host: str = option(
        "address to listen on; 0.0.0.0 lets other machines in",
        "127.0.0.1",
        flags=("--host",),
        metavar="ADDRESS",
        portable=False,
    )
    port: int = option(
        "port to listen on; 0: any that is free",
        8080,
        low=0,
        high=65535,
        flags=("--port",),
        portable=False,
    )
    uds: str | None = option(
        "listen on this unix socket, and on no port",
        None,
        flags=("--uds",),
        metavar="PATH",
        portable=False,
    )
    ssl_keyfile: str | None = option(
        "private key for HTTPS, in PEM form",
        None,
        flags=("--ssl-keyfile", "--ssl-key-file"),
        metavar="FILE",
        portable=False,
    )
    ssl_certfile: str | None = option(
        "certificate for HTTPS, in PEM form",
        None,
        flags=("--ssl-certfile", "--ssl-cert-file"),
        metavar="FILE",
        portable=False,
    )
    alias: tuple[str, ...] = option(
        "name of the model in requests and responses, beside the file's; several may be given",
        (),
        flags=("-a", "--alias"),
        checker=partial(texts, "alias"),
        annotation="str | Iterable[str]",
        metavar="NAME",
        portable=False,
    )
    any_model: bool = option(
        "take requests for any model's name, and answer with this one",
        False,
        flags=("--any-model",),
        portable=False,
    )
    lenient: bool = option(
        "log fields that are not known, or cannot be honoured, instead of refusing the request",
        False,
        flags=("--lenient",),
        portable=False,
    )
    chat_template: str | None = option(
        "Jinja template that writes messages as text, in place of the model's",
        None,
        flags=("--chat-template",),
        metavar="TEMPLATE",
        portable=False,
    )
    slots: bool = option(
        "tell at /slots what is under way: lengths and sampling parameters, no text",
        True,
        off_flags=("--no-slots",),
        off_help="do not tell at /slots what is under way",
        portable=False,
    )
    slot_save_path: str | None = option(
        "directory in which requests may save slots, and from which they may restore them; it must exist",
        None,
        flags=("--slot-save-path",),
        metavar="DIRECTORY",
        shown="slots cannot be saved",
        portable=False,
    )
    n_cells: int | None = option(
        "cells of the KV cache, for all requests and cached prefixes together: the memory that the server has",
        None,
        low=1,
        high=MOST,
        flags=("--n-cells",),
        shown="--parallel times --ctx-size",
        portable=False,
    )
    api_key: tuple[str, ...] = option(
        "key that requests must bring (Authorization: Bearer KEY, or x-api-key: KEY); several may be given. "
        "The list of processes shows it: a file is better",
        (),
        flags=("--api-key",),
        checker=partial(texts, "api_key"),
        annotation="str | Iterable[str]",
        metavar="KEY",
        portable=False,
    )
    api_key_file: str | None = option(
        "file with keys, a line each; lines that begin with # are none",
        None,
        flags=("--api-key-file",),
        metavar="FILE",
        portable=False,
    )
    allowed_host: tuple[str, ...] = option(
        "name under which the server is asked (header Host), beside localhost; several may be given",
        (),
        flags=("--allowed-host",),
        checker=partial(texts, "allowed_host"),
        annotation="str | Iterable[str]",
        metavar="NAME",
        shown="where it listens on this machine only: localhost, 127.0.0.1 and ::1; else any",
        portable=False,
    )
    cors_origin: tuple[str, ...] = option(
        "origin of pages in browsers that may use the server, such as http://localhost:3000, or * for any; "
        "several may be given",
        (),
        flags=("--cors-origin",),
        checker=partial(texts, "cors_origin"),
        annotation="str | Iterable[str]",
        metavar="ORIGIN",
        portable=False,
    )
    max_body_bytes: int = option(
        "bytes of a request's body",
        2**23,
        low=1024,
        high=2**30,
        flags=("--max-body-bytes",),
        portable=False,
    )
    max_connections: int = option(
        "connections at the same time; fewer where the system allows fewer open files",
        4096,
        low=1,
        high=10**6,
        flags=("--max-connections",),
        portable=False,
    )
    request_timeout: float | None = option(
        "seconds that a request has, its time in the queue included; then it ends with what it has",
        None,
        low=0,
        open_low=True,
        flags=("--request-timeout",),
        shown="no limit",
        portable=False,
    )
    client_timeout: float = option(
        "seconds that a client may take to send a request's head, or its body, or to read what it is sent",
        30.0,
        low=0.1,
        high=86400,
        flags=("--client-timeout",),
        portable=False,
    )
    grammar_timeout: float = option(
        "seconds that a grammar, schema or regular expression may take to be compiled",
        10.0,
        low=0.1,
        high=86400,
        flags=("--grammar-timeout",),
        portable=False,
    )
    drain_timeout: float = option(
        "seconds that requests under way have to come to their end after the first SIGTERM or Ctrl-C",
        30.0,
        low=0,
        high=86400,
        flags=("--drain-timeout",),
        portable=False,
    )
    log_format: str = option(
        "how the log is written: text, or json with an object a line; it never has prompts or texts",
        "text",
        choices=("text", "json"),
        flags=("--log-format",),
        portable=False,
    )
    log_requests: bool = option(
        "log a line for each request",
        True,
        off_flags=("--no-log-requests",),
        off_help="log no line for each request, only what went wrong",
        portable=False,
    )
    playground: bool = option(
        "the page at / that shows and changes every draw, and its endpoints (docs/playground.md)",
        True,
        off_flags=("--no-playground",),
        off_help="do not serve the playground",
        portable=False,
    )
    playground_memory: int = option(
        "MiB of logits that the playground keeps, so that steps can be drawn again; the oldest are forgotten",
        256,
        low=0,
        high=2**20,
        flags=("--playground-memory",),
        metavar="MIB",
        portable=False,
    )
