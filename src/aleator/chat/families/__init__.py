"""How families of models write tool calls; the template's text shows the family."""

from __future__ import annotations

from aleator.chat.families import apart, gemma4, pythonic, tagged, wrapped
from aleator.chat.reply import Family

FAMILIES: tuple[type[Family], ...] = (
    apart.Harmony, apart.Recipients, apart.FunctionTags, tagged.Dsml, tagged.DsmlV4, apart.DeepSeek,
    wrapped.Mistral, apart.Kimi, gemma4.Gemma4, tagged.SeedOss, tagged.MiniMaxM2, tagged.Hy3,
    tagged.Qwen3Coder, tagged.Glm, wrapped.FireFunction, wrapped.CommandR7B, wrapped.GigaChat,
    wrapped.GigaChat3, wrapped.Granite, wrapped.NemotronNano,
    wrapped.ToolCallsList, wrapped.ToolCallsLines, pythonic.Pythonic, pythonic.PythonicList,
    tagged.MiniCpm5, wrapped.Hermes, wrapped.Llama3, wrapped.Generic,
)  # fmt: skip
"""In order of precedence: the first that a template shows is used."""


def family_of(template: str) -> Family:
    """The family of a template."""
    return next(family(template) for family in FAMILIES if family.shows(template))
