"""A conversation: turns that can be answered again, edited, branched off, and saved to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from aleator.chat.generation import ChatGeneration
from aleator.chat.message import Message, checked_messages, checked_tools, chosen_tools
from aleator.core.errors import ContextFull, FileFormatError, ParameterError, Uncopyable
from aleator.core.integers import exact
from aleator.core.json_text import loads
from aleator.core.parameter import check_replaceable
from aleator.core.seeds import fresh_seed
from aleator.generate.generation import reader_of

if TYPE_CHECKING:
    from aleator.engine.engine import Engine
    from aleator.keywords import GenerateKeywords
    from aleator.samplers import SamplingParams
    from aleator.text.vocabulary import Vocabulary

FORMAT = "aleator.conversation/1"
ToolChoice = str | Mapping[str, Any]
_NO_OPTIONS = ("progress", "engine")


class ChatModel(Protocol):
    """The part of :class:`aleator.LanguageModel` that a conversation uses."""

    vocab: Vocabulary

    @property
    def chat(self) -> Callable[..., ChatGeneration]:
        """Answers messages."""

    @property
    def check_options(self) -> Callable[..., None]:
        """Raises the errors that ``generate`` would raise for options."""


class Conversation(Uncopyable):
    """Messages exchanged with a model, and the options of each answer.

    Earlier messages stay in the model's prompt cache: each turn, or branch, computes only what is new.
    Answer ``n`` (0 for the first) draws with the seed ``seed + n``.  So a conversation is reproducible, and an
    answer that is given again differs from the first.

    Args:
        model: Model that answers.
        system: A first message that is never forgotten.
        tool_choice: Default for every answer.  A forced call is forced once: after the tools' results the
            model chooses freely.
        options: Without ``seed`` one is drawn.  With ``context_shift`` the oldest exchanges are forgotten when
            the context is full.

    For everything else see :meth:`aleator.LanguageModel.chat`.

    Attributes:
        model: Model that answers.
        seed: Seed of the first answer.
        answers: Number of answers drawn, repeated ones included.

    Raises:
        ParameterError: An option of ``chat`` is invalid.
    """

    _instead = (
        "branch() makes another; save(path) and Conversation.load(model, path) make one elsewhere"
    )

    def __init__(
        self,
        model: ChatModel,
        system: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice | None = None,
        enable_thinking: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        preset: str | None = None,
        params: SamplingParams | None = None,
        progress: Callable[[int, int], None] | None = None,
        engine: Engine | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> None:
        self.model = model
        seed = options.pop("seed", None)
        if seed is None:
            seed = None if params is None else params.seed
        self.seed = fresh_seed(2**32 - 1) if seed is None else int(seed)
        self.answers = 0
        declared = checked_tools(tools)
        if tool_choice is not None:
            chosen_tools(tool_choice, declared)
        self._choice: ToolChoice | None = None  # given for the last answer alone
        self._about: dict[str, Any] = {
            "tools": tools,
            "tool_choice": tool_choice,
            "enable_thinking": enable_thinking,
            "chat_template": chat_template,
            "chat_template_kwargs": chat_template_kwargs,
        }
        self._options: dict[str, Any] = {
            "preset": preset,
            "params": params,
            "progress": progress,
            "engine": engine,
            **options,
        }
        self._messages: list[dict[str, Any]] = []
        if system is not None:
            self._messages = checked_messages([{"role": "system", "content": system}])
        self._answer: ChatGeneration | None = None
        self._known: list[int] = []

    def __repr__(self) -> str:
        return f"<Conversation: {len(self.messages)} messages, seed {self.seed}>"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages, the last answer as far as it was made.  A copy: use :meth:`edit` to change messages."""
        made = [dict(message) for message in self._messages]
        if self._answer is not None and (said := self._answer.so_far) != Message():
            made.append(said.as_json())
        return made

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self._messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        new = [] if text is None else checked_messages([{"role": "system", "content": text}])
        self._settle()
        self._messages[: int(self.system is not None)] = new

    @property
    def options(self) -> dict[str, Any]:
        """The options of every answer, except the seed."""
        return {name: value for name, value in self._options.items() if value is not None}

    def set_options(self, **options: Any) -> None:
        """Change the options of the next answers; None resets an option.

        Raises:
            ParameterError: An unknown option, or one out of range; nothing has changed.
        """
        changes: dict[str, Any] = {**options}
        seed = changes.pop("seed", None)
        made = {**self._options, **changes}
        made = {name: value for name, value in made.items() if value is not None}
        self.model.check_options(**{k: v for k, v in made.items() if k not in _NO_OPTIONS})
        self._options = made
        if seed is not None:
            self.seed, self.answers = int(seed), 0

    @property
    def answer(self) -> ChatGeneration | None:
        """The last answer, which may be unfinished; None before the first, and after an edit or a load."""
        return self._answer

    def say(
        self,
        text: str | Sequence[Mapping[str, Any]],
        *,
        tool_choice: ToolChoice | None = None,
    ) -> ChatGeneration:
        """Send a user message; the answer is generated as it is iterated over.

        A previous answer that is unfinished is cut off.

        Args:
            text: A text, or a list of parts.
            tool_choice: For this answer; None: the conversation's.

        Raises:
            ParameterError: An undeclared tool; the conversation is unchanged.
            ContextFull: The conversation is longer than the context; it is unchanged.
        """
        return self._go_on([*self.messages, {"role": "user", "content": text}], tool_choice)

    def tool_results(
        self, results: Mapping[str, str], *, tool_choice: ToolChoice | None = None
    ) -> ChatGeneration:
        """Send the results of tools, and let the model continue.

        Args:
            results: Texts by the ids of the calls of the last answer, one for each.
            tool_choice: For this answer; None: the conversation's.  If that forces a call, the model now
                chooses freely; with ``strict`` tools, which do not allow that, it calls none.

        Raises:
            ParameterError: A call without a result, or a result without a call.
        """
        messages = self.messages
        calls = messages[-1].get("tool_calls", []) if messages else []
        ids = [call["id"] for call in calls]
        if not ids or set(ids) != results.keys():
            raise ParameterError(
                f"results={[*results]!r:.80}: give one for each of the calls {ids}"
            )
        new = [{"role": "tool", "tool_call_id": i, "content": results[i]} for i in ids]
        return self._go_on([*messages, *new], tool_choice)

    def regenerate(self, *, tool_choice: ToolChoice | None = None) -> ChatGeneration:
        """Generate another answer to the last message.

        Args:
            tool_choice: For this answer; None: that of the previous answer.

        Raises:
            ParameterError: There is no message to answer, or a tool is not declared.
        """
        messages = self.messages
        if messages and messages[-1]["role"] == "assistant":
            del messages[-1]
        if not messages or messages[-1]["role"] not in ("user", "tool"):
            raise ParameterError("messages", "nothing was said yet: say() something first")
        return self._go_on(messages, self._choice if tool_choice is None else tool_choice)

    def edit(
        self, index: int, text: str, *, tool_choice: ToolChoice | None = None
    ) -> ChatGeneration | None:
        """Replace the text of a message, and forget the messages after it.

        Args:
            index: Index among :attr:`messages`; negative ones count from the end.
            text: The new text.
            tool_choice: For the answer; None: the conversation's.

        Returns:
            The answer, generated as it is iterated over; None if the message is not one to be answered.

        Raises:
            ParameterError: There is no such message.
        """
        messages = self.messages
        number = exact(index)
        if number is None or not -len(messages) <= number < len(messages):
            known = f"there are {len(messages)} messages, 0 to {len(messages) - 1}"
            raise ParameterError(
                f"index={index!r:.80}: {known if messages else 'nothing was said yet'}"
            )
        at = number % len(messages)
        changed = {k: v for k, v in messages[at].items() if k in ("role", "tool_call_id", "name")}
        kept = [*messages[:at], {**changed, "content": text}]
        if changed["role"] in ("user", "tool"):
            return self._go_on(kept, tool_choice)
        kept = checked_messages(kept)
        self._settle()
        self._messages = kept
        return None

    def branch(self, at: int | None = None) -> Conversation:
        """A new conversation with the same beginning; neither changes the other.

        Args:
            at: Number of messages to take over; None: all.

        Raises:
            ParameterError: There are fewer messages.
        """
        messages = self.messages
        number = len(messages) if at is None else exact(at)
        if number is None or not 0 <= number <= len(messages):
            raise ParameterError(f"at={at!r:.80}: give 0 to {len(messages)}")
        made = Conversation(self.model, seed=self.seed, **self._about)
        made._options = dict(self._options)
        made.answers, made._known = self.answers, self._tokens()
        made._messages, made._choice = messages[:number], self._choice
        return made

    def reset(self) -> None:
        """Forget everything but the system message, and start with the first seed again."""
        self._settle()
        del self._messages[int(self.system is not None) :]
        self._known, self.answers = [], 0

    def as_json(self) -> dict[str, Any]:
        """The conversation as a JSON-ready dictionary for :meth:`from_json`."""
        about = {name: value for name, value in self._about.items() if value is not None}
        return {
            "format": FORMAT,
            "messages": self.messages,
            "seed": self.seed,
            "answers": self.answers,
            "tokens": self._tokens(),
            **about,
        }

    @classmethod
    def from_json(
        cls,
        model: ChatModel,
        data: Mapping[str, Any],
        *,
        source: object = "the conversation",
        **options: Any,
    ) -> Conversation:
        """Restore a conversation from :meth:`as_json`.

        Args:
            model: Model that answers.
            data: The dictionary that :meth:`as_json` returned.
            source: Name of the data in errors.
            options: As for the class; they override the options in the data.

        Raises:
            FileFormatError: It is not a conversation, or is damaged.
        """
        fields = {"format", "messages", "seed", "answers", "tokens"}
        about = {"tools", "tool_choice", "enable_thinking", "chat_template", "chat_template_kwargs"}
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise FileFormatError(
                source, f"not a conversation of the form {FORMAT}", field="format"
            )
        if unknown := data.keys() - fields - about:
            raise FileFormatError(source, "an unknown field", field=str(min(map(str, unknown))))
        messages, tokens = data.get("messages"), data.get("tokens")
        for name in ("seed", "answers"):
            if type(data.get(name)) is not int or data[name] < 0:
                raise FileFormatError(source, f"{name} is {data.get(name)!r:.40}", field=name)
        if not isinstance(tokens, list) or not all(
            type(t) is int and 0 <= t < len(model.vocab) for t in tokens
        ):
            raise FileFormatError(source, "tokens of another vocabulary, or none", field="tokens")
        try:
            made = cls(
                model, **{"seed": data["seed"], **{n: data[n] for n in about & {*data}}, **options}
            )
            made._messages = checked_messages(messages) if messages != [] else []
        except ParameterError as error:
            raise FileFormatError(source, str(error), field=error.parameter) from None
        made.answers, made._known = data["answers"], list(tokens)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a JSON file, which is replaced once the new one is complete.

        ParameterError if ``path`` is something else than a file, such as a device, which would be lost.
        """
        target = Path(path)
        check_replaceable("path", target)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            beside.write_text(
                json.dumps(self.as_json(), ensure_ascii=False, indent=1) + "\n", "utf-8"
            )
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)

    @classmethod
    def load(cls, model: ChatModel, path: str | os.PathLike[str], **options: Any) -> Conversation:
        """Restore the conversation in a file; arguments and errors are those of :meth:`from_json`."""
        try:
            data = loads(Path(path).read_text("utf-8"))
        except ValueError as error:
            raise FileFormatError(path, f"not JSON: {error}") from None
        return cls.from_json(model, data, source=path, **options)

    def _tokens(self) -> list[int]:
        """The tokens of the conversation so far, as they were drawn."""
        if self._answer is None:
            return list(self._known)
        made = self._answer.generation
        return [*made.request.tokens, *reader_of(made).completion.tokens]

    def _settle(self) -> None:
        """End the current answer, and turn it into a message."""
        if self._answer is None:
            return
        if not self._answer.done:
            self._answer.cancel()
            _ = self._answer.message
        self._messages, self._known = self.messages, self._tokens()
        self._answer = None

    def _go_on(
        self, messages: list[dict[str, Any]], tool_choice: ToolChoice | None
    ) -> ChatGeneration:
        """Replace the conversation's messages, and let the model answer."""
        messages = checked_messages(messages)
        choice = self._chosen(messages, tool_choice)
        if self._answer is not None and not self._answer.done:
            self._answer.cancel()
            _ = self._answer.message
        known, oldest = self._tokens(), int(messages[0]["role"] == "system")
        options = {**self._about, "tool_choice": choice, **self.options, "known_tokens": known}
        options["seed"] = (self.seed + self.answers) % 2**64
        while True:
            try:
                answer = self.model.chat(messages, **options)
                break
            except ContextFull:
                if not self._options.get("context_shift") or len(messages) <= oldest + 1:
                    raise
                end = next(
                    (i for i in range(oldest + 1, len(messages)) if messages[i]["role"] == "user"),
                    oldest + 1,
                )
                messages = [*messages[:oldest], *messages[end:]]
        self._messages, self._answer, self._choice = messages, answer, tool_choice
        self.answers += 1
        return answer

    def _chosen(
        self, messages: list[dict[str, Any]], given: ToolChoice | None
    ) -> ToolChoice | None:
        """The tool choice of an answer; ParameterError if it names no tool."""
        tools = checked_tools(self._about["tools"])
        if given is not None:
            chosen_tools(given, tools)
            return given
        choice: ToolChoice | None = self._about["tool_choice"]
        if messages[-1]["role"] != "tool" or choice in (None, "auto", "none"):
            return choice
        if any(tool["function"].get("strict") for tool, _ in tools):
            return "none"
        if isinstance(choice, Mapping) and "allowed_tools" in choice:
            return {**choice, "allowed_tools": {**choice["allowed_tools"], "mode": "auto"}}
        return "auto"
