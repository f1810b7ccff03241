"""Small vocabularies as GGUF metadata."""

from __future__ import annotations

from typing import Any

from aleator.text.special_tokens import BYTE_CHARACTERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_GGML = "tokenizer.ggml."


def byte_level(
    added: tuple[str, ...] = (), added_type: int = CONTROL, **fields: Any
) -> dict[str, Any]:
    """256 byte tokens (id = byte), then "ab" (256), "abc" (257), then ``added`` from 258 on."""
    tokens = [BYTE_CHARACTERS[byte] for byte in range(256)] + ["ab", "abc", *added]
    return {
        _GGML + "model": "gpt2",
        _GGML + "pre": "gpt-2",
        _GGML + "tokens": tokens,
        _GGML + "token_type": [NORMAL] * 258 + [added_type] * len(added),
        _GGML + "merges": ["a b", "ab c"],
    } | {_GGML + key: value for key, value in fields.items()}


def sentencepiece(
    pieces: tuple[str, ...] = ("▁", "a", "b", "ab", "▁ab"),
    added: tuple[tuple[str, int], ...] = (),
    **fields: Any,
) -> dict[str, Any]:
    """<unk>, <s>, </s>, 256 bytes (3 to 258), ``pieces`` from 259 on, then ``added`` with types."""
    n_fixed = 259
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    return {
        _GGML + "model": "llama",
        _GGML + "tokens": tokens + [text for text, _ in added],
        _GGML + "token_type": types + [kind for _, kind in added],
        _GGML + "scores": [0.0] * n_fixed + [float(i) for i in range(len(pieces) + len(added))],
    } | {_GGML + key: value for key, value in fields.items()}
