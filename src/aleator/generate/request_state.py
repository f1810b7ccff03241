"""The state of a request while its completion is made, and which tokens it decodes in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aleator.core.arrays import Floats
from aleator.core.errors import ParameterError, StateError, copies
from aleator.generate.bans import Bans
from aleator.generate.complete_grammar import GrammarCompleter
from aleator.generate.completion import (
    Completion,
    Detokenizer,
    Request,
    Stats,
    StopReason,
    TextStream,
    too_long,
)
from aleator.generate.context import Context
from aleator.generate.healing import Healing
from aleator.generate.speculative import Costs, Draft, Speculation
from aleator.generate.steering import Guidance, ReasoningBudget
from aleator.samplers import SamplerChain

if TYPE_CHECKING:
    from aleator.generate.beams import BeamSearch  # few requests have one
    from aleator.generate.prefix_load import LookUp, PrefixLoad  # loads SQLite

OnLogits = Callable[[SamplerChain, Any], None]
"""Called with the chain and the logits [V] before each token is drawn; it must change neither, nor wait for a
text that is made together with its own, in whatever thread: that text waits until it returns."""


class RequestState:
    """The state of a request while its completion is made: its chain, its text, its cache sequence."""

    def __init__(
        self,
        request: Request,
        # draws the tokens, and has accepted the prompt; not shared
        chain: SamplerChain,
        stream: TextStream,
        detokenizer: Detokenizer,
        *,
        on_logits: OnLogits | None = None,  # called before each draw
        # cuts text that a constraint forces into tokens, to decode them together; None: decode them one by one
        spell: Callable[[bytes], list[int]] | None = None,
        # samples a constrained text so that it is complete at its end; None: no completer
        completer: GrammarCompleter | None = None,
        # guesses tokens, which are decoded together; None: no guesses
        speculation: Speculation | None = None,
        budget: ReasoningBudget | None = None,  # ends the text's reasoning
        banned: Bans | None = None,  # strings and matches of expressions that must not occur
    ) -> None:
        self.request, self.chain = request, chain
        self.on_logits, self.spell, self.completer = on_logits, spell, completer
        self.speculation = speculation
        # whether the tokens decoded together in this step are guesses; otherwise they are forced
        self.drafted = False
        self.budget, self.banned = budget, banned
        # changes the logits before each draw by those of a second prompt; None: no guidance
        self.guidance: Guidance | None = None
        # restricts the first draws to the bytes that were taken back from the prompt; None: none were
        self.healing: Healing | None = None
        # beam search, which replaces the chain's draws; None: the chain draws
        self.search: BeamSearch | None = None
        # the completion so far
        self.completion = Completion(request, chain, stream, detokenizer)
        self.seq = 0  # its sequence in the cache
        self.n_ctx = 0  # positions that it may use
        self.stats = Stats()  # counts its work; requests may share one
        # the tokens that the cache holds in its sequence, at positions 0, 1, ...
        self.tokens: list[int] = []
        self.look_ups: dict[tuple[int, ...], LookUp] = {}  # the tiers' look-ups of its prompts
        self.prefix_loads: list[PrefixLoad] = []  # its prompts' prefixes, loading from a tier
        self.drawn = -1  # the token drawn last, which the next step decodes; -1 before the first
        # length of the part in which each token was computed from all tokens before it.  After a context shift,
        # later ones were computed from some tokens that are now forgotten.  None: all tokens.
        self.exact = min(at for at, _ in request.forgotten) if request.forgotten else None
        self.released = False  # whether the sequence was freed
        self.n_ahead = 16  # forced tokens to decode together
        self._native = chain.can_be_batched

    @property
    def draws_alone(self) -> bool:
        """Whether the chain has native samplers only, and nothing else decides on a token."""
        return self._native and not (
            self.guidance is not None
            or self.on_logits is not None
            or self.budget is not None
            or self.completer is not None
            or self.request.options.kept
            or (self.banned is not None and self.banned.refuses)
            or (self.healing is not None and self.healing.open(len(self.completion.tokens)))
        )

    def allowed(self, row: Floats) -> Floats:
        """The logits [V] to draw from, without tokens ruled out by a healed prompt or by refusals."""
        made, banned = self.completion.tokens, self.banned
        if self.healing is not None and self.healing.open(len(made)):
            held = [] if banned is None else [each.token for each in banned.held]
            row = self.healing.masked(row, [*made, *held])
        return row if banned is None else banned.masked(row)

    @property
    def wants_prompt(self) -> bool:
        """Whether the request wants the logits after each prompt token."""
        return self.completion.prompt_logprobs is not None

    @property
    def second_positions(self) -> int:
        """Positions in the sequence of its second prompt; 0 without one."""
        if self.guidance is None:
            return 0
        return self.guidance.computed + max(0, len(self.tokens) - len(self.request.remaining))

    def end_speculation(self) -> None:
        """Stop guessing and searching: a reader of the generation need not keep alive what these use."""
        if self.search is not None:
            self.search.forget()
        if self.speculation is not None:
            self.speculation.end()
            self.speculation = None

    @property
    def to_prefill(self) -> int:
        """Number of prompt tokens that are computed before the first token is drawn."""
        return min(len(self.request.remaining), self.n_ctx)

    def limits(self) -> tuple[int | None, StopReason]:
        """Number of tokens that may still be drawn (None: unlimited), and the stop reason after them."""
        options = self.request.options
        room = None if options.context_shift else self.n_ctx - len(self.tokens) + 1
        if options.max_tokens is not None:
            held = 0 if self.banned is None else len(self.banned.held)
            more = options.max_tokens - len(self.completion.tokens) - held
            if room is None or more <= room:
                return more, "length"
        return room, "context"

    def ends_with(self, token: int) -> bool:
        """Whether the text ends with a drawn token that is neither held nor given out yet."""
        return (
            self.completion.ends_with(token)
            or self.limits()[0] == 1
            or (self.chain.grammar is not None and self.chain.finished)
        )

    def take_place(self, seq: int, n_ctx: int, stats: Stats) -> None:
        """Start the request in an empty sequence of its own, in which it may use ``n_ctx`` positions.

        ContextFull: its prompt is longer.  ParameterError: an ``n_keep`` that leaves nothing to forget.
        """
        request = self.request
        shift = request.options.context_shift
        # A generation whose context is full shifts before it decodes the token drawn last.  A request that
        # continues it does the same.
        more = int(shift and request.drawn > 0)
        if len(request.remaining) > n_ctx + more:
            raise too_long(len(request.remaining), n_ctx)
        if shift and not 0 <= request.n_keep <= n_ctx - 2:
            raise ParameterError(
                f"n_keep={request.n_keep}: a context shift in {n_ctx} positions can keep 0 to {n_ctx - 2}"
            )
        self.seq, self.n_ctx, self.stats = seq, n_ctx, stats
        self.completion.n_ctx = n_ctx


Proposal = tuple[RequestState, list[int]]
"""A request, and the tokens that it decodes in a step: the one drawn last and guesses of what follows, or the
last token of each beam."""

Failed = Callable[[RequestState, BaseException], None]
"""Called with a request and its error, after the error has ended its completion."""


def go_on(chain: SamplerChain, request: Request) -> None:
    """Bring a new chain to the end of a request's text, whose last tokens an earlier generation drew.

    A chain with a different configuration from the one that drew them only accepts the text.
    """
    tokens = request.tokens
    if request.chain_state:
        try:
            chain.state_read(request.chain_state)
        except StateError:
            pass  # parameters have changed
        else:
            if chain.history == list(tokens):
                return
            chain.reset()
    start = len(tokens) - request.drawn
    chain.accept_many(tokens[:start])
    chain.accept_many(tokens[start:], generated=True)


class RequestErrors:
    """Ends the completions that fail, and calls ``failed``, which must not hold what makes the steps.

    It is an object of its own that everything making steps together refers to, instead of to one another.  So a
    context is freed without the garbage collector as soon as it is no longer used.  ``drop`` drops the token of
    a request that fails.
    """

    def __init__(self, drop: Callable[[RequestState], None], failed: Failed | None) -> None:
        self._drop, self._failed = drop, failed

    def run_for(self, state: RequestState, action: Callable[..., object], *given: object) -> None:
        """Run an action for one request; an error ends the completion of this request only.

        So does a SystemExit from its callback.  KeyboardInterrupt belongs to no request, and is raised.
        """
        try:
            action(*given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.fail(state, error)

    def fail(self, state: RequestState, error: BaseException) -> None:
        """End a request's completion with an error."""
        self._drop(state)
        state.completion.fail(error)
        if self._failed is not None:
            self._failed(state, error)

    def fail_all(self, states: Sequence[RequestState], error: BaseException) -> None:
        """End the completions of several requests with an error, each with a copy of its own."""
        for state, each in zip(states, copies(error, len(states)), strict=False):
            self.fail(state, each)


