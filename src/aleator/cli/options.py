"""Options that several commands share: the model and its context."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aleator.cli.arguments import Parser, integer
from aleator.cli.terminal import ProgressBar, note
from aleator.core.errors import ParameterError

if TYPE_CHECKING:
    from aleator.generate.session import Session
    from aleator.language_model import LanguageModel

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def add_model_options(parser: Parser) -> None:
    """Which model, and how much memory and how many threads it gets."""
    model = parser.group("model")
    model.option(
        "-m",
        "--model",
        metavar="PATH",
        help="a GGUF file or a Hugging Face directory (default: the bundled model)",
    )
    model.option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1 ... (default: cuda where there is one, else cpu)",
    )
    model.option(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="type to compute in (default: float32 on the CPU, bfloat16 on CUDA)",
    )
    context = parser.group("context")
    context.option(
        "-c",
        "--ctx-size",
        type=integer(0),
        metavar="N",
        help="positions of one sequence: prompt and text together; 0: as many as the model was trained "
        "with (default: that, but at most 4096)",
    )
    context.option(
        "-b",
        "--batch-size",
        type=integer(1),
        default=2048,
        metavar="N",
        help="tokens of one prefill call (default: 2048)",
    )
    context.option(
        "-ub",
        "--ubatch-size",
        type=integer(1),
        default=512,
        metavar="N",
        help="tokens computed at once within it (default: 512)",
    )
    context.option(
        "-t",
        "--threads",
        type=integer(1),
        metavar="N",
        help="threads for decoding (default: all cores)",
    )
    context.option(
        "-tb",
        "--threads-batch",
        type=integer(1),
        metavar="N",
        help="threads for prefill (default: like -t)",
    )
    for letter, what in (("k", "keys"), ("v", "values")):
        context.option(
            f"-ct{letter}",
            f"--cache-type-{letter}",
            choices=CACHE_TYPES,
            default="f16",
            help=f"type of the {what} in the cache (default: f16)",
        )
    context.option(
        "-nkvo",
        "--no-kv-offload",
        action="store_true",
        help="keep the cache in the host's memory",
    )
    context.option(
        "-fa",
        "--flash-attn",
        choices=("on", "off"),
        default="on",
        help="fused attention (default: on)",
    )


def load_model(arguments: argparse.Namespace) -> LanguageModel:
    """Load the model that the options name, with a progress bar on a terminal."""
    from aleator.language_model import load

    with ProgressBar("loading", "layers") as bar:
        return load(
            arguments.model,
            device=arguments.device,
            dtype=arguments.dtype,
            n_ctx=arguments.ctx_size,
            n_batch=arguments.batch_size,
            n_ubatch=min(arguments.ubatch_size, arguments.batch_size),
            n_threads=arguments.threads,
            n_threads_batch=arguments.threads_batch,
            flash_attn=arguments.flash_attn == "on",
            type_k=arguments.cache_type_k,
            type_v=arguments.cache_type_v,
            offload_kqv=not arguments.no_kv_offload,
            progress=bar,
        )


def announce_session(path: str, session: Session) -> None:
    """What was found in a session file, on standard error."""
    why_not = f" ({session.why_not})" if session.why_not else ""
    gone = len(session.tokens) - len(session.remaining)
    forgotten = f", {gone} forgotten by context shifts" if gone else ""
    note(
        f"session: {path} holds {len(session.tokens)} tokens, {session.restored} with keys and values"
        f"{forgotten}{why_not}"
    )


def add_text_options(parser: Parser, title: str, what: str) -> None:
    """Where a text comes from: ``-p``, ``-f`` or standard input."""
    group = parser.group(title)
    group.option("-p", "--prompt", metavar="TEXT", help=f"{what}; -: standard input")
    group.option(
        "-f",
        "--file",
        metavar="FILE",
        help="file with the text, in UTF-8, of which a last line break is dropped; -: standard input",
    )
    group.option(
        "--no-escape",
        action="store_true",
        help=r"take \n, \t and \r in -p, --stop and --dry-sequence-breaker literally, not as line break, "
        "tab and return",
    )


def read_text(arguments: argparse.Namespace) -> str:
    """The text of ``-p``, ``-f`` or standard input.

    Raises:
        ParameterError: both or neither given, or bytes that are not UTF-8.
    """
    if arguments.prompt is not None and arguments.file is not None:
        raise ParameterError("prompt", "-p and -f are both given: choose one")
    if arguments.prompt not in (None, "-"):
        return arguments.prompt if arguments.no_escape else unescape(arguments.prompt)
    if arguments.file not in (None, "-"):
        return decode(Path(arguments.file).read_bytes(), arguments.file).removesuffix("\n")
    if arguments.prompt is None and arguments.file is None and sys.stdin.isatty():
        raise ParameterError("prompt", "no prompt: give -p TEXT or -f FILE, or pipe it in")
    return decode(sys.stdin.buffer.read(), "standard input").removesuffix("\n")


def decode(data: bytes, name: str) -> str:
    """UTF-8 bytes as text.

    Raises:
        ParameterError: names the first byte that is wrong.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(
            "prompt",
            f"{name} is not valid UTF-8: byte {data[error.start]:#04x} at offset {error.start} "
            f"({error.reason})",
        ) from None


def unescape(text: str) -> str:
    r"""Read ``\n``, ``\t``, ``\r`` and ``\\`` as the characters they stand for."""
    marks = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}
    return re.sub(r"\\[ntr\\]", lambda mark: marks[mark[0]], text)


def stop_strings(arguments: argparse.Namespace) -> list[str]:
    """The values of ``--stop``."""
    stops: list[str] = arguments.stop
    return stops if arguments.no_escape else [unescape(stop) for stop in stops]
