"""Chat: messages in, messages out; calls of tools, reasoning, and conversations that branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.chat.conversation import Conversation
    from aleator.chat.generation import ChatGeneration
    from aleator.chat.message import Message, ToolCall

__all__ = ["ChatGeneration", "Conversation", "Message", "ToolCall"]

__getattr__ = on_demand(
    __name__,
    {
        "ChatGeneration": "generation",
        "Conversation": "conversation",
        "Message": "message",
        "ToolCall": "message",
    },
)
