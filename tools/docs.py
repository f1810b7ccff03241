"""Write or check the parts of the documentation that are made from the code.

    python tools/docs.py            writes them
    python tools/docs.py --check    fails if one is stale, or if a page cites what is not there (cited.py)
    python tools/docs.py NAME       prints one

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.  One that the command line or a file of
the source tells as well is on the site alone: tools/make_site.py writes it in place of
``<!-- on the site: NAME -->``.  With them goes the record of every declaration that tests compare with,
tests/golden/declared*.txt.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import declared
import declared_models
import growth
from cited import broken
from site_page import live_picture, try_it

from aleator import samplers as S
from aleator.core.options import Option, declarations, in_words
from aleator.core.parameter import Parameter
from aleator.engine.options import EngineOptions, SubmitOptions
from aleator.generate.beam_options import BeamOptions
from aleator.generate.options import (
    LOADED,
    ContextOptions,
    GenerateOptions,
    ModelOptions,
)
from aleator.models.architecture import Architecture
from aleator.models.index import ARCHITECTURES, ENCODERS
from aleator.server.accepted import ACCEPTED, Accepted
from aleator.server.dialects.anthropic_input import MESSAGES
from aleator.server.dialects.ollama_input import GENERATE, MACHINE
from aleator.server.dialects.responses_input import RESPONSES
from aleator.server.fields import SPELLINGS
from aleator.server.options import ServerOptions

ROOT = Path(__file__).parent.parent
FAR = 1e6
"""Bounds from here on are only technical, and are not shown."""
FILES = (
    "docs/growth.md",
    "docs/models.md",
    "docs/samplers.md",
    "docs/server.md",
)
ENGINES = ROOT / "tools" / "from_other_engines.toml"
LLAMA_CPP = ROOT / "tools" / "llama_cpp_architectures.toml"
BOTH = "llama.cpp and transformers"


def architectures() -> str:
    """Whose answers the tests have, and the architectures: those whose layers keep states apart."""
    checked = {name: _checked(name, each) for name, each in ARCHITECTURES.items()}
    usual = (BOTH, "llama.cpp")  # the latter where transformers has no class
    others = "".join(
        f", {name} against {each}" for name, each in checked.items() if each not in usual
    )
    parts = [
        f"The tests compare logits with those of {BOTH}{others}; where transformers has no class, llama.cpp's. "
        "In brackets: Hugging Face's `model_type`, where that is not the name."
    ]
    for states, what in (
        (False, "Any rewind; cached prefixes from any token"),
        (True, "Rewinds by `n_rollback` tokens and to checkpoints; prefixes from every 64th token"),
    ):
        names = [
            name + _types(name, each)
            for name, each in ARCHITECTURES.items()
            if (each.recurrent is not None) is states
        ]
        parts.append(f"- {what}: {', '.join(names)}.")
    for shift, what in (
        ("refused", "Context shifts are refused"),
        ("positions only", "Context shifts move positions only, as keys are not rotated"),
    ):
        names = [name for name, each in ARCHITECTURES.items() if _shift(each) == shift]
        parts.append(f"- {what}: {', '.join(names)}.")
    return "\n".join([parts[0], "", *map(_wrapped, parts[1:])])


def llama_cpp_architectures() -> str:
    """llama.cpp's architectures: how many run, and why the others do not."""
    ours = (*ARCHITECTURES, *ENCODERS)
    listed = tomllib.loads(LLAMA_CPP.read_text("utf-8"))
    missing: dict[str, list[str]] = listed["missing"]
    others = [name for names in missing.values() for name in names]
    if twice := sorted({*ours} & {*others}):
        raise SystemExit(f"{LLAMA_CPP}: {', '.join(twice)} run; take them off the list")
    return "\n".join(
        [
            f"Of llama.cpp's {len(ours) + len(others)} architectures ({listed['version']}) {len(ours)} run. "
            "The others:",
            "",
            "| Why not | Architectures |",
            "|---|---|",
            *(f"| {reason} | {', '.join(names)} |" for reason, names in missing.items()),
        ]
    )


def _wrapped(item: str) -> str:
    """An item of a list on lines of 160 characters."""
    return textwrap.fill(item, 160, subsequent_indent="  ", break_on_hyphens=False)


def _types(name: str, architecture: Architecture) -> str:
    files = architecture.hugging_face
    if files is None:
        return " (GGUF only)"
    types = "" if files.model_types == (name,) else ", ".join(f"`{t}`" for t in files.model_types)
    return f" ({types})" if types else ""


def _shift(architecture: Architecture) -> str:
    if not architecture.shifts:
        return "refused"
    unrotated = architecture.recurrent is not None and architecture.rope_style == "none"
    return "positions only" if unrotated else "yes"


