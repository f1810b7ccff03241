"""Chat: messages in and out, tool calls, reasoning, and conversations that branch."""

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.chat.conversation import Conversation as Conversation
    from aleator.chat.generation import ChatGeneration as ChatGeneration
    from aleator.chat.message import Message as Message
    from aleator.chat.message import ToolCall as ToolCall

__getattr__ = on_demand(
    __name__,
    {
        "conversation": "Conversation",
        "generation": "ChatGeneration",
        "message": "Message ToolCall",
    },
)
