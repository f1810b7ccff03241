"""Python functions as JavaScript: the same results in Node, and an error where there would be others."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import javascript
import pytest
import site_page
from code_to_javascript import BUILTINS, OF_LISTS
from parsers_to_javascript import FUNCTIONS, METHODS, ParserProgram
from patterns_to_javascript import written
from to_javascript import Program

from tests.javascript.conftest import PACKAGE


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page without a server, with the package translated anew: all but its native code.

    Unicode's classes, which take 20 seconds, are digits only.
    """
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("site") / "try"
    site_page.write_page(folder)
    (folder / "package.json").write_text('{"type": "module"}')  # Node asks for it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(javascript, "characters", lambda *_: [(ord("0"), ord("9"))])
        javascript.write(folder / "aleator")
    return folder


def node(*given: str | Path) -> str:
    """What Node prints."""
    done = subprocess.run(["node", *given], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise NodeError(done.stderr)
    return done.stdout


class NodeError(Exception):
    pass


def test_modules_of_the_page_and_the_package_link(page: Path) -> None:
    node("--experimental-vm-modules", Path(__file__).parent / "linked.mjs", page)


@dataclasses.dataclass(frozen=True)
class Width:
    n: int
    parts: tuple[int, ...] = (1, 2)

    @property
    def twice(self) -> int:
        return self.n * 2


def lists(n: int) -> Any:
    made: tuple[int, ...] = (n,) * 2 + (3, 4)
    made += (5,)
    parts = [1, 2] * n
    return [*made, *parts]


def numbers(n: int) -> Any:
    return [-n % 5, n % 5, n // 2, n**2, n + True, sum(i for i in range(1, n))]


def of_keys(n: int) -> Any:
    table = {1: "a", n: "b"}
    return [
        max(table),
        min(table),
        max(2, n),
        sum(table),
        any(table),
        all({0: "x"}),
        list(enumerate(table)),
    ]


def pairs(n: int) -> Any:
    return [[a, b] for a, b in zip(range(n), "abcdefg"[:n], strict=True)]


def last(n: int) -> Any:
    each = -1
    for each in range(n):
        if each % 2:
            continue_from = each
    return [each, continue_from]


def texts(n: int) -> Any:
    return [f"{n} of {'a'!r}", "ab" + "cd", "b" in "abc", n in (1, 7)]


def chosen(n: int) -> Any:
    wide = Width(n)
    table = {"a": 1, "b": n}
    return [wide.twice, wide.parts[-1], table["b"], table.get("c", 5), None if n else 1]


WORDS = re.compile(r"([a-z]+)(=)?|(?:\d)\Z", re.DOTALL)


def doubled(found: re.Match[str]) -> str:
    return found[0] if found[2] is None else found[1] + found[1]


def parsed(n: int) -> Any:
    made: list[Any] = []
    at, text = 0, "a=bc d=\U0001f600 7"
    while at < len(text):
        if found := WORDS.match(text, at):
            made.append([*found.groups(), found[0]])
            at = found.end()
        else:
            at += 1
    name, sign, rest = text.partition("=")
    none = "abc".partition("=")
    return [*made, WORDS.sub(doubled, text), name, sign, rest, list(none), bool(WORDS.search("A7"))]


def characters(n: int, few: frozenset[str] = frozenset()) -> Any:
    flags = few.union("ims").difference("m")
    texts = ["".join(sorted(flags)), "-".join(reversed(["a", "b"])), "abc".startswith("b", 1)]
    kinds = ["a\u00e9".isascii(), "7".isdigit(), "".isdigit(), len("\U0001f600".encode())]
    return [*texts, *kinds, sorted(flags.intersection("is")), int("12"), int(n == 7)]


def absent_item(n: int) -> Any:
    return (1, 2)[n]


def absent_key(n: int) -> Any:
    return {"a": 1}[str(n)]


def other_lengths(n: int) -> Any:
    return list(zip(range(n), (1, 2), strict=True))


def greatest_of_none(n: int) -> Any:
    return max([each for each in range(n) if each > n])


def none_and_one(n: int) -> Any:
    nothing: Any = None
    return nothing + n


class Stopped(Exception):
    pass


class Steps:
    first = 2

    def __init__(self, n: int) -> None:
        self.n = n

    def each(self, *more: int) -> Iterator[int]:
        at = self.first
        while at < self.n:
            yield at
            at += 1
        yield from more


class Halves(Steps):
    first = 4

    def each(self, *more: int) -> Iterator[int]:
        for each in super().each(*more):
            yield each // 2


def parsing(n: int) -> Any:
    steps = Halves(n).each(n, 8)
    found = []
    for each in steps:
        found.append(each)
        if each > 2:
            break  # the generator goes on
    rest = list(steps)
    tried: list[float | str] = []
    for text in ("0x1F", "1.5e3"):
        try:
            value = int(text, 0)
        except ValueError:
            tried.append(float(text))
        else:
            tried.append(str(value))
        with suppress(Stopped):
            if text == "1.5e3":
                raise Stopped
            tried.append(text)
    return [found, rest, tried]


WORD = re.compile(r"\s*(?P<word>[\w.-]+)(?:=(['\"])(.*?))?", re.DOTALL)


@dataclasses.dataclass
class Pile:
    n: int
    on: list[int] = dataclasses.field(default_factory=list)


def piled(n: int) -> Any:
    piles = [Pile(n), Pile(2)]
    piles[0].on.append(1)
    return [[each.n, each.on] for each in piles]


def matching(n: int) -> Any:
    text = f" na\u00efve-x='{n}\n"
    found = WORD.match(text)
    if not found or (end := found.end()) < n:
        return None
    return [found["word"], found[2], end, WORD.fullmatch(text) is None, text.strip().rstrip("7\n'")]


def told(n: int) -> Any:
    made = json.loads(f'{{"b": {n}, "1": 1.50, "a": [true, null, "\\u00e9"], "1": 1e16}}')
    made["c"] = str(len(made))
    return [json.dumps(made, ensure_ascii=False), json.dumps(made["a"]), json.dumps(0.00001)]


SPELT = ["00_0", "0_", "1__0", "-0b1_1", "1_0.", ".5", "1_0.2_5e-3", "1.e1", "e1.", ".", "-1.5"]


def spelt_numbers(n: int) -> Any:
    told = []
    for text in [*SPELT, "0" * 400_000 + "x", "1" * 400_000 + "x."]:
        try:
            number = float(text) if "." in text else int(text, 0)
        except ValueError:
            told.append("none")
        else:
            told.append(json.dumps(number))
    return told


def in_node(page: Path, function: Any, n: int, program: Program | None = None) -> Any:
    file = "python.js" if program is None else "python-text.js"
    program = program or Program({}, [])
    name = program.name_of(function)
    code = [f"import * as py from {json.dumps((page / 'aleator' / file).as_uri())}", *program.code]
    code.append(f"console.log(JSON.stringify({name}({n})))")
    return json.loads(node("--input-type=module", "-e", "\n".join(code)))


@pytest.mark.parametrize(
    "function", [lists, numbers, of_keys, pairs, last, texts, chosen, parsed, characters]
)
def test_results_are_those_of_python(page: Path, function: Callable[[int], Any]) -> None:
    assert in_node(page, function, 7) == json.loads(json.dumps(function(7)))


@pytest.mark.parametrize("function", [parsing, piled, matching, told, spelt_numbers])
def test_results_of_parsers_are_those_of_python(page: Path, function: Callable[[int], Any]) -> None:
    found = in_node(page, function, 7, ParserProgram({}, {}, ()))
    assert found == json.loads(json.dumps(function(7)))


@pytest.mark.parametrize(
    "function", [absent_item, absent_key, other_lengths, greatest_of_none, none_and_one]
)
def test_what_raises_in_python_throws(page: Path, function: Callable[[int], Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        function(7)
    with pytest.raises(NodeError, match="Error: "):
        in_node(page, function, 7)


class Other:
    def __init__(self, n: int) -> None:
        self.n = n

    @staticmethod
    def of(n: int) -> Any:
        return n


@dataclasses.dataclass(frozen=True)
class Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError


def helped(n: int, most: int = 3) -> int:
    return min(n, most)


def steps(n: int) -> Any:
    return list(range(0, n, 2))


def beginning(n: int) -> Any:
    return sum(range(n), 5)


def least(n: int) -> Any:
    return max((each for each in range(n) if each > n), default=7)


def loose(n: int) -> Any:
    return list(zip(range(n), (1, 2), strict=False))


def rounded(n: int) -> Any:
    return round(n / 3)


def replaced(n: int) -> Any:
    return "aa".replace("a", str(n))


def named(n: int) -> Any:
    return {"a": n}.get("b", **{})


def spread(n: int) -> Any:
    given = {"most": n}
    return helped(n, **given)


def inner(n: int) -> Any:
    def add(*all_: int) -> int:
        return sum(all_)

    return add(n)


def kind(n: int) -> Any:
    return Other.of is int and n


def otherwise(n: int) -> Any:
    while n > 3:
        n -= 1
    else:
        n += 1
    return n


def static_member(n: int) -> Any:
    return Other(n).n


def after_init(n: int) -> Any:
    return Checked(n).n


WRONG = [steps, beginning, least, loose, rounded, replaced, named, spread, inner, kind, otherwise]


@pytest.mark.parametrize("function", [*WRONG, static_member, after_init])
def test_what_would_be_another_program_is_refused(function: Callable[[int], Any]) -> None:
    function(7)
    with pytest.raises(NotImplementedError):
        Program({}, []).name_of(function)


def waiting(n: int) -> Any:
    found = n or (yield n)
    return found


def test_an_operand_that_waits_is_refused_and_replies_are_read_without() -> None:
    with pytest.raises(NotImplementedError, match="BoolOp"):
        ParserProgram({}, {}, ()).name_of(waiting)
    assert any("class Reply " in line for line in javascript.chats())


class First:
    def read(self, name: str, low: int) -> int:
        return low


class Second:
    def read(self, low: int, name: str) -> int:
        return low


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("a.b", 0), ("a", re.IGNORECASE), ("a", re.MULTILINE), ("a", re.ASCII), ("(?i:a)b", 0), ("(?s:.)", 0),
        (r"(a)\1", 0), ("^a", 0), ("a++", 0), ("(?>a)", 0), ("(?<=a)b", 0),
    ],
)  # fmt: skip
def test_expressions_that_would_find_other_texts_are_refused(text: str, flags: int) -> None:
    with pytest.raises(NotImplementedError):
        written(re.compile(text, flags))


def test_javascript_has_what_the_translator_writes() -> None:
    text = "".join((PACKAGE / file).read_text() for file in ("python.js", "python-text.js"))
    exported = re.findall(r"export (?:const|function) (\w+)|export \{ (\w+) \}", text)
    names = {name or other for name, other in exported}
    assert {*FUNCTIONS.values(), *METHODS} <= names
    assert {
        *BUILTINS, *OF_LISTS.values(), "item", "iterated", "equal", "contains", "is_a", "truth",
    } <= names  # fmt: skip


def test_methods_of_one_name_have_the_same_arguments() -> None:
    Program({}, [First, First])
    with pytest.raises(NotImplementedError, match="two methods read"):
        Program({}, [First, Second])
