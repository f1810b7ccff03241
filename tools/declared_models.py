"""What every architecture reads of a model's file, and the types that tensors get when a model is quantised.

No file is needed: fields that must be there get values of a small model.  Then one field at a time gets another
value, and what this changes is told, if anything.  Facts that several architectures share are one line, part of
tests/golden/declared_models.txt, which tools/docs.py writes and checks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from declared_fields import GIVEN, SMALL, TOGETHER

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import index
from aleator.models.conversion import file_types
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import TensorInfo

FILE = Path(__file__).parent.parent / "tests" / "golden" / "declared_models.txt"
ALL = {**index.ARCHITECTURES, **index.ENCODERS}


@dataclasses.dataclass(frozen=True)
class Ask:
    """How a field is asked for."""

    key: str
    how: str
    low: float | None = None
    high: float | None = None
    default: Any = None

    def __str__(self) -> str:
        span = "" if self.low is None else f" in [{self.low!r}, {self.high!r}]"
        return f"{self.key}: {self.how}{span}, {self.default!r} where there is none"

    @property
    def small(self) -> Any:
        """A value for a field that must be there."""
        name = self.key.rpartition(".")[2]
        if name in SMALL or self.low is None:
            return SMALL[name]
        value = min(max(8 if self.how == "integer" else 0.5, self.low), self.high or self.low)
        return value

    def others(self, value: Any) -> Iterator[Any]:
        """Values that the field may have instead of ``value``."""
        if isinstance(value, bool):
            yield not value
        elif self.low is None or self.high is None:
            return
        elif self.how == "integer":
            yield from (
                each for each in (value + 1, self.low) if each <= self.high and each != value
            )
        else:
            yield 2 * value + 1 if 2 * value + 1 <= self.high else (self.low + value) / 2


class Reading:
    """Reads of fields, noted; those that must be there are given small values."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = dict(given)
        self.asked: dict[str, Ask] = {}
        self.found: dict[str, Any] = {}

    def note(self, ask: Ask) -> None:
        """Keep how a field was asked for first, and with a range if it was ever."""
        if ask.key not in self.asked or (self.asked[ask.key].low is None and ask.low is not None):
            self.asked[ask.key] = ask

    def value(self, ask: Ask) -> Any:
        """The value of a field that must be there and is not."""
        self.note(ask)
        return self.given.setdefault(ask.key, ask.small)

    def __call__(self, read: Callable[[], Any]) -> dict[str, Any]:
        """What ``read`` makes of the fields, part by part."""
        integer, number, get, require = Fields.integer, Fields.number, Fields.get, Fields.require

        def bounded(form: Any, how: str) -> Any:
            def asked(fields: Fields, key: str, low: Any, high: Any, default: Any = None) -> Any:
                self.note(ask := Ask(key, how, low, high, default))
                if default is None and key not in fields:
                    fields = Fields(fields.path, {key: self.value(ask)})
                self.found[key] = form(fields, key, low, high, default)
                return self.found[key]

            return asked

        def got(fields: Fields, key: str, default: Any = None, kind: Any = None) -> Any:
            self.note(Ask(key, f"got {kind.__name__}" if kind else "got", default=default))
            return get(fields, key, default, kind)

        def required(fields: Fields, key: str, kind: Any) -> Any:
            self.note(ask := Ask(key, f"required {kind.__name__}"))
            if key not in fields and key.rpartition(".")[2] in SMALL:
                fields = Fields(fields.path, {key: self.value(ask)})
            return require(fields, key, kind)

        with (
            patch.object(Fields, "integer", bounded(integer, "integer")),
            patch.object(Fields, "number", bounded(number, "number")),
            patch.object(Fields, "get", got),
            patch.object(Fields, "require", required),
        ):
            return dict(parts("", read()))


def parts(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration, and of those within it."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from parts(
                f"{place}.{field.name}" if place else field.name, getattr(value, field.name)
            )
    else:
        yield place, value


