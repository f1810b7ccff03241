"""Short templates in the shapes of families: the marks of each, and nothing else of theirs."""

from __future__ import annotations

from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>"
    "{% for c in m.tool_calls or [] %}"
    '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}'
    "{{ m.content }}<|eot_id|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.tool_calls %}"
    "[TOOL_CALLS][{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
MISTRAL_ARGS = MISTRAL.replace(
    "[{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]",
    "{% for c in m.tool_calls %}{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}",
)
DEEPSEEK = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<｜User｜>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    "{{ c.function.name + '\n```json\n' + c.function.arguments + '\n```' }}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}{% endfor %}<｜Assistant｜><think>\n"
)
DEEPSEEK_BARE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<｜User｜>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name }}"
    "<｜tool▁sep｜>{{ c.function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}"
    "{% endfor %}<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}"
)
HARMONY = (
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.tool_calls %}<|channel|>commentary to=functions.{{ m.tool_calls[0].function.name }}"
    "<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant"
)
GENERIC = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}assistant: "
)
FAMILIES = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral args": MISTRAL_ARGS,
    "deepseek": DEEPSEEK,
    "deepseek bare": DEEPSEEK_BARE,
    "harmony": HARMONY,
    "generic": GENERIC,
}
MARKS = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>",
    "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|call|>", "<|return|>",
)  # fmt: skip
"""Control tokens of these."""
GUARDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HARMONY_PARTS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
"""User-defined tokens of these."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