def _checked(name: str, architecture: Architecture) -> str:
    """Whose answers the tests have of an architecture."""
    data = ROOT / "tests" / "data"
    folders = ("logits", "golden_dense", "golden_hybrid")
    golden = [path for folder in folders for path in data.glob(f"{folder}/{name}.npz")]
    files = architecture.hugging_face is not None
    return " and ".join(["llama.cpp"] * bool(golden) + ["transformers"] * files)


def default(p: Parameter) -> str:
    """The neutral value as code."""
    return f"`{p.neutral!r}`"


def domain(p: Parameter) -> str:
    """The range or the choices."""
    if p.choices:
        return ", ".join(f"`{c}`" for c in p.choices)
    return bounds(p) if p.type in (int, float) else ""


def bounds(p: Parameter) -> str:
    """The range of a number as a reader expects it, such as ``>= 0``, without merely technical bounds."""
    low = p.low if p.low is not None and p.low > -FAR else None
    high = p.high if p.high is not None and p.high < FAR else None
    positive = low is not None and 0 < low <= 1 / FAR  # a tiny bound means "above 0"
    opens = p.open_low or positive
    shown = "0" if positive or low is None else p.as_text(low)
    beyond = "" if p.beyond is None else f" or {p.as_text(p.beyond)}"
    if low is None:
        return "any" if high is None else f"<= {p.as_text(high)}"
    if high is None:
        return f"{'>' if opens else '>='} {shown}{beyond}"
    return f"{'(' if opens else '['}{shown}, {p.as_text(high)}]{beyond}"


def order() -> str:
    """All samplers in their usual order."""
    return ", ".join(f"`{cls.__name__}`" for cls in S.SAMPLERS)


def samplers() -> str:
    """One line per sampler."""
    lines = ["| sampler | names in an order, letter | what it does |", "|---|---|---|"]
    for cls in S.SAMPLERS:
        names = ", ".join(f"`{n}`" for n in (cls.name, *cls.aliases, cls.letter) if n)
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| [`{cls.__name__}`](sampler-{cls.name}.md) | {names} | {summary} |")
    return "\n".join(lines)


def parameters() -> str:
    """One line per parameter."""
    lines = ["| parameter | flags | off | range | what it does |", "|---|---|---|---|---|"]
    for p in S.PARAMETERS.values():
        flags = ", ".join(f"`{f}`" for f in p.flags)
        names = ", ".join(f"`{n}`" for n in (p.name, *p.aliases))
        lines.append(f"| {names} | {flags} | {default(p)} | {domain(p)} | {p.help} |")
    return "\n".join(lines)


def off_elsewhere() -> str:
    """One line per value that is off here, with the numbers that other engines take for it."""
    theirs: dict[str, list[str]] = {}
    for p in S.PARAMETERS.values():
        for off in p.off:
            bound = p.low if off.where == "below" else p.high
            value = f"{off.where} {bound:g}" if isinstance(off.where, str) else f"{off.where}"
            ours = f"`{p.name}` {off.value!r}"
            theirs.setdefault(ours, []).append(f"{value} ({', '.join(off.engines)})")
    return "\n".join(f"- {name}: {', '.join(of)}" for name, of in theirs.items())


def presets() -> str:
    """One line per preset; one with the order of an earlier one says what it adds to its values."""
    lines = []
    earlier: dict[tuple[str, ...], str] = {}
    for name, values in S.PRESETS.items():
        steps = values.get("samplers", ())
        like = earlier.setdefault(tuple(steps), name) if steps else name
        known = S.PRESETS[like] if like != name and S.PRESETS[like].keys() <= values.keys() else {}
        order = f"as `{like}`" if known else ", ".join(steps or ("the order of `llama.cpp`",))
        told = [f"{k} {v}" for k, v in values.items() if known.get(k) != v and k != "samplers"]
        lines.append(f"- `{name}`: {'; '.join([order, *([', '.join(told)] if told else [])])}")
    return "\n".join(lines)


def engines() -> str:
    """Each engine's parameters, with ours and what differs; then those without a counterpart."""
    told = tomllib.loads(ENGINES.read_text())
    lines: list[str] = []
    for engine in told["engine"]:
        with_ours: dict[str, list[str]] = {}
        without: dict[str, list[str]] = {}
        for theirs, flag, ours, differences in engine["rows"]:
            named = "" if ours == [theirs] else ", ".join(f"`{name}`" for name in ours)
            told_of = (named, differences.removeprefix("no counterpart"))
            how = "; ".join(part for part in told_of if part)
            told_as = f"`{theirs}` (`{flag}`)" if flag else f"`{theirs}`"
            (with_ours if ours else without).setdefault(how, []).append(told_as)
        lines += [f"## {engine['name']}", "", engine["what"], "", *_reasons(with_ours), ""]
        lines += ["Without a counterpart:", "", *_reasons(without), ""] if without else []
    alone: dict[str, list[str]] = {}
    for name, why in told["only_ours"].items():
        alone.setdefault(why, []).append(f"`{name}`")
    lines += ["## Ours alone", "", *_reasons(alone)]
    return "\n".join(lines)


