"""Chat prompts: a model's template, and the checked arguments of ``chat``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import numpy as np

from aleator.chat.families import family_of
from aleator.chat.message import Function, checked_messages, checked_tools, chosen_tools
from aleator.chat.reply import Family, Part, Reply, Thinking
from aleator.chat.reply_grammar import reply_grammar, schema_of
from aleator.core.errors import ParameterError, TemplateError
from aleator.core.integers import shared
from aleator.core.records import dataclass
from aleator.generate.options import texts
from aleator.samplers.params import ALL
from aleator.samplers.phase_table import THINKING as REASONING
from aleator.samplers.phase_table import TOOL, with_marks
from aleator.text.chat_template import ChatTemplate
from aleator.text.rendered import Rendered
from aleator.text.tokenizer import WHITE, Tokenizer

THINKING = (
    Thinking("<think>", "</think>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<seed:think>", "</seed:think>"),
    Thinking("<think:opensource>", "</think:opensource>"),
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
    Thinking("<|channel>thought", "<channel|>"),
    Thinking("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
FOREIGN = (
    "<function=",
    "<function name=",
    "<parameter",
    "<tool_sep>",
    "\uff5cDSML\uff5c",
    "]<]minimax[>[",
    "<|open|>",
    "<atem:",
    "<|tools_prefix|>",
    "<|tool_call:begin|>",
    "Action:\\n```json",
)
"""Marks of calls in other forms, which are not supported."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_OWN = frozenset(("messages", "tools", "documents", "add_generation_prompt", *_TOKENS))
_MARK = "aleator_probe"
_PROBE = {_MARK: 1}
CONSTRAINTS = ("grammar", "regex", "json_schema")


class ChatFormat:
    """A chat template for a tokenizer, and what its text shows about the model.

    TemplateError if there is no template, or it is plain text or does not parse.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None) -> None:
        self._tokenizer, self._vocab = tokenizer, tokenizer.vocab
        self.template = ChatTemplate(source, tokenizer.vocab)  # renders messages
        text = self.template.source
        if "{{" not in text and "{%" not in text:
            raise TemplateError(
                f"the chat template {text!r:.80} is plain text, which shows no message: give one in Jinja, or "
                "a file that has it (--chat-template FILE)"
            )
        self.family = family_of(text)  # how tool calls are written
        ids = self._vocab.ids
        shown = (t for t in THINKING if t.begin in text or t.end in text)
        known = (t for t in THINKING if t.begin in ids or t.end in ids)
        # How reasoning is written; None if unknown.
        self.thinking = self.family.thinking or next(shown, None) or next(known, None)

    @property
    def shows_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "tools" in self.template.variables

    @property
    def foreign_mark(self) -> str | None:
        """A mark in the template of calls that no family here supports."""
        if self.family.name not in ("hermes", "llama3", "generic"):
            return None
        return next((mark for mark in FOREIGN if mark in self.template.source), None)

    @property
    def variables(self) -> list[str]:
        """Names of the variables that the template reads."""
        return sorted(self.template.variables - _OWN)

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """Control tokens whose names are needed to read a reply."""
        names = [*self.family.marks]
        if self.thinking is not None:
            names += [self.thinking.begin, self.thinking.end]
        ids = self._vocab.ids
        return tuple(ids[n] for n in names if n in ids and self._vocab.is_special(ids[n]))

    def arguments(
        self, enable_thinking: bool | None, given: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The template's variables; ParameterError if it does not read one of those given.

        ``enable_thinking`` is passed under the name that the template reads; None: the template's default.
        """
        if given is not None and not isinstance(given, Mapping):
            raise ParameterError(f"chat_template_kwargs={given!r:.80}: give a mapping")
        made = dict(given or {})
        reads = ", ".join(self.variables) or "none"
        for name in made:
            if not isinstance(name, str) or name not in self.variables:
                raise ParameterError(
                    f"chat_template_kwargs has {name!r}: the chat template does not read it; it reads {reads}"
                )
        if enable_thinking is None:
            return made
        if not isinstance(enable_thinking, bool):
            raise ParameterError(f"enable_thinking={enable_thinking!r}: give True or False")
        names = [n for n in ("enable_thinking", "thinking") if n in self.variables]
        if not names:
            raise ParameterError(
                f"enable_thinking={enable_thinking} is not read by the chat template, which reads {reads}"
            )
        if names[0] in made:
            raise ParameterError(
                f"enable_thinking={enable_thinking} is given twice, once in chat_template_kwargs"
            )
        return {**made, names[0]: enable_thinking}

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Checked messages, tools and variables as text, with the beginning of the answer.

        TemplateError if the template refuses the messages.
        """
        return self.template.rendered(
            [self._as_read(message) for message in self.family.turns(messages)],
            tools=list(tools) or None,
            **(variables or {}),
        )

    def tokens(self, rendered: Rendered, known: Sequence[int] = ()) -> list[int]:
        """The prompt in tokens, beginning with as many of the known ones as fit its text.

        Drawn tokens may differ from the tokenizer's tokens of the same text.  So the text is compared, and only
        what follows is tokenized.
        """
        vocab, tokenizer = self._vocab, self._tokenizer
        whole = rendered.as_prompt(tokenizer)
        text, begun = rendered.text, 0
        data = text.encode()
        if known and known[0] == vocab.bos and not data.startswith(vocab.token_bytes(known[0])):
            begun = 1
        count, data = self._fitting(data, known[begun:])
        count += begun
        try:
            new = rendered.after(len(text) - len(data.decode()))
        except UnicodeDecodeError:  # the known tokens end within a character
            return whole
        if new is None:  # or within the name of a control token, which is text here
            return whole
        rest = new.encode(tokenizer)
        if self._fitting(data, rest)[1]:  # a tokenizer that inserts a space
            return whole
        exact = [*known[:count], *rest]
        return exact if shared(exact, known) > shared(whole, known) else whole

    def _fitting(self, data: bytes, tokens: Sequence[int]) -> tuple[int, bytes]:
        """How many of the tokens a text begins with, and what is left of it."""
        at, white = 0, WHITE.encode()  # no copy of the rest for each token: texts can be long
        for count, token in enumerate(tokens):
            piece = self._vocab.token_bytes(token)
            if not piece or not data.startswith(piece, at):
                return count, data[at:]
            at += len(piece)
            if token in self._vocab.strip_after:
                while at < len(data) and data[at] in white:
                    at += 1
        return len(tokens), data[at:]

    def _as_read(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in the form that the template reads."""
        made = dict(message)
        source = self.template.source
        if made["role"] == "developer" and not self._knows_developers:
            made["role"] = "system"
        if "reasoning_content" in made and re.search(r"\.thinking\b|\[?['\"]thinking['\"]", source):
            made["thinking"] = made["reasoning_content"]
        if "tool_calls" in made and not self._takes_mappings:
            made["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _text(call)}}
                for call in made["tool_calls"]
            ]
        return made

    @cached_property
    def _knows_developers(self) -> bool:
        """Whether the template knows messages of developers; otherwise they must be the system's."""
        if "developer" not in self.template.source:  # it may write any role
            return False
        talk = [{"role": "developer", "content": _MARK}, {"role": "user", "content": "a"}]
        try:
            return _MARK in self.template.render(talk)
        except TemplateError:
            return False

    @cached_property
    def _takes_mappings(self) -> bool:
        """Whether the template serializes a call's arguments itself; otherwise they must be JSON text."""
        function = {"name": "f", "arguments": _PROBE}
        call = {"id": "abcdefghi", "type": "function", "function": function}
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            text = self.template.render(talk, add_generation_prompt=False)
        except TemplateError:
            return False
        return repr(_PROBE) not in text  # no model uses Python's repr


