"""Prompts for text between a beginning and an end."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.text.tokenizer import Tokenizer


def infilling(
    tokenizer: Tokenizer, prompt: str | list[int], suffix: str, parse_special: bool
) -> list[int]:
    """The tokens after which a model writes what stands between two texts.

    Args:
        tokenizer: Of the model.
        prompt: What stands before: text or token ids.
        suffix: What stands after.
        parse_special: Whether names of control tokens in them are these tokens.

    Raises:
        ParameterError: The vocabulary has no tokens for it.
    """
    special = tokenizer.vocab.special
    before, after, middle = special.fim_pre, special.fim_suf, special.fim_mid
    if before is None or after is None or middle is None:
        raise ParameterError(
            "suffix",
            "suffix: this model's vocabulary has no tokens for text between two others (fill in the middle): "
            "leave suffix out",
        )
    begin = tokenizer.vocab.bos if tokenizer.vocab.add_bos else None
    head = [] if begin is None else [begin]
    if isinstance(prompt, str):
        prompt = tokenizer.encode(prompt, add_special=False, parse_special=parse_special)
    end = tokenizer.encode(suffix, add_special=False, parse_special=parse_special)
    return [*head, before, *prompt, after, *end, middle]
