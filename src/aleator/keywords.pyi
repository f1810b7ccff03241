"""Keyword arguments of functions with ``**options``; made by tools/stubs.py from the declarations."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict

import torch

from aleator.samplers import ConstraintSampler

class SamplingKeywords(TypedDict, total=False):
    """Sampling parameters, under all their names."""

    mirostat: int
    """Choose tokens by mirostat 1 or 2 in place of the plain draw; 0 is off (0 to 2; default: 0)."""

    repetition_under_grammar: str
    """Whether the repetition penalty applies where a grammar constrains the text: apply, or none as
    Akunu does (apply or none; default: apply)."""

    allowed_token_ids: Iterable[int] | None
    """Draw only these tokens; may be repeated."""

    stop_token_ids: Iterable[int]
    """Tokens that end a generation, beside the vocabulary's; may be repeated."""

    logit_bias: Mapping[int, float] | Mapping[str, float] | Mapping[int | str, float] | Iterable[tuple[int | str, float]]
    """Add BIAS to the logit of token ID, as in 15+1.5 or 15-inf, or of all tokens of a text, as in
    '" the"-2'; may be repeated."""

    min_tokens: int
    """Let no token end the text before this many were generated; 0 is off (0 or more; default: 0)."""

    min_new_tokens: int
    """Another name of min_tokens."""

    bad_words: Sequence[str | Sequence[int]]
    """Text that never occurs, as the tokenizer spells it; may be repeated."""

    bad_words_ids: Sequence[str | Sequence[int]]
    """Another name of bad_words."""

    no_repeat_ngram_size: int
    """Let no run of this many tokens occur twice; 0 is off (0 or more; default: 0)."""

    penalty_last_n: int
    """Window of the penalties in tokens; 0 turns them off, -1 is all (-1 or more; default: 64)."""

    repeat_last_n: int
    """Another name of penalty_last_n."""

    repetition_penalty: float
    """Divide the logits of tokens in the window by this; 1 is off (1e-30 or more; default: 1.0)."""

    repeat_penalty: float
    """Another name of repetition_penalty."""

    frequency_penalty: float
    """Lower a logit by this for each time its token is in the window (default: 0.0)."""

    presence_penalty: float
    """Lower a logit by this if its token is in the window (default: 0.0)."""

    penalty_scope: str
    """Which tokens of the window count: all, generated, or mixed as in vLLM (all or generated or
    mixed; default: all)."""

    repetition_per: str
    """Apply the repetition penalty once per token, or once for each time it is in the window as
    Akunu does (token or occurrence; default: token)."""

    dry_multiplier: float
    """Strength of the penalty on repeated sequences; 0 is off (-1000000 to 1000000; default: 0.0)."""

    dry_base: float
    """How fast that penalty grows with the length of the repetition (1 to 1000000; default: 1.75)."""

    dry_allowed_length: int
    """Repetitions shorter than this are not penalised (0 or more; default: 2)."""

    dry_penalty_last_n: int
    """Window in which repetitions are sought; 0 is off, -1 is all (-1 or more; default: 64)."""

    dry_sequence_breakers: Sequence[str | Sequence[int]]
    """Text at which a repetition ends; may be repeated, 'none' for no breakers."""

    top_n_sigma: float
    """Keep logits within this many deviations of the best; 0 and -1 are off (0 to 1000000, or -1;
    default: -1.0)."""

    nsigma: float
    """Another name of top_n_sigma."""

    min_k_tau: float
    """Keep what stands before the steepest fall of the logits, and at least this over their range;
    -1 is off (0 to 1000000, or -1; default: -1.0)."""

    top_k: int
    """Keep the k most likely tokens; 0 keeps all (0 or more; default: 0)."""

    top_k_limit: int
    """Keep this many where top_k is off or not less than the vocabulary, as Akunu does; 0 is no
    limit (0 or more; default: 0)."""

    top_a: float
    """Keep tokens at least this times the square of the best probability; 0 is off (0 to 1;
    default: 0.0)."""

    tfs_z: float
    """Cut the tail where the curve of probabilities flattens; 1 is off (0 to 1; default: 1.0)."""

    tfs: float
    """Another name of tfs_z."""

    min_keep: int
    """Let truncating samplers keep at least this many tokens (0 or more; default: 0)."""

    typical_p: float
    """Keep the most typical tokens that together hold this probability; 1 is off (0 to 1; default:
    1.0)."""

    typ_p: float
    """Another name of typical_p."""

    typical: float
    """Another name of typical_p."""

    top_p: float
    """Keep the most likely tokens that together hold this probability; 1 keeps all (0 to 1;
    default: 1.0)."""

    nucleus: float
    """Another name of top_p."""

    mass: str
    """Measure against the current candidates, or the full row that Softmax saw (current or full;
    default: current)."""

    min_p: float
    """Keep tokens at least this fraction as likely as the best; 0 keeps all (0 to 1; default: 0.0)."""

    epsilon_cutoff: float
    """Keep tokens of at least this probability; 0 is off (0 to 1; default: 0.0)."""

    eta_cutoff: float
    """Keep tokens of at least this probability, or less where the entropy is high; 0 is off (0 to
    1; default: 0.0)."""

    p_less: str
    """Keep tokens at least as likely as two draws are to agree; normalized keeps more; off keeps
    all (off or on or normalized; default: off)."""

    top_h: float
    """Keep the most likely tokens whose entropy is at most this share of the row's; 1 keeps all (0
    to 1; default: 1.0)."""

    seed: int | None
    """Seed of the random draws, 64 bits; -1 or none draws one from the system and reports it."""

    xtc_probability: float
    """Chance that the top choices are excluded at a step; 0 is off (0 to 1; default: 0.0)."""

    xtc_threshold: float
    """Probability from which a token is a top choice; 1 is off (0 to 0.5, or 1; default: 0.1)."""

    temperature: float
    """Flatness of the distribution: below 1 sharper, above 1 flatter, 0 always the most likely
    token (0 or more; default: 1.0)."""

    temp: float
    """Another name of temperature."""

    dynatemp_range: float
    """Let the temperature vary by this much with the entropy; 0 is off (0 to 1000000; default:
    0.0)."""

    dynatemp_exponent: float
    """How the entropy maps onto the range: above 1 stays low longer (0 to 1000; default: 1.0)."""

    dynatemp_exp: float
    """Another name of dynatemp_exponent."""

    smoothing_factor: float
    """Strength of quadratic sampling, which bends the logits; 0 is off (0 to 1000000; default:
    0.0)."""

    smoothing_curve: float
    """How fast the bent curve falls far from the best token; 1 is a parabola (1 to 10; default:
    1.0)."""

    mirostat_tau: float
    """Surprise per token that mirostat aims at, in bits (0 to 1000; default: 5.0)."""

    mirostat_eta: float
    """How fast mirostat corrects itself (0 to 1000; default: 0.1)."""

    mirostat_m: int
    """Candidates that mirostat 1 estimates the distribution's shape on (2 to 1048576; default:
    100)."""

    adaptive_target: float
    """Probability that chosen tokens should have on average; -1 is off (0 to 1, or -1; default:
    -1.0)."""

    adaptive_decay: float
    """How slowly that average forgets (0 to 0.99; default: 0.9)."""

    draw: str
    """How the token is drawn: by inverse cumulative mass, by a race, as Akunu does on the GPU or
    the CPU, by a race keyed for a watermark, or by SynthID's tournament (inverse or gumbel or
    gumbel-pcg or mt19937 or watermark or synthid; default: inverse)."""

    watermark_key_file: PathLike[str] | str | None
    """File with the key of draw=watermark or synthid, 16 bytes or more; without it the environment
    variable ALEATOR_WATERMARK_KEY has the key."""

    watermark_ngram: int
    """Tokens before a token that its draw is keyed by with draw=watermark or synthid; fewer survive
    more edits, more repeat less (1 to 16; default: 4)."""

    samplers: str | Iterable[str]
    """Samplers in order, separated by ";" (default:
    penalties;dry;top_n_sigma;top_k;typical_p;top_p;min_p;xtc;temperature)."""

    ignore_eos: bool
    """Never draw a token that ends the text."""

    numerics: str
    """Portable: the same token on every machine; llama.cpp: llama.cpp's own tokens (portable or
    llama.cpp; default: portable)."""

    grammar: str | ConstraintSampler | None
    """A grammar that the text obeys: GBNF text, or a sampler such as Lark."""

    json_schema: Mapping[str, Any] | bool | str | ConstraintSampler | None
    """A JSON schema that the text obeys: mapping or JSON text."""

    regex: str | ConstraintSampler | None
    """A regular expression that the whole text matches."""

    phases: Mapping[str, Any] | Iterable[tuple[str, Any]]
    """Sampling parameters of a part of the text, as in thinking:temperature=0.6, or a preset, as in
    thinking=greedy; parts are thinking, answer, tool, and those with marks of their own; may be
    repeated (docs/samplers.md)."""

    sampler_seq: str
    """Samplers in order, one letter each: e penalties, d dry, s top_n_sigma, k top_k, y typical_p,
    p top_p, m min_p, x xtc, t temperature, i infill, a adaptive_p."""