def _reasons(names: Mapping[str, Iterable[str]]) -> list[str]:
    """A list of names, each line with what is said of them, if anything."""
    return [f"- {', '.join(each)}{what and ': '}{what}" for what, each in names.items()]


def options(parameters: Iterable[Option]) -> str:
    """One line per option."""
    lines = ["| option | flags | default | range | what it does |", "|---|---|---|---|---|"]
    for each in parameters:
        flags = ", ".join(f"`{flag}`" for flag in (*each.flags, *each.off_flags))
        lines.append(
            f"| `{each.name}` | {flags} | {each.default} | {in_words(each)} | {each.help} |"
        )
    return "\n".join(lines)


def accepted(fields: Mapping[str, Accepted] = ACCEPTED) -> str:
    """The fields that are accepted and not used, with their values, by reason."""
    rows: dict[str, list[str]] = {}
    for name, each in fields.items():
        values = ", ".join(f"`{json.dumps(v)}`" for v in each.values or ()) or "none"
        rows.setdefault(each.why, []).append(
            f"`{name}`" if each.values is None else f"`{name}` ({values})"
        )
    return "\n".join(_reasons(rows))


def spellings() -> str:
    """Our names, each with those of other servers."""
    rows: dict[str, list[str]] = {}
    for theirs, ours in SPELLINGS.items():
        rows.setdefault(ours, []).append(f"`{theirs}`")
    return "\n".join(f"- `{ours}`: {', '.join(theirs)}" for ours, theirs in rows.items())


def after_first_line(package: str) -> str:
    """A package's docstring without its first line."""
    told = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    return told.partition("\n\n")[2].replace("``", "`")


PARTS: dict[str, Callable[[], str]] = {
    "architectures": architectures,
    "llama_cpp_architectures": llama_cpp_architectures,
    "order": order,
    "samplers": samplers,
    "parameters": parameters,
    "off_elsewhere": off_elsewhere,
    "presets": presets,
    "engines": engines,
    "model_options": lambda: options((*declarations(ModelOptions).values(), *LOADED)),
    "context_options": lambda: options(
        each for each in declarations(ContextOptions).values() if each not in LOADED
    ),
    "engine_options": lambda: options(declarations(EngineOptions).values()),
    "submit_options": lambda: options(declarations(SubmitOptions).values()),
    "server_options": lambda: options(declarations(ServerOptions).values()),
    "accepted_fields": accepted,
    "accepted_responses": lambda: accepted(RESPONSES),
    "accepted_messages": lambda: accepted(MESSAGES),
    "accepted_ollama": lambda: accepted(GENERATE),
    "accepted_ollama_options": lambda: accepted(MACHINE),
    "spellings": spellings,
    "generate_options": lambda: options(declarations(GenerateOptions).values()),
    "beam_options": lambda: options(declarations(BeamOptions).values()),
    "playground": lambda: after_first_line("src/aleator/server/playground"),
    "growth": growth.summary,
    "layers": lambda: after_first_line("tools/decoder_numerics"),
    "data_path": lambda: after_first_line("src/aleator/device/backends/triton"),
    "live": live_picture,
    "try_it": try_it,
}


def on_the_site(text: str) -> str:
    """A page's text with the parts that only the site has."""
    return re.sub(r"<!-- on the site: (\w+) -->", lambda match: PARTS[match[1]](), text)


def main() -> int:
    """Rewrite or compare every file, or print a part."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("part", nargs="?", choices=PARTS, metavar="NAME", help=", ".join(PARTS))
    asked.add_argument("--check", action="store_true")
    args = asked.parse_args()
    if args.part:
        print(PARTS[args.part]())
        return 0
    stale = []
    for name in FILES:
        path = ROOT / name
        text = path.read_text()

        def fill(match: re.Match[str]) -> str:
            return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"

        made = re.sub(r"(<!-- generated: (\w+) -->).*?(<!-- end -->)", fill, text, flags=re.DOTALL)
        if made != text:
            stale.append(name)
            if not args.check:
                path.write_text(made)
    for record in (declared, declared_models):
        if not record.FILE.exists() or record.FILE.read_text() != record.text():
            stale.append(record.FILE.relative_to(ROOT).as_posix())
            if not args.check:
                record.FILE.write_text(record.text())
    if not args.check:
        return 0
    wrong = [f"stale: {name}: run 'make docs'" for name in stale] + broken(ROOT)
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
