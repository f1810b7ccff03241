"""How families of models write calls of tools: found by the text of the template."""

from __future__ import annotations

from aleator.chat.families.apart import DeepSeek, Harmony, Kimi
from aleator.chat.families.gemma4 import Gemma4
from aleator.chat.families.pythonic import Pythonic
from aleator.chat.families.tagged import Glm, MiniMaxM2, Qwen3Coder, SeedOss
from aleator.chat.families.wrapped import (
    CommandR7B,
    Generic,
    Granite,
    Hermes,
    Llama3,
    Mistral,
    NemotronNano,
    ToolCallsLines,
    ToolCallsList,
)
from aleator.chat.reply import Family

FAMILIES: tuple[type[Family], ...] = (
    Harmony, DeepSeek, Mistral, Kimi, Gemma4, SeedOss, MiniMaxM2, Qwen3Coder, Glm, CommandR7B, Granite,
    NemotronNano, ToolCallsList, ToolCallsLines, Pythonic, Hermes, Llama3, Generic,
)  # fmt: skip
"""The first that a template shows is the one."""


def family_of(template: str) -> Family:
    """The family of a template."""
    return next(family(template) for family in FAMILIES if family.shows(template))
