"""A model with its tokenizer, its contexts and its sessions."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Unpack

from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache
from aleator.core.errors import ParameterError, Uncopyable
from aleator.engine.prompts import RequestMaker, checked_prompt, options_of
from aleator.engine.request_states import RequestStateMaker
from aleator.engine.run import Run
from aleator.generate.context import Context, Prefixes
from aleator.generate.draft_heads import HeadDrafts
from aleator.generate.draft_models import DraftContext
from aleator.generate.generation import Generation, reader_of
from aleator.generate.options import ROLLBACK, WHERE, ContextOptions, ModelOptions
from aleator.generate.prefix_reuse import SPARE
from aleator.generate.session import Session, load_session, save_session, state_of
from aleator.generate.session_file import SessionFile
from aleator.generate.speculative import Drafts
from aleator.models.config import ModelConfig
from aleator.models.decoder import Decoder
from aleator.models.draft_head import DraftHead
from aleator.models.encoder import Encoder, no_texts
from aleator.models.fingerprint import ModelIdentity
from aleator.models.projection import Projection
from aleator.models.sizes import cache_of_layers
from aleator.models.weights import Weights
from aleator.samplers import SamplingParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from aleator.chat.prompt import ChatFormat
    from aleator.generate.prompt_tiers import PromptTiers
    from aleator.generate.tiered_prefixes import TieredPrefixes
    from aleator.keywords import ContextKeywords, GenerateKeywords, SamplingKeywords

DEFAULT_CONTEXT = 4096
"""Positions of a sequence when ``n_ctx`` is not given and the model was trained with more."""
OF_LOGITS = (*WHERE, "dtype", "type_k", "type_v", "k_storage", "swa_sinks")
"""Options of loading that can change logits."""
ROLLBACK_BYTES = 2**26
"""Most bytes of the states to go back to, which let a grammar's forced text be decoded together, where neither
``n_rollback`` nor a draft model asks for them."""


def cache_sizes(
    config: ModelConfig, cells: int, given: Mapping[str, Any], n_seq_max: int
) -> list[int]:
    """Bytes of each layer in a cache of so many cells and sequences, with the states to go back to.

    ``given`` are the options of contexts that a model is loaded with.
    """
    options = ContextOptions.of(given)
    sizes = cache_of_layers(config, cells, options.type_k, options.type_v, n_seq_max)
    states = n_seq_max * sum(own for _, _, own in sizes)
    rows = n_seq_max * (1 + _rollback(states, given))
    return [k + v + rows * own for k, v, own in sizes]


def _rollback(states: int, given: Mapping[str, Any]) -> int:
    """Tokens that sequences can be rewound by, whose states take so many bytes without."""
    least = max(0, min(ROLLBACK, ROLLBACK_BYTES // max(1, states) - 1))
    return int(given.get("n_rollback", least))


def positions(weights: Weights, n_ctx: int | None) -> int:
    """Positions of one sequence, where a model is loaded with ``n_ctx``."""
    trained, longest = weights.config.context_length, weights.config.longest_text
    if n_ctx is None:
        return min(trained, DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT)
    return n_ctx or trained


class LoadedModel(Uncopyable):
    """A model with its tokenizer, contexts and sessions; :class:`aleator.LanguageModel` says its attributes."""

    _instead = (
        "send its path, and load it there with aleator.load(path); in one process use the same object, "
        "whose context() makes more contexts"
    )

    def __init__(
        self,
        weights: Weights,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        options: ModelOptions | None = None,
        draft: LoadedModel | None = None,
        head: DraftHead | None = None,
        **context_options: Unpack[ContextKeywords],
    ) -> None:
        self.weights = weights
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.vocab: Vocabulary = tokenizer.vocab
        self.options = options or ModelOptions()
        self.projection = Projection(weights)
        self.n_ctx = positions(weights, self.options.n_ctx)
        if isinstance(decoder, Encoder):  # it keeps nothing, so that room for long texts is free
            most = decoder.most_positions
            own = weights.config.longest_text or most
            self.n_ctx = min(
                own if self.options.n_ctx is None else self.options.n_ctx or most, most
            )
        self._context_options = context_options
        self.draft = draft
        n_tokens, n_threads = len(self.vocab), context_options.get("n_threads")

        def drafts(n: int, n_seq_max: int) -> Drafts | None:
            """What guesses for the requests of a context of so many cells and sequences."""
            if head is not None:
                return HeadDrafts(head, n_seq_max, n_tokens, n_threads)
            if draft is not None:
                return DraftContext(partial(draft.cells, n, n_seq_max), n_tokens)
            return None

        self.request_maker = RequestMaker(tokenizer, weights, decoder.adapters)
        self.request_states = RequestStateMaker(tokenizer, self.request_maker, drafts)
        self._context: Context | None = None
        self._user: weakref.ref[Run] | None = None
        self._chat_formats: dict[str | None, ChatFormat] = {}

    def __repr__(self) -> str:
        config = self.weights.config
        return (
            f"<LanguageModel {config.name or self.weights.path!s}: {config.architecture}, "
            f"{self.weights.n_parameters / 1e6:.1f} M parameters, n_ctx {self.n_ctx}>"
        )

    @property
    def _busy(self) -> bool:
        """Whether a generation is under way in the model's own context."""
        run = self._user() if self._user is not None else None
        return run is not None and not run.done

    @cached_property
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
        if self._context is not None and self._context.unusable_after_fork():
            self._context = self._user = None
        if self._context is None:
            cached = self.options.prompt_cache
            self._context = self.context(
                n_seq_max=1 + SPARE if cached else 1, prompt_cache=cached, device=None
            )
        return self._context

    @cached_property
    def prompt_tiers(self) -> PromptTiers | None:
        """The tiers of the prompt cache beside the cells of contexts; None: there are none."""
        chosen = self.options
        if not chosen.prompt_cache or not (chosen.cache_ram or chosen.cache_disk):
            return None
        from aleator.generate.prompt_tiers import PromptTiers  # loads SQLite, which others spare

        tiers = PromptTiers(chosen.cache_ram, chosen.cache_disk, chosen.cache_dir)
        # They end with the interpreter themselves
        weakref.finalize(self, tiers.close).atexit = False
        return tiers

    def tiers_of(self, context: Context, inner: Prefixes | None = None) -> TieredPrefixes | None:
        """The cached prefixes of a context (``inner``; None: those of its own cache), with the tiers below.

        None if there are no tiers.
        """
        tiers = self.prompt_tiers
        if tiers is None:
            return None
        from aleator.generate.tiered_prefixes import TieredPrefixes  # as above

        return TieredPrefixes(inner or context.cache, context, tiers, self.identity, self.loading)

    def cells(self, n: int, n_seq_max: int) -> Context:
        """A new context of so many cells and sequences, as far as these have positions."""
        return self.context(n_ctx=min(n, n_seq_max * self.n_ctx), n_seq_max=n_seq_max)

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
            options["n_rollback"] = _rollback(own, options)
        options.update(n_ctx=n_ctx or self.n_ctx, n_seq_max=n_seq_max, device=device)
        options.update(embeddings=embeddings)
        return Context(self, prefix=PrefixConfig() if prompt_cache else None, **options)

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

    def check_options(self, **options: Unpack[GenerateKeywords]) -> None:
        """Check options of :meth:`generate`; raises the errors that it would raise."""
        self.request_maker.check(options_of(options))

    def chat_format(self, chat_template: str | None = None) -> ChatFormat:
        """How chats are written with a template; None: the model's.

        Raises:
            TemplateError: there is none, or it does not parse.
            UnsupportedModel: the model is an encoder.
        """
        if isinstance(self.decoder, Encoder):
            raise no_texts("chat")
        source = self.vocab.chat_template if chat_template is None else chat_template
        if source not in self._chat_formats:
            from aleator.chat.prompt import ChatFormat

            self._chat_formats[source] = ChatFormat(self.tokenizer, source)
        return self._chat_formats[source]

    # Sessions: texts in files, with what the cache has of them

    def save_session(
        self,
        path: str | os.PathLike[str] | SessionFile,
        generation: Generation,
        extra: Mapping[str, Any] | None = None,
        *,
        new: bool = False,
    ) -> int:
        """Write a generation's text to a file, with its keys and values as far as the cache still has them.

        ``generate(model.load_session(path))`` goes on with it; with the same sampling parameters the tokens
        are those that would have followed.

        Args:
            path: the file, or the open :class:`~aleator.generate.session_file.SessionFile`; one that exists is
                replaced once the new one is complete.
            generation: made until it ends, if it has not.
            extra: more to write, JSON-ready.
            new: replace what is there even if it is another text, or no session.

        Returns:
            Tokens whose keys and values were written.

        Raises:
            SessionInUse: somebody else has opened the file.
            OtherSession: the file holds a text that does not begin this one, made from another prompt.
            ParameterError: the file cannot be written, a generation is under way, or a device drew the text
                with a sampler that adapts.
        """
        if not isinstance(path, SessionFile):
            with SessionFile(path, new=new) as file:
                return self.save_session(file, generation, extra)
        request, made = generation.request, generation.tokens
        if generation.stop_reason in ("eog", "stop_token"):
            made = made[:-1]
        session = Session(
            tokens=(*request.tokens, *made),
            n_prompt=len(request.tokens) - request.drawn,
            seed=generation.seed,
            extra=dict(extra or {}),
            forgotten=reader_of(generation).completion.forgotten,
            namespace=generation.namespace,
            adapters=request.options.adapters or (),
        )
        if not new:
            path.require(session.tokens, session.n_prompt)
        state = state_of(generation.chain, session.tokens, len(made))
        session = replace(session, chain=state)
        context = self.own_context()
        # The cells get what a tier has of the text: as of a prompt, whose last token is never reused.
        if (tiers := self.tiers_of(context)) is not None:
            tiers.reuse(0, [*session.remaining, 0], session.namespace)
            context.cache.seq_rm(0, -1, -1)
        held = save_session(path, context, session, self.identity)
        path.holds(session.tokens, session.n_prompt)
        return held

    def load_session(self, path: str | os.PathLike[str] | SessionFile) -> Session:
        """Read what :meth:`save_session` wrote; :meth:`generate` need not compute its text again.

        Args:
            path: the file, or the open :class:`~aleator.generate.session_file.SessionFile`.

        Raises:
            FileFormatError: not a session, one of an older format, or a damaged file.
            Incompatible: it was made with another model; says which.
        """
        session = load_session(path, self.own_context(), self.identity)
        if isinstance(path, SessionFile):
            path.holds(session.tokens, session.n_prompt)
        return session

    @cached_property
    def identity(self) -> ModelIdentity:
        """Name, path and fingerprint; the fingerprint reads the file once, when a session is used."""
        return self.weights.identity()

    @property
    def fingerprint(self) -> str:
        """Tells models apart whose states do not fit each other; see :attr:`identity`."""
        return self.identity.fingerprint
