"""Options of models, contexts and generations; their defaults stand here and in cache/options.py only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aleator.cache.options import CacheOptions
from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.options import Option, Options, declarations, host_option, option, resolved
from aleator.core.parameter import check_unicode
from aleator.core.records import dataclass
from aleator.core.threads import ALONE
from aleator.generate.expressions import MAX_EXPRESSIONS, Expressions, banned_expressions
from aleator.generate.loops import Limits, loop_limits
from aleator.models.adapters import AdapterFile, Chosen, adapter_files, chosen_adapters, read_words
from aleator.models.placement import DeviceMap
from aleator.samplers.token_arguments import check_ids

if TYPE_CHECKING:
    import torch

BANS = ("banned_strings", "banned_regex")
"""Options that ban something."""
MOST = 2**31 - 1
MOST_TEXTS, LONGEST_TEXT = 512, 1000
"""Texts that end a text or are banned at most, and characters of one: after each token all are looked for."""

THREADS_PER_CORE = 16
"""Threads that may be asked for, for each core of the machine: more only wait, and very many crash OpenMP."""


def check_threads(name: str, value: int) -> int:
    """A number of threads that this machine can run; ParameterError for more."""
    if ALONE and value > 1:
        raise ParameterError(
            f"{name}={value} is out of range: give 1, as Python in a page has no threads"
        )
    cores = os.cpu_count() or 1
    if value > THREADS_PER_CORE * cores:
        raise ParameterError(
            f"{name}={value}: give at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each of the "
            f"{cores} cores of this machine"
        )
    return value


@dataclass(frozen=True, kw_only=True)
class ContextOptions(CacheOptions):
    """Options of :class:`aleator.generate.Context`: its cache's, and how batches are run."""

    n_batch: int = host_option(
        "tokens of one prefill call: batches are cut into pieces of at most so many",
        2048, low=1, high=MOST, flags=("-b", "--batch-size"),
    )  # fmt: skip
    n_threads: int | None = host_option(
        "threads for decoding one token; the setting is the process's, and stays",
        None, low=1, high=MOST, flags=("-t", "--threads"),
        checker=partial(check_threads, "n_threads"), shown="OMP_NUM_THREADS, else all cores",
    )  # fmt: skip
    n_threads_batch: int | None = host_option(
        "threads for more than one token",
        None, low=1, high=MOST, flags=("-tb", "--threads-batch"),
        checker=partial(check_threads, "n_threads_batch"), shown="like n_threads",
    )  # fmt: skip
    device: torch.device | str | None = host_option(
        "where logits are returned, such as cpu or cuda:1", None, shown="the decoder's"
    )
    causal_attn: bool = option(
        "a token sees only those before it; otherwise every token of its sequence, and a batch must fit "
        "n_ubatch (not for models with windows or states)",
        True,
    )  # fmt: skip
    embeddings: bool = option(
        "decode gives hidden states after the last norm, [rows, n_embd], in place of logits", False
    )
    split: str | None = host_option(
        "how batches are cut (aleator.cache.batches)",
        None, choices=("simple", "equal", "sequence"),
        shown="llama.cpp's choice: equal with policy='streams' and for models with attention and states, else "
        "simple",
    )  # fmt: skip
    lock_timeout: float | None = host_option(
        "seconds to wait for another thread that uses the context, before it is an error",
        None, low=0, shown="no limit",
    )  # fmt: skip


UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MOST_BYTES = 2**50


