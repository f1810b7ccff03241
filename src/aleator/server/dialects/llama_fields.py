"""The body of ``/completion`` and ``/infill``: llama-server's fields, checked as strictly as all others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.generate.options import MOST
from aleator.samplers.index import BY_NAME
from aleator.samplers.order import parse_letters, parse_names
from aleator.server import fields
from aleator.server.accepted import ACCEPTED, Accepted
from aleator.server.fields import MOST_COMPLETIONS, MOST_PROMPTS, Body, Field, Fields, wrong
from aleator.server.openai_fields import OURS, TIMES
from aleator.text.tokenizer import Tokenizer

RANDOM_SEED = 2**32 - 1
"""llama.cpp's form of -1 in 32 bits; ``/props`` gives it, so clients send it back."""

Prompt = str | list[int | str]
"""A text, or token ids with texts among them."""

LLAMA_ACCEPTED: Mapping[str, Accepted] = {
    **ACCEPTED,
    "stream_options": Accepted("the last event of a stream always says how many tokens there were"),
    "reasoning_format": Accepted("reasoning stays in the text"),
    "parse_tool_calls": Accepted("calls of tools stay in the text"),
    "penalize_nl": Accepted("give logit_bias to line breaks", (True,)),
    "image_data": Accepted("pictures are not supported", ([],)),
    "reasoning_control": Accepted("give reasoning_budget_tokens", (False,)),
    "continue_final_message": Accepted("a prompt is always continued", (False, True)),
}
"""llama-server's fields that are ignored, or accepted only with their neutral values."""


def options_of(body: Body, n_bos: int) -> dict[str, Any]:
    """The options of a generation; every prompt begins with ``n_bos`` tokens that ``n_keep`` does not count."""
    own, made = body.own, dict(body.options)
    if made.get("grammar") == "":
        del made["grammar"]
    if own["n_probs"] and not own["post_sampling_probs"]:
        made["logprobs"] = own["n_probs"]
    if own["n_keep"] is not None:
        made["n_keep"] = own["n_keep"] if own["n_keep"] < 0 else own["n_keep"] + n_bos
    return made


# Checks of values.

TEXTS = fields.list_of(fields.text)


def seed(name: str, value: Any) -> int:
    """Check a seed; -1, also in llama.cpp's 32-bit form, draws one."""
    made = None if isinstance(value, float) else exact(value)
    if made is None or not -1 <= made < 2**64:
        raise wrong(name, value, "give an integer, 0 to 18446744073709551615, or -1 for any")
    return -1 if made == RANDOM_SEED else made


def samplers(name: str, value: Any) -> tuple[str, ...]:
    """Names of samplers in a list, or separated by semicolons; or a text of letters, as in llama-server."""
    if isinstance(value, str):
        names = ";" in value or value.strip().lower() in BY_NAME
        if names:
            return parse_names(value)
        try:
            return parse_letters(value)
        except ParameterError as error:
            raise wrong(name, value, str(error)) from None
    return parse_names(TEXTS(name, value))


def logit_bias(name: str, value: Any) -> list[tuple[int | str, float]]:
    """Biases: pairs of a token and a number, or an object; false instead of a number bans the token.

    A token is an id, or a text, which stands for all its tokens.  A number as a key of an object is an id.
    """
    if isinstance(value, Mapping):
        pairs: list[Any] = [[fields.token_id(key), bias] for key, bias in value.items()]
    else:
        pairs = fields.listing(name, value)
    made: list[tuple[int | str, float]] = []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2:
            raise ParameterError(name, f"{name}[{i}]={fields.shown(pair)}: give [token, bias]")
        token, bias = pair
        if not isinstance(token, str) and (isinstance(token, bool | float) or exact(token) is None):
            raise ParameterError(
                name, f"{name}[{i}]: token {token!r:.80} is neither an id nor a text"
            )
        if bias is False:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ParameterError(
                name, f"{name}[{i}]: bias {bias!r:.80} is neither a number nor false"
            )
        made.append((token, float(bias)))
    return made