class TextKeywords(SamplingKeywords, total=False):
    """Those of all texts."""

    max_tokens: int | None
    """Tokens to write at most; -1: until the model ends or the context is full (-1 or more;
    default: -1)."""

    max_new_tokens: int | None
    """Another name of max_tokens."""

    n_predict: int | None
    """Another name of max_tokens."""

    stop: str | Iterable[str]
    """End before this text, which is not part of it; several may be given (at most 512; default:
    none)."""

    parse_special: bool
    """Read names of control tokens in the prompt as those tokens; not for text of strangers
    (default: off)."""

    shown_tokens: Iterable[int]
    """Control tokens whose names are part of the text, where others are left out (default: none)."""

    adapters: Mapping[str, float] | str | None
    """Adapters that the model was loaded with and their scales, {'name': 0.5}, or one name; {}:
    none (docs/adapters.md) (default: what the model was loaded with)."""

    namespace: str
    """Of the prompt cache: prompts share what was computed only within one (default: none)."""


class GenerateKeywords(TextKeywords, total=False):
    """Those of ``generate``."""

    stop_loops: Mapping[str, float] | Iterable[float] | str | None
    """End a text that repeats itself: its last tokens are so many repeats of one cycle (repeats)
    and so many tokens (min_tokens), or more; with temperature and for it goes on, that many tokens
    at that temperature (default: none)."""

    logprobs: int | None
    """Report each token's natural-log probability and those of so many most probable ones, from the
    logits before sampling (0 or more; default: none)."""

    kept: bool
    """Report which tokens the samplers had left, and the drawn one's natural-log probability among
    them; needs logprobs and portable numerics (default: off)."""

    echo: bool
    """Begin the text with the prompt (default: off)."""

    heal: bool
    """Take back the last tokens of the prompt that a longer token begins with, and write them anew:
    for prompts that end within a word; not for chats, nor with a grammar (default: off)."""

    token_healing: bool
    """Another name of heal."""

    reasoning_budget: int | None
    """Tokens of reasoning at most: after these its end is forced; -1: no limit (-1 or more;
    default: -1)."""

    reasoning_budget_message: str
    """Text that ends reasoning whose budget is spent, before its end is forced (default: none)."""

    reasoning_budget_grace: int
    """Tokens that reasoning may have beyond its budget to come to the end of a sentence (0 or more;
    default: 0)."""

    reasoning_marks: tuple[str, str]
    """Texts that begin and end reasoning, for reasoning_budget; a chat knows those of its template
    (default: ('<think>', '</think>'))."""

    banned_strings: str | Iterable[str]
    """Texts that never occur: where one does, it is taken back and drawn anew; several may be given
    (at most 512; default: none)."""

    banned_regex: str | Mapping[str, object] | Iterable[object]
    """Regular expressions (RE2's) that nothing in the text matches: a match is taken back and drawn
    anew; several may be given; {"regex": ..., "probability": 0.5} bans a match with that
    probability (at most 512; default: none)."""

    guidance_scale: float
    """How far to move away from what the negative prompt makes of the same text; 1: not at all (0
    to 1000000; default: 1.0)."""

    negative_prompt: str | Iterable[int] | None
    """Text or token ids that guidance_scale moves away from; in a chat it replaces the system
    message (default: an empty text)."""

    context_shift: bool
    """When the context is full, forget the older half of the text and go on (default: off)."""

    n_keep: int | None
    """Tokens at the beginning that a context shift never forgets; -1: the prompt (-1 or more;
    default: what the tokenizer puts before every text: BOS if any)."""

    complete_grammar: bool | None
    """With a grammar, bring the text to its end before max_tokens or the context cuts it off, by
    tokens that are not drawn (default: on with portable numerics)."""

    jump_forward: bool
    """Decode together what a grammar forces: the same text, faster (default: on)."""

    sampling_device: str
    """Where the same tokens are drawn: host: on the CPU; device: where the logits are
    (docs/device.md); auto: there if the model is not on the CPU and nothing stands against it (auto
    or host or device; default: auto)."""

    multi_step: int
    """Tokens that the device makes before the host looks at any: text comes in runs; needs
    sampling_device='device', and a model without windows or states (1 to 4096; default: 1)."""

    spec_type: str
    """Guess what follows and decode it together: the same tokens, faster where guesses are right;
    ngram: as the text went on before; draft: by a smaller model, or by a draft head and the text's
    own repeats (model_draft) (none or ngram or draft; default: none)."""

    spec_draft_n_max: int
    """Tokens guessed at once at most; fewer where fewer pay (1 to 64; default: 16)."""


