"""How byte-level BPE cuts text into words before it merges, by GGUF's name of the way.

The expressions are those published with the models (OpenAI's encoder.py of GPT-2; tokenizer.json of
Llama 3, Qwen 2 and SmolLM), the default is llama.cpp's.  Letters and digits are Oniguruma's, of
Unicode 16; llama.cpp 0.5 takes the 80 digits that came with Unicode 16 for symbols.
"""

from __future__ import annotations

from aleator.core.errors import UnsupportedModel
from aleator.text.vocabulary import LLAMA3_NAMES

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LLAMA3 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Each expression cuts what the one before left, into matches and what lies between them.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LLAMA3_NAMES, (_LLAMA3,)),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}


def expressions(name: str) -> tuple[str, ...]:
    """The expressions of a pre-tokenizer.

    Args:
        name: GGUF's, of tokenizer.ggml.pre.

    Raises:
        UnsupportedModel: it is not known.
    """
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]
