"""JSON schema: the text is JSON, on one line, that the schema describes.

Keeps      see :mod:`aleator.samplers.constrained`.  The format is that of Python's ``json.dumps``: ``", "`` and
           ``": "`` between, no line breaks, properties in the schema's order; so white space cannot repeat
           without end.  An ``x-guidance`` object in the schema changes this (llguidance's documentation).
Schemas    what llguidance knows: references and recursion, enums, formats, patterns, lengths, ranges,
           additionalProperties ...; an unknown keyword is refused by name.
Forced     where only one text may follow, only that text's usual tokens are allowed.
Elsewhere  llama.cpp turns a schema into GBNF and drops what does not fit; xgrammar ignores some keywords.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from aleator.core.records import dataclass
from aleator.grammar import llguidance
from aleator.samplers.constrained import LLGuidanceSampler


@dataclass(frozen=True)
class JSONSchema(LLGuidanceSampler):
    """Keep the tokens that a JSON schema allows next.

    Args:
        schema: A mapping, or JSON text.
        vocabulary: A tokenizer or a vocabulary; ``None`` until the model is known.

    Raises:
        GrammarError: The text is not JSON, or the schema is not supported; names the keyword.
        ImportError: llguidance is not installed.
    """

    name = "json_schema"
    described = "the JSON schema"
    schema: Any
    vocabulary: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", llguidance.schema_text(self.schema))
        self._check_source(llguidance.schema_grammar(self.schema))
