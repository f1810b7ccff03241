"""``aleator completion``: print the script that a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module

from aleator.cli import COMMANDS
from aleator.cli.arguments import Parser, did_you_mean
from aleator.cli.terminal import write
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass

EXAMPLES = """\
examples:
  aleator completion bash > ~/.local/share/bash-completion/completions/aleator
  aleator completion zsh > ~/.zfunc/_aleator        (with ~/.zfunc in fpath)
  aleator completion fish > ~/.config/fish/completions/aleator.fish
"""
PLACES = ("PATH", "FILE")
"""Placeholders of values that are files."""


def add_arguments(parser: Parser) -> None:
    parser.positional("shell", "bash, zsh or fish")


def run(arguments: argparse.Namespace) -> None:
    if arguments.shell not in SHELLS:
        shell = arguments.shell or ""
        raise ParameterError(
            f"shell={shell!r}: give {' or '.join(SHELLS)}{did_you_mean(shell, SHELLS)}"
        )
    write(SHELLS[arguments.shell](commands()))


@dataclass(frozen=True)
class Flag:
    """An option of a command; ``value`` is the placeholder of its value, "" if it has none."""

    names: tuple[str, ...]
    help: str
    value: str
    choices: tuple[str, ...]


def commands() -> dict[str, list[Flag]]:
    found = {}
    for command, summary in COMMANDS.items():
        module = import_module(f"aleator.cli.{command.replace('-', '_')}")
        parser = Parser(command, summary, "")
        module.add_arguments(parser)
        actions = list(dict.fromkeys(parser.options.values()))
        found[command] = [_flag(each, parser.offered) for each in actions]
    return found


def _flag(action: argparse.Action, offered: Mapping[str, tuple[str, ...]]) -> Flag:
    help = " ".join((action.help or "").replace("%%", "%").split())
    value = "" if action.nargs == 0 else str(action.metavar or "VALUE")
    names = tuple(action.option_strings)
    return Flag(names, help, value, next((offered[name] for name in names if name in offered), ()))


def bash(known: dict[str, list[Flag]]) -> str:
    cases = []
    for command, flags in known.items():
        values = [
            f"        {'|'.join(each.names)}) {_bash_values(each)}; return;;"
            for each in flags
            if each.value
        ]
        names = " ".join(name for each in flags for name in each.names)
        words = " ".join(SHELLS) if command == "completion" else ""
        cases += [
            f"    {command})",
            '      case "$before" in',
            *values,
            "      esac",
            f'      words="{names}"; plain="{words}";;',
        ]
    return "\n".join(
        [
            "# Completion of aleator for bash, made by: aleator completion bash",
            "_aleator_files() {",
            "  local IFS=$'\\n'  # names may have spaces",
            '  COMPREPLY=($(compgen -f -- "$1"))',
            "}",
            "_aleator() {",
            '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" plain=""',
            '  if [ "$COMP_CWORD" = 1 ]; then',
            f'    COMPREPLY=($(compgen -W "{" ".join(known)}" -- "$word")); return',
            "  fi",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  case "$word" in',
            '    -*) COMPREPLY=($(compgen -W "$words" -- "$word"));;',
            '    *) if [ -n "$plain" ]; then COMPREPLY=($(compgen -W "$plain" -- "$word"))',
            '       else _aleator_files "$word"; fi;;',
            "  esac",
            "}",
            "complete -o filenames -F _aleator aleator",
            "",
        ]
    )


def _bash_values(flag: Flag) -> str:
    if flag.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$word"))'
    return '_aleator_files "$word"' if flag.value in PLACES else "COMPREPLY=()"


def zsh(known: dict[str, list[Flag]]) -> str:
    listed = [f"    {_quoted(f'{name}:{COMMANDS[name]}')}" for name in known]
    cases = []
    for command, flags in known.items():
        specs = [_zsh_spec(name, each) for each in flags for name in each.names]
        cases += [f"    {command})", "      _arguments \\"]
        cases += [f"        {spec} \\" for spec in specs]
        words = f"shell:({' '.join(SHELLS)})" if command == "completion" else "file:_files"
        cases += [f"        '*:{words}';;"]
    return "\n".join(
        [
            "#compdef aleator",
            "# Completion of aleator for zsh, made by: aleator completion zsh",
            "_aleator() {",
            "  if (( CURRENT == 2 )); then",
            "    local -a names=(",
            *listed,
            "    )",
            "    _describe command names",
            "    return",
            "  fi",
            '  local command="${words[2]}"',
            "  shift words; (( CURRENT-- ))",
            '  case "$command" in',
            *cases,
            "  esac",
            "}",
            'if [[ "${funcstack[1]}" == _aleator ]]; then  # autoloaded, and called: the file is the body',
            '  _aleator "$@"',
            "else",
            "  compdef _aleator aleator",
            "fi",
            "",
        ]
    )


def _zsh_spec(name: str, flag: Flag) -> str:
    help = flag.help.replace("[", "(").replace("]", ")").replace(":", " ")
    spec = f"*{name}[{help}]"
    if flag.choices:
        spec += f":{flag.value}:({' '.join(flag.choices)})"
    elif flag.value:
        spec += f":{flag.value.replace(':', ' ')}:" + "_files" * (flag.value in PLACES)
    return _quoted(spec)


def fish(known: dict[str, list[Flag]]) -> str:
    lines = ["# Completion of aleator for fish, made by: aleator completion fish"]
    for command in known:
        lines.append(
            f"complete -c aleator -n __fish_use_subcommand -f -a {command} -d {_fish(COMMANDS[command])}"
        )
    for command, flags in known.items():
        for each in flags:
            words = [f"complete -c aleator -n '__fish_seen_subcommand_from {command}'"]
            for name in each.names:
                kind = "l" if name.startswith("--") else "s" if len(name) == 2 else "o"
                words.append(f"-{kind} {name.lstrip('-')}")
            if each.choices:
                words.append(f"-x -a {_fish(' '.join(each.choices))}")
            elif each.value:
                words.append("-r" if each.value in PLACES else "-x")
            words.append(f"-d {_fish(each.help)}")
            lines.append(" ".join(words))
    shells = _fish(" ".join(SHELLS))
    lines.append(f"complete -c aleator -n '__fish_seen_subcommand_from completion' -f -a {shells}")
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
