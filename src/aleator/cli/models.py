"""``aleator models``: list the models on this machine; fetch and remove those of the hub."""

from __future__ import annotations

import argparse

from aleator.cli.arguments import Parser
from aleator.cli.terminal import note, write, write_json
from aleator.core.errors import ParameterError
from aleator.models.hub.bundled import bundled_model
from aleator.models.hub.local import LocalModel, cached, installed, remove
from aleator.models.hub.located import located
from aleator.models.hub.names import HubName

EXAMPLES = """\
Lists the bundled model, those of installed packages llm-NAME, and those that were
fetched from the hub: name (what -m takes), size, place.

examples:
  aleator models
  aleator models --fetch hf:ORG/NAME:Q4_K_M
  aleator models --remove hf:ORG/NAME:Q4_K_M
  aleator models --remove hf:ORG/NAME              (all that was fetched of it)
"""


def add_arguments(parser: Parser) -> None:
    group = parser.group("models")
    group.option("--fetch NAME", "fetch a model of the hub, and write where it is")
    group.option("--remove NAME", "remove a fetched model from the hub's cache")
    group.switch("--json", "write JSON: a list of {name, size, path}")
    group.option("-hft, --hf-token TOKEN", "token for the hub (default: HF_TOKEN)")


def run(arguments: argparse.Namespace) -> None:
    if arguments.fetch is not None and arguments.remove is not None:
        raise ParameterError("remove", "--fetch and --remove are both given: choose one")
    if arguments.fetch is not None:
        name = str(HubName.read(arguments.fetch))
        write(f"{located(name, token=arguments.hf_token)}\n")
    elif arguments.remove is not None:
        for model in remove(arguments.remove):
            write(f"removed {model.name}, {mebibytes(model.size)}\n")
    else:
        show(here(), arguments.json)


def here() -> list[LocalModel]:
    """The named models on this machine."""
    found = list(installed())
    try:
        path = bundled_model()
        found.insert(0, LocalModel("(bundled)", path.stat().st_size, path))
    except ImportError as error:
        note(str(error))
    try:
        found += cached()
    except ImportError as error:
        note(f"models of the hub are not looked for: {error}")
    return found


def show(models: list[LocalModel], as_json: bool) -> None:
    if as_json:
        write_json(
            [{"name": each.name, "size": each.size, "path": str(each.path)} for each in models]
        )
        return
    width = max((len(each.name) for each in models), default=0)
    for each in models:
        write(f"{each.name:<{width}} {mebibytes(each.size):>12} {each.path}\n")


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
