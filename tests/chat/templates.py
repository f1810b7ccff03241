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


def _calls(written: str, before: str = "", after: str = "") -> str:
    """A template with calls as they are written for each ``c``."""
    return (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
        f"{{% if m.tool_calls %}}{before}"
        f"{{% for c in m.tool_calls %}}{written}{{% endfor %}}{after}{{% endif %}}"
        "\n{% endfor %}assistant: "
    )


def _tagged(begin: str, before: str, middle: str, after: str, end: str) -> str:
    arguments = "{% for k, v in c.function.arguments.items() %}"
    value = "{{ v if v is string else v | tojson }}"
    return _calls(f"{begin}{arguments}{before}{{{{ k }}}}{middle}{value}{after}{{% endfor %}}{end}")


_JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
QWEN3_CODER = _tagged(
    "<tool_call>\n<function={{ c.function.name }}>\n", "<parameter=", ">\n", "\n</parameter>\n",
    "</function>\n</tool_call>",
)  # fmt: skip
SEED_OSS = QWEN3_CODER.replace("tool_call>", "seed:tool_call>")
MINIMAX_M2 = _tagged(
    '<minimax:tool_call>\n<invoke name="{{ c.function.name }}">\n', '<parameter name="', '">',
    "</parameter>\n", "</invoke>\n</minimax:tool_call>",
)  # fmt: skip
DSML = "{% set dsml_token = '｜DSML｜' %}" + _tagged(
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ c.function.name }}">\n', '<｜DSML｜parameter name="',
    """" string="{{ 'true' if v is string else 'false' }}">""", "</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
)  # fmt: skip
DSML_V4 = DSML.replace("function_calls>", "tool_calls>")
MINICPM5 = _tagged(
    '<function name="{{ c.function.name }}">', '<param name="', '">', "</param>", "</function>"
)  # fmt: skip
GLM = _tagged(
    "<tool_call>{{ c.function.name }}\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n",
    "</tool_call>",
)  # fmt: skip
GLM_LINE = _tagged(
    "<tool_call>{{ c.function.name }}", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>"
)  # fmt: skip
HY3 = "{# <tool_sep{}> #}" + _tagged(
    "<tool_calls:opensource>\n<tool_call:opensource>{{ c.function.name }}<tool_sep:opensource>\n",
    "<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>",
    "</arg_value:opensource>\n", "</tool_call:opensource>\n</tool_calls:opensource>",
)  # fmt: skip
FUNCTION_TAGS = "{% set has_code_interpreter = false %}" + _calls(
    "<function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function>"
)
RECIPIENTS = "Answer as >>>${recipient} {# >>>all #}" + _calls(
    ">>>{{ c.function.name }}\n{{ c.function.arguments | tojson }}"
)
FIREFUNCTION = _calls(_JSON, " functools[", "]")
GRANITE = _calls(_JSON, "<|tool_call|>[", "]")
NEMOTRON_V2 = _calls(_JSON, "<TOOLCALL>[", "]</TOOLCALL>")
TOOL_CALLS_LIST = _calls(_JSON, "<tool_calls>[", "]</tool_calls>")
TOOL_CALLS_LINES = _calls(_JSON + "\n", "<tool_calls>\n", "</tool_calls>")
COMMAND_R7B = _calls(
    '{"tool_call_id": "0", "tool_name": "{{ c.function.name }}", '
    '"parameters": {{ c.function.arguments | tojson }}}',
    "<|START_ACTION|>[", "]<|END_ACTION|>",
)  # fmt: skip
GIGACHAT = _calls(f"<|function_call|>{_JSON}") + "{# <|role_sep|> #}"
GIGACHAT3 = _calls(f"<|message_sep|>\n\n{{{{ 'function call' }}}}<|role_sep|>\n{_JSON}")
KIMI = _calls(
    "<|tool_call_begin|>functions.{{ c.function.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
)  # fmt: skip
PYTHONIC = _calls(
    "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %})",
    "<|tool_call_start|>[", "]<|tool_call_end|>",
)  # fmt: skip
PYTHONIC_LIST = "{# [func_name1(params_name1=params_value1)] #}" + _calls(
    "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %})",
    "[", "]",
)  # fmt: skip
GEMMA4 = _calls(
    "<|tool_call>call:{{ c.function.name }}{{ '{' }}{% for k, v in c.function.arguments.items() %}{{ k }}:"
    '<|"|>{{ v }}<|"|>{% endfor %}{{ "}" }}<tool_call|>'
)
LLAMA4 = LLAMA3.replace("start_header_id", "header_start").replace("end_header_id", "header_end")
FAMILIES = {
    "hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "mistral args": MISTRAL_ARGS,
    "deepseek": DEEPSEEK, "deepseek bare": DEEPSEEK_BARE, "harmony": HARMONY, "generic": GENERIC,
    "qwen3-coder": QWEN3_CODER, "seed-oss": SEED_OSS, "minimax-m2": MINIMAX_M2, "glm": GLM,
    "glm line": GLM_LINE, "granite": GRANITE, "nemotron-v2": NEMOTRON_V2,
    "tool-calls-list": TOOL_CALLS_LIST, "tool-calls-lines": TOOL_CALLS_LINES, "command-r7b": COMMAND_R7B,
    "kimi": KIMI, "pythonic": PYTHONIC, "gemma4": GEMMA4, "dsml": DSML, "dsml-v4": DSML_V4,
    "minicpm5": MINICPM5, "functionary-v3.1": FUNCTION_TAGS, "functionary-v3.2": RECIPIENTS,
    "pythonic-list": PYTHONIC_LIST, "llama3 of 4": LLAMA4, "gigachat": GIGACHAT, "gigachat3": GIGACHAT3,
    "firefunction": FIREFUNCTION, "hy3": HY3,
}  # fmt: skip
MARKS = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>",
    "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|call|>", "<|return|>", "<|tool_call|>", "<|START_ACTION|>",
    "<|END_ACTION|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call_start|>", "<|tool_call>",
    "<tool_call|>", '<|"|>', "｜DSML｜", "<|function_call|>", "<|message_sep|>", "<|role_sep|>",
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
WRITE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"$ref": "#/$defs/name"},
                "kind": {"enum": ["a b", "c"]},
                "text": {"type": "string"},
                "more": {"type": ["boolean", "integer"], "minimum": 0, "maximum": 9},
            },
            "required": ["name", "kind"],
            "additionalProperties": False,
            "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 5}},
        },
    },
}
"""Arguments of which some may be left out."""