class BatchKeywords(TypedDict, total=False):
    """Those of ``generate_batch``: as in GenerateKeywords, or a list, with one for each prompt."""

    max_tokens: int | None | Sequence[int | None]
    max_new_tokens: int | None | Sequence[int | None]
    n_predict: int | None | Sequence[int | None]
    stop: str | Iterable[str]
    stop_loops: Mapping[str, float] | Iterable[float] | str | None
    logprobs: int | None | Sequence[int | None]
    kept: bool | Sequence[bool]
    echo: bool | Sequence[bool]
    parse_special: bool | Sequence[bool]
    heal: bool | Sequence[bool]
    token_healing: bool | Sequence[bool]
    shown_tokens: Iterable[int]
    reasoning_budget: int | None | Sequence[int | None]
    reasoning_budget_message: str | Sequence[str]
    reasoning_budget_grace: int | Sequence[int]
    reasoning_marks: tuple[str, str]
    banned_strings: str | Iterable[str]
    banned_regex: str | Mapping[str, object] | Iterable[object]
    guidance_scale: float | Sequence[float]
    negative_prompt: str | Iterable[int] | None
    context_shift: bool | Sequence[bool]
    n_keep: int | None | Sequence[int | None]
    complete_grammar: bool | None | Sequence[bool | None]
    jump_forward: bool | Sequence[bool]
    sampling_device: str | Sequence[str]
    multi_step: int | Sequence[int]
    spec_type: str | Sequence[str]
    spec_draft_n_max: int | Sequence[int]
    adapters: Mapping[str, float] | str | None
    namespace: str | Sequence[str]
    mirostat: int | Sequence[int]
    repetition_under_grammar: str | Sequence[str]
    allowed_token_ids: Iterable[int] | None
    stop_token_ids: Iterable[int]
    logit_bias: Mapping[int, float] | Mapping[str, float] | Mapping[int | str, float] | Iterable[tuple[int | str, float]]
    min_tokens: int | Sequence[int]
    min_new_tokens: int | Sequence[int]
    bad_words: Sequence[str | Sequence[int]]
    bad_words_ids: Sequence[str | Sequence[int]]
    no_repeat_ngram_size: int | Sequence[int]
    penalty_last_n: int | Sequence[int]
    repeat_last_n: int | Sequence[int]
    repetition_penalty: float | Sequence[float]
    repeat_penalty: float | Sequence[float]
    frequency_penalty: float | Sequence[float]
    presence_penalty: float | Sequence[float]
    penalty_scope: str | Sequence[str]
    repetition_per: str | Sequence[str]
    dry_multiplier: float | Sequence[float]
    dry_base: float | Sequence[float]
    dry_allowed_length: int | Sequence[int]
    dry_penalty_last_n: int | Sequence[int]
    dry_sequence_breakers: Sequence[str | Sequence[int]]
    top_n_sigma: float | Sequence[float]
    nsigma: float | Sequence[float]
    min_k_tau: float | Sequence[float]
    top_k: int | Sequence[int]
    top_k_limit: int | Sequence[int]
    top_a: float | Sequence[float]
    tfs_z: float | Sequence[float]
    tfs: float | Sequence[float]
    min_keep: int | Sequence[int]
    typical_p: float | Sequence[float]
    typ_p: float | Sequence[float]
    typical: float | Sequence[float]
    top_p: float | Sequence[float]
    nucleus: float | Sequence[float]
    mass: str | Sequence[str]
    min_p: float | Sequence[float]
    epsilon_cutoff: float | Sequence[float]
    eta_cutoff: float | Sequence[float]
    p_less: str | Sequence[str]
    top_h: float | Sequence[float]
    seed: int | None | Sequence[int | None]
    xtc_probability: float | Sequence[float]
    xtc_threshold: float | Sequence[float]
    temperature: float | Sequence[float]
    temp: float | Sequence[float]
    dynatemp_range: float | Sequence[float]
    dynatemp_exponent: float | Sequence[float]
    dynatemp_exp: float | Sequence[float]
    smoothing_factor: float | Sequence[float]
    smoothing_curve: float | Sequence[float]
    mirostat_tau: float | Sequence[float]
    mirostat_eta: float | Sequence[float]
    mirostat_m: int | Sequence[int]
    adaptive_target: float | Sequence[float]
    adaptive_decay: float | Sequence[float]
    draw: str | Sequence[str]
    watermark_key_file: PathLike[str] | str | None
    watermark_ngram: int | Sequence[int]
    samplers: str | Iterable[str]
    ignore_eos: bool | Sequence[bool]
    numerics: str | Sequence[str]
    grammar: str | ConstraintSampler | None
    json_schema: Mapping[str, Any] | bool | str | ConstraintSampler | None
    regex: str | ConstraintSampler | None
    phases: Mapping[str, Any] | Iterable[tuple[str, Any]]
    sampler_seq: str | Sequence[str]

