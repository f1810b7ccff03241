"""The state of a request while its completion is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aleator.core.errors import ContextFull, ParameterError
from aleator.generate.banned_strings import BannedStrings
from aleator.generate.completion import Completion, Detokenizer, Stats, StopReason, TextStream
from aleator.generate.complete_grammar import GrammarCompleter
from aleator.generate.request import Request
from aleator.generate.speculation.speculation import Speculation
from aleator.generate.steering import Guidance, ReasoningBudget
from aleator.samplers import SamplerChain

OnLogits = Callable[[SamplerChain, Any], None]
"""Called with the chain and the logits [V] before each token is drawn; must change neither."""


class RequestState:
    """The state of a request while its completion is made: its chain, its text, and its sequence of the cache.

    Args:
        request: what was asked for.
        chain: draws the tokens, and has accepted the prompt; nothing else may use it meanwhile.
        stream: turns the tokens into text.
        detokenizer: bytes of tokens, and which of them end a generation.
        on_logits: called before each draw.
        spell: cuts text that a constraint forces into tokens, which are decoded together; None: they are
            decoded one by one.
        completer: samples a constrained text so that it is complete at its end; None: nothing does.
        budget: ends the text's reasoning.
        banned: strings that never occur.
        speculation: guesses tokens, which are decoded together; None: nobody guesses.

    Attributes:
        guidance: changes the logits before each draw, by those of a second prompt; None: they are the model's.
        completion: what has been made so far.
        seq: the sequence of the cache.
        n_ctx: positions that it may use.
        stats: where what is done for it is counted; requests may share one.
        tokens: exactly those that the cache holds as that sequence, at positions 0, 1, ...
        drawn: the token drawn last, which the next step decodes; -1 before the first.
        exact: how many of the tokens were computed from all tokens before them; others, after a context
            shift, from some that are forgotten.  None: all.
        released: the sequence was given up.
        n_ahead: forced tokens to decode ahead.
        drafted: the tokens decoded together in this step are guesses, not forced.
    """

    def __init__(
        self,
        request: Request,
        chain: SamplerChain,
        stream: TextStream,
        detokenizer: Detokenizer,
        *,
        on_logits: OnLogits | None = None,
        spell: Callable[[bytes], list[int]] | None = None,
        completer: GrammarCompleter | None = None,
        speculation: Speculation | None = None,
        budget: ReasoningBudget | None = None,
        banned: BannedStrings | None = None,
    ) -> None:
        self.request, self.chain = request, chain
        self.on_logits, self.spell, self.completer = on_logits, spell, completer
        self.speculation, self.drafted = speculation, False
        self.budget, self.banned = budget, banned
        self.guidance: Guidance | None = None
        self.completion = Completion(request, chain, stream, detokenizer)
        self.seq = self.n_ctx = 0
        self.stats = Stats()
        self.tokens: list[int] = []
        self.drawn = -1
        self.exact = min(at for at, _ in request.forgotten) if request.forgotten else None
        self.released = False
        self.n_ahead = 16
        self._native = chain.can_be_batched

    @property
    def constrained(self) -> bool:
        """Whether its text must obey a grammar."""
        return self.chain.grammar is not None

    @property
    def draws_alone(self) -> bool:
        """Whether the chain has native samplers only, and nothing but it decides on a token."""
        return self._native and not (
            self.guidance is not None
            or self.on_logits is not None
            or self.budget is not None
            or self.completer is not None
            or self.request.options.kept
        )

    @property
    def wants_prompt(self) -> bool:
        """Whether the logits after each token of the prompt are wanted."""
        return self.completion.prompt_logprobs is not None

    @property
    def beside(self) -> int:
        """Positions of the sequence of its second prompt; 0 without one."""
        if self.guidance is None:
            return 0
        return self.guidance.held(len(self.tokens), len(self.request.remaining))

    def end_speculation(self) -> None:
        """Guess no more: who holds the generation would hold what the guesses need."""
        if self.speculation is not None:
            self.speculation.end()
            self.speculation = None

    @property
    def to_prefill(self) -> int:
        """Tokens of the prompt that are computed before anything is drawn."""
        return min(len(self.request.remaining), self.n_ctx)

    def limits(self) -> tuple[int | None, StopReason]:
        """Tokens that may still be drawn, and what ends the text after them; None: any number."""
        options = self.request.options
        room = None if options.context_shift else self.n_ctx - len(self.tokens) + 1
        if options.max_tokens is not None:
            held = 0 if self.banned is None else len(self.banned.held)
            more = options.max_tokens - len(self.completion.tokens) - held
            if room is None or more <= room:
                return more, "length"
        return room, "context"

    def take_place(self, seq: int, n_ctx: int, stats: Stats) -> None:
        """Begin: in a sequence of its own, with so many positions.

        Args:
            seq: the sequence, which is empty.
            n_ctx: positions that it may use.
            stats: where to count what is done for it.

        Raises:
            ContextFull: the prompt is longer.
            ParameterError: an ``n_keep`` which leaves nothing to forget.
        """
        self.check_fits(n_ctx)
        self.seq, self.n_ctx, self.stats = seq, n_ctx, stats
        self.completion.n_ctx = n_ctx

    def check_fits(self, n_ctx: int) -> None:
        """See whether the request can be made in ``n_ctx`` positions.

        Raises:
            ContextFull: the prompt is longer.
            ParameterError: an ``n_keep`` which leaves nothing to forget.
        """
        request = self.request
        shift = request.options.context_shift
        # A generation whose context is full shifts before it decodes the token drawn last: so does who
        # goes on with it.
        more = int(shift and request.drawn > 0)
        if len(request.remaining) > n_ctx + more:
            raise ContextFull(
                f"the prompt has {len(request.remaining)} tokens and the context {n_ctx} positions: shorten "
                "the prompt, or load the model with a larger n_ctx (command line: -c)"
            )
        if shift and not 0 <= request.n_keep <= n_ctx - 2:
            raise ParameterError(
                "n_keep",
                f"n_keep={request.n_keep}: a context shift in {n_ctx} positions can keep 0 to {n_ctx - 2}",
            )
