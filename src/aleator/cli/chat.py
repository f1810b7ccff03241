"""``aleator chat``: talk with a model."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aleator.chat.conversation import Conversation
from aleator.chat.generation import ChatGeneration
from aleator.cli import options as shared
from aleator.cli.arguments import Parser
from aleator.cli.chat_commands import ChatBranches
from aleator.cli.declared import add_declared
from aleator.cli.sampling import add_sampling_options, announce, sampling_arguments
from aleator.cli.terminal import ProgressBar, complain, hint, note, on_interrupt, write
from aleator.core.errors import AleatorError, ContextFull, ParameterError
from aleator.core.json_text import loads
from aleator.generate.session_file import SessionFile
from aleator.language_model import LanguageModel

EXAMPLES = """\
Each line is a message; /help shows what else there is: /regen, /edit, /branch,
/params, /system, /save, /load, /reset, /exit.  Ctrl-C ends an answer, Ctrl-D leaves.
The conversation stays in the cache: each turn computes only what is new.

examples:
  aleator chat -m model.gguf
  aleator chat -m model.gguf --system "Answer in one sentence." --temp 0.5
  aleator chat -m model.gguf --session talk.state     (goes on next time)
  aleator chat     (the bundled model knows only Shakespeare's manner)
  printf 'Hello\\nWho are you?\\n' | aleator chat -m model.gguf
"""


TEXT = (
    "max_tokens", "stop", "context_shift", "stop_loops", *shared.STEERING, *shared.SPECULATION,
    "guidance_scale", "negative_prompt",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    group = parser.group("conversation")
    group.option("-sys, --system, --system-prompt TEXT", "what the model is told before all else")
    group.option("-sysf, --system-prompt-file FILE", "the same in a file, in UTF-8")
    group.switch("-st, --single-turn", "leave after the first answer")
    group.option("-p, --prompt TEXT", "a first message")
    group.option(
        "--chat-template, --chat-template-file FILE",
        "Jinja template that writes messages as text (default: the model's)",
        dest="chat_template",
    )
    group.option(
        "--chat-template-kwargs JSON",
        """variables of the template, such as '{"enable_thinking": false}'""",
    )
    length, stop, shift, *steering = shared.pick(TEXT)
    help = "when the context is full, forget the oldest exchanges instead of ending"
    add_declared(group, (length, stop, replace(shift, help=help), *steering))
    group.switch(
        "--no-escape",
        r"take \n, \t and \r in --stop, --reasoning-budget-message and --dry-sequence-breaker literally",
    )
    shared.add_session_options(
        group,
        "go on with the conversation in FILE if there is one, and write it there at the end",
    )
    add_sampling_options(parser)
    shared.add_model_options(parser)


def run(arguments: argparse.Namespace) -> None:
    with shared.session_file(arguments) as file:
        _run(arguments, file)


def _run(arguments: argparse.Namespace, file: SessionFile | None) -> None:
    if arguments.system_prompt_file is not None:
        if arguments.system is not None:
            raise ParameterError("system", "-sys and -sysf are both given: choose one")
        arguments.system = shared.file_text(arguments.system_prompt_file).removesuffix("\n")
    sampling = sampling_arguments(arguments)
    options = shared.generation_options(arguments, TEXT)
    options["chat_template_kwargs"] = variables(arguments.chat_template_kwargs)
    if arguments.chat_template is not None:
        options["chat_template"] = shared.file_text(arguments.chat_template)
    model = shared.load_model(arguments, keep_prompts=True)
    # Report problems with the template, or with the context's memory, immediately.
    model.chat_format(options.get("chat_template"))
    model.own_context()
    with ProgressBar("reading", "tokens") as bar:
        options = {**options, **sampling, "progress": bar}
        conversation = _begun(arguments, model, file, options)
        params = model.sampling_params(**{**sampling, "seed": conversation.seed})
        announce(params, model, arguments.preset)
        branches = ChatBranches(model, conversation, options)
        try:
            converse(branches, arguments.prompt, single=arguments.single_turn)
        finally:
            if file is not None:
                _write(arguments.session, model, file, branches.conversation)


def _begun(
    arguments: argparse.Namespace,
    model: LanguageModel,
    file: SessionFile | None,
    options: dict[str, Any],
) -> Conversation:
    """A new conversation, or the session's."""
    if file is None or not file.exists:
        return Conversation(model, arguments.system, **options)
    session = model.load_session(file)
    made = Conversation.from_json(model, session.extra, source=arguments.session, **options)
    if arguments.system not in (None, made.system):
        raise ParameterError(
            "system",
            f"the conversation in {arguments.session} has its own system message: leave --system out",
        )
    shared.announce_session(arguments.session, session)
    return made


def _write(path: str, model: LanguageModel, file: SessionFile, conversation: Conversation) -> None:
    """Save the conversation with its keys and values, if it has messages."""
    if conversation.answer is None:
        note(f"session: nothing new was said, {path} is as it was")
        return
    extra = conversation.as_json()
    held = model.save_session(file, conversation.answer.generation, extra, new=True)
    note(f"session: keys and values of {held} tokens are in {path}")


def variables(text: str | None) -> dict[str, Any] | None:
    """The template's variables; ParameterError if they are not a JSON object."""
    if text is None:
        return None
    try:
        made = loads(text)
    except ValueError as error:
        raise ParameterError(
            "chat_template_kwargs", f"--chat-template-kwargs: not JSON: {error}"
        ) from None
    if not isinstance(made, dict):
        raise ParameterError("chat_template_kwargs", "--chat-template-kwargs: give a JSON object")
    return made


def converse(branches: ChatBranches, message: str | None, *, single: bool = False) -> None:
    """Answer a first message, if there is one, and all that follow; ``single``: only one message."""
    if message is None:
        message = ask()
    while message is not None:
        try:
            answer = branches.take(message)
            if answer is not None:
                show(answer)
        except ContextFull as error:
            full = f"{error}; /reset starts anew, and --context-shift forgets the oldest exchanges"
            if not sys.stdin.isatty():
                raise ContextFull(full) from None
            complain(full)
        except (AleatorError, OSError) as error:
            complain(str(error))
        if branches.over or single:
            return
        message = ask()


def show(answer: ChatGeneration) -> None:
    """Print an answer as it is generated, and its statistics; reasoning and calls go to standard error."""
    last, thinking = "", False
    with on_interrupt(answer.cancel):
        for delta in answer.deltas():
            if thinking != (delta.kind == "reasoning"):
                thinking = not thinking
                hint("[reasoning] " if thinking else "\n")
            if delta.kind == "content":
                write(delta.text)
                last = delta.text
            elif delta.kind == "reasoning":
                hint(delta.text)
    write("" if last.endswith("\n") else "\n")
    for call in answer.message.tool_calls:
        note(f"[calls {call.name} with {call.arguments}]")
    stats = answer.stats
    ended = {
        "context": ", the context is full",
        "interrupted": ", interrupted",
        "length": ", cut off",
        "loop": ", in a loop",
    }
    note(
        f"[{stats.prompt_tokens} tokens read, {stats.reused_tokens} remembered | "
        f"{stats.sampled_tokens} tokens at "
        f"{stats.decode_tokens_per_second:.1f}/s{ended.get(answer.generation.stop_reason, '')}]"
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
    return shared.decode(line, "standard input").rstrip("\n") if line else None
