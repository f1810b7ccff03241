"""A model with its tokenizer, ready to write text."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache
from aleator.core.errors import ParameterError
from aleator.core.options import declarations, renamed, takes
from aleator.engine.job import cells_needed, sequences_needed
from aleator.engine.options import EngineOptions
from aleator.engine.prompts import (
    RequestMaker,
    checked_prompt,
    checked_prompts,
    options_of,
    options_of_each,
    takes_generation,
)
from aleator.engine.request_states import RequestStateMaker
from aleator.engine.run import Run
from aleator.generate.completion import Request
from aleator.generate.context import SPARE, Context, LentPrefixes
from aleator.generate.generation import Generation
from aleator.generate.options import LOADED, WHERE, ModelOptions, of_loading
from aleator.generate.request_state import OnLogits
from aleator.generate.session import Session
from aleator.generate.speculative import Drafter
from aleator.language_model.chat_mixin import ChatMixin
from aleator.language_model.saving import SavingMixin
from aleator.language_model.scoring import ScoringMixin
from aleator.models.build import build_decoder
from aleator.models.decoder import Decoder
from aleator.models.hub.bundled import bundled_model
from aleator.models.placement import placement
from aleator.models.weights import Weights, open_weights
from aleator.samplers import SamplingParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from aleator.engine import Engine
    from aleator.keywords import (
        BatchKeywords,
        ContextKeywords,
        EngineKeywords,
        GenerateKeywords,
        LoadKeywords,
        SamplingKeywords,
    )


DEFAULT_CONTEXT = 4096
"""Positions of a sequence when ``n_ctx`` is not given and the model was trained with more."""
OF_LOGITS = (*WHERE, "dtype", "type_k", "type_v", "k_storage", "swa_sinks")
"""Options of loading that can change logits."""
ROLLBACK, ROLLBACK_BYTES = 8, 2**26
"""Tokens that texts of a recurrent model can be rewound by, which lets a grammar's forced text be decoded
together; fewer where their states would take more memory than that."""


@takes(declarations(ModelOptions).values(), LOADED)
@renamed(keep_texts="prompt_cache")
def load(
    path: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[LoadKeywords],
) -> LanguageModel:
    """Load a model: a GGUF file, a Hugging Face directory with safetensors, or either by name.

    Args:
        path: what to load (docs/models-by-name.md); None: the model that comes with the package.
        progress: called with (done, total) while tensors load.
        options: docs/options.md.

    Raises:
        ModelNotFound: nothing is there.
        FileFormatError: it is not a model, or a damaged one.
        UnsupportedModel: its architecture, tensor types or tokenizer are not supported.
        ParameterError: an unknown option, or one out of range.
    """
    chosen, given = of_loading(options)
    where = placement(chosen.device, chosen.dtype, chosen.n_gpu_layers, chosen.device_map)
    weights = open_weights(bundled_model() if path is None else path)
    places = where.places(weights.config.n_layers)
    tokenizer = Tokenizer(load_vocabulary(weights))
    decoder = build_decoder(weights, progress=progress, places=places)
    draft: LanguageModel | None = None
    if chosen.model_draft is not None:
        draft = load(chosen.model_draft, device=str(decoder.device), dtype=chosen.dtype, **given)
        check_same_vocabulary(tokenizer.vocab, draft.vocab, chosen.model_draft)
    return LanguageModel(weights, decoder, tokenizer, options=chosen, draft=draft, **given)


def check_same_vocabulary(vocab: Vocabulary, other: Vocabulary, path: str) -> None:
    """Refuse a model that guesses other tokens; ParameterError says which is the first."""
    differs = next(
        (i for i in range(min(len(vocab), len(other))) if vocab.tokens[i] != other.tokens[i]), None
    )
    if differs is None and len(vocab) == len(other):
        return
    at = f"token {differs} differs" if differs is not None else f"it has {len(other)} tokens"
    raise ParameterError(
        "model_draft",
        f"model_draft={path!r} has another vocabulary than the model with its {len(vocab)} tokens ({at}): "
        "give a smaller model of the same family",
    )


def load_vocabulary(weights: Weights) -> Vocabulary:
    """The tokens of a model; errors are those of :func:`load`."""
    if weights.gguf is not None:
        return Vocabulary.from_gguf(weights.gguf)
    return Vocabulary.from_directory(weights.path)


class LanguageModel(ChatMixin, ScoringMixin, SavingMixin):
    """A loaded model; made by :func:`load`.

    It serves one thread at a time.  Several generations may be under way at once.

    Attributes:
        weights: the file it came from.
        decoder: the network; ``Context(model, ...)`` takes the model itself.
        tokenizer: text to tokens and back.
        vocab: the tokens.
        n_ctx: positions of one sequence.
        options: what it was loaded with.
        draft: the smaller model that guesses; None: there is none.
        request_maker: makes requests of prompts and options.
        request_states: makes the state that requests have while they are made.
    """

    def __init__(
        self,
        weights: Weights,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        options: ModelOptions | None = None,
        draft: LanguageModel | None = None,
        **context_options: Unpack[ContextKeywords],
    ) -> None:
        self.weights = weights
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.vocab: Vocabulary = tokenizer.vocab
        self.options = options or ModelOptions()
        trained, n_ctx = weights.config.context_length, self.options.n_ctx
        self.n_ctx = min(trained, DEFAULT_CONTEXT) if n_ctx is None else n_ctx or trained
        self._context_options = context_options
        self.draft = draft
        drafts = None if draft is None else draft.cells
        self.request_maker = RequestMaker(tokenizer, weights)
        self.request_states = RequestStateMaker(tokenizer, self.request_maker, drafts)
        self._context: Context | None = None
        self._user: weakref.ref[Run] | None = None
        self._chat_formats = {}

    def __repr__(self) -> str:
        config = self.weights.config
        return (
            f"<LanguageModel {config.name or self.weights.path!s}: {config.architecture}, "
            f"{self.weights.n_parameters / 1e6:.1f} M parameters, n_ctx {self.n_ctx}>"
        )

    @takes_generation
    @renamed(observe="on_logits")
    def generate(
        self,
        prompt: str | Sequence[int] | Session,
        *,
        preset: str | None = None,
        params: SamplingParams | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_logits: OnLogits | None = None,
        drafter: Drafter | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Generation:
        """Continue a prompt.

        The result is an iterator over pieces of text, made as they are asked for::

            for piece in model.generate("ROMEO:", max_tokens=100, temperature=0.8, seed=1):
                print(piece, end="", flush=True)

        and knows the whole ``.text``, ``.tokens``, ``.stop_reason``, ``.logprobs`` and ``.stats``.

        The same prompt, parameters and seed give the same text, also with a larger ``max_tokens`` (then
        as its beginning), alone or in a batch with others: on the CPU logits have the same bits in both.

        Args:
            prompt: text, in which names of control tokens are text too (but with ``parse_special``); token
                ids, to which nothing is added; or a session, to go on as if it had not been interrupted:
                with its seed, and at the place in the random stream where it ended.
            preset: named sampling parameters; None: the model file's own on top of "llama.cpp".
            params: sampling parameters, instead of a preset.
            progress: called with (done, total) prompt tokens during prefill.
            on_logits: called with the chain and the logits [V] before each token is drawn, to look at
                them (``chain.explain``).
            drafter: guesses what follows, which is decoded together: the same tokens, faster where the
                guesses are right (:class:`~aleator.generate.speculative.Drafter`).
            options: docs/options.md, and sampling parameters (docs/samplers.md), which win over ``preset``
                and ``params``.

        Raises:
            ParameterError: an unknown option, or one of another type or out of range.
            TokenizerError: token ids outside the vocabulary.
            ContextFull: a prompt longer than ``n_ctx``.
        """
        if "n" in options:
            raise ParameterError("n", "n: several completions are made by generate_batch(..., n=n)")
        given = options_of({"preset": preset, "params": params, **options})
        requests = self.request_maker.requests([checked_prompt(prompt)], [given])
        return self._start(requests, on_logits, progress, drafter)[0]

    @takes_generation
    @renamed(observe="on_logits")
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int] | Session],
        *,
        n: int = 1,
        preset: str | Sequence[str | None] | None = None,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_logits: OnLogits | None = None,
        **options: Unpack[BatchKeywords],
    ) -> list[Generation]:
        """Continue several prompts, ``n`` times each, in one batch.

        They advance together, whichever is read.  Completion i of a prompt draws with the random stream of
        completion i, so completion 0 equals what :meth:`generate` gives.  Equal prompts are computed once,
        and what the prompt cache has of them is not computed at all.

        An option that is a single number, word or switch may be a list with one value for each prompt, such
        as ``seed=[1, 2]``; so may ``preset`` and ``params``.

        Args:
            prompts: texts, lists of token ids, or sessions.
            n: completions of each.
            preset: as for :meth:`generate`.
            params: as for :meth:`generate`.
            progress: called with (done, total) prompt tokens during prefill.
            on_logits: as for :meth:`generate`.
            options: as for :meth:`generate`.

        Returns:
            ``len(prompts) * n`` generations, those of the first prompt first.

        Raises:
            ParameterError: as for :meth:`generate`; or a list that has another length than ``prompts``.
            TokenizerError: token ids outside the vocabulary.
            ContextFull: a prompt longer than ``n_ctx``.
        """
        checked = checked_prompts(prompts, n)
        given = options_of_each({"preset": preset, "params": params, **options}, len(checked))
        return self._start(self.request_maker.requests(checked, given, n), on_logits, progress)

    @takes(declarations(EngineOptions).values())
    def engine(self, **options: Unpack[EngineKeywords]) -> Engine:
        """One context that makes requests of any number of threads together; see :class:`aleator.Engine`.

        Args:
            options: docs/options.md.
        """
        from aleator.engine.engine import Engine  # what it imports waits until there is one

        return Engine(self, **options)

    def _start(
        self,
        requests: Sequence[Request],
        on_logits: OnLogits | None,
        progress: Callable[[int, int], None] | None,
        drafter: Drafter | None = None,
    ) -> list[Generation]:
        """Begin to make requests: in the model's own context if that is free and enough."""
        states = self.request_states.make(requests, on_logits, drafter)
        n_seq_max = sequences_needed(states)
        own = n_seq_max == 1 and not self._busy
        prefixes: LentPrefixes | None = None
        if own:
            context = self.own_context()
        else:
            cells = cells_needed(states, self.n_ctx)
            context = self.context(n_ctx=cells, n_seq_max=n_seq_max, device=None)
            if self.options.prompt_cache:
                prefixes = LentPrefixes(self._cached_context(), context)
        run = Run(context, states, self.vocab, self.n_ctx, progress, prefixes=prefixes)
        if own:
            self._user = weakref.ref(run)
        return run.generations

    @property
    def _busy(self) -> bool:
        """Whether a generation is under way in the model's own context."""
        run = self._user() if self._user is not None else None
        return run is not None and not run.done

    @property
    def loading(self) -> dict[str, object]:
        """The options that were given when it was loaded and can change logits, JSON-ready."""
        given = {**self.options.values(), **self._context_options}
        chosen = {name: given[name] for name in OF_LOGITS if given.get(name) is not None}
        return {n: v if isinstance(v, int | str) else str(v) for n, v in chosen.items()}

    def own_context(self) -> Context:
        """The model's own context, in which nothing must be under way."""
        if self._busy:
            raise ParameterError(
                "session", "a generation is under way: finish or cancel it, then save or load"
            )
        context = self._cached_context()
        context.cache.seq_rm(0, -1, -1)  # of a run that was given up before its end
        return context

    def _cached_context(self) -> Context:
        """The model's own context, whose prompt cache all generations use."""
        if self._context is not None and self._context.stayed_behind():
            self._context = self._user = None
        if self._context is None:
            cached = self.options.prompt_cache
            self._context = self.context(
                n_seq_max=1 + SPARE if cached else 1, prompt_cache=cached, device=None
            )
        return self._context

    def cells(self, n: int, n_seq_max: int) -> Context:
        """A new context of so many cells and sequences, as far as these have positions."""
        return self.context(n_ctx=min(n, n_seq_max * self.n_ctx), n_seq_max=n_seq_max)

    @renamed(keep_texts="prompt_cache")
    def context(
        self,
        n_ctx: int | None = None,
        n_seq_max: int = 1,
        *,
        prompt_cache: bool = False,
        device: str | None = "cpu",
        embeddings: bool = False,
    ) -> Context:
        """A new context of this model, with the options it was loaded with.

        Args:
            n_ctx: cells of all its sequences together; None: :attr:`n_ctx`.
            n_seq_max: sequences.
            prompt_cache: its cache keeps prefixes (:class:`aleator.cache.PrefixConfig`).
            device: where logits arrive; None: the model's.
            embeddings: its rows are hidden states after the last norm, not logits.
        """
        options: dict[str, Any] = {**self._context_options}
        window = self.decoder.config.window
        if window is not None and self.n_ctx <= 2 * window.size:
            options.setdefault("swa_full", True)  # little more, and every context shift is exact
        if states := self.decoder.recurrent_shapes:
            own = RecurrentCache.bytes_for(states, n_seq_max=n_seq_max)
            options.setdefault("n_rollback", max(0, min(ROLLBACK, ROLLBACK_BYTES // own - 1)))
        options.update(n_ctx=n_ctx or self.n_ctx, n_seq_max=n_seq_max, device=device)
        options.update(embeddings=embeddings)
        return Context(
            self,
            prefix=PrefixConfig() if prompt_cache else None,
            **options,
        )

    def prompt_tokens(
        self, prompt: str | Sequence[int] | Session, *, parse_special: bool = False
    ) -> tuple[int, ...]:
        """The tokens of a prompt as :meth:`generate` prefills them.

        Raises:
            ParameterError: there are none, or it is no prompt.
            TokenizerError: token ids outside the vocabulary.
        """
        return self.request_maker.tokens(checked_prompt(prompt), parse_special)

    def sampling_params(
        self,
        preset: str | None = None,
        params: SamplingParams | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> SamplingParams:
        """The parameters in effect, with a seed drawn if none is given.

        Precedence: ``sampling``, then ``params`` or the named preset, then what the model's files recommend
        on top of the default preset.
        """
        return self.request_maker.sampling_params(preset, params, **sampling)