def gguf(name: str, values: Mapping[str, Any]) -> Any:
    """What is read of a GGUF file with these fields, and with the tensors that they name."""
    named = values.get(f"{name}.tensors", ())
    fields = Fields("m.gguf", {"general.architecture": name, **values})
    file = SimpleNamespace(
        path="m.gguf", fields=fields, array_length=lambda _: None,
        tensors={each: TensorInfo(each, 0, (100, 64), 0) for each in named},
    )  # fmt: skip
    return index.read_gguf(file)[1]  # type: ignore[arg-type]


def json(name: str, values: Mapping[str, Any]) -> Any:
    """What is read of a config.json with these fields, in its text part where there is one."""
    given = {"text_config": dict(values)} if "text_config" in values else values
    return index.read_json(Fields("config.json", {"model_type": name, **given}))[1]


FORMS = {"GGUF": gguf, "config.json": json}


def facts(name: str, form: str) -> Iterator[str]:
    """What a form of files of one architecture has for fields, and what they change."""
    read, prefix = FORMS[form], f"{name}." if form == "GGUF" else ""
    given = GIVEN[form].get(name, {})
    small = Reading({prefix + key: value for key, value in given.items()})
    for _ in range(50):  # a field that was not there may bring others
        before = dict(small.given)
        made = small(partial(read, name, before))
        if small.given == before:
            break
    asked = {key: ask for key, ask in small.asked.items() if not key.startswith("general.")}
    shown = {key: key.removeprefix(prefix) for key in asked}
    yield from (str(dataclasses.replace(ask, key=shown[key])) for key, ask in asked.items())
    yield from (
        f"{place} = {told(value)}" for place, value in made.items() if place != "architecture"
    )
    for key, ask in asked.items():
        for other in ask.others(small.found.get(key, ask.default)):
            changed = Reading(small.given | {key: other})
            if different := _different(made, changed, partial(read, name), prefix):
                yield f"{shown[key]} {other!r}: {different}"
    for more in TOGETHER[form]:
        changed = Reading(small.given | {prefix + key: value for key, value in more.items()})
        if different := _different(made, changed, partial(read, name), prefix):
            yield f"{more}: {different}"
        new = (ask for key, ask in changed.asked.items() if ask != asked.get(key))
        yield from (str(dataclasses.replace(ask, key=ask.key.removeprefix(prefix))) for ask in new)


def _different(
    made: dict[str, Any], changed: Reading, read: Callable[[Mapping[str, Any]], Any], prefix: str
) -> str:
    """What differs from ``made`` where fields are ``changed``, or which is refused, without ``prefix``."""
    try:
        found = changed(partial(read, dict(changed.given)))
    except (FileFormatError, UnsupportedModel) as error:
        return f"{type(error).__name__} {getattr(error, 'field', '').removeprefix(prefix)}"
    different = [
        f"{place} = {told(found.get(place))}"
        for place in {**made, **found}
        if repr(found.get(place)) != repr(made.get(place))
    ]
    return "; ".join(different)


def told(value: Any) -> str:
    """A value; of many in a row, how many are alike."""
    if not isinstance(value, tuple) or len(value) <= 8:
        return repr(value)
    return " ".join(f"{each!r} x {len(list(run))}" for each, run in itertools.groupby(value))


def names(form: str) -> list[str]:
    """The architectures, or the model types, that a form of files may have."""
    if form == "GGUF":
        return list(ALL)
    files = (architecture.hugging_face for architecture in ALL.values())
    return [name for each in files if each for name in each.model_types]


def traits(name: str, form: str) -> Iterator[str]:
    """How an architecture differs from others, and the names of tensors in Hugging Face's files."""
    if form == "GGUF":
        for place, value in vars(ALL[name]).items():
            if place != "name" and isinstance(value, str | int | None):
                yield f"the architecture's {place} = {value!r}"
        return
    for each in ALL.values():
        files = each.hugging_face
        if files is not None and name in files.model_types:
            for tensor, gguf in files.names(1, 2).items():
                if not tensor.endswith(".bias"):
                    yield f"the tensor {tensor} is {gguf}"


