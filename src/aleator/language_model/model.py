"""A model with its tokenizer, ready to write text."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from aleator.cache.devices import CPU
from aleator.core.errors import ParameterError
from aleator.core.options import declarations, takes
from aleator.core.parameter import check_callable
from aleator.core.threads import BackgroundCall
from aleator.engine.options import EngineOptions
from aleator.engine.prompts import (
    BEAM_OPTIONS,
    SAMPLING,
    checked_prompt,
    checked_prompts,
    options_of,
    options_of_each,
    takes_generation,
)
from aleator.engine.run import Run
from aleator.engine.scheduled_request import cells_needed, sequences_needed
from aleator.generate.beams import Beam, cells_of_beams
from aleator.generate.completion import Request
from aleator.generate.context import Prefixes
from aleator.generate.generation import Generation
from aleator.generate.options import LOADED, ContextOptions, ModelOptions, of_loading
from aleator.generate.prefix_reuse import CopiedPrefixes
from aleator.generate.request_state import OnLogits
from aleator.generate.session import Session
from aleator.generate.speculative import Drafter
from aleator.language_model.base import cache_sizes, positions
from aleator.language_model.scoring import ScoringModel
from aleator.models.adapters import Adapters
from aleator.models.build import build_decoder, check_encoder
from aleator.models.draft_head import open_head
from aleator.models.exact import check_memory, exact_form
from aleator.models.hub.bundled import bundled_model
from aleator.models.placement import AUTO, EXACT, Place, Placement, placement
from aleator.models.weights import Weights, open_weights
from aleator.samplers import SamplingParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from aleator.chat.generation import ChatGeneration
    from aleator.chat.message import Message
    from aleator.engine import Engine
    from aleator.keywords import (
        BatchKeywords,
        BeamKeywords,
        EngineKeywords,
        GenerateKeywords,
        LoadKeywords,
    )


log = logging.getLogger(__name__)


@takes(declarations(ModelOptions).values(), LOADED)
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
    check_callable("progress", progress)
    chosen, given = of_loading(options)
    where = placement(chosen.device, chosen.dtype, chosen.n_gpu_layers, chosen.device_map)
    weights = open_weights(bundled_model() if path is None else path)
    try:
        places, form = _placed(weights, where, chosen.n_ctx, given)
    except (ParameterError, ImportError) as error:
        divided = chosen.n_gpu_layers is not None or chosen.device_map is not None
        moves = chosen.device == AUTO or (chosen.device is None and not divided)
        if not moves or where.device == CPU:
            raise
        log.warning("device=%r: the CPU computes, as %s", chosen.device, error)
        places, form = _placed(weights, placement(CPU, chosen.dtype), chosen.n_ctx, given)
    adapters = Adapters()
    if chosen.adapters:
        from aleator.models.adapter_files import load_adapters  # most models have none

        adapters = load_adapters(chosen.adapters, weights, chosen.adapter_type)
    with BackgroundCall(lambda: Tokenizer(load_vocabulary(weights))) as text:
        decoder = build_decoder(weights, progress=progress, places=places, form=form)
    decoder.take(adapters)
    tokenizer = text.made
    draft: LanguageModel | None = None
    head = None if chosen.model_draft is None else open_head(chosen.model_draft, decoder)
    if chosen.model_draft is not None and head is None:
        draft = load(chosen.model_draft, device=str(decoder.device), dtype=chosen.dtype, **given)
        check_same_vocabulary(tokenizer.vocab, draft.vocab, chosen.model_draft)
    return LanguageModel(
        weights, decoder, tokenizer, options=chosen, draft=draft, head=head, **given
    )


def _placed(
    weights: Weights, where: Placement, n_ctx: int | None, given: Mapping[str, Any]
) -> tuple[list[Place], str]:
    """The place of each layer and the decoder's form; what a GPU cannot compute is refused.

    ``given`` are the options of contexts.
    """
    places, form = where.places(weights.config.n_layers), "auto"
    check_encoder(weights, places)
    if EXACT in (where.dtype, places[-1].dtype):
        form = exact_form(weights, places)
        if form == "triton":
            _check_room(weights, places, n_ctx, given)
    return places, form


def _check_room(
    weights: Weights, places: Sequence[Place], n_ctx: int | None, given: Mapping[str, Any]
) -> None:
    """Refuse, before anything is loaded, what a GPU has no room for."""
    options = ContextOptions.of(given)
    if not options.offload_kqv:
        raise ParameterError(
            "offload_kqv",
            "dtype='exact', the default on a GPU, reads the cache there: give offload_kqv=True, or "
            "dtype='bfloat16'",
        )
    cells = positions(weights, n_ctx)
    sizes = cache_sizes(weights.config, cells, given, 1)
    on_gpu = (own for own, place in zip(sizes, places, strict=True) if place.dtype == EXACT)
    check_memory(weights, places, sum(on_gpu), min(options.n_ubatch, options.n_batch), cells)


def check_same_vocabulary(vocab: Vocabulary, other: Vocabulary, path: str) -> None:
    """Refuse a model that guesses other tokens; ParameterError says which is the first."""
    differs = next(
        (i for i in range(min(len(vocab), len(other))) if vocab.tokens[i] != other.tokens[i]), None
    )
    if differs is None and len(vocab) == len(other):
        return
    at = f"token {differs} differs" if differs is not None else f"it has {len(other)} tokens"
    raise ParameterError(
        f"model_draft={path!r} has another vocabulary than the model with its {len(vocab)} tokens ({at}): "
        "give a smaller model of the same family"
    )


def load_vocabulary(weights: Weights) -> Vocabulary:
    """The tokens of a model; errors are those of :func:`load`."""
    if weights.gguf is not None:
        return Vocabulary.from_gguf(weights.gguf)
    return Vocabulary.from_directory(weights.path)


class LanguageModel(ScoringModel):
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

    @takes_generation
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
                them (``chain.explain``).  It must not wait for this text or another of its batch, nor for a
                thread that does: those wait until it returns.
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
            raise ParameterError("n: several completions are made by generate_batch(..., n=n)")
        given = options_of({"preset": preset, "params": params, **options})
        requests = self.request_maker.requests([checked_prompt(prompt)], [given])
        return self._start(requests, on_logits, progress, drafter)[0]

    @takes_generation
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

    @takes(BEAM_OPTIONS.values(), SAMPLING.values())
    def beams(
        self,
        prompt: str | Sequence[int] | Session,
        *,
        preset: str | None = None,
        params: SamplingParams | None = None,
        **options: Unpack[BeamKeywords],
    ) -> list[Beam]:
        """Search the most probable texts that continue a prompt, or draw some without replacement.

        Probabilities are those that the samplers leave; without any the model's own.  Beams run in a context
        of their own and share the cells of what they have in common.  docs/beams.md says what is searched,
        and when the search ends.

        Args:
            prompt: as for :meth:`generate`.
            preset: named sampling parameters; None: none, whatever the model's files recommend.
            params: sampling parameters, instead of a preset.
            options: docs/options.md, and sampling parameters (docs/samplers.md), which win over ``preset``
                and ``params``.

        Returns:
            ``num_return_sequences`` texts, the best first; fewer where there are no more.

        Raises:
            ParameterError: an unknown option, or one out of range; samplers that draw, such as XTC and
                mirostat; ``temperature=0``.
            TokenizerError: token ids outside the vocabulary.
            ContextFull: a prompt longer than ``n_ctx``.
        """
        given = {"preset": preset, "params": params, **options}
        request, chosen = self.request_maker.of_search(prompt, given)
        n = chosen.num_beams
        _, search = self.request_states.of_search(request, chosen, n, self.n_ctx)
        shared = self._context_options.get("policy") != "streams"
        context = self.cells(cells_of_beams(request, n, self.n_ctx, shared), n)
        prefixes: Prefixes = context.cache
        if self.options.prompt_cache:
            prefixes = CopiedPrefixes(self._cached_context(), context)
        return search.run(context, prefixes)

    @takes_generation
    def chat(
        self,
        messages: Sequence[Mapping[str, Any] | Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        enable_thinking: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        known_tokens: Sequence[int] = (),
        engine: Engine | None = None,
        preset: str | None = None,
        params: SamplingParams | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_logits: OnLogits | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> ChatGeneration:
        """Answer messages.

        The result is an iterator over pieces of the answer, made as they are asked for::

            for piece in model.chat([{"role": "user", "content": "Hi"}]):
                print(piece, end="", flush=True)

        and knows the whole ``.message``: content, reasoning and calls of tools.  Names of control tokens in
        messages and tools are text: only the template writes control tokens.

        Args:
            messages: mappings as in OpenAI's interface, with "role" and "content".
            tools: declarations of tools, as in OpenAI's interface; the template shows them to the model.
            tool_choice: "auto": the model chooses, which is the default; "none"; "required": it must call one;
                a tool's name; or OpenAI's ``allowed_tools``, the only ones that it then sees.  A call that is
                forced has arguments that satisfy their schema.
            enable_thinking: whether the model reasons first, for templates that read it.
            chat_template: Jinja template that writes messages as text; None: the model's.
            chat_template_kwargs: other variables that the template reads.
            known_tokens: of the conversation so far, to go on with where they fit its text.
            engine: makes the answer, together with other requests; None: the model by itself.
            preset: as for :meth:`generate`.
            params: as for :meth:`generate`.
            progress: as for :meth:`generate`.
            on_logits: as for :meth:`generate`.
            options: as for :meth:`generate`; ``json_schema`` forces the content of the answer.

        Raises:
            ParameterError: a malformed message or tool (names index and field), an option, or something that
                the template cannot show or nothing can enforce.
            TemplateError: the model has no template, or it refuses the messages.
            ContextFull: a conversation longer than ``n_ctx``.
        """
        # Templates, grammars and readers of replies, when there is something to answer: a start goes without.
        from aleator.chat.generation import ChatGeneration
        from aleator.chat.prompt import ChatPrompt, prepare_chat

        asked = prepare_chat(
            ChatPrompt(messages, tools, tool_choice, enable_thinking, chat_template_kwargs),
            self.chat_format(chat_template),
            self.tokenizer,
            {**options_of(options), "params": params},
            known_tokens,
        )
        about: dict[str, Any] = {"preset": preset, "on_logits": on_logits}
        if engine is None:
            made = self.generate(asked.tokens, progress=progress, **about, **asked.options)
        elif progress is not None:
            raise ParameterError(
                "progress: an engine does not report the prefill of one request: leave it out"
            )
        else:
            made = engine.submit(asked.tokens, **about, **asked.options)
        return ChatGeneration(made, asked.reply_of(0))

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
        check_callable("progress", progress)
        states = self.request_states.make(requests, on_logits, drafter)
        n_seq_max = sequences_needed(states)
        own = n_seq_max == 1 and not self._busy
        prefixes: CopiedPrefixes | None = None
        if own:
            context = self.own_context()
        else:
            cells = cells_needed(states, self.n_ctx)
            context = self.context(n_ctx=cells, n_seq_max=n_seq_max, device=None)
            if self.options.prompt_cache:
                prefixes = CopiedPrefixes(self._cached_context(), context)
        below = self.tiers_of(context, prefixes) or prefixes
        run = Run(context, states, self.vocab, self.n_ctx, progress, prefixes=below)
        if own:
            self._user = weakref.ref(run)
        return run.generations
