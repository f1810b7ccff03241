"""Options that several commands share: the model and its context."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from aleator.cache.options import STORAGE_TYPES
from aleator.cli.arguments import Group, Parser
from aleator.cli.declared import add_declared, given, unescape
from aleator.cli.terminal import ProgressBar, note
from aleator.core.errors import ParameterError
from aleator.core.options import Option, Options, declarations
from aleator.generate.options import CHAT_CACHE_DISK, LOADED, GenerateOptions, ModelOptions
from aleator.generate.session import Session
from aleator.generate.session_file import SessionFile
from aleator.language_model import LanguageModel, load
from aleator.models.hub.bundled import bundled_model
from aleator.models.hub.located import located
from aleator.models.hub.names import HUB
from aleator.models.weights import Weights, open_weights

MODEL_OPTIONS = tuple(declarations(ModelOptions).values())
OF_TEXTS = ("n_ctx", "prompt_cache", "cache_ram", "cache_disk", "cache_dir")
"""Model options that do not apply, or have another meaning, if a text is processed in chunks."""
STEERING = (
    "reasoning_budget", "reasoning_budget_message", "reasoning_budget_grace", "banned_strings", "banned_regex",
)  # fmt: skip
"""Options of a generation that all commands have that generate."""
SPECULATION = ("spec_type", "spec_draft_n_max")


def add_model_options(parser: Parser, *, chunk: int | None = None) -> None:
    """Add options for the model, its memory and its threads.

    ``chunk``: default of ``-c`` if a command processes a text in chunks, each of which fills the context; None:
    ``-c`` is the length of one sequence.
    """
    model = parser.group("model")
    add_model(model)
    if chunk is None:
        add_declared(model, MODEL_OPTIONS)
    else:
        add_declared(model, [each for each in MODEL_OPTIONS if each.name not in OF_TEXTS])
        model.number("-c, --ctx-size, --n-ctx N", "tokens of a chunk", default=chunk, dest="n_ctx")
    add_declared(parser.group("context"), LOADED)


def add_model(group: Group) -> None:
    """Add ``-m``, and the options that name a model of the hub."""
    group.option(
        "-m, --model PATH",
        "a GGUF file, a Hugging Face directory, hf:ORG/NAME[:QUANT], or the NAME of an installed package "
        "llm-NAME (default: the bundled model)",
    )
    group.option(
        "-hf, -hfr, --hf-repo ORG/NAME[:QUANT]",
        "a model of the hub, fetched the first time; QUANT is the type of its tensors (default: Q4_K_M, "
        "else Q8_0, else the first GGUF file, else safetensors)",
    )
    group.option("-hff, --hf-file FILE", "with -hf: this file of the repository")
    group.option("-hft, --hf-token TOKEN", "token for the hub (default: HF_TOKEN)")
    group.switch(
        "--mlock", "keep the weights in memory, so that the system never reads them again from disk"
    )
    group.switch("--offline", "take what was fetched before, and ask nobody")


def model_named(arguments: argparse.Namespace) -> Path | None:
    """Path of the model that the options name, fetched if necessary; None if none is named."""
    name, repo, file = arguments.model, arguments.hf_repo, arguments.hf_file
    if name is not None and repo is not None:
        raise ParameterError("hf_repo", "-m and -hf are both given: choose one")
    if file is not None:
        if repo is None or ":" in repo.removeprefix(HUB):
            raise ParameterError("hf_file", f"--hf-file {file} needs -hf ORG/NAME without :QUANT")
        repo = f"{repo}/{file}"
    if repo is not None:
        name = HUB + repo.removeprefix(HUB)
    if name is None:
        return None
    return located(name, token=arguments.hf_token, offline=arguments.offline)


def weights_named(arguments: argparse.Namespace) -> Weights:
    """The opened file that the options, or a word of the command line, name; by default the bundled model."""
    path = getattr(arguments, "path", None)
    if path is not None and arguments.model is not None:
        raise ParameterError("model", "a path and -m are both given: choose one")
    arguments.model = path or arguments.model
    return open_weights(model_named(arguments) or bundled_model())


def load_model(arguments: argparse.Namespace, *, keep_prompts: bool = False) -> LanguageModel:
    """Load the model that the options name, with a progress bar on a terminal.

    ``keep_prompts``: unless the options say otherwise, its prompt cache is on disk too, which is reported.
    """
    options = loading_options(arguments, keep_prompts=keep_prompts)
    path = model_named(arguments)
    with ProgressBar("loading", "layers") as bar:
        model = load(path, progress=bar, **options)
    if arguments.mlock:
        held, why_not = model.weights.lock()
        note(f"mlock: {held / 2**20:.0f} MiB are held in memory{f'; {why_not}' if why_not else ''}")
    disk = model.prompt_tiers.disk if keep_prompts and model.prompt_tiers is not None else None
    if disk is not None and disk.usable:
        note(
            f"prompt cache: {disk.directory}, up to {disk.quota / 2**20:,.0f} MiB (--no-cache-disk: none)"
        )
    return model


def loading_options(arguments: argparse.Namespace, *, keep_prompts: bool = False) -> dict[str, Any]:
    """The given options of loading a model; with ``keep_prompts`` as for :func:`load_model`."""
    options: dict[str, Any] = {}
    # On other systems the directory's owner and mode are unknown, or there is no place for the cache.
    if keep_prompts and os.name == "posix" and Path(os.path.expanduser("~")).is_absolute():
        from aleator.generate.prompt_tiers import default_directory  # loads SQLite

        blocks = Path(arguments.cache_dir or default_directory()) / "blocks"
        kept = 0
        with suppress(OSError):
            kept = sum(each.stat().st_size for each in os.scandir(blocks))
        options["cache_disk"] = max(CHAT_CACHE_DISK, kept)  # it never shrinks a cache
    return options | given(arguments, (*MODEL_OPTIONS, *LOADED))


def add_cache_types(group: Group, what: str) -> None:
    """Add ``-ctk`` and ``-ctv``; ``what`` is their help."""
    for letter in "kv":
        group.option(
            f"-ct{letter}, --cache-type-{letter} NAME",
            f"{what} ({' or '.join(STORAGE_TYPES)}; default: f16)",
            choices=STORAGE_TYPES,
            default="f16",
        )


def add_session_options(group: Group, about: str, spelled: str = "--session FILE") -> None:
    group.option(spelled, about)
    group.switch("--session-new", "begin anew in the FILE of --session, and replace what it holds")


def session_file(arguments: argparse.Namespace) -> AbstractContextManager[SessionFile | None]:
    """The file of ``--session``, opened before anything else; None without the option."""
    if arguments.session is None:
        if arguments.session_new:
            raise ParameterError("session_new", "--session-new needs a --session FILE to begin in")
        return nullcontext()
    return SessionFile(arguments.session, new=arguments.session_new)


def announce_session(path: str, session: Session) -> None:
    """Report on standard error what a session file contained."""
    why_not = f" ({session.why_not})" if session.why_not else ""
    gone = len(session.tokens) - len(session.remaining)
    forgotten = f", {gone} forgotten by context shifts" if gone else ""
    note(
        f"session: {path} holds {len(session.tokens)} tokens, {session.restored} with keys and values"
        f"{forgotten}{why_not}"
    )


def add_text_options(parser: Parser, title: str, what: str) -> None:
    """Add the options for a text: ``-p``, ``-f`` or standard input."""
    group = parser.group(title)
    group.option("-p, --prompt TEXT", f"{what}; -: standard input")
    group.option(
        "-f, --file FILE",
        "file with the text, in UTF-8, of which a last line break is dropped; -: standard input",
    )
    group.switch(
        "--no-escape",
        r"take \n, \t and \r in -p, --stop and --dry-sequence-breaker literally, not as line break, "
        "tab and return",
    )


def read_text(arguments: argparse.Namespace) -> str:
    """The text of ``-p``, ``-f`` or standard input."""
    if arguments.prompt is not None and arguments.file is not None:
        raise ParameterError("prompt", "-p and -f are both given: choose one")
    if arguments.prompt not in (None, "-"):
        return arguments.prompt if arguments.no_escape else unescape(arguments.prompt)
    if arguments.prompt is None and arguments.file is None and sys.stdin.isatty():
        raise ParameterError("prompt", "no prompt: give -p TEXT or -f FILE, or pipe it in")
    return read_file(arguments.file or "-").removesuffix("\n")


def check_directory(option: str, path: str) -> None:
    """Refuse, before the work, a file to write whose directory is missing, or that is a directory."""
    folder = Path(path).absolute().parent
    why = "it is a directory" if Path(path).is_dir() else ""
    if why or not folder.is_dir():
        why = why or f"there is no directory {folder}"
        raise ParameterError(option, f"--{option}={path}: {why}; choose another file")


def read_file(name: str) -> str:
    """The text of a file; -: standard input.  ParameterError names the first invalid byte."""
    if name == "-":
        return decode(sys.stdin.buffer.read(), "standard input")
    return file_text(name)


def file_text(path: str) -> str:
    """The text of a file, even one named -; errors are those of :func:`read_file`."""
    return decode(Path(path).read_bytes(), path)


def decode(data: bytes, name: str) -> str:
    """UTF-8 bytes as text; ParameterError names the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(
            "prompt",
            f"{name} is not valid UTF-8: byte {data[error.start]:#04x} at offset {error.start} "
            f"({error.reason})",
        ) from None


def generation_options(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The values given for the named options of a generation, as keyword arguments of ``generate``.

    Who gives a draft model wants its guesses.
    """
    names = tuple(names)
    found: dict[str, Any] = given(arguments, pick(names), arguments.no_escape)
    if "spec_type" in names and arguments.model_draft is not None:
        found.setdefault("spec_type", "draft")
    return found


def pick(names: Iterable[str], of: type[Options] = GenerateOptions) -> list[Option]:
    return [declarations(of)[name] for name in names]
