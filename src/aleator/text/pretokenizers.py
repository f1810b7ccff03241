"""How byte-level BPE cuts text into words before it merges, by GGUF's name of the way.

The expressions are those published with the models (OpenAI's encoder.py of GPT-2; tokenizer.json of the
others), the default is llama.cpp's.  Letters and digits are Oniguruma's, of Unicode 16; llama.cpp 0.5 takes the
80 digits that came with Unicode 16 for symbols.
"""

from __future__ import annotations

from aleator.core.errors import UnsupportedModel

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LLAMA3 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = _QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
_MINICPM5 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")
# llama.cpp's form of the classes of upper and lower case: only ASCII letters have one.
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED % ("", "") + r"|\p{N}" + _REST
_GPT4O = _CASED % ((f"(?:{_CONTRACTIONS})?",) * 2) + r"|\p{N}{1,3}" + _REST
_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _KANA,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DIGITS_APART = (r"\p{N}", _GPT2)

LLAMA3_NAMES = (
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
)
_GPT2_NAMES = (
    *("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion"),
    *("granite-docling", "exaone4"),
)
_DIGIT_NAMES = (
    *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
)
_QWEN2_NAMES = (
    *(
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
        "stablelm2",
        "hunyuan",
        "solar-open",
    ),
    "grok-2",
)

# Each expression cuts what the one before left, into matches and what lies between them.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (*LLAMA3_NAMES, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"), (_LLAMA3,)
    ),
    **dict.fromkeys(_QWEN2_NAMES, (_QWEN2,)),
    "qwen35": (_QWEN35,),
    **dict.fromkeys(_GPT2_NAMES, (_GPT2,)),
    **dict.fromkeys(_DIGIT_NAMES, _DIGITS_APART),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), (_GPT4O,)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_WORDS,)),
    "viking": (_WORDS, r"\p{N}"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "seed-coder": (_SEED,),
    "minicpm5": (r"\p{N}{1,3}", _MINICPM5),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "deepseek-coder": (
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}

ADDS_BOS = frozenset((*LLAMA3_NAMES, "tekken"))
"""Those that put a BOS in front where the file does not say."""
WHOLE_WORDS = frozenset((*LLAMA3_NAMES, "tekken", "glm4", "glm5", "minicpm5"))
"""Those that take a word which is a token as it is, whatever merges would make of it."""

CHARACTERS = frozenset(("gemma4", "granite-embed-multi-311m"))
"""Those of vocabularies like SentencePiece's with merges, which begin with characters, not with bytes; newlines
stand apart, and nothing else is cut."""


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