class BeamKeywords(TextKeywords, total=False):
    """Those of ``beams``."""

    num_beams: int
    """Texts that the search goes on with at each step (1 to 4096; default: 4)."""

    length_penalty: float
    """A text's score is its log-probability over its number of tokens to this power: above 0 longer
    texts gain, below 0 shorter ones (-10 to 10; default: 1.0)."""

    early_stopping: bool | str
    """True: end with num_beams complete texts; false: when no text that goes on, scored at its
    present length, beats the worst of them; never: when none can at any length up to max_tokens
    (default: false)."""

    num_return_sequences: int
    """Texts to return, the best first; at most num_beams (1 to 4096; default: 1)."""

    stochastic: bool
    """Draw the texts without replacement instead of searching the most probable ones (default:
    off)."""


class CacheKeywords(TypedDict, total=False):
    """Those of ``load`` and ``Context``."""

    n_ubatch: int
    """Tokens computed at once; at most n_batch (1 or more; default: 512)."""

    flash_attn: bool
    """Fused attention for several tokens, which never holds the scores; values are laid out for it
    (default: on)."""

    type_k: str
    """Type that keys are stored in (f32 or f16 or bf16 or q8_0 or q5_1 or q5_0 or q4_1 or q4_0 or
    iq4_nl; default: f16)."""

    type_v: str
    """Type that values are stored in (f32 or f16 or bf16 or q8_0 or q5_1 or q5_0 or q4_1 or q4_0 or
    iq4_nl; default: f16)."""

    offload_kqv: bool
    """Keep the cache on the device that computes, and do attention there; otherwise on the CPU
    (default: on)."""

    v_layout: str | None
    """How values are laid out (token or channel; default: llama.cpp's choice: token with flash_attn
    and for types of blocks, else channel)."""

    k_storage: str
    """Raw: keys are rotated when they are read: shifts are exact for any type, each token costs
    more time (rotated or raw; default: rotated)."""

    policy: str
    """Unified: all sequences share one pool of cells; streams: each has an equal share (unified or
    streams; default: unified)."""

    compat: str | None
    """Llama-2024: tokens of a micro-batch lie in a row, as in llama.cpp's cache of that year
    (llama-2024; default: none)."""

    swa_full: bool
    """Window layers keep every position, for any rewind and shift; otherwise they have llama.cpp's
    number of cells, and use them again as it does (default: off)."""

    swa_sinks: int
    """First positions that window layers keep and every token sees (attention sinks); only for
    models with windows (0 or more; default: 0)."""

    n_rollback: int
    """Tokens by which a sequence of a recurrent model can be rewound (others: any number) (0 to
    4096; default: 0; of a loaded model 8 or what 64 MiB hold)."""

    n_batch: int
    """Tokens of one prefill call: batches are cut into pieces of at most so many (1 or more;
    default: 2048)."""

    n_threads: int | None
    """Threads for decoding one token; the setting is the process's, and stays (1 or more; default:
    OMP_NUM_THREADS, else all cores)."""

    n_threads_batch: int | None
    """Threads for more than one token (1 or more; default: like n_threads)."""

    split: str | None
    """How batches are cut (aleator.cache.batches) (simple or equal or sequence; default:
    llama.cpp's choice: equal with policy='streams' and for models with attention and states, else
    simple)."""

    lock_timeout: float | None
    """Seconds to wait for another thread that uses the context, before it is an error (0 or more;
    default: no limit)."""