def _text(call: Mapping[str, Any]) -> str:
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


@dataclass(frozen=True)
class ChatPrompt:
    """The parts of a chat's prompt, as given to ``chat``; :func:`prepare_chat` checks them."""

    messages: Any
    tools: Any = None
    tool_choice: Any = None
    enable_thinking: bool | None = None
    template_arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PreparedChat:
    """A chat that is ready to be generated."""

    tokens: list[int]  # The prompt
    options: dict[str, Any]  # Keyword arguments of ``generate``
    # Makes the reader of a reply from the key of its calls' ids
    reader: Callable[[bytes], Reply]

    def reply_of(self, completion: int) -> Reply:
        """The reader for the reply of one of several completions."""
        key = np.asarray(self.tokens, "<i4").tobytes() + repr(self.options.get("seed")).encode()
        if completion:
            key += completion.to_bytes(4, "little")
        return self.reader(sha256(key).digest())


def prepare_chat(
    chat: ChatPrompt,
    chat_format: ChatFormat,
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    known: Sequence[int] = (),
) -> PreparedChat:
    """Check a chat, write its prompt, and make the grammar and the reader of the reply.

    ``known`` are tokens of the conversation so far; they are kept as far as they fit the text.

    Raises:
        ParameterError: Names what is invalid, or not allowed by this template.
        GrammarError: A schema cannot be enforced.
        TemplateError: The template refuses the messages.
    """
    if options.get("heal"):
        raise ParameterError(
            "heal=True: the template ends a chat's prompt, and not a word: leave it out"
        )
    messages = checked_messages(chat.messages)
    shown, forced = chosen_tools(chat.tool_choice, checked_tools(chat.tools))
    if shown:
        _check_calls(chat_format)
    variables = chat_format.arguments(chat.enable_thinking, chat.template_arguments)
    shown_tools = [tool for tool, _ in shown]
    rendered = chat_format.rendered(messages, shown_tools, variables)
    tokens = chat_format.tokens(rendered, known)
    thinking, family = chat_format.thinking, chat_format.family
    opened = thinking is not None and rendered.text.rstrip().endswith(thinking.begin)
    made, stops = dict(options), texts("stop", options.get("stop", ()))
    made["stop"] = (*tokenizer.vocab.chat_stop, *stops)
    made["shown_tokens"] = chat_format.marks
    _mark_reasoning(made, thinking)
    _mark_phases(made, chat_format)
    if isinstance(made.get("negative_prompt"), str):
        rest = messages[int(messages[0]["role"] == "system") :]
        negative = [{"role": "system", "content": made["negative_prompt"]}, *rest]
        made["negative_prompt"] = chat_format.tokens(
            chat_format.rendered(negative, shown_tools, variables)
        )
    schema = made.get("json_schema")
    if forced or schema is not None:
        _refuse_two(made, bool(forced), bool(shown))
        may_think = thinking is not None and (
            opened or not (chat.enable_thinking is False or thinking.end in rendered.text[-40:])
        )
        if may_think or forced or family.thinking is not None:
            made.pop("json_schema", None)
            choices = _calls(family, forced) or [family.content(schema_of("json_schema", schema))]
            first = thinking if may_think else None
            made["stop"] = stops  # the grammar determines the end
            made["grammar"] = reply_grammar(tokenizer, choices, first, opened)
            if may_think:  # the end of reasoning cannot be searched for
                made.setdefault("complete_grammar", False)
    read = {function.name: function.parameters for _, function in shown}
    reads = family if read or family.thinking is not None or family.marks_content else None
    # Families with marks of their own read reasoning themselves.
    apart = thinking if family.thinking is None else None
    reader = partial(Reply, reads, apart, opened, read, forced=bool(forced))
    return PreparedChat(tokens, made, reader)


