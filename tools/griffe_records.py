"""Makes griffe, which reads the sources for the site's reference, treat our ``dataclass`` as one.

So classes made by :mod:`aleator.core.records` show their signatures there, with defaults.  What
:mod:`aleator.core.forwarded` makes is a property there, with its docstring.
"""

from __future__ import annotations

from ast import literal_eval
from typing import Any

import griffe  # type: ignore[import-not-found, unused-ignore]


class Records(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Replaces our decorators with those of the standard library."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Adapt one class, before griffe looks for dataclasses."""
        for decorator in cls.decorators:
            value = decorator.value
            name = value.function if isinstance(value, griffe.ExprCall) else value
            if (
                isinstance(name, griffe.ExprName)
                and name.canonical_path == "aleator.core.records.dataclass"
            ):
                name.parent = griffe.ExprName("dataclasses")
        for member in cls.attributes.values():
            _describe(member)


def _describe(member: griffe.Attribute) -> None:
    """Give an attribute that is forwarded the docstring of its property."""
    call = member.value
    if (
        isinstance(call, griffe.ExprCall)
        and call.function.canonical_path == "aleator.core.forwarded.forwarded"
    ):
        text = literal_eval(str(call.arguments[1]))
        member.docstring = griffe.Docstring(text, lineno=member.lineno, parent=member)
        member.labels, member.value = {"property"}, None
