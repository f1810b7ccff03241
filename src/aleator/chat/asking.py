"""From the arguments of ``chat`` to a prompt, a grammar, and what reads the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from aleator.chat.families.family import Family, Function, Thinking
from aleator.chat.forced import reply_grammar, schema_of
from aleator.chat.format import ChatFormat
from aleator.chat.messages import checked_messages, checked_tools, chosen_tools
from aleator.chat.reply import Reply
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.generate.options import texts
from aleator.text.tokenizer import Tokenizer

CONSTRAINTS = ("grammar", "regex", "json_schema")


@dataclass(frozen=True)
class Chat:
    """What is asked of a chat.

    Attributes:
        messages: The conversation.
        tools: Declarations of tools.
        tool_choice: Whether one must be called, and which.
        enable_thinking: A variable of the template.
        variables: Its other variables.
    """

    messages: Any
    tools: Any = None
    tool_choice: Any = None
    enable_thinking: bool | None = None
    variables: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Asked:
    """A chat ready to be generated.

    Attributes:
        tokens: The prompt.
        options: Keyword arguments of ``generate``.
        family: How calls are written; None: all is content.
        thinking: How reasoning is written; None: it is not, or the family reads it.
        opened: Whether the prompt ends within reasoning.
        tools: Schemas of the arguments of the tools that the model knows of, by name.
    """

    tokens: list[int]
    options: dict[str, Any]
    family: Family | None
    thinking: Thinking | None
    opened: bool
    tools: dict[str, Any]

    @cached_property
    def reply(self) -> Reply:
        """Reads what comes."""
        return self.reply_of(0)

    def reply_of(self, completion: int) -> Reply:
        """Reads what comes of one of several completions."""
        key = np.asarray(self.tokens, "<i4").tobytes() + repr(self.options.get("seed")).encode()
        if completion:
            key += completion.to_bytes(4, "little")
        return Reply(self.family, self.thinking, self.opened, self.tools, sha256(key).digest())


def prepared(
    chat: Chat,
    chat_format: ChatFormat,
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    known: Sequence[int] = (),
) -> Asked:
    """Look at everything, write the prompt, and say how the reply is forced and read.

    Args:
        chat: What is asked for.
        chat_format: Of the model.
        tokenizer: Of the model.
        options: Keyword arguments that were given for the generation.
        known: Tokens of the conversation so far, which are kept where they fit the text.

    Raises:
        ParameterError: Names what is wrong, or cannot be done with this template.
        GrammarError: A schema that cannot be enforced.
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
    variables = chat_format.arguments(chat.enable_thinking, chat.variables)
    rendered = chat_format.rendered(messages, [t for t, _ in tools] if shown else (), variables)
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
        other = chat_format.rendered(negative, [t for t, _ in tools] if shown else (), variables)
        made["negative_prompt"] = chat_format.tokens(other)
    schema = made.get("json_schema")
    if forced or schema is not None:
        _refuse_two(made, bool(forced), shown)
        may_think = thinking is not None and (
            opened or not (chat.enable_thinking is False or thinking.end in rendered.text[-40:])
        )
        if may_think or forced or family.thinking is not None:
            made.pop("json_schema", None)
            choices = [
                family.call(
                    Function(f.name, schema_of(f"tools: parameters of {f.name}", f.parameters))
                )
                for f in forced
            ] or [family.content(schema_of("json_schema", schema))]
            made["stop"] = made["stop"][len(vocab.chat_stop) :]  # the grammar says where it ends
            made["grammar"] = reply_grammar(
                tokenizer, choices, thinking if may_think else None, opened
            )
            if may_think:  # no end of reasoning can be searched for
                made.setdefault("complete_grammar", False)
    read = {function.name: function.parameters for _, function in tools} if shown else {}
    reads = family if read or family.thinking is not None else None
    return Asked(
        tokens, made, reads, None if family.thinking is not None else thinking, opened, read
    )


def _refuse_two(options: Mapping[str, Any], forced: bool, shown: bool) -> None:
    """See that what is asked for can all be enforced."""
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
