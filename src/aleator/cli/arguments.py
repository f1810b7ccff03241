"""Options: parsed the way llama.cpp's users expect, with messages that say what to write instead.

Uses argparse, because cyclopts cannot spell llama.cpp's ``-ub``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from aleator.cli.llama_flags import Foreign, foreign
from aleator.core.errors import ParameterError
from aleator.core.parameter import closest

WIDTH = 110
"""Most columns of --help."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean ...?"`` with the closest known word, or ""."""
    close = closest(word, known, 2)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class _Checker(argparse.HelpFormatter):
    """argparse makes one for every option, to check that its help can be formatted."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)  # without a width, argparse imports shutil


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        from shutil import get_terminal_size  # slow to import; for --help only

        super().__init__(prog, max_help_position=28, width=min(get_terminal_size().columns, WIDTH))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """All flags, then the value: as from Python 3.13 on; before, it stands after each flag."""
        if action.nargs == 0 or not action.option_strings:
            return super()._format_action_invocation(action)
        value = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {value}"


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ParameterError("", f"{message.removeprefix('argument ')} (see {self.prog} --help)")

    def format_help(self) -> str:
        self.formatter_class = _Formatter
        return super().format_help()


class Parser:
    """The options of one command.

    An option's value is always the next word, whatever it looks like (``--temp -1``, ``-p "- a list"``), or
    follows ``=``; a number may follow an option of one letter directly (``-n5``).  Options cannot be
    abbreviated.

    ``alone``: with ``--help`` and the options of every command; otherwise they are the value of another option.
    """

    def __init__(
        self, command: str, summary: str = "", examples: str = "", *, alone: bool = True
    ) -> None:
        self._parser = _ArgumentParser(
            prog=f"aleator {command}",
            usage=f"aleator {command} [options]",
            description=summary[:1].upper() + summary[1:] + ".",
            epilog=examples,
            formatter_class=_Checker,
            allow_abbrev=False,
            add_help=False,
        )
        self._command = command
        self._positionals = 0
        self.options: dict[str, argparse.Action] = {}  # by their flags
        self.offered: dict[str, tuple[str, ...]] = {}  # words for an option's value, by its flags
        if not alone:
            return
        self.options["-h"] = self.options["--help"] = self._parser.add_argument(
            "-h", "--help", action="help", help="show this and leave"
        )
        messages = self.group("messages")
        messages.switch("-v, --verbose", "also what is logged while it works")
        messages.switch("--log-disable", "nothing on standard error but errors")

    def group(self, title: str) -> Group:
        """A titled group of options in --help."""
        return Group(self, self._parser.add_argument_group(title))

    def positional(self, name: str, help: str) -> None:
        """Add an optional word that is not an option."""
        self._parser.add_argument(name, nargs="?", metavar=name.upper(), help=help)
        self._parser.usage = f"{self._parser.usage} [{name.upper()}]"
        self._positionals += 1

    def parse(self, words: Sequence[str]) -> argparse.Namespace | None:
        """Parse the options' values; None after --help.  ParameterError for unknown options or wrong values."""
        try:
            return self._parser.parse_args(self._joined(list(words)))
        except SystemExit:  # as argparse ends --help
            return None

    def _pass_over(self, name: str, about: Foreign, value: str | None, words: list[str]) -> None:
        """Remove a flag of llama.cpp that asks for what is the case anyway, with its value, from ``words``.

        ParameterError says what to use if it asks for something else.
        """
        if about.values and value is None and words:
            value = words[0]
            if about.accepted(self._command, value):
                words.pop(0)
        if not about.values and value is not None:
            raise ParameterError(name, f"{name}={value}: {name} is llama.cpp's, and takes no value")
        if not about.accepted(self._command, value):
            raise ParameterError(name, f"{name} is llama.cpp's, and no option here: {about.use}")

    def _joined(self, words: list[str]) -> list[str]:
        """Join each option and its value with "="; leave other words unchanged."""
        joined, rest = [], []
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            dashed = name.replace("_", "-")
            if name.startswith("--") and dashed in self.options:
                name, word = dashed, dashed + equals + value
            if word == "--":
                rest += words
                break
            if word in self.options:
                if self.options[word].nargs == 0:
                    joined.append(word)
                    continue
                if not words:
                    raise ParameterError(word, f"{word} needs a value")
                joined.append(f"{word}={words.pop(0)}")
            elif equals and name in self.options:
                joined.append(word)
            elif word[:2] in self.options and word[2:3].isdigit():
                joined.append(f"{word[:2]}={word[2:]}")
            elif (about := foreign(name)) is not None:
                self._pass_over(name, about, value if equals else None, words)
            elif word.startswith("-") and word != "-":
                raise ParameterError(
                    name,
                    f"unknown option {name}{did_you_mean(name, self.options)} "
                    f"(see {self._parser.prog} --help)",
                )
            else:
                rest.append(word)
        if len(rest) > self._positionals:
            extra = rest[self._positionals]
            raise ParameterError("", f"unexpected {extra!r} (see {self._parser.prog} --help)")
        return [*joined, "--", *rest] if rest else joined


class Group:
    """Options under one title."""

    def __init__(self, parser: Parser, group: Any) -> None:
        self.parser, self._group = parser, group

    def option(
        self, spelled: str, help: str = "", offered: Sequence[str] = (), **settings: Any
    ) -> None:
        """Add an option, spelled as --help shows it: ``"-p, --prompt TEXT"``.

        ``offered`` are the words that a shell offers for its value; ``settings`` are those of
        ``argparse.add_argument``.
        """
        *flags, last = spelled.split(", ")
        last, _, value = last.partition(" ")
        flags.append(last)
        if value:
            settings["metavar"] = value
        action = self._group.add_argument(*flags, help=help, **settings)
        self.parser.options.update(dict.fromkeys(flags, action))
        words = tuple(offered or settings.get("choices", ()))
        self.parser.offered.update(dict.fromkeys(flags, words))

    def switch(self, spelled: str, help: str) -> None:
        """Add an option without a value."""
        self.option(spelled, help, action="store_true")

    def number(
        self,
        spelled: str,
        help: str,
        low: int = 1,
        high: int | None = None,
        default: int | None = None,
        dest: str | None = None,
    ) -> None:
        """Add an option that is an integer within a range; its help ends with the default."""
        if default is not None:
            help += f" (default: {default})"
        self.option(spelled, help, type=integer(low, high), default=default, dest=dest)


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Make a converter for integers within a range."""

    def convert(text: str) -> int:
        top = f" to {maximum}" if maximum is not None else " or more"
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"{value} is out of range: {minimum}{top}")
        return value

    return convert
