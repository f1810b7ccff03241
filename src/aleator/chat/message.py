"""What a model has answered: content, reasoning, and calls of tools."""

from __future__ import annotations

from typing import Any, Literal

from aleator.core.records import dataclass


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        id: Names the call, so that the message with its result can refer to it.
        name: The tool's name.
        arguments: JSON text of its arguments, as the model wrote it.
        complete: Whether the model ended the call; False where the reply was cut off within it.
    """

    id: str
    name: str
    arguments: str
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        """The call as OpenAI's interface writes it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Message:
    """A message of the assistant.

    Attributes:
        content: The answer; "" if there is none, as beside a call.
        reasoning_content: What the model thought before it answered; "" if it did not.
        tool_calls: Calls of tools, in order.
    """

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The message as a mapping, to append to the messages of the next call.

        Calls that were cut off are left out: their arguments are no JSON, and nothing can answer them.
        """
        made: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning_content:
            made["reasoning_content"] = self.reasoning_content
        calls = [call.as_json() for call in self.tool_calls if call.complete]
        if calls:
            made["tool_calls"] = calls
        return made


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a message under way.

    Attributes:
        kind: What it adds to: "content", "reasoning", or the arguments of a call; "call" begins a call, and
            "call_end" ends one.
        text: The text that it adds; of "call" the tool's name.
        index: Of a call: its place among the calls of the message.
        id: Of "call": the call's id.
    """

    kind: Literal["content", "reasoning", "call", "arguments", "call_end"]
    text: str = ""
    index: int = 0
    id: str = ""