def _check_calls(chat_format: ChatFormat) -> None:
    """Refuse tools if the template does not show them, or nothing here reads the model's calls."""
    if not chat_format.shows_tools:
        raise ParameterError(
            "tools: this chat template does not show tools to the model: give a chat_template that reads "
            "'tools' (command line: --chat-template FILE), or describe them in a message"
        )
    if chat_format.foreign_mark is not None:
        raise ParameterError(
            f"tools: this model writes calls with {chat_format.foreign_mark!r}, which are not read yet: "
            "describe the tools in a message, or give chat_template= with calls in another form"
        )


def _calls(family: Family, forced: Sequence[Function]) -> list[list[Part]]:
    """How the functions are called, as parts of a grammar."""
    where = "tools: parameters of"
    return [
        family.call(Function(f.name, schema_of(f"{where} {f.name}", f.parameters))) for f in forced
    ]


def _mark_reasoning(options: dict[str, Any], thinking: Thinking | None) -> None:
    """Give a reasoning budget the marks of the template; ParameterError if they are not known."""
    if options.get("reasoning_budget") in (None, -1):
        return
    if thinking is None:
        raise ParameterError(
            f"reasoning_budget={options['reasoning_budget']}: nothing says how this model writes its "
            "reasoning: leave it out"
        )
    options.setdefault("reasoning_marks", (thinking.begin, thinking.end + thinking.after))


def _mark_phases(options: dict[str, Any], chat_format: ChatFormat) -> None:
    """Give phases the marks of the template; ParameterError for a phase without marks."""
    thinking: Thinking | None = chat_format.thinking
    params: Any = options.get("params")
    known = {TOOL: chat_format.family.around_calls}
    if thinking is not None:
        known[REASONING] = thinking.begin, thinking.end + thinking.after
    if options.get("phases"):
        phases = ALL["phases"].check(options["phases"])
        options["phases"] = with_marks(phases, known, "the chat template")
    elif getattr(params, "phases", ()):
        phases = with_marks(params.phases, known, "the chat template")
        options["params"] = params.replace(phases=phases)


def _refuse_two(options: Mapping[str, Any], forced: bool, shown: bool) -> None:
    """Refuse constraints that cannot be enforced together."""
    given = [name for name in CONSTRAINTS if options.get(name) is not None]
    if forced and given:
        raise ParameterError(
            given[0], f"{given[0]} and tool_choice both say what the reply must be: give one"
        )
    if shown and not forced:
        raise ParameterError(
            "json_schema forces the content, and with tools the reply may be a call instead: give "
            "tool_choice='none', or leave json_schema out"
        )
    if len(given) > 1:
        raise ParameterError(given[0], f"{' and '.join(given)} are both given: choose one")
