"""An engine: runs the requests of any number of threads together, over one context."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from aleator.core.errors import ContextFull, EngineClosed, ParameterError, Uncopyable
from aleator.core.options import declarations, takes
from aleator.engine import prompts
from aleator.engine.engine_loop import EngineLoop
from aleator.engine.options import EngineOptions, SubmitOptions
from aleator.engine.request_handle import Action, RequestHandle, T
from aleator.engine.request_states import RequestStateMaker
from aleator.engine.scheduled_request import (
    MOST_POSITIONS,
    ScheduledRequest,
    as_scheduled,
    check_rollback,
    most_positions,
    positions,
)
from aleator.engine.stats import EngineStats, OnEnd
from aleator.generate.beam_generation import BeamGeneration
from aleator.generate.beam_options import BeamOptions
from aleator.generate.beams import cells_of_beams
from aleator.generate.completion import Request
from aleator.generate.context import Context, Prefixes
from aleator.generate.generation import Generation
from aleator.generate.options import ModelOptions
from aleator.generate.request_state import OnLogits
from aleator.generate.scores import rows_at_once
from aleator.generate.session import Session
from aleator.generate.speculative import Drafter
from aleator.samplers import SamplingParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from aleator.keywords import EngineKeywords, SubmitBeamKeywords, SubmitKeywords

SUBMIT = declarations(SubmitOptions)


class Served(Protocol):
    """What an engine needs of a model; an :class:`aleator.LanguageModel` is one."""

    request_maker: prompts.RequestMaker  # makes requests of prompts and options
    request_states: RequestStateMaker  # makes the state of running requests
    tokenizer: Tokenizer
    vocab: Vocabulary
    n_ctx: int  # positions of one sequence
    options: ModelOptions  # what it was loaded with

    def context(
        self, n_ctx: int | None, n_seq_max: int, *, prompt_cache: bool, device: str | None
    ) -> Context:
        """A new context."""

    def tiers_of(self, context: Context) -> Prefixes | None:
        """The prompt cache for a context, if it is more than the context's own."""