def models() -> Iterator[str]:
    """Facts, each with the architectures or model types that it is true of."""
    for form in FORMS:
        shared: dict[str, list[str]] = {}
        for name in names(form):
            for fact in (*traits(name, form), *facts(name, form)):
                shared.setdefault(fact, []).append(name)
        for fact, found in shared.items():
            others = [name for name in names(form) if name not in found]
            most = "all but " + " ".join(others) if others else "all"
            yield f"{form}: {most if len(others) < len(found) else ' '.join(found)}: {fact}"


STEMS = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_down_exps",
    "ffn_norm", "ffn_gate_inp", "ssm_conv1d", "ssm_in",
)  # fmt: skip
QUANTISED = {
    "llama": ("llama", 16, 4, 4, 0, True),
    "llama with groups of four": ("llama", 8, 8, 2, 0, False),
    "llama 70B": ("llama", 80, 64, 8, 0, True),
    "qwen2 72B": ("qwen2", 80, 64, 64, 0, False),
    "gemma3": ("gemma3", 80, 8, 2, 0, False),
    "mixtral": ("llama", 32, 32, 8, 8, True),
    "qwen3moe": ("qwen3moe", 24, 4, 4, 6, True),
}
"""Models to quantise: architecture, layers, heads, heads of keys and values, experts, an output matrix."""


def quantised() -> Iterator[str]:
    """Which types the tensors of models get, in the order of layers."""
    for name, columns in (*((each, 512) for each in QUANTISED), ("llama", 288), ("llama", 48)):
        shared: dict[str, list[str]] = {}
        for kind, weighed in itertools.product(file_types.FILE_TYPES, (False, True)):
            found = _quantised(name, columns, kind, weighed)
            shared.setdefault(found, []).append(f"{kind}, weighed" if weighed else kind)
        for types, kinds in shared.items():
            yield f"{name}, {columns} columns, {'; '.join(kinds)}: {types}"


def _quantised(name: str, columns: int, kind: str, weighed: bool) -> str:
    """The types of a model's tensors, told by the parts of their names."""
    arch, layers, heads, kv_heads, n_experts, output = QUANTISED[name]
    values = {
        "block_count": layers, "expert_count": n_experts,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads,
    }  # fmt: skip
    fields = Fields(
        "m.gguf", {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in values.items()}}
    )
    names = [f"blk.{i}.{stem}.weight" for i in range(layers) for stem in STEMS]
    names += ["token_embd.weight", "output_norm.weight", *(["output.weight"] if output else [])]
    shapes = {each: (n_experts, 4, columns) if "_exps" in each else (4, columns) for each in names}
    file = SimpleNamespace(
        path="m.gguf", metadata=fields.values, fields=fields, require=fields.require,
        tensors={
            each: TensorInfo(each, 0, shapes[each], 0) for each in names if n_experts or "_exps" not in each
        },
    )  # fmt: skip
    found: dict[str, list[str]] = {}
    for info, chosen in file_types.Rules(file, kind, weighed).types():  # type: ignore[arg-type]
        stem = info.name.removesuffix(".weight").rpartition(".")[2]
        found.setdefault(stem, []).append(chosen or "kept")
    shown: dict[str, list[str]] = {}
    for stem, types in found.items():
        runs = " ".join(f"{len(list(group))} {each}" for each, group in itertools.groupby(types))
        shown.setdefault(runs, []).append(stem)
    return "; ".join(f"{' '.join(stems)}: {runs}" for runs, stems in shown.items())


def text() -> str:
    """The file."""
    return "".join(f"{line}\n" for line in (*models(), *quantised()))