class Proposer:
    """Asks grammars, drafters and draft models for the number of tokens that is likely to save time.

    ``costs`` has the times of past steps.
    """

    def __init__(self, context: Context, errors: RequestErrors) -> None:
        self._context, self._errors, self.costs = context, errors, Costs()

    def propose(self, states: Sequence[RequestState]) -> list[Proposal]:
        """Return the token that each request drew last, followed by guesses, to be decoded together.

        Requests whose drafters have failed are left out.
        """
        rows = {state: [state.drawn] for state in states}
        drafts: list[tuple[RequestState, Draft]] = []
        for state in states:
            state.drafted = False
            asks = state.speculation is not None and not state.speculation.rests()
            # held tokens may be taken back
            if (asks or state.spell is not None) and state.banned is None:
                self._errors.run_for(state, self._guess, state, asks, rows, drafts)
        if drafts:
            self._draft(drafts, rows)
        return [(state, tokens) for state, tokens in rows.items() if not state.completion.done]

    def _guess(
        self,
        state: RequestState,
        asks: bool,
        rows: dict[RequestState, list[int]],
        drafts: list[tuple[RequestState, Draft]],
    ) -> None:
        """Add guesses to a request's tokens; draft models are asked later, for all requests at once."""
        n_sequences = sum([1 if each.guidance is None else 2 for each in rows])
        room = min(state.n_ctx - 1 - len(state.tokens), self._context.rewindable(n_sequences))
        wanted = state.request.options.max_tokens
        if wanted is not None:
            room = min(room, wanted - len(state.completion.tokens) - 1)
        if state.spell is not None:
            forced = state.spell(state.chain.jump_forward())[: max(0, min(room, state.n_ahead))]
            rows[state] += forced
            if forced:
                return
        if state.speculation is None or not asks:
            return
        if state.speculation.looks_for_repeats:
            text = [*state.tokens, state.drawn]
            repeated = state.speculation.repeated(text, room, n_sequences, self.costs)
            if repeated:
                self._add(state, repeated, rows)
                return
        n = state.speculation.n_guesses(room, n_sequences, self.costs)
        if n < 1:
            return
        text = [*state.tokens, state.drawn]
        if state.speculation.model is not None:
            least = state.speculation.least_probability(n_sequences, self.costs)
            drafts.append((state, Draft(state.speculation.model, text, n, least)))
        else:
            self._add(state, state.speculation.guesses(text, n), rows)

    def _draft(
        self, drafts: Sequence[tuple[RequestState, Draft]], rows: dict[RequestState, list[int]]
    ) -> None:
        """Have draft models guess for several requests at once; an error of the model ends all of them."""
        started = perf_counter()
        try:
            drafts[0][1].model.shared.guess([draft for _, draft in drafts])
        except Exception as error:
            self._errors.fail_all([state for state, _ in drafts], error)
            return
        seconds = (perf_counter() - started) / len(drafts)
        for state, draft in drafts:
            if state.speculation is not None:
                state.speculation.observe(len(draft.found), seconds)
            if draft.error is not None:
                self._errors.fail(state, draft.error)
            self._add(state, draft.found, rows)

    @staticmethod
    def _add(
        state: RequestState, guesses: Sequence[int], rows: dict[RequestState, list[int]]
    ) -> None:
        rows[state] += guesses
        state.drafted = bool(guesses)
        state.stats.draft_n += len(guesses)
        state.stats.drafts += bool(guesses)
