"""Commands in ``aleator chat``, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aleator.chat.conversation import Conversation
from aleator.chat.generation import ChatGeneration
from aleator.cli.arguments import did_you_mean
from aleator.cli.declared import unescape
from aleator.cli.terminal import note
from aleator.core.errors import ParameterError
from aleator.core.options import declarations
from aleator.core.parameter import Parameter
from aleator.generate.options import GenerateOptions
from aleator.language_model import LanguageModel
from aleator.samplers.params import ALL

HELP = """\
/regen            answer again
/edit TEXT        say something else in place of what was said last, and go on from there
/edit N TEXT      the same of your message N, counted from 1; what came after it is forgotten
/branch           go on in a branch of its own from here
/branch N         go to branch N
/system           show the system message
/system TEXT      change it
/params           show what the answers are drawn with
/params a=1 b=2   change it; a= takes it back
/save FILE        write this branch to a JSON file
/load FILE        go on with the conversation in a JSON file
/reset            forget everything but the system message
/help             this
/exit             leave; so does Ctrl-D.  Ctrl-C ends an answer"""


class ChatBranches:
    """The branches of a chat, and the commands on them; ``options`` are those of loaded conversations."""

    def __init__(
        self, model: LanguageModel, conversation: Conversation, options: dict[str, Any]
    ) -> None:
        self._model, self._options = model, options
        self._branches = [conversation]
        self.conversation = conversation
        self.over = False
        self._commands: dict[str, Callable[[str], ChatGeneration | None]] = {
            "/regen": lambda rest: self.conversation.regenerate(),
            "/edit": self._edit,
            "/branch": self._branch,
            "/system": self._system,
            "/params": self._params,
            "/save": self._save,
            "/load": self._load,
            "/reset": self._reset,
            "/help": lambda rest: note(HELP),
            "/exit": self._exit,
            "/quit": self._exit,
        }

    def take(self, line: str) -> ChatGeneration | None:
        """Run a line; return an answer to show, or None.  After ParameterError nothing has changed."""
        command, _, rest = line.strip().partition(" ")
        if not command:
            return None
        if not command.startswith("/"):
            return self.conversation.say(line)
        if command not in self._commands:
            known = did_you_mean(command, self._commands)
            raise ParameterError("command", f"{command} is not a command{known}; /help shows all")
        return self._commands[command](rest.strip())

    def _edit(self, rest: str) -> ChatGeneration | None:
        number, _, text = rest.partition(" ")
        own = [i for i, m in enumerate(self.conversation.messages) if m["role"] == "user"]
        if not number.isdigit():
            number, text = str(len(own)), rest
        if not text.strip() or not 1 <= int(number) <= len(own):
            raise ParameterError(
                "edit", f"/edit {rest:.40}: give a text; there are {len(own)} messages of yours"
            )
        return self.conversation.edit(own[int(number) - 1], text)

    def _branch(self, rest: str) -> None:
        if not rest:
            before = self._branches.index(self.conversation) + 1
            self._branches.append(self.conversation.branch())
            self.conversation = self._branches[-1]
            note(f"branch {len(self._branches)}; /branch {before} goes back")
            return
        if not rest.isdigit() or not 1 <= int(rest) <= len(self._branches):
            raise ParameterError("branch", f"/branch {rest:.40}: give 1 to {len(self._branches)}")
        self.conversation = self._branches[int(rest) - 1]
        last = self.conversation.messages[-1:]
        said = f", after {last[0]['role']}: {last[0]['content']:.60}" if last else ""
        note(f"branch {rest}{said}")

    def _system(self, rest: str) -> None:
        if rest:
            self.conversation.system = rest
        note(f"system: {self.conversation.system or '(none)'}")

    def _params(self, rest: str) -> None:
        known: dict[str, Parameter] = {**declarations(GenerateOptions), **ALL}
        changes: dict[str, Any] = {}
        for word in rest.split():
            name, equals, text = word.partition("=")
            if not equals or name not in known:
                near = did_you_mean(name, known)
                raise ParameterError(name, f"{word} is not NAME=VALUE of a parameter{near}")
            several = known[name].type is tuple and name != "samplers"
            value = [unescape(text)] if several else text
            changes[name] = known[name].parse(value) if text else None
        self.conversation.set_options(**changes)
        options = self.conversation.options
        shown = [
            f"{name}={value}"
            for name, value in options.items()
            if name in known and value != known[name].neutral
        ]
        note(f"parameters: {' '.join([*shown, f'seed={self.conversation.seed}'])}")

    def _save(self, rest: str) -> None:
        if not rest:
            raise ParameterError("save", "/save: give a file")
        self.conversation.save(rest)
        note(f"saved: {rest}")

    def _load(self, rest: str) -> None:
        if not rest:
            raise ParameterError("load", "/load: give a file")
        loaded = Conversation.load(self._model, rest, **self._options)
        self._branches.append(loaded)
        self.conversation = loaded
        note(f"branch {len(self._branches)}: {len(loaded.messages)} messages from {rest}")

    def _reset(self, rest: str) -> None:
        self.conversation.reset()
        note("the conversation is forgotten")

    def _exit(self, rest: str) -> None:
        self.over = True
