"""Fields of other servers that are accepted although nothing is done with them, and why that is honest.

A field stands here if no value of it can change the text, or for the values that ask for what is done anyway.
Everything else is honoured or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Accepted:
    """A field that is accepted."""

    why: str  # Why nothing need be done; where other values are refused, what to do instead
    # Those that are accepted; None: any; (): none, the field is only known
    values: tuple[object, ...] | None = None

    def takes(self, value: object) -> bool:
        """Whether the field may have a value; null is not given."""
        return value is None or self.values is None or value in self.values


LABEL = Accepted("it labels the request, and says nothing of the text")

OPENAI: Mapping[str, Accepted] = {
    "user": LABEL,
    "safety_identifier": LABEL,
    "metadata": LABEL,
    "store": Accepted("nothing is stored on other machines, and nothing reads what would be"),
    "service_tier": Accepted("there is one tier"),
    "prompt_cache_key": Accepted("the prompt cache compares tokens, and needs no key"),
    "prompt_cache_retention": Accepted("the prompt cache changes no text"),
    "prediction": Accepted("it makes a text faster, not another one"),
    "verbosity": Accepted("ask for it in a message", ("medium",)),
    "modalities": Accepted("only text is made", (["text"],)),
    "audio": Accepted("audio is not supported", ()),
    "web_search_options": Accepted("the server does not search the web", ()),
    "functions": Accepted("give tools instead", ([],)),
    "function_call": Accepted("give tool_choice instead", ("none", "auto")),
}
"""Of OpenAI's completions and chats."""

_BEAMS = "the server searches beams at /v1/completions and /v1/chat/completions alone"
VLLM: Mapping[str, Accepted] = {
    "use_beam_search": Accepted(_BEAMS, (False,)),
    "length_penalty": Accepted(_BEAMS, (1, 1.0)),
    "early_stopping": Accepted(_BEAMS, (False,)),
    "skip_special_tokens": Accepted("give shown_tokens with the ids to show", (True,)),
    "spaces_between_special_tokens": Accepted("nothing is put between tokens", (True, False)),
    "include_stop_str_in_output": Accepted("the stop string is not part of the text", (False,)),
    "add_special_tokens": Accepted("give token ids for a prompt without BOS", (True,)),
    "add_generation_prompt": Accepted("a chat ends with the beginning of the answer", (True,)),
    "continue_final_message": Accepted("give /v1/completions the rendered template", (False,)),
    "priority": Accepted("requests go in their order", (0,)),
    "request_id": LABEL,
    "truncate_prompt_tokens": Accepted("a prompt is not cut: shorten it", ()),
    "prompt_logprobs": Accepted("give echo and logprobs to /v1/completions", ()),
    "documents": Accepted("give chat_template_kwargs what the template reads", ([],)),
    "chat_template": Accepted(
        "templates are chosen at the start: aleator serve --chat-template", ()
    ),
    "min_length": Accepted("give min_tokens", (0,)),
    "return_token_ids": Accepted(
        "completions and chats have it; else give aleator_replay", (False,)
    ),
    "return_tokens_as_token_ids": Accepted("tokens are written as texts", (False,)),
    "include_reasoning": Accepted("reasoning is part of the answer", (True,)),
    "logits_processors": Accepted("requests bring no programs", ([],)),
    "vllm_xargs": Accepted("there are none", ({},)),
    "kv_transfer_params": Accepted("keys and values stay on this machine", ({},)),
    "mm_processor_kwargs": Accepted("only text is read", ({},)),
}
"""Of vLLM's extra fields, those that are not options of ours under another name."""

LLAMA: Mapping[str, Accepted] = {
    "reasoning_format": Accepted("reasoning stands in reasoning_content", ("auto", "deepseek")),
    "reasoning_in_content": Accepted("reasoning stands in reasoning_content", (False,)),
    "reasoning_control": Accepted("give reasoning_budget", (False,)),
    "thinking_forced_open": Accepted("the template says where reasoning begins", (False,)),
    "parse_tool_calls": Accepted("calls of tools are read", (True,)),
    "backend_sampling": Accepted("tokens are the same wherever they are drawn"),
    "sse_ping_interval": Accepted("a comment is sent every 15 seconds"),
    "verbose": Accepted("nothing more is told"),
    "n_probs": Accepted("give logprobs", (0,)),
    "post_sampling_probs": Accepted("give /completion", (False,)),
    "return_tokens": Accepted("give aleator_replay, whose record has the tokens", (False,)),
    "response_fields": Accepted("give /completion", ([],)),
    "t_max_predict_ms": Accepted("give deadline, in seconds", (0, -1)),
    "n_discard": Accepted("a context shift forgets the older half", (0,)),
    "n_cache_reuse": Accepted(
        "rows are not moved: their bits would differ from those computed anew", (0,)
    ),
    "speculative.n_max": Accepted("guesses change no token"),
    "speculative.n_min": Accepted("guesses change no token"),
    "speculative.p_min": Accepted("guesses change no token"),
    "grammar_lazy": Accepted("the grammar holds from the first token", (False,)),
    "grammar_triggers": Accepted("the grammar holds from the first token", ([],)),
    "preserved_tokens": Accepted("give shown_tokens with the ids to show", ([],)),
    "n_indent": Accepted("give grammar", (0,)),
    "add_generation_prompt": Accepted("a chat ends with the beginning of the answer", (True,)),
}
"""Of llama.cpp's extra fields, those that are not options of ours under another name."""

ACCEPTED: Mapping[str, Accepted] = {**OPENAI, **VLLM, **LLAMA}
