"""What tools/compare_server.py asks two servers: prompts, grammars, schemas, texts, and what is refused."""

from __future__ import annotations

from typing import Any

PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4,",
    "<|im_start|>user\nWhat is the sky?<|im_end|>\n<|im_start|>assistant\n",
    "Ein Text auf Deutsch: Der Zug",
    "媽媽說:",
    "Q: Why is grass green?\nA:",
    "{\"name\": \"Ada\", \"born\":",
    "It was a dark and stormy night; the rain fell in torrents",
    "To be, or not to be,",
    "SELECT name FROM users WHERE",
    "x = [1, 2, 3]\nprint(",
    "The quick brown fox jumps over the lazy dog. The quick brown",
    "- eggs\n- milk\n-",
    "🙂 means",
)  # fmt: skip

GRAMMARS = (
    'root ::= "yes" | "no"',
    "root ::= [0-9]+",
    'root ::= "- " [a-z ]+ "\\n- " [a-z ]+ "\\n"',
    'root ::= object\nobject ::= "{" ws "\\"a\\":" ws [0-9]+ ws "}"\nws ::= " "?',
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    {"enum": ["red", "green"]},
)
TEXTS = (
    "Hello, world!", "  two spaces", "naïve café 媽 🙂", "tab\there\n\nnew", "", "<|im_start|>user",
    "a" * 50,
)  # fmt: skip

TALK = [{"role": "user", "content": "a"}]
REFUSED: tuple[tuple[str, dict[str, Any] | list[Any] | str], ...] = (
    ("/completion", {}),
    ("/completion", {"prompt": []}),
    ("/completion", {"prompt": [1, None]}),
    ("/completion", {"prompt": [10**7]}),
    ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}}),
    ("/completion", {"prompt": "a " * 3000}),
    ("/completion", {"prompt": "a", "n_predict": -2}),
    ("/completion", {"prompt": "a", "n_predict": "many"}),
    ("/completion", {"prompt": "a", "grammar": "root := x"}),
    ("/completion", {"prompt": "a", "json_schema": {"type": "nothing"}}),
    ("/completion", {"prompt": "a", "n_predict": 1, "samplers": ["magic"]}),
    ("/completion", {"prompt": "a", "n_predict": 1, "temperature": -1}),
    ("/completion", {"prompt": "a", "n_predict": 1, "temprature": 1}),
    ("/completion", {"prompt": "a", "n_predict": 1, "seed": 99999999999, "numerics": "llama.cpp"}),
    ("/completion", {"prompt": "a", "n_predict": 1, "logit_bias": [[1]]}),
    ("/completion", "not json"),
    ("/v1/completions", {}),
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {"messages": "hi"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("/v1/chat/completions", {"messages": TALK, "response_format": {"type": "x"}}),
    ("/infill", {"input_prefix": "a"}),
    ("/detokenize", {"tokens": "a"}),
    ("/apply-template", {}),
    ("/slots/0?action=save", {"filename": "../x"}),
    ("/slots/0?action=burn", {"filename": "x"}),
    ("/slots/9?action=erase", {}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
    ("/embedding", {}),
    ("/nothing", {}),
)  # fmt: skip
