"""Pre-tokenizers: how byte-level BPE cuts text into words before merging, by GGUF's names.

The expressions are those published with the models (OpenAI's encoder.py of GPT-2; tokenizer.json of the
others); the default is llama.cpp's.  Letters and digits are Oniguruma's, of Unicode 16; llama.cpp 0.5 treats
the 80 digits that Unicode 16 added as symbols.  ``tokenizers`` (Oniguruma) runs the expressions, as they need
Unicode classes and lookahead.  Merging is native, because the package's BPE model was the slowest step before
the first token.  Short ASCII texts, where a Unicode class is a few characters, are cut by `re` instead, with
the same result.
"""

from __future__ import annotations

import re

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
# llama.cpp's classes of upper and lower case: only ASCII letters have a case.
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED % ("", "") + r"|\p{N}" + _REST
_GPT4O = _CASED % ((f"(?:{_CONTRACTIONS})?",) * 2) + r"|\p{N}{1,3}" + _REST
_GRANITE = _GPT4O.replace(r"(?=\p{L})", r"(?=[\p{L}\p{M}])")
# Moonshot's tokenization_kimi.py, where letters of all scripts have a case, and Han characters stand apart.
# llama.cpp 0.5 cuts letters without regard to case, and no marks are letters there.
_KIMI = r"\p{Han}+|" + _GPT4O.replace(
    _UPPER, r"(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
).replace(_LOWER, r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])").replace(
    "'[sS]", "'[sS\u017f]"
).replace(r"[\r\n/]*", r"[\r\n]*")
_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _KANA,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""The cased letters of DeepSeek LLM's tokenizer.json, as ranges."""
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DIGITS_APART = (r"\p{N}", _GPT2)

LLAMA3_NAMES = (
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
)  # fmt: skip
_GPT2_NAMES = (
    "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion", "granite-docling",
    "exaone4", "modern-bert", "roberta-bpe", "jina-v1-en", "jina-v2-code", "jina-es", "jina-de",
    "jina-v2-es", "jina-v2-de",
)  # fmt: skip
_DIGIT_NAMES = (
    "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
)  # fmt: skip
_QWEN2_NAMES = (
    "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
    "grok-2",
)  # fmt: skip

# Each expression cuts the parts that the previous one made, into matches and the text between them.
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
    "granite-embed-multi-97m": (_GRANITE,),
    "kimi-k2": (_KIMI,),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_WORDS,)),
    "viking": (_WORDS, r"\p{N}"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "seed-coder": (_SEED,),
    "minicpm5": (r"\p{N}{1,3}", _MINICPM5),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        # The published class begins with U+3000, which llama.cpp treats only as white space.
        r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
        r"\s+$",
        r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}+",
    ),
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
"""The pre-tokenizers that add BOS if the file does not say."""
WHOLE_WORDS = frozenset(
    (*LLAMA3_NAMES, "tekken", "glm4", "glm5", "minicpm5", "granite-embed-multi-97m", "kimi-k2")
)
"""The pre-tokenizers that keep a word that is a token, whatever merges would make of it."""

CHARACTERS = frozenset(("gemma4", "granite-embed-multi-311m"))
"""The pre-tokenizers of vocabularies like SentencePiece's with merges, which merge characters, not bytes; only
newlines are cut off."""


def expressions(name: str) -> tuple[str, ...]:
    """The expressions of a pre-tokenizer, by GGUF's name; UnsupportedModel if it is not known."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]


_IN_ASCII = {
    r"\p{L}": "A-Za-z",
    r"\p{N}": "0-9",
    r"\p{Lu}": "A-Z",
    r"\p{Ll}": "a-z",
    **dict.fromkeys((r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{Han}"), ""),
    r"\p{P}": re.escape("!\"#%&'()*,-./:;?@[\\]_{}"),
    r"\p{S}": re.escape("$+<=>^`|~"),
}
"""The Unicode classes in the expressions -> their ASCII characters, as in a class of `re`."""
_PARTS = re.compile(r"\\p\{\w+\}|\\.|.", re.DOTALL)


def ascii_cuts(cuts: tuple[str, ...]) -> list[re.Pattern[str]]:
    """Expressions for `re` that cut ASCII text in the same way; [] if one matches the end of a line."""
    if any(cut.endswith("$") for cut in cuts):
        return []
    made = []
    for cut in cuts:
        pattern, inside = "", False
        for part in _PARTS.findall(cut):
            inside = part == "[" or (inside and part != "]")
            known = _IN_ASCII.get(part)
            one_of = f"[{known}]" if known else "(?!)"
            pattern += part if known is None else known if inside else one_of
        made.append(re.compile(pattern, re.ASCII))
    return made


def ascii_words(cuts: list[re.Pattern[str]], text: str) -> list[str]:
    """The words of an ASCII text: the matches of each expression, and the text between them."""
    words = [text]
    for cut in cuts:
        made: list[str] = []
        for word in words:
            end = 0
            for found in cut.finditer(word):
                made += (word[end : found.start()], found[0])
                end = found.end()
            made.append(word[end:])
        words = [word for word in made if word]
    return words