@takes(declarations(EngineOptions).values())
class Engine(Uncopyable):
    """Runs the requests of any number of threads together, over one context::

        with aleator.Engine(model, n_seq_max=8) as engine:
            one = engine.submit("ROMEO:", max_tokens=100, seed=1)
            other = engine.submit("JULIET:", max_tokens=100, seed=1)
            for piece in one:
                print(piece, end="", flush=True)

    Requests join and leave at any time.  A step decodes one token of each running request, and parts of the
    prompts of new ones.  A request starts once there are cells for its longest possible text, so it never
    stops half-way for lack of cells.  A beginning that several prompts, or a prompt and a running text, have
    in common is computed once.  Where the decoder's rows do not depend on what else is in a batch
    (docs/reproducibility.md), a request gets the same tokens and log-probabilities as on its own.

    An error of one request, such as one that your sampler or callback raises, ends only that request, and is
    raised where its generation is read.  One thread owns the context; the model itself may be used meanwhile.

    Args:
        model: an :class:`aleator.LanguageModel`.
        on_end: called with each request that ends, in the engine's thread.
        options: docs/options.md.

    Raises:
        ParameterError: an option out of range.
    """

    _instead = (
        "make another of its model, aleator.Engine(model); threads share one, processes cannot"
    )

    def __init__(
        self, model: Served, *, on_end: OnEnd | None = None, **options: Unpack[EngineKeywords]
    ) -> None:
        chosen = EngineOptions.of(options)
        self._model, self.options = model, chosen
        n_seq_max = chosen.n_seq_max
        whole = min(n_seq_max * model.n_ctx, MOST_POSITIONS)
        self.n_ctx = whole if chosen.n_ctx is None else chosen.n_ctx
        cached = model.options.prompt_cache
        try:
            context = model.context(self.n_ctx, n_seq_max, prompt_cache=cached, device=None)
        except ParameterError as error:
            if error.parameter != "n_ctx" or chosen.n_ctx is not None or n_seq_max == 1:
                raise
            # Nobody gave the number that is in the error.
            message = (
                f"{n_seq_max} sequences of n_ctx={model.n_ctx}: {error}, or a smaller n_seq_max"
            )
            raise ParameterError("n_ctx", message) from error
        shared = model.request_states.shared_drafts(self.n_ctx, n_seq_max)
        prefixes = model.tiers_of(context)
        loop = EngineLoop(context, len(model.vocab), chosen, cached, shared, on_end, prefixes)
        self._loop: EngineLoop | None = loop
        self._final = EngineStats()
        self._making = threading.Lock()
        # An engine that is forgotten is closed too.
        self._close = weakref.finalize(self, loop.close_without_waiting)
        self._close.atexit = False

    def __repr__(self) -> str:
        stats = self.stats
        state = "closed" if self.closed else f"{stats.running} running, {stats.waiting} waiting"
        return f"<Engine: {state}, {self.n_ctx} cells, n_seq_max {self.options.n_seq_max}>"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End every request (stop reason "interrupted"), the thread, and the context; may be called again."""
        loop = self._loop
        if loop is not None:
            loop.close()
            self._close.detach()
            self._final, self._loop = loop.stats, None

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        loop = self._loop
        return loop is None or loop.closed

    @property
    def stats(self) -> EngineStats:
        """Counts so far."""
        loop = self._loop
        return self._final if loop is None else loop.stats

    @takes(SUBMIT.values(), prompts.GENERATION.values(), prompts.SAMPLING.values())
    def submit(
        self,
        prompt: str | Sequence[int] | Session,
        *,
        preset: str | None = None,
        params: SamplingParams | None = None,
        on_logits: OnLogits | None = None,
        drafter: Drafter | None = None,
        **options: Unpack[SubmitKeywords],
    ) -> Generation:
        """Continue a prompt; may be called from any thread.

        The request runs whether or not its text is read, until :meth:`Generation.cancel` or until nothing
        refers to the generation any more.

        Without ``max_tokens`` a request has ``n_ctx / n_seq_max`` positions, its prompt included.

        Args:
            prompt: as for :meth:`aleator.LanguageModel.generate`.
            preset: as there.
            params: as there.
            on_logits: as there; called in the engine's thread, for which all texts of the engine wait.
            drafter: as there; called in the engine's thread.
            options: docs/options.md, and sampling parameters (docs/samplers.md).

        Returns:
            The generation: an iterator over pieces of text, also for ``async for``, with ``.wait()``,
            ``.cancel()``, ``.text``, ``.tokens``, ``.logprobs``, and ``.stats`` of this request alone.

        Raises:
            QueueFull: ``max_queue`` requests wait.
            EngineClosed: the engine was closed.
            ParameterError: an unknown option, one out of range, or one that an engine cannot do.
            TokenizerError: token ids outside the vocabulary.
            ContextFull: the prompt is longer than the request's positions.
        """
        if "n" in options:
            raise ParameterError("n: submit a request for each completion, with another seed")
        given: dict[str, Any] = {"preset": preset, "params": params, **options}
        own = _taken(given)
        self._open()  # before the lock, which may be held by a thread that a fork left behind
        with self._making:
            request = self._model.request_maker.requests(
                [prompts.checked_prompt(prompt)], [prompts.options_of(given)]
            )[0]
            return self.start(request, own, on_logits, drafter)

    @takes(SUBMIT.values(), prompts.BEAM_OPTIONS.values(), prompts.SAMPLING.values())
    def beams(
        self,
        prompt: str | Sequence[int] | Session,
        *,
        preset: str | None = None,
        params: SamplingParams | None = None,
        noted: bool = False,
        **options: Unpack[SubmitBeamKeywords],
    ) -> BeamGeneration:
        """Search for the most probable continuations of a prompt; may be called from any thread.

        The texts are those of :meth:`aleator.LanguageModel.beams`.  A search starts once ``num_beams``
        sequences are free, and cells for its longest possible texts.  It shares its steps with the other
        requests.

        Args:
            prompt: as for :meth:`aleator.LanguageModel.beams`.
            preset: as there.
            params: as there.
            noted: record the beams of each step, for ``.steps``.
            options: docs/options.md, and sampling parameters (docs/samplers.md).

        Returns:
            The generation, whose ``.beams`` waits for the texts, the best first.  Otherwise it is like one of
            :meth:`submit`; its text is the best one.

        Raises:
            QueueFull, EngineClosed, TokenizerError, ContextFull: as for :meth:`submit`.
            ParameterError: as for :meth:`aleator.LanguageModel.beams`, or more beams than ``n_seq_max``.
        """
        given: dict[str, Any] = {"preset": preset, "params": params, **options}
        own = _taken(given)
        self._open()  # as above
        with self._making:
            request, search = self._model.request_maker.of_search(prompt, given)
            return self.start_beams(request, search, own, noted)

    def start_beams(
        self, request: Request, options: BeamOptions, own: SubmitOptions, noted: bool = False
    ) -> BeamGeneration:
        """Start a search; arguments and errors are those of :meth:`start` and :meth:`beams`."""
        loop, n_ctx = self._open(), self._max_positions(request)
        context, n = loop.context, options.num_beams
        state, search = self._model.request_states.of_search(
            request, options, context.n_seq_max, n_ctx
        )
        search.noted = noted
        state.take_place(-1, n_ctx, state.stats)
        shared = context.policy != "streams"
        scheduled = as_scheduled(state, cells_of_beams(request, n, n_ctx, shared), own.priority)
        self._check_room(scheduled)
        handle = loop.make_handle(scheduled, state, own.deadline)
        made = BeamGeneration(handle, state.completion, search)
        self._submit(loop, handle, made)
        return made

    def start(
        self,
        request: Request,
        own: SubmitOptions,
        on_logits: OnLogits | None = None,
        drafter: Drafter | None = None,
        prompt_logprobs: int | None = None,
        begin: bool = True,
    ) -> Generation:
        """Start a request.

        Args:
            request: the prompt and the options of its text.
            own: the options that are not about its text.
            on_logits: called before each draw.
            drafter: guesses tokens.
            prompt_logprobs: record the log-probabilities of the prompt's tokens, and of this many of the most
                probable ones at each place (:attr:`Generation.prompt_logprobs`).  The whole prompt is computed
                for that, without a cached prefix; with ``max_tokens=0`` the request ends there.
            begin: False: only check that the request is possible, whatever the queue holds; the generation
                that is returned never starts.

        Raises:
            QueueFull, EngineClosed, ParameterError, ContextFull: as for :meth:`submit`.
        """
        loop = self._open()
        _check_possible(request)
        max_positions = self._max_positions(request)
        state = self._model.request_states.make([request], on_logits, drafter, loop.shared)[0]
        check_rollback(state, loop.context)
        max_step_tokens = MOST_POSITIONS
        if prompt_logprobs is not None:
            state.completion.want_prompt(prompt_logprobs)
            max_step_tokens = rows_at_once(len(self._model.vocab))
        max_positions = min(
            max_positions, most_positions(state, min(self._model.n_ctx, self.n_ctx))
        )
        state.take_place(-1, max_positions, state.stats)
        scheduled = as_scheduled(state, max_positions, own.priority, max_step_tokens)
        self._check_room(scheduled)
        handle = loop.make_handle(scheduled, state, own.deadline)
        generation = Generation(handle, state.completion)
        if begin:
            self._submit(loop, handle, generation)
        return generation

    def check_queue(self, n: int) -> None:
        """Check that ``n`` more requests could be submitted now.

        Raises:
            QueueFull, EngineClosed: as for :meth:`submit`.
        """
        self._open().check_queue(n)

    @staticmethod
    def _submit(loop: EngineLoop, handle: RequestHandle, generation: Generation) -> None:
        handle.watch(generation)
        try:
            loop.submit(handle)
        except BaseException:  # an interrupt: nobody will read the text, so it must not run
            generation.cancel()
            raise

    def visit(self, action: Action[T]) -> Future[T]:
        """Run an action on the context between two steps, in the engine's thread.

        It runs once one of the sequences is free, before waiting requests start.

        Args:
            action: called with the context and the id of an empty sequence, which is emptied again afterwards.
                It may read and change what the cache keeps (docs/kv-cache.md), and should return soon, because
                all requests wait for it.

        Returns:
            A future of the action's result.  An error of the action is the exception of this future only.

        Raises:
            EngineClosed: the engine was closed; it is the future's exception if that happens before the action
                has run.
        """
        return self._open().visit(action)

    def _open(self) -> EngineLoop:
        """The loop that runs the requests; EngineClosed if it takes no more."""
        loop = self._loop
        if loop is None or loop.closed:
            raise EngineClosed("the engine is closed: make another one")
        return loop

    def _max_positions(self, request: Request) -> int:
        """The most positions that a request may use; ContextFull if its prompt is longer."""
        share, prompt = self.n_ctx // self.options.n_seq_max, len(request.remaining)
        most = min(self._model.n_ctx, self.n_ctx)
        options = request.options
        if options.context_shift:
            return min(most, share)
        if options.max_tokens is not None:
            return positions(request, most)
        if share < prompt <= most:
            raise ContextFull(
                f"the prompt has {prompt} tokens, and without max_tokens a request of this engine has {share} "
                "positions (n_ctx / n_seq_max): give max_tokens, or make the engine with a larger n_ctx"
            )
        return min(most, share)

    def _check_room(self, scheduled: ScheduledRequest) -> None:
        """Refuse a request whose two prompts need more than the engine has."""
        if scheduled.width > self.options.n_seq_max:
            raise ParameterError(
                f"guidance_scale takes two sequences: make the engine with n_seq_max=2 or more, not "
                f"{self.options.n_seq_max}"
            )
        if scheduled.max_positions > self.n_ctx:
            also = "beams" if scheduled.beams else "negative prompt"
            raise ContextFull(
                f"the request may come to use {scheduled.max_positions} positions, those of its {also} "
                f"included, and the engine has n_ctx={self.n_ctx}: give a smaller max_tokens"
            )


def _taken(given: dict[str, Any]) -> SubmitOptions:
    """Take the options that are not about the text out of a call's."""
    return SubmitOptions.of({name: given.pop(name) for name in SUBMIT if name in given})


def _check_possible(request: Request) -> None:
    """Refuse options that only a batch run at once can have."""
    options = request.options
    if options.sampling_device == "device":
        raise ParameterError("sampling_device='device': an engine draws where it can; give 'auto'")
    if options.multi_step != 1:
        raise ParameterError(
            f"multi_step={options.multi_step}: others join an engine's batch at every step; give 1"
        )
