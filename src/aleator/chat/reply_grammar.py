"""Grammars of forced replies, made from the parts that a family of templates writes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from aleator.chat.reply import Maybe, Part, Schema, Thinking, Words
from aleator.core.errors import GrammarError
from aleator.grammar.llguidance import JSON_STYLE, schema_grammar, schema_text
from aleator.samplers import Lark
from aleator.text.rendered import control_names
from aleator.text.tokenizer import Tokenizer, cut


def schema_of(where: str, schema: Any) -> dict[str, Any]:
    """Check a JSON schema, and return it as a mapping; GrammarError names its place, ``where``."""
    try:
        text = schema_text(schema)
        schema_grammar(text)
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}", error.line, error.column) from None
    made: dict[str, Any] = json.loads(text)
    return made


def reply_grammar(
    tokenizer: Tokenizer,
    choices: Sequence[Sequence[Part]],
    thinking: Thinking | None = None,
    opened: bool = False,
) -> Lark:
    """A grammar of replies: reasoning if ``thinking`` is given, then one of the choices, each in parts.

    ``opened``: the prompt ends within reasoning, so the reply begins within it.
    """
    vocab = tokenizer.vocab
    control = [(name, vocab.ids[name]) for name in control_names(vocab)]
    rules: list[str] = []

    def words(text: str) -> str:
        """A text in Lark's notation; names of control tokens become these tokens."""
        return " ".join(
            f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)
            for part in cut(text, control)
        )

    def rule(parts: Sequence[Part]) -> str:
        made = []
        for part in parts:
            if isinstance(part, Schema):
                schema = {"x-guidance": JSON_STYLE, **part.schema}
                rules.append(f"json{len(rules)}: %json {json.dumps(schema, ensure_ascii=False)}")
                made.append(f"json{len(rules) - 1}")
            elif isinstance(part, Maybe):
                made.append(f"({rule(part.parts)})?")
            elif isinstance(part, Words):
                made.append(drawn(part))
            else:
                made.append(words(part))
        return " ".join(made)

    def drawn(part: Words) -> str:
        """A string without quotes, and what follows it."""
        limits = part.limits
        values = [limits["const"]] if "const" in limits else limits.get("enum")
        own = f"words{len(rules)}"
        if values:
            either = " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
            return f"({either}) {words(part.end)}"
        if "minLength" not in limits and "maxLength" not in limits:
            return up_to(own, part.mark, part.end.partition(part.mark)[2])
        times = f"{{{limits.get('minLength', 0)},{limits.get('maxLength', '')}}}"
        rules.append(f"{own}: /[^<\\n]{times}/")
        return f"{own} {words(part.end)}"

    def up_to(own: str, mark: str, rest: str = "") -> str:
        """Any text up to a mark, and what follows the mark."""
        first = min((mark.index(name) for name, _ in control if name in mark), default=-1)
        if first >= 0:  # what comes before the token ends the text
            ends = re.escape(mark[:first]).replace("/", r"\/")
            rules.append(f"{own}: /(?s:.*){ends}/")
            return f"{own} {words(mark[first:] + rest)}"
        rules.append(f"{own}[suffix={json.dumps(mark)}]: /(?s:.*)/")
        return f"{own} {words(rest)}" if rest else own

    reply = " | ".join(f"({rule(parts)})" for parts in choices)
    start = f"start: {'reply' if thinking is None else 'reasoning reply'}"
    if thinking is not None:
        body = up_to("thoughts", thinking.end)
        after = words(thinking.after) if thinking.after else r"/\n{0,2}/"
        begin = "" if opened else words(thinking.begin)
        rules.append(f"reasoning: ({begin} {body} {after}){'' if opened else '?'}")
    return Lark("\n".join([start, f"reply: {reply}", *rules]))
