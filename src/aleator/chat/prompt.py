"""Makes a prompt, a grammar and a reader of the reply from the arguments of ``chat``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from aleator.chat.families.family import Family, Function, Maybe, Part, Schema, Thinking, Words
from aleator.chat.format import ChatFormat
from aleator.chat.message import Message
from aleator.chat.messages import checked_messages, checked_tools, chosen_tools
from aleator.chat.reply import Reply
from aleator.core.errors import GrammarError, ParameterError
from aleator.core.records import dataclass
from aleator.generate.options import texts
from aleator.grammar.llguidance import JSON_STYLE, schema_grammar, schema_text
from aleator.samplers import Lark
from aleator.text.rendered import control_names
from aleator.text.tokenizer import Tokenizer, cut

CONSTRAINTS = ("grammar", "regex", "json_schema")


@dataclass(frozen=True)
class ChatPrompt:
    """What the prompt of a chat is made of, as ``chat`` was given it; :func:`prepare_chat` checks it."""

    messages: Sequence[Mapping[str, Any] | Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    enable_thinking: bool | None = None
    template_arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PreparedChat:
    """A chat that is ready to be generated.

    Attributes:
        tokens: The prompt.
        options: Keyword arguments of ``generate``.
        family: How calls are written; None: all is content.
        thinking: How the model writes reasoning; None: it does not, or the family reads it.
        opened: Whether the prompt ends within reasoning.
        tools: The tools that the prompt shows: schemas of their arguments, by name.
    """

    tokens: list[int]
    options: dict[str, Any]
    family: Family | None
    thinking: Thinking | None
    opened: bool
    tools: dict[str, Any]

    @cached_property
    def reply(self) -> Reply:
        """Reads the reply."""
        return self.reply_of(0)

    def reply_of(self, completion: int) -> Reply:
        """Reads the reply of one of several completions."""
        key = np.asarray(self.tokens, "<i4").tobytes() + repr(self.options.get("seed")).encode()
        if completion:
            key += completion.to_bytes(4, "little")
        return Reply(self.family, self.thinking, self.opened, self.tools, sha256(key).digest())


def prepare_chat(
    chat: ChatPrompt,
    chat_format: ChatFormat,
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    known: Sequence[int] = (),
) -> PreparedChat:
    """Check a chat, write its prompt, and make the grammar and the reader of the reply.

    ``known`` are tokens of the conversation so far; they are kept where they fit the text.

    Raises:
        ParameterError: Names what is wrong, or what this template does not allow.
        GrammarError: A schema cannot be enforced.
        TemplateError: The template refuses the messages.
    """
    messages = checked_messages(chat.messages)
    tools = checked_tools(chat.tools)
    shown, forced = chosen_tools(chat.tool_choice, tools)
    if shown and not chat_format.shows_tools:
        raise ParameterError(
            "tools",
            "tools: this chat template does not show tools to the model: give chat_template=, one that reads "
            "'tools', or describe them in a message",
        )
    if shown and chat_format.foreign_mark is not None:
        raise ParameterError(
            "tools",
            f"tools: this model writes calls with {chat_format.foreign_mark!r}, which are not read yet: "
            "describe the tools in a message, or give chat_template= with calls in another form",
        )
    variables = chat_format.arguments(chat.enable_thinking, chat.template_arguments)
    told = [tool for tool, _ in tools] if shown else ()
    rendered = chat_format.rendered(messages, told, variables)
    tokens = chat_format.tokens(rendered, known)
    thinking, family = chat_format.thinking, chat_format.family
    opened = thinking is not None and rendered.text.rstrip().endswith(thinking.begin)
    made = dict(options)
    vocab = tokenizer.vocab
    made["stop"] = (*vocab.chat_stop, *texts("stop", made.get("stop", ())))
    made["shown_tokens"] = chat_format.marks
    if made.get("reasoning_budget") not in (None, -1):
        if thinking is None:
            raise ParameterError(
                "reasoning_budget",
                f"reasoning_budget={made['reasoning_budget']}: nothing says how this model writes its "
                "reasoning: leave it out",
            )
        made.setdefault("reasoning_marks", (thinking.begin, thinking.end + thinking.after))
    if isinstance(made.get("negative_prompt"), str):
        rest = messages[int(messages[0]["role"] == "system") :]
        negative = [{"role": "system", "content": made["negative_prompt"]}, *rest]
        made["negative_prompt"] = chat_format.tokens(
            chat_format.rendered(negative, told, variables)
        )
    schema = made.get("json_schema")
    if forced or schema is not None:
        _refuse_two(made, bool(forced), shown)
        may_think = thinking is not None and (
            opened or not (chat.enable_thinking is False or thinking.end in rendered.text[-40:])
        )
        if may_think or forced or family.thinking is not None:
            made.pop("json_schema", None)
            choices = [family.call(_enforceable(function)) for function in forced]
            choices = choices or [family.content(schema_of("json_schema", schema))]
            made["stop"] = made["stop"][len(vocab.chat_stop) :]  # the grammar says where it ends
            made["grammar"] = reply_grammar(
                tokenizer, choices, thinking if may_think else None, opened
            )
            if may_think:  # no end of reasoning can be searched for
                made.setdefault("complete_grammar", False)
    read = {function.name: function.parameters for _, function in tools} if shown else {}
    reads = family if read or family.thinking is not None else None
    return PreparedChat(
        tokens, made, reads, None if family.thinking is not None else thinking, opened, read
    )


def _enforceable(function: Function) -> Function:
    name = function.name
    return Function(name, schema_of(f"tools: parameters of {name}", function.parameters))


def _refuse_two(options: Mapping[str, Any], forced: bool, shown: bool) -> None:
    """Refuse constraints that cannot be enforced together."""
    given = [name for name in CONSTRAINTS if options.get(name) is not None]
    if forced and given:
        raise ParameterError(
            given[0], f"{given[0]} and tool_choice both say what the reply must be: give one"
        )
    if shown and not forced:
        raise ParameterError(
            "json_schema",
            "json_schema forces the content, and with tools the reply may be a call instead: give "
            "tool_choice='none', or leave json_schema out",
        )
    if len(given) > 1:
        raise ParameterError(given[0], f"{' and '.join(given)} are both given: choose one")


def schema_of(where: str, schema: Any) -> dict[str, Any]:
    """Check a JSON schema, and return it as a mapping; GrammarError names ``where`` it stands."""
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
    """A grammar of replies: reasoning if ``thinking`` says how, then one of the choices, each in parts.

    ``opened``: the prompt ends within reasoning, so the reply begins within it.
    """
    vocab = tokenizer.vocab
    control = [(name, vocab.ids[name]) for name in control_names(vocab)]
    rules: list[str] = []

    def words(text: str) -> str:
        """A text in Lark's notation; the names of control tokens become these tokens."""
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
        if any(name in mark for name, _ in control):
            rules.append(f"{own}: /(?s:.*)/")
            return f"{own} {words(mark + rest)}"
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
