"""``aleator serve``: answer requests over HTTP."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import (
    MODEL_OPTIONS,
    SPECULATION,
    STEERING,
    add_model_options,
    file_text,
    generation_options,
    load_model,
    loading_options,
    pick,
)
from aleator.cli.sampling import CHAIN, add_sampling_options, sampling_arguments
from aleator.cli.served_models import Found, found_models
from aleator.cli.terminal import note
from aleator.core.errors import ParameterError
from aleator.core.options import declarations
from aleator.core.parameter import Parameter
from aleator.engine.engine import Engine
from aleator.engine.options import EngineOptions
from aleator.generate.options import LOADED
from aleator.models.hub.located import located
from aleator.samplers import PARAMETERS, PRESETS
from aleator.server.options import ServerOptions

if TYPE_CHECKING:
    from aleator.server.pool import Pool
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
  aleator serve --models DIRECTORY --models-memory 16G
  curl http://127.0.0.1:8080/v1/completions -H 'content-type: application/json' \\
    -d '{"prompt": "ROMEO:", "max_tokens": 40, "seed": 1}'
"""

SERVER = tuple(declarations(ServerOptions).values())
OF_ONE_MODEL = tuple(each for each in SERVER if each.name in ("alias", "chat_template", "n_cells"))
"""Options of the server that are a model's own where there are several."""
PRESET = Parameter("preset", str, None, "named sampling parameters", choices=tuple(PRESETS))
SHOWN = 10
"""Models that are named when the server begins."""
ENGINE = tuple(each for each in declarations(EngineOptions).values() if each.flags)
TEXT = (
    "max_tokens", "stop_loops", *STEERING, "context_shift", "complete_grammar", "jump_forward"
)  # fmt: skip
REQUESTS = (*pick((*TEXT, *SPECULATION)), *CHAIN, *PARAMETERS.values(), PRESET)
"""What holds where a request does not say otherwise."""
OF_A_MODEL = {
    each.name: each for each in (*OF_ONE_MODEL, *MODEL_OPTIONS, *LOADED, *ENGINE, *REQUESTS)
}
"""Options of a model of several, by name."""


def add_arguments(parser: Parser) -> None:
    add_declared(parser.group("server"), SERVER)
    add_declared(parser.group("requests that are made together"), ENGINE)
    add_model_options(parser)
    add_declared(parser.group("where a request does not say otherwise"), pick(TEXT))
    add_declared(parser.group("guesses that are checked"), pick(SPECULATION))
    parser.group("texts of options").switch(
        "--no-escape",
        r"take \n, \t and \r in --reasoning-budget-message, --banned-string and --dry-sequence-breaker "
        "literally",
    )
    add_sampling_options(parser, grammars=False)


def run(arguments: argparse.Namespace) -> None:
    options = server_options(given(arguments, SERVER))
    engine_options: dict[str, Any] = given(arguments, ENGINE)
    defaults = {
        **generation_options(arguments, (*TEXT, *SPECULATION)),
        **sampling_arguments(arguments),
    }
    if options.models is not None:
        serve_models(arguments, options, engine_options, defaults)
        return
    for name in ("models_memory", "models_max"):
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ParameterError(name, f"{flag} is for several models: give --models, too")
    serve(arguments, options, engine_options, defaults, announce)


def server_options(own: dict[str, Any]) -> ServerOptions:
    """The options of a server as the command line has them, where a template may be the name of a file."""
    template = own.get("chat_template")
    if template is not None and os.path.isfile(template):
        own = {**own, "chat_template": file_text(template)}
    return ServerOptions(**own)