class ContextKeywords(CacheKeywords, total=False):
    """Those of ``Context``."""

    n_ctx: int
    """Cells, shared by all sequences; 0: as many as the model was trained with (0 or more; default:
    0)."""

    n_seq_max: int
    """Sequence ids lie in [0, n_seq_max) (1 to 4096; default: 1)."""

    device: torch.device | str | None
    """Where logits are returned, such as cpu or cuda:1 (default: the decoder's)."""

    causal_attn: bool
    """A token sees only those before it; otherwise every token of its sequence, and a batch must
    fit n_ubatch (not for models with windows or states) (default: on)."""

    embeddings: bool
    """Decode gives hidden states after the last norm, [rows, n_embd], in place of logits (default:
    off)."""


class LoadKeywords(CacheKeywords, total=False):
    """Those of ``load``."""

    device: str | None
    """What computes: cpu, cuda, cuda:1 ...; auto: cuda where it can, else cpu, and the log says why
    (default: cuda where there is one, else cpu)."""

    dtype: torch.dtype | str | None
    """Exact: weights as they are stored, activations in float32, and the CPU's bits on a GPU too
    (docs/device.md); or a type to compute in, on a GPU by PyTorch: float32, float16 or bfloat16
    (default: float32 on the CPU, exact on CUDA)."""

    n_ctx: int | None
    """Positions of one sequence: prompt and text together; 0: as many as the model was trained with
    (0 or more; default: that, but at most 4096)."""

    prompt_cache: bool
    """Keep what was computed while there is room: a text is computed only from where it diverges
    from earlier ones (default: on)."""

    cache_ram: int
    """Bytes of memory for the prompt cache beside the cells (docs/prompt-cache.md); on the command
    line a number without a unit is MiB (0 or more; default: none)."""

    cache_disk: int
    """Bytes of disk for the prompt cache, which outlive the process; on the command line a number
    without a unit is MiB (0 or more; default: none; 4G for aleator chat and aleator serve)."""

    cache_dir: str | None
    """Directory of cache_disk, which processes may share (default: aleator/prompts in the user's
    cache folder)."""

    n_gpu_layers: int | None
    """Last layers that are on a CUDA device with their part of the cache, the others on the CPU; 1
    or more: the output matrix too; all: the embedding too (0 or more; default: what device says)."""

    device_map: str | Sequence[tuple[str, int, int]] | None
    """Layers of each device, with their part of the cache: cpu=0:20,cuda:0=20:32 for layers 0 to 19
    and 20 to 31; in Python [('cpu', 0, 20), ('cuda:0', 20, 32)] too (default: what device and
    n_gpu_layers say)."""

    tensor_split: str | None
    """Refused: device_map names layers (default: none)."""

    adapters: Mapping[str, str | PathLike[str] | tuple[str | PathLike[str], float]]
    """LoRA adapters by their names, {name: file}, which texts choose; with (file, scale) in place
    of file, and on the command line, one holds for all texts that choose none (docs/adapters.md)
    (default: none)."""

    adapter_type: str
    """How adapters' numbers are kept: auto: rounded to Q8_0 beside the model's quantised matrices,
    as stored beside others; stored: as in the file; f16: those in float32 rounded to float16; q8_0:
    all to Q8_0 (auto or stored or f16 or q8_0; default: auto)."""

    model_draft: str | None
    """What guesses for spec_type='draft': a smaller model with the same vocabulary; the directory
    of an EAGLE-3 head; mtp: the layer in the model's file that predicts further tokens; bundled:
    the bundled model's head (default: none)."""