def schema(name: str, value: Any) -> Any:
    """Check a JSON schema; {} asks for an object, as in llama-server."""
    if not isinstance(value, dict | bool):
        raise wrong(name, value, "give a JSON schema")
    return {"type": "object"} if value == {} else value


def prompts_of(name: str, value: Any) -> tuple[bool, list[Prompt]]:
    """The prompts of a request, and whether they came in a list.

    A prompt is a text; token ids, possibly with texts among them; or an object with ``prompt_string``.  Several
    prompts form a list.
    """
    several = isinstance(value, list) and not any(fields.is_whole(each) for each in value)
    items = value if several else [value]
    if not 1 <= len(items) <= MOST_PROMPTS:
        raise ParameterError(name, f"{name} has {len(items)} items: give 1 to {MOST_PROMPTS}")
    made = [prompt_of(f"{name}[{i}]" if several else name, each) for i, each in enumerate(items)]
    return several, made


def prompt_of(where: str, value: Any) -> Prompt:
    """Check one prompt; errors are those of :func:`prompts_of`."""
    if isinstance(value, Mapping) and "prompt_string" in value:
        fields.known_keys(where, value, ("prompt_string", "multimodal_data"))
        if value.get("multimodal_data"):
            raise ParameterError(
                where, f"{where}.multimodal_data: pictures and audio are not supported"
            )
        value = value["prompt_string"]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        for each in value:
            if not isinstance(each, str) and not fields.is_whole(each):
                raise ParameterError(where, f"{where} has {each!r:.80}: give token ids and texts")
        return list(value)
    raise wrong(
        where, value, 'give a text, a list of token ids and texts, or {"prompt_string": text}'
    )


def tokens_of(
    tokenizer: Tokenizer,
    prompt: str | Sequence[int | str],
    parse_special: bool,
    *,
    add_special: bool = True,
    to_continue: bool = True,
) -> list[int]:
    """The tokens of a prompt as llama-server makes them, without EOS if it is to be continued."""
    parts: Sequence[int | str] = [prompt] if isinstance(prompt, str) else prompt
    made: list[int] = []
    for i, part in enumerate(parts):
        if not isinstance(part, str):
            made.append(part)
            continue
        special = add_special and i == 0
        made += tokenizer.encode(part, special, parse_special)
        if special and to_continue and tokenizer.vocab.add_eos:
            del made[-1]
    return made


OWN = (
    Field("model", fields.text),
    Field("stream", fields.switch, False),
    Field("parse_special", fields.switch, True),
    Field("return_tokens", fields.switch, False),
    Field("n_probs", fields.whole(0, MOST), 0, aliases=("logprobs",)),
    Field("post_sampling_probs", fields.switch, False),
    Field("response_fields", TEXTS, ()),
    Field("id_slot", fields.whole(-1, MOST), -1),
    Field("t_max_predict_ms", fields.number(-1, 1e12), 0.0),
    Field("n_indent", fields.whole(0, MOST), 0),
    Field("n_keep", fields.whole(-1, MOST)),
    Field("n_cmpl", fields.whole(1, MOST_COMPLETIONS), 1, aliases=("n",)),
    *OURS,
    *TIMES,
    Field("seed", seed, option=True),
    Field("samplers", samplers, option=True),
    Field("logit_bias", logit_bias, option=True),
    Field("grammar", fields.text, option=True),
    Field("json_schema", schema, option=True),
)
"""Fields of a completion that are not options of a generation, or are written differently."""

of_llama = partial(
    Fields,
    *OWN,
    without=("shown_tokens", "logprobs"),
    accepted=LLAMA_ACCEPTED,
    engines=("llama.cpp",),
    strict=(),
)
"""Makes the table of an endpoint from its other fields."""

FIELDS = of_llama(Field("prompt", prompts_of, required=True))
"""The fields of ``/completion``."""