def read_size(name: str, text: str) -> int:
    """Bytes of a size such as 512, which are MiB as llama.cpp's are, or 200M, 8G or 1.5 GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])(?:i?B)?)?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise ParameterError(
            f"{name}={text!r:.40}: give MiB, or a size such as 500M or 8G; 0: none"
        )
    return int(float(found[1]) * UNITS[(found[2] or "M").upper()])


def not_divided(value: str | None) -> None:
    """Nothing; ParameterError for anything that divides layers by parts."""
    if value is not None:
        raise ParameterError(
            f"tensor_split={value!r}: layers are not divided by parts: leave it out, and name the layers of "
            "each device, as device_map='cuda:0=0:20,cuda:1=20:32' does"
        )


CHAT_CACHE_DISK = 4 * 2**30
"""``cache_disk`` of ``aleator chat`` and ``aleator serve``."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Options of :func:`aleator.load` beside those of a context."""

    device: str | None = host_option(
        "what computes: cpu, cuda, cuda:1 ...; auto: cuda where it can, else cpu, and the log says why",
        None, flags=("--device",), metavar="NAME", shown="cuda where there is one, else cpu",
    )  # fmt: skip
    dtype: torch.dtype | str | None = host_option(
        "exact: weights as they are stored, activations in float32, and the CPU's bits on a GPU too "
        "(docs/device.md); or a type to compute in, on a GPU by PyTorch: float32, float16 or bfloat16",
        None, flags=("--dtype",), metavar="NAME", shown="float32 on the CPU, exact on CUDA",
    )  # fmt: skip
    n_ctx: int | None = host_option(
        "positions of one sequence: prompt and text together; 0: as many as the model was trained with",
        None, low=0, high=MOST, flags=("-c", "--ctx-size"), shown="that, but at most 4096",
    )  # fmt: skip
    prompt_cache: bool = host_option(
        "keep what was computed while there is room: a text is computed only from where it diverges from "
        "earlier ones",
        True, off_flags=("--no-prompt-cache",),
        off_help="compute every prompt anew",
    )  # fmt: skip
    cache_ram: int = host_option(
        "bytes of memory for the prompt cache beside the cells (docs/prompt-cache.md); on the command line a "
        "number without a unit is MiB",
        0, low=0, high=MOST_BYTES, flags=("-cram", "--cache-ram"), metavar="SIZE",
        reader=partial(read_size, "cache_ram"), shown="none",
    )  # fmt: skip
    cache_disk: int = host_option(
        "bytes of disk for the prompt cache, which outlive the process; on the command line a number without a "
        "unit is MiB",
        0, low=0, high=MOST_BYTES, flags=("--cache-disk",), metavar="SIZE",
        reader=partial(read_size, "cache_disk"), off_flags=("--no-cache-disk",),
        off_help="keep no prompts on disk",
        shown=f"none; {CHAT_CACHE_DISK // 2**30}G for aleator chat and aleator serve",
    )  # fmt: skip
    cache_dir: str | None = host_option(
        "directory of cache_disk, which processes may share",
        None, flags=("--cache-dir",), metavar="DIRECTORY", shown="aleator/prompts in the user's cache folder",
    )  # fmt: skip
    n_gpu_layers: int | None = host_option(
        "last layers that are on a CUDA device with their part of the cache, the others on the CPU; 1 or more: "
        "the output matrix too; all: the embedding too",
        None, low=0, high=MOST, flags=("-ngl", "--n-gpu-layers", "--gpu-layers"),
        shown="what device says",
    )  # fmt: skip
    device_map: str | Sequence[tuple[str, int, int]] | None = host_option(
        "layers of each device, with their part of the cache: cpu=0:20,cuda:0=20:32 for layers 0 to 19 and 20 "
        "to 31; in Python [('cpu', 0, 20), ('cuda:0', 20, 32)] too",
        None, flags=("--device-map",), metavar="NAME=A:B,...", checker=DeviceMap.of,
        shown="what device and n_gpu_layers say",
    )  # fmt: skip
    tensor_split: str | None = host_option(
        "refused: device_map names layers",
        None, flags=("-ts", "--tensor-split"), metavar="N,N", checker=not_divided,
    )  # fmt: skip
    adapters: tuple[AdapterFile, ...] = host_option(
        "LoRA adapters by their names, {name: file}, which texts choose; with (file, scale) in place of file, "
        "and on the command line, one holds for all texts that choose none (docs/adapters.md)",
        (), flags=("--lora", "--lora-scaled"), checker=adapter_files, reader=read_words,
        annotation="Mapping[str, str | PathLike[str] | tuple[str | PathLike[str], float]]",
        metavar="[NAME=]FILE[:SCALE]",
    )  # fmt: skip
    adapter_type: str = host_option(
        "how adapters' numbers are kept: auto: rounded to Q8_0 beside the model's quantised matrices, as "
        "stored beside others; stored: as in the file; f16: those in float32 rounded to float16; q8_0: all "
        "to Q8_0",
        "auto", choices=("auto", "stored", "f16", "q8_0"), flags=("--lora-type",),
    )  # fmt: skip
    model_draft: str | None = host_option(
        "what guesses for spec_type='draft': a smaller model with the same vocabulary; the directory of an "
        "EAGLE-3 head; mtp: the layer in the model's file that predicts further tokens; bundled: the bundled "
        "model's head",
        None, flags=("-md", "--model-draft"), metavar="PATH",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check the values, and that there are adapters where their type is given."""
        super().__post_init__()
        if self.adapter_type != "auto" and not self.adapters:
            raise ParameterError(
                "adapter_type",
                f"adapter_type={self.adapter_type!r} is for adapters, and there are none: give adapters, too, "
                "or leave adapter_type out",
            )


LOADED: tuple[Option, ...] = tuple(
    each
    for name, each in declarations(ContextOptions).items()
    if name not in ("n_ctx", "n_seq_max", "device", "causal_attn", "embeddings")
)
"""Options of a model's contexts that are given when it is loaded."""
WHERE = ("device", "n_gpu_layers", "device_map")
"""Options that say where a model computes."""
OF_THE_MACHINE = ("n_threads", "n_threads_batch")
"""Options whose range depends on the machine."""


ROLLBACK = 8
"""Tokens that texts of a recurrent model can be rewound by, unless ``n_rollback`` says otherwise."""


def of_loading(
    given: Mapping[str, Any], *, here: bool = True
) -> tuple[ModelOptions, dict[str, Any]]:
    """Check the options of loading a model; returns those of the model, and those of its contexts as given.

    With a draft model ``n_rollback`` is :data:`ROLLBACK` unless it is given: guesses are taken back.

    ``here``: this machine loads it; otherwise what depends on the machine is left for the one that does.

    Raises:
        ParameterError: An unknown option, or one out of range.
    """
    known, loaded = declarations(ModelOptions), {each.name: each for each in LOADED}
    rest = resolved(given, {**loaded, **known})
    chosen = ModelOptions(**{name: rest.pop(name) for name in known.keys() & rest.keys()})
    for name, value in rest.items():
        elsewhere = not here and name in OF_THE_MACHINE
        (replace(loaded[name], checker=None) if elsewhere else loaded[name]).check(value)
    if chosen.model_draft is not None:
        rest.setdefault("n_rollback", ROLLBACK)
    return chosen, rest


def no_limit(value: int) -> int | None:
    """-1 is another way to write None."""
    return None if value == -1 else value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several as a tuple; ParameterError for anything else, an empty text, and no Unicode."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        given = (None,)
    made = tuple(given)
    if not all(isinstance(text, str) for text in made):
        raise ParameterError(f"{name}={value!r:.80}: give a text or a list of texts")
    if "" in made:
        raise ParameterError(f"{name}={value!r:.80}: each has at least one character")
    return tuple(check_unicode(name, text) for text in made)


def short_texts(name: str, value: Any) -> tuple[str, ...]:
    """Texts as :func:`texts` gives them; ParameterError for one that is too long, too."""
    made = texts(name, value)
    length = max(map(len, made), default=0)
    if length > LONGEST_TEXT:
        raise ParameterError(
            name, f"{name} has a text of {length} characters: give at most {LONGEST_TEXT}"
        )
    return made


def text_or_ids(value: Any) -> str | tuple[int, ...]:
    """A text, or token ids in a tuple."""
    if isinstance(value, str):
        return value
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else [None]
    ids = [number for item in items if (number := exact(item)) is not None]
    if len(ids) < len(items):
        raise ParameterError(f"negative_prompt={value!r:.80}: give a text or a list of token ids")
    return tuple(ids)


def two_texts(value: Any) -> tuple[str, str]:
    """A text that begins something and one that ends it; ParameterError for anything else."""
    made = texts("reasoning_marks", value)
    if isinstance(value, str) or len(made) != 2:
        raise ParameterError(
            f"reasoning_marks={value!r:.80}: give two texts, such as those of <think>"
        )
    return made[0], made[1]


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Options):
    """Options of :meth:`aleator.LanguageModel.generate` beside sampling parameters."""

    max_tokens: int | None = option(
        "tokens to write at most; -1: until the model ends or the context is full",
        None, low=-1, high=MOST, checker=no_limit, aliases=("max_new_tokens", "n_predict"),
        flags=("-n", "--n-predict", "--predict", "--max-tokens", "--max-new-tokens"), shown="-1",
    )  # fmt: skip
    stop: tuple[str, ...] = option(
        "end before this text, which is not part of it; several may be given",
        (), most=MOST_TEXTS, flags=("-r", "--stop", "--reverse-prompt"), checker=partial(short_texts, "stop"),
        annotation="str | Iterable[str]", metavar="TEXT", escapes=True,
        schema={"type": ["string", "array"], "items": {"type": "string"}},
    )  # fmt: skip
    stop_loops: Limits | None = option(
        "end a text that repeats itself: its last tokens are so many repeats of one cycle (repeats) and so "
        "many tokens (min_tokens), or more; with temperature and for it goes on, that many tokens at that "
        "temperature",
        None, type=object, checker=loop_limits, flags=("--stop-loops",), metavar="REPEATS,TOKENS[,TEMP,FOR]",
        annotation="Mapping[str, float] | Iterable[float] | str | None",
        schema={"type": ["object", "array", "string", "null"]},
    )  # fmt: skip
    logprobs: int | None = option(
        "report each token's natural-log probability and those of so many most probable ones, from the logits "
        "before sampling",
        None, low=0, high=MOST, flags=("--logprobs",),
    )  # fmt: skip
    kept: bool = host_option(
        "report which tokens the samplers had left, and the drawn one's natural-log probability among them; "
        "needs logprobs and portable numerics",
        False,
    )  # fmt: skip
    echo: bool = option("begin the text with the prompt", False, flags=("--echo",))
    parse_special: bool = option(
        "read names of control tokens in the prompt as those tokens; not for text of strangers",
        False, flags=("--parse-special",),
    )  # fmt: skip
    heal: bool = option(
        "take back the last tokens of the prompt that a longer token begins with, and write them anew: for "
        "prompts that end within a word; not for chats, nor with a grammar",
        False, aliases=("token_healing",), flags=("--heal",),
    )  # fmt: skip
    shown_tokens: tuple[int, ...] = option(
        "control tokens whose names are part of the text, where others are left out",
        (), checker=partial(check_ids, "shown_tokens"), annotation="Iterable[int]",
        schema={"type": "array", "items": {"type": "integer"}},
    )  # fmt: skip
    reasoning_budget: int | None = option(
        "tokens of reasoning at most: after these its end is forced; -1: no limit",
        None, low=-1, high=MOST, checker=no_limit, flags=("--reasoning-budget",), shown="-1",
    )  # fmt: skip
    reasoning_budget_message: str = option(
        "text that ends reasoning whose budget is spent, before its end is forced",
        "", checker=partial(check_unicode, "reasoning_budget_message"), metavar="TEXT",
        escapes=True, flags=("--reasoning-budget-message",),
    )  # fmt: skip
    reasoning_budget_grace: int = option(
        "tokens that reasoning may have beyond its budget to come to the end of a sentence",
        0, low=0, high=MOST, flags=("--reasoning-budget-grace",),
    )  # fmt: skip
    reasoning_marks: tuple[str, str] = option(
        "texts that begin and end reasoning, for reasoning_budget; a chat knows those of its template",
        ("<think>", "</think>"), checker=two_texts, annotation="tuple[str, str]",
        schema={"type": "array", "items": {"type": "string"}},
    )  # fmt: skip
    banned_strings: tuple[str, ...] = option(
        "texts that never occur: where one does, it is taken back and drawn anew; several may be given",
        (), most=MOST_TEXTS, flags=("--banned-string",), checker=partial(short_texts, "banned_strings"),
        annotation="str | Iterable[str]", metavar="TEXT", escapes=True,
        schema={"type": ["string", "array"], "items": {"type": "string"}},
    )  # fmt: skip
    banned_regex: Expressions = option(
        "regular expressions (RE2's) that nothing in the text matches: a match is taken back and drawn anew; "
        'several may be given; {"regex": ..., "probability": 0.5} bans a match with that probability',
        (), type=tuple, most=MAX_EXPRESSIONS, flags=("--banned-regex",), checker=banned_expressions,
        annotation="str | Mapping[str, object] | Iterable[object]", metavar="REGEX",
        schema={"type": ["string", "object", "array"], "items": {"type": ["string", "object", "array"]}},
    )  # fmt: skip
    guidance_scale: float = option(
        "how far to move away from what the negative prompt makes of the same text; 1: not at all",
        1.0, low=0, high=1e6, flags=("--guidance-scale", "--cfg-scale"),
    )  # fmt: skip
    negative_prompt: object = option(
        "text or token ids that guidance_scale moves away from; in a chat it replaces the system message",
        None, type=object, optional=True, checker=text_or_ids,
        annotation="str | Iterable[int] | None", metavar="TEXT",
        schema={"type": ["string", "array", "null"], "items": {"type": "integer"}},
        flags=("--negative-prompt", "--cfg-negative-prompt"), shown="an empty text",
    )  # fmt: skip
    context_shift: bool = option(
        "when the context is full, forget the older half of the text and go on",
        False, flags=("--context-shift",),
    )  # fmt: skip
    n_keep: int | None = option(
        "tokens at the beginning that a context shift never forgets; -1: the prompt",
        None, low=-1, high=MOST, flags=("--keep",),
        shown="what the tokenizer puts before every text: BOS if any",
    )  # fmt: skip
    complete_grammar: bool | None = option(
        "with a grammar, bring the text to its end before max_tokens or the context cuts it off, by tokens "
        "that are not drawn",
        None, off_flags=("--no-complete-grammar",),
        off_help="let -n or the context cut a text off; otherwise it is brought to its end before that",
        shown="on with portable numerics",
    )  # fmt: skip
    jump_forward: bool = host_option(
        "decode together what a grammar forces: the same text, faster",
        True, off_flags=("--no-jump-forward",),
        off_help="decode tokens one by one even where the grammar forces them: the same text, slower",
    )  # fmt: skip
    sampling_device: str = host_option(
        "where the same tokens are drawn: host: on the CPU; device: where the logits are (docs/device.md); "
        "auto: there if the model is not on the CPU and nothing stands against it",
        "auto", choices=("auto", "host", "device"),
        flags=("--sampling-device",),
    )  # fmt: skip
    multi_step: int = host_option(
        "tokens that the device makes before the host looks at any: text comes in runs; needs "
        "sampling_device='device', and a model without windows or states",
        1, low=1, high=4096, flags=("--multi-step",),
    )  # fmt: skip
    spec_type: str = host_option(
        "guess what follows and decode it together: the same tokens, faster where guesses are right; ngram: as "
        "the text went on before; draft: by a smaller model, or by a draft head and the text's own repeats "
        "(model_draft)",
        "none", choices=("none", "ngram", "draft"), flags=("--spec-type",),
    )  # fmt: skip
    spec_draft_n_max: int = host_option(
        "tokens guessed at once at most; fewer where fewer pay",
        16, low=1, high=64, flags=("--spec-draft-n-max",),
    )  # fmt: skip
    adapters: Chosen | None = option(
        "adapters that the model was loaded with and their scales, {'name': 0.5}, or one name; {}: none "
        "(docs/adapters.md)",
        None, type=object, checker=chosen_adapters, annotation="Mapping[str, float] | str | None",
        schema={"type": ["object", "array", "string", "null"]}, shown="what the model was loaded with",
    )  # fmt: skip
    namespace: str = host_option(
        "of the prompt cache: prompts share what was computed only within one", ""
    )

    @property
    def bans(self) -> tuple[str, ...]:
        """Which of them are given."""
        return tuple(name for name in BANS if getattr(self, name))

    @property
    def raises_temperature(self) -> bool:
        """Whether a loop raises the temperature, in place of ending the text."""
        return len(self.stop_loops or ()) > 2