class EngineKeywords(TypedDict, total=False):
    """Those of ``Engine``."""

    n_seq_max: int
    """Requests that are made at the same time; others wait (1 to 1024; default: 8)."""

    n_ctx: int | None
    """Cells of the cache, for all requests and cached prefixes together: the memory that the engine
    has (1 or more; default: n_seq_max times the model's n_ctx)."""

    token_budget: int
    """Tokens that a step computes at most: one of each running request, the rest of prompts (1 or
    more; default: 512)."""

    max_pause: float
    """Seconds that a step with a piece of a prompt may take while others are writing, or three
    times as long as one without where that is longer; prompts and those who write get half of the
    time each (0 to 1000000; default: 0.25)."""

    max_queue: int
    """Requests that may wait; one more is refused with QueueFull (0 or more; default: 1024)."""


class RequestKeywords(TypedDict, total=False):
    """Those of an engine's requests."""

    priority: int
    """A request goes before those that came up to 64 requests earlier, for each step of priority
    (-1000 to 1000; default: 0)."""

    deadline: float | None
    """Seconds from now on after which the request ends, with what it has and stop reason 'deadline'
    (0 or more; default: no limit)."""


class SubmitKeywords(GenerateKeywords, RequestKeywords, total=False):
    """Those of ``Engine.submit``."""


class SubmitBeamKeywords(BeamKeywords, RequestKeywords, total=False):
    """Those of ``Engine.beams``."""

