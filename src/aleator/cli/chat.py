"""``aleator chat``: talk with a model."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared
from aleator.cli.options import (
    add_model_options,
    add_session_options,
    announce_session,
    decode,
    generation_options,
    load_model,
    pick,
    session_file,
)
from aleator.cli.sampling import (
    add_grammar_options,
    add_sampling_options,
    announce,
    sampling_arguments,
)
from aleator.cli.terminal import ProgressBar, complain, note, on_interrupt, write
from aleator.core.errors import ContextFull
from aleator.generate.options import GenerateOptions

if TYPE_CHECKING:
    from aleator.cli.conversation import Conversation
    from aleator.generate.generation import Generation
    from aleator.generate.session_file import SessionFile
    from aleator.language_model import LanguageModel
    from aleator.text import ChatTemplate

EXAMPLES = """\
Each line is a message.  /regen answers again, /reset starts anew, /exit or
Ctrl-D leaves; Ctrl-C stops an answer.  The conversation stays in the cache: each
turn computes only what is new.

examples:
  aleator chat -m model.gguf
  aleator chat -m model.gguf --system "Answer in one sentence." --temp 0.5
  aleator chat -m model.gguf --session talk.state     (goes on next time)
  aleator chat     (the bundled model knows only Shakespeare's manner)
  printf 'Hello\\nWho are you?\\n' | aleator chat -m model.gguf
"""


TEXT = ("max_tokens", "stop", "context_shift")


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    group = parser.group("conversation")
    group.option("-sys", "--system", metavar="TEXT", help="what the model is told before all else")
    group.option("-p", "--prompt", metavar="TEXT", help="a first message")
    group.option(
        "--chat-template",
        "--chat-template-file",
        dest="chat_template",
        metavar="FILE",
        help="Jinja template that writes messages as text (default: the model's)",
    )
    length, stop, shift = pick(TEXT)
    help = "when the context is full, forget the oldest exchanges instead of ending"
    add_declared(group, (length, stop, replace(shift, help=help)))
    group.option(
        "--no-escape",
        action="store_true",
        help=r"take \n, \t and \r in --stop and --dry-sequence-breaker literally",
    )
    add_session_options(
        group,
        about="go on with the conversation in FILE if there is one, and write it there at the end",
    )
    add_sampling_options(parser)
    add_grammar_options(parser)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Talk until there is no more input; returns the exit code."""
    with session_file(arguments) as file:
        return _run(arguments, file)


def _run(arguments: argparse.Namespace, file: SessionFile | None) -> int:
    from aleator.cli.conversation import Conversation
    from aleator.generate.session import read_session

    sampling = sampling_arguments(arguments)
    options = generation_options(arguments, TEXT)
    model = load_model(arguments)
    resumed = file if file is not None and file.exists else None
    if resumed is not None and sampling.get("seed") is None:
        sampling["seed"] = read_session(resumed, len(model.vocab)).seed
    with ProgressBar("reading", "tokens") as bar:
        conversation = Conversation(
            model,
            template(model, arguments.chat_template),
            model.sampling_params(**sampling),
            system=arguments.system,
            options=GenerateOptions(**options),
            progress=bar,
        )
        if resumed is not None:
            announce_session(arguments.session, conversation.resume(resumed))
        announce(conversation.params, conversation.chain)
        try:
            talk(conversation, arguments.prompt)
        finally:
            if file is not None:
                held = conversation.save(file)
                note(f"session: keys and values of {held} tokens are in {arguments.session}")
    return 0


def talk(conversation: Conversation, message: str | None) -> None:
    """Answer a first message, if there is one, and all that follow."""
    if message is None:
        message = ask()
    while message is not None:
        command = message.strip()
        if command in ("/exit", "/quit"):
            return
        if command == "/reset":
            conversation.reset()
            note("the conversation is forgotten")
        elif command.startswith("/") and command != "/regen":
            note(f"{command} is not a command: /regen, /reset, /exit")
        elif command:
            try:
                answer = conversation.again() if command == "/regen" else conversation.ask(message)
                show(answer)
            except ContextFull as error:
                if not sys.stdin.isatty():
                    raise
                complain(str(error))
        message = ask()


def show(answer: Generation | None) -> None:
    """Write an answer as it is made, and what it took."""
    if answer is None:
        note("nothing was said yet")
        return
    last = ""
    with on_interrupt(answer.cancel):
        for piece in answer:
            write(piece)
            last = piece
    write("" if last.endswith("\n") else "\n")
    stats = answer.stats
    ended = {
        "context": ", the context is full",
        "interrupted": ", interrupted",
        "length": ", cut off",
    }
    note(
        f"[{stats.prompt_tokens} tokens read, {stats.reused_tokens} remembered | "
        f"{stats.sampled_tokens} tokens at "
        f"{stats.decode_tokens_per_second:.1f}/s{ended.get(answer.stop_reason, '')}]"
    )


def ask() -> str | None:
    """The next message; None when there are no more."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            importlib.import_module("readline")  # line editing and history
        try:
            return input("> ")
        except EOFError:
            note("")
            return None
        except KeyboardInterrupt:
            note("\n/exit or Ctrl-D leaves")
            return ""
    line = sys.stdin.buffer.readline()
    return decode(line, "standard input").rstrip("\n") if line else None


def template(model: LanguageModel, path: str | None) -> ChatTemplate:
    """The chat template in the file, or the model's."""
    from aleator.text import ChatTemplate

    source = model.vocab.chat_template if path is None else decode(Path(path).read_bytes(), path)
    return ChatTemplate(source, model.vocab)