def serve_models(
    arguments: argparse.Namespace,
    options: ServerOptions,
    engine_options: dict[str, Any],
    defaults: dict[str, Any],
) -> None:
    """Serve the models of ``--models`` until stopped; ``-m`` names the one for requests that name none."""
    for name in ("alias", "hf_repo", "hf_file"):
        if getattr(arguments, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ParameterError(name, f"{flag} is for one model: name it in the file of --models")
    running, metrics = server_module("run"), server_module("telemetry").Metrics("")
    loading = loading_options(arguments, keep_prompts=True)
    find = partial(located, token=arguments.hf_token, offline=arguments.offline)

    def entries() -> list[Any]:
        models = found_models(str(options.models), OF_A_MODEL)
        if loading.get("adapter_type", "auto") != "auto" and not any(
            {**loading, **each.options}.get("adapters") for each in models
        ):
            raise ParameterError(
                "adapter_type",
                f"--lora-type {loading['adapter_type']} is for adapters, and no model has any: give --lora, or "
                "adapters in the file of --models, too, or leave --lora-type out",
            )
        return [entry(each) for each in models]

    def entry(found: Found) -> Any:
        group = partial(those, found.options)
        try:
            made = server_module("entry").entry_of(
                found.name,
                found.path,
                model=options_of_loading(loading, found.options),
                engine=engine_options | group(ENGINE),
                defaults=defaults | group(REQUESTS),
                options=options.replace(**group(OF_ONE_MODEL)),
                ended=metrics.ended,
                aliases=found.aliases,
                keep_loaded=found.keep_loaded,
                find=find,
                lock=arguments.mlock,
            )
        except ParameterError as error:
            message = f"--models {options.models}: {found.name!r:.80}: {error}"
            raise ParameterError("models", message) from None
        made.source = found, state_of(found.path)
        return made

    server_module("native_memory").share_arenas()
    pool = server_module("pool").Pool(entries(), options, arguments.model, entries)
    listening = running.bound(options)
    with listening:
        where = running.address(options, listening)
        running.serve_models(pool, metrics, listening, lambda: announce_models(pool, where))


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
    running, service_of = server_module("run"), server_module("service").Service
    listening = running.bound(options)  # before the slow load: the port may be in use
    with listening:
        model = load_model(arguments, keep_prompts=True)
        metrics = server_module("telemetry").Metrics(model.fingerprint)
        with Engine(model, on_end=metrics.ended, n_ctx=options.n_cells, **engine_options) as engine:
            service: Service = service_of(model, engine, options, defaults)
            where = running.address(options, listening)
            running.serve(service, listening, lambda: announced(service, where), metrics)


def options_of_loading(loading: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """One model's options of loading: its own, and the command line's, --lora-type only if it has adapters."""
    made = {**loading, **those(own, (*MODEL_OPTIONS, *LOADED))}
    if not made.get("adapters") and "adapter_type" not in own:
        made.pop("adapter_type", None)
    return made


def those(given: Mapping[str, Any], parameters: Iterable[Parameter]) -> dict[str, Any]:
    """The values that are given for some parameters."""
    return {each.name: given[each.name] for each in parameters if each.name in given}


def state_of(path: str) -> tuple[int, int, int] | None:
    """Which file or directory is there, and when it was last changed; None: there is none."""
    with suppress(OSError):
        about = os.stat(path)
        return about.st_ino, about.st_size, about.st_mtime_ns
    return None


def server_module(name: str) -> Any:
    """A module of the server, whose packages are optional."""
    try:
        return import_module(f"aleator.server.{name}")
    except ModuleNotFoundError as error:
        raise ImportError(
            f'aleator serve needs {error.name}: pip install "aleator[server]"', name=error.name
        ) from error


def announce_models(pool: Pool, where: str) -> None:
    """Print where the server of several models listens, and an example request."""
    names = ", ".join(each.name for each in pool.entries[:SHOWN])
    more = f" and {len(pool.entries) - SHOWN} more" if len(pool.entries) > SHOWN else ""
    note(
        f"models: {names}{more}\nlistening on {where}\n{playground(pool.options, where, '?model=NAME')}"
        f"{curl(where, True, pool.default.name)}"
    )


def announce(service: Service, where: str) -> None:
    """Print where the server listens, and an example request."""
    engine, model = service.engine, service.model
    chats = model.vocab.chat_template is not None
    example = curl(where, chats, writes=model.weights.architecture.causal)
    note(
        f"{service.name}: {engine.options.n_seq_max} requests at a time, {engine.n_ctx} cells\n"
        f"listening on {where}\n{playground(service.options, where)}{example}"
    )


def playground(options: ServerOptions, where: str, query: str = "") -> str:
    """The line with the playground's address, if there is one."""
    page = options.playground and not where.startswith("unix:")
    return f"playground: {where}/{query}\n" if page else ""


def curl(where: str, chats: bool, model: str = "", writes: bool = True) -> str:
    """A shell command that sends an example request, to a model if one is named; ``writes``: it makes texts."""
    socket, _, path = where.partition("unix:")
    url = f"--unix-socket {path} http://localhost" if not socket and path else where
    prompt = '{"prompt": "Once upon a time", "max_tokens": 40}'
    messages = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40}'
    endpoint, body = ("chat/completions", messages) if chats else ("completions", prompt)
    if not writes:
        endpoint, body = "embeddings", '{"input": "Once upon a time"}'
    if model:
        body = f'{{"model": {json.dumps(model)}, {body[1:]}'
    return f"curl {url}/v1/{endpoint} -H 'content-type: application/json' -d '{body}'"
