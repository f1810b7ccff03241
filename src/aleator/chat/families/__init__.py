"""How families of models write calls of tools: one file each, found by the text of the template."""

from __future__ import annotations

from aleator.chat.families.deepseek import DeepSeek
from aleator.chat.families.family import Family
from aleator.chat.families.generic import Generic
from aleator.chat.families.harmony import Harmony
from aleator.chat.families.hermes import Hermes
from aleator.chat.families.llama3 import Llama3
from aleator.chat.families.mistral import Mistral

FAMILIES: tuple[type[Family], ...] = (Harmony, DeepSeek, Mistral, Hermes, Llama3, Generic)
"""The first that a template shows is the one."""


def family_of(template: str) -> Family:
    """The family of a template."""
    return next(family(template) for family in FAMILIES if family.shows(template))
