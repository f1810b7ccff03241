"""Chat: messages in, messages out; calls of tools, reasoning, and conversations that branch."""

from __future__ import annotations

from aleator.chat.conversation import Conversation
from aleator.chat.generation import ChatGeneration
from aleator.chat.message import Message, ToolCall

__all__ = ["ChatGeneration", "Conversation", "Message", "ToolCall"]
