"""``aleator serve``: answer requests over HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import add_model_options, generation_options, load_model, pick
from aleator.cli.sampling import add_sampling_options, sampling_arguments
from aleator.cli.terminal import note
from aleator.core.options import declarations
from aleator.core.version import __version__
from aleator.engine.engine import Engine
from aleator.engine.options import EngineOptions
from aleator.server.options import ServerOptions

if TYPE_CHECKING:
    from aleator.server.service import Service

EXAMPLES = """\
Speaks OpenAI's dialect and others (docs/server.md).  Listens on this machine only,
unless --host says otherwise.  A request's text and log-probabilities depend on
nothing but the request: not on what else runs, nor on what is cached.  Sampling
options given here hold where a request does not say otherwise.  Ctrl-C lets
requests under way come to their end.

examples:
  aleator serve
  aleator serve -m model.gguf --port 8000 --parallel 16
  curl http://127.0.0.1:8080/v1/completions -H 'content-type: application/json' \\
    -d '{"prompt": "ROMEO:", "max_tokens": 40, "seed": 1}'
"""

SERVER = tuple(declarations(ServerOptions).values())
ENGINE = tuple(each for each in declarations(EngineOptions).values() if each.flags)
TEXT = (
    "max_tokens", "stop_loops", "reasoning_budget", "reasoning_budget_message", "reasoning_budget_grace",
    "banned_strings", "banned_regex", "context_shift", "complete_grammar", "jump_forward",
)  # fmt: skip
SPECULATION = ("spec_type", "spec_draft_n_max")


def add_arguments(parser: Parser) -> None:
    add_declared(parser.group("server"), SERVER)
    add_declared(parser.group("requests that are made together"), ENGINE)
    add_model_options(parser)
    add_declared(parser.group("where a request does not say otherwise"), pick(TEXT))
    add_declared(parser.group("guesses that are checked"), pick(SPECULATION))
    parser.group("texts of options").switch(
        "--no-escape",
        help=r"take \n, \t and \r in --reasoning-budget-message, --banned-string and --dry-sequence-breaker "
        "literally",
    )
    add_sampling_options(parser, grammars=False)


def run(arguments: argparse.Namespace) -> int:
    options = ServerOptions(**given(arguments, SERVER))
    engine_options: dict[str, Any] = given(arguments, ENGINE)
    defaults = {
        **generation_options(arguments, (*TEXT, *SPECULATION)),
        **sampling_arguments(arguments),
    }
    serve(arguments, options, engine_options, defaults, announce)
    return 0


def serve(
    arguments: argparse.Namespace,
    options: ServerOptions,
    engine_options: dict[str, Any],
    defaults: dict[str, Any],
    announced: Callable[[Service, str], None],
) -> None:
    """Load the model and serve it until stopped.

    ``announced`` is called with the service and its address once requests are accepted.
    """
    try:
        running = import_module("aleator.server.run")
        service_of = import_module("aleator.server.service").Service
        metrics_of = import_module("aleator.server.telemetry").Metrics
    except ModuleNotFoundError as error:
        raise ImportError(
            f'aleator serve needs {error.name}: pip install "aleator[server]"', name=error.name
        ) from error
    listening = running.bound(options)  # before the slow load: the port may be in use
    with listening:
        model = load_model(arguments, keep_prompts=True)
        metrics = metrics_of(__version__, model.fingerprint)
        with Engine(model, on_end=metrics.ended, n_ctx=options.n_cells, **engine_options) as engine:
            service: Service = service_of(model, engine, options, defaults)
            where = running.address(options, listening)
            running.serve(service, listening, lambda: announced(service, where), metrics)


def announce(service: Service, where: str) -> None:
    """Print where the server listens, and an example request."""
    engine, model = service.engine, service.model
    chats = model.vocab.chat_template is not None
    writes = model.weights.architecture.causal
    page = service.options.playground and not where.startswith("unix:")
    playground = f"playground: {where}/\n" if page else ""
    note(
        f"{service.name}: {engine.options.n_seq_max} requests at a time, {engine.n_ctx} cells\n"
        f"listening on {where}\n{playground}{curl(where, chats, writes)}"
    )


def curl(where: str, chats: bool, writes: bool = True) -> str:
    """A shell command that sends an example request."""
    socket, _, path = where.partition("unix:")
    url = f"--unix-socket {path} http://localhost" if not socket and path else where
    prompt = '{"prompt": "Once upon a time", "max_tokens": 40}'
    messages = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40}'
    endpoint, body = ("chat/completions", messages) if chats else ("completions", prompt)
    if not writes:
        endpoint, body = "embeddings", '{"input": "Once upon a time"}'
    return f"curl {url}/v1/{endpoint} -H 'content-type: application/json' -d '{body}'"
