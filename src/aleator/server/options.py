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
