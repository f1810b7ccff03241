"""Responses in the form of OpenAI's interface, for chat and for plain completions."""

from __future__ import annotations

import time
from typing import Any

from aleator.chat.generation import ChatGeneration
from aleator.generate.generation import Generation
from aleator.generate.logprobs import Logprobs, TokenLogprob


def chat_response(answer: ChatGeneration, name: str, model: str) -> dict[str, Any]:
    """The body of the response to a chat.

    Args:
        answer: Made until it ends.
        name: Of the request, for the id.
        model: What the request called the model.
    """
    message, calls = answer.message.as_json(), answer.message.tool_calls
    if calls:  # also one that was cut off, as far as it came
        message["tool_calls"] = [call.as_json() for call in calls]
        message["content"] = message["content"] or None
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": answer.stop_reason,
        "logprobs": None,
    }
    if answer.generation.logprobs is not None:
        choice["logprobs"] = {"content": [_entry(each) for each in answer.generation.logprobs]}
    return _response("chat.completion", f"chatcmpl-{name}", model, choice, answer.generation)


def completion_response(made: Generation, name: str, model: str) -> dict[str, Any]:
    """The body of the response to a plain completion; arguments are those of :func:`chat_response`."""
    reason = made.stop_reason
    finish = {"length": "length", "context": "length", "interrupted": "interrupted"}
    choice: dict[str, Any] = {
        "index": 0,
        "text": made.text,
        "finish_reason": finish.get(reason, "stop"),
        "logprobs": None,
    }
    if made.logprobs is not None:
        choice["logprobs"] = {
            "tokens": [each.chosen.text for each in made.logprobs],
            "token_logprobs": [_finite(each.chosen.logprob) for each in made.logprobs],
            "top_logprobs": [
                {top.text: _finite(top.logprob) for top in each.top} for each in made.logprobs
            ],
        }
    return _response("text_completion", f"cmpl-{name}", model, choice, made)


def _response(
    kind: str, name: str, model: str, choice: dict[str, Any], made: Generation
) -> dict[str, Any]:
    prompt, completion = len(made.request.tokens), len(made.tokens)
    return {
        "id": name,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
        "seed": made.seed,
    }


def _entry(each: Logprobs) -> dict[str, Any]:
    return {**_token(each.chosen), "top_logprobs": [_token(top) for top in each.top]}


def _token(each: TokenLogprob) -> dict[str, Any]:
    return {"token": each.text, "logprob": _finite(each.logprob), "bytes": list(each.bytes)}


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot be."""
    return max(logprob, -9999.0)
