"""Prefill and decode: completions that advance together, one batch per step, over one context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import torch

from aleator.core.errors import ContextFull, ParameterError
from aleator.generate.batch import Batch
from aleator.generate.context import Context
from aleator.generate.drawing import DeviceDrawing, Drawing, LogprobsOf, Turn, make_drawing
from aleator.generate.multi_step import DecodeLoop, Feed
from aleator.generate.request import (
    Completion,
    Detokenizer,
    Generation,
    Request,
    Stats,
    StopReason,
)

MOST_GUESSED = 64
"""Forced tokens that are decoded together at most."""

_shifts = count(1)

Progress = Callable[[int, int], None]
"""Called with (prompt tokens done, prompt tokens to do in all) during prefill."""


@dataclass(eq=False)
class Slot:
    """One completion's place in the cache.

    ``tokens`` are exactly those that the cache holds as sequence ``seq``, at positions 0, 1, ...;
    ``drawn`` is the token drawn last, which the next step decodes.  The first ``exact`` of the tokens were
    computed from all tokens before them; others, after a context shift, from some that are forgotten.
    """

    completion: Completion
    seq: int
    tokens: list[int]
    drawn: int = -1
    exact: int | None = None  # all of them
    released: bool = False
    guess: int = 16  # forced tokens to decode ahead

    @property
    def constrained(self) -> bool:
        """Whether its text must obey a grammar."""
        return self.completion.request.chain.grammar is not None


class Run:
    """Makes completions together: prefill at the first :meth:`step`, then one token each per step.

    Requests with the same prompt are prefilled once and share its cells, except where a context shift
    would move cells that another completion sees.

    Args:
        context: has a sequence for every request, which are empty, and cells as :func:`cells_needed` says.
            If its cache keeps texts, prompts are computed only from where they
            part from a kept one, and what was computed is kept when its completion ends.
        requests: what to make; request i becomes sequence i.
        detokenizer: bytes of tokens and which of them end a generation.
        n_ctx: positions that one sequence may use.
        progress: told of the prefill.
        sample_on: where tokens are drawn, "host", "device" or "auto": see :func:`make_drawing`.
        steps_ahead: tokens of each completion that the device decodes and draws before the host hears of
            them (:class:`DecodeLoop`), where it draws; pieces of text come in bunches then, and what was
            drawn after a stop string is taken back.

    Raises:
        ContextFull: a prompt longer than ``n_ctx``.
        ParameterError: an ``n_keep`` which leaves nothing to forget; ``sample_on`` or ``steps_ahead`` that the
            requests or the model do not allow.
    """

    def __init__(
        self,
        context: Context,
        requests: Sequence[Request],
        detokenizer: Detokenizer,
        n_ctx: int,
        progress: Progress | None = None,
        sample_on: str = "host",
        steps_ahead: int = 1,
    ) -> None:
        for request in requests:
            _check_fits(request, n_ctx)
        self.stats = Stats()
        self.slots = [
            Slot(Completion(request, detokenizer), seq, [], exact=_exact(request))
            for seq, request in enumerate(requests)
        ]
        self._context, self._n_ctx, self._progress = context, n_ctx, progress
        self._prefilled = False
        self._n_tokens = len(detokenizer)
        device = getattr(context, "device", torch.device("cpu"))
        self._drawing: Drawing = make_drawing(requests, sample_on, device, self._n_tokens, n_ctx)
        self._loop: DecodeLoop | None = None
        if steps_ahead != 1 or isinstance(steps_ahead, bool):
            if not isinstance(self._drawing, DeviceDrawing):
                raise ParameterError(
                    "steps_ahead", "steps ahead are drawn on the device: give sample_on='device'"
                )
            self._loop = DecodeLoop(
                context,
                self._drawing.chain,
                steps_ahead,
                n_vocab=self._n_tokens,
                ends=(token for token in detokenizer.eog if token < self._n_tokens),
            )

    @property
    def generations(self) -> list[Generation]:
        """What is being made, in the order of the requests.

        They hold the run and the run does not hold them: with the last one it goes, and frees its context.
        """
        return [Generation(self, slot.completion) for slot in self.slots]

    @property
    def done(self) -> bool:
        """Whether every completion has ended."""
        return all(slot.completion.done for slot in self.slots)

    def step(self) -> None:
        """Prefill all prompts and draw the first tokens, or draw one more token for each completion.

        Whatever it raises has ended all completions, with stop reason "interrupted".
        """
        started = perf_counter()
        try:
            self._end_cancelled()
            if self.done:
                return
            if not self._prefilled:
                self._prefilled = True
                self._prefill()
                self.stats.prompt_seconds += perf_counter() - started
            else:
                self._decode()
                self.stats.decode_seconds += perf_counter() - started
        except BaseException:
            for slot in self.slots:
                slot.completion.interrupt()
            raise
        finally:
            self._release_ended()

    def _end_cancelled(self) -> None:
        for slot in self.slots:
            if slot.completion.cancelled:
                slot.completion.interrupt()

    def _prefill(self) -> None:
        work: list[tuple[int, int, Slot, bool]] = []
        followers = self._share_prompts()
        for slot in followers:
            request = slot.completion.request
            prompt = request.remaining
            reused = self._context.cache.reuse(slot.seq, prompt, request.namespace)
            slot.tokens = list(prompt[:reused])
            self.stats.reused_tokens += reused
            last = len(prompt) - 1
            held = min(len(prompt), self._n_ctx)
            work += [(prompt[pos], pos, slot, pos == last) for pos in range(reused, held)]
            if held == last:  # of a session: a context shift makes room for the token drawn last
                slot.drawn = prompt[last]
        step = self._context.n_ubatch
        for start in range(0, len(work), step):
            self._report(start, len(work))
            self._end_cancelled()
            if self.done:
                return
            chunk, batch = work[start : start + step], Batch()
            for token, pos, slot, wanted in chunk:
                batch.add(token, pos, [slot.seq], logits=wanted)
            logits = self._logits(batch)
            self.stats.prompt_tokens += len(chunk)
            for token, _, slot, _ in chunk:
                slot.tokens.append(token)
            turns: list[tuple[Slot, int]] = []
            for row, slot in enumerate(slot for *_, slot, wanted in chunk if wanted):
                namespace = slot.completion.namespace
                self._context.cache.keep(slot.seq, slot.tokens, namespace)
                for follower in followers[slot]:
                    self._context.cache.seq_cp(slot.seq, follower.seq, 0, -1)
                    follower.tokens = list(slot.tokens)
                turns += [(each, row) for each in (slot, *followers[slot])]
            self._draw(turns, logits)
        if work:
            self._report(len(work), len(work))

    def _share_prompts(self) -> dict[Slot, list[Slot]]:
        """The slots to prefill, each with those that take over its cells."""
        leaders: dict[object, Slot] = {}
        followers: dict[Slot, list[Slot]] = {}
        for slot in self.slots:
            request = slot.completion.request
            key: object = slot.seq
            if not request.context_shift:
                key = (request.remaining, request.namespace)
            leader = leaders.setdefault(key, slot)
            if leader is slot:
                followers[slot] = []
            else:
                followers[leader].append(slot)
        return followers

    def _decode(self) -> None:
        going = [s for s in self.slots if not s.completion.done and self._make_room(s)]
        if self._loop is not None and all(map(self._runs_ahead, self.slots)):
            self._decode_ahead(self._loop, going)
            return
        batch = Batch()
        active: list[tuple[Slot, list[int]]] = []
        for slot in going:
            tokens = [slot.drawn, *self._forced(slot)]
            for pos, token in enumerate(tokens, len(slot.tokens)):
                batch.add(token, pos, [slot.seq], logits=True)
            active.append((slot, tokens))
        if not active:
            return
        self._draw_after(active, self._logits(batch))

    def _runs_ahead(self, slot: Slot) -> bool:
        """Whether its tokens need no look of the host: no constraint, and all samplers on the device."""
        request = slot.completion.request
        drawing = self._drawing
        return (
            request.ending is None
            and not request.chain.constraints
            and isinstance(drawing, DeviceDrawing)
            and not drawing.chain.runs_on_host(slot.seq)
        )

    def _decode_ahead(self, loop: DecodeLoop, slots: Sequence[Slot]) -> None:
        """Several tokens of each slot, drawn before any of them is looked at."""
        feeds = []
        for slot in slots:
            request, limit = slot.completion.request, self._n_ctx - len(slot.tokens)
            if request.max_tokens is not None:
                limit = min(limit, request.max_tokens - len(slot.completion.tokens))
            heeds = not request.params.ignore_eos
            feeds.append(Feed(slot.seq, slot.seq, slot.drawn, len(slot.tokens), limit, heeds))
        found = loop.run(feeds)
        for slot, drawn in zip(slots, found, strict=True):
            request = slot.completion.request
            for i, token in enumerate(drawn.tokens):
                if slot.completion.done:  # by a stop string
                    loop.chain.rollback(slot.seq, len(drawn.tokens) - i)
                    self._context.cache.seq_rm(slot.seq, len(slot.tokens), -1)
                    break
                slot.tokens.append(slot.drawn)
                self.stats.decode_tokens += 1
                request.chain.accept(token, generated=True)
                self._feed(slot, token, drawn.logprobs_of(i))
        for slot, drawn in zip(slots, found, strict=True):
            if drawn.failed and not slot.completion.done:
                raise LogitsError(
                    f"sequence {slot.seq}: no token that may be drawn has a finite logit"
                )

    def _forced(self, slot: Slot) -> list[int]:
        """Tokens that are likely to be drawn next, since a constraint forces their text."""
        request = slot.completion.request
        if request.spell is None:
            return []
        room = self._n_ctx - 1 - len(slot.tokens)
        if request.max_tokens is not None:
            room = min(room, request.max_tokens - len(slot.completion.tokens) - 1)
        room = min(room, self._context.rewindable(len(self.slots)))
        return request.spell(request.chain.jump_forward())[: max(0, min(room, slot.guess))]

    def _draw_after(self, active: list[tuple[Slot, list[int]]], logits: torch.Tensor) -> None:
        """Draw after each token that was decoded, for as long as what is drawn is what was decoded next.

        So the tokens are those that would have been drawn one by one.
        """
        first, depth = 0, 0
        left = []
        for slot, tokens in active:
            left.append((slot, tokens, first))
            first += len(tokens)
        while left:
            for slot, tokens, _ in left:
                slot.tokens.append(tokens[depth])
                self.stats.decode_tokens += 1
            self._draw([(slot, start + depth) for slot, _, start in left], logits)
            depth += 1
            left = [each for each in left if self._goes_on(each[0], each[1], depth)]

    def _goes_on(self, slot: Slot, tokens: list[int], done: int) -> bool:
        """Whether the token that was drawn after ``done`` of those decoded is the next of them."""
        if done == len(tokens):
            if done > 1:
                slot.guess = min(MOST_GUESSED, 2 * slot.guess)
            return False
        if not slot.completion.done and slot.drawn == tokens[done]:
            self.stats.forced_tokens += 1
            return True
        if not slot.completion.done:
            slot.guess = max(1, slot.guess // 2)
        self._context.cache.seq_rm(slot.seq, len(slot.tokens), -1)
        return False

    def _make_room(self, slot: Slot) -> bool:
        """See to it that the slot has a position left; without one its completion ends here."""
        if len(slot.tokens) < self._n_ctx:
            return True
        request = slot.completion.request
        if not request.context_shift:
            slot.completion.out_of_context()
            return False
        keep, used = request.n_keep, len(slot.tokens)
        forget = (used - keep) // 2
        self._context.cache.seq_rm(slot.seq, keep, keep + forget)
        self._context.cache.seq_add(slot.seq, keep + forget, used, -forget)
        del slot.tokens[keep : keep + forget]
        slot.exact = keep if slot.exact is None else min(keep, slot.exact)
        # Equal tokens after other shifts have other rows, so each has a namespace to itself.
        slot.completion.forget(keep, forget, f"context shift {next(_shifts)}")
        self.stats.context_shifts += 1
        return True

    def _logits(self, batch: Batch) -> torch.Tensor:
        """Logits [n, V] of the wanted tokens; rows of the output matrix that are no tokens are left out."""
        return self._context.decode(batch)[:, : self._n_tokens]

    def _draw(self, pairs: Iterable[tuple[Slot, int]], logits: torch.Tensor) -> None:
        """Draw a token each for some slots, from the given rows of the logits."""
        slots = [(slot, row) for slot, row in pairs if not slot.completion.done]
        ends = [self._left(slot) for slot, _ in slots]
        turns = [
            Turn(slot.seq, row, left) for (slot, row), (left, _) in zip(slots, ends, strict=True)
        ]
        started = perf_counter()
        found = self._drawing.draw(turns, logits) if turns else []
        self.stats.sampler_seconds += perf_counter() - started
        for (slot, _), drawn, (_, reason) in zip(slots, found, ends, strict=True):
            if drawn.token is None:
                slot.completion.grammar_over(reason)
            else:
                self._feed(slot, drawn.token, drawn.logprobs)

    def _feed(self, slot: Slot, token: int, logprobs: LogprobsOf) -> None:
        slot.drawn = token
        self.stats.sampled_tokens += 1
        slot.completion.feed(token, logprobs)
        chain = slot.completion.request.chain
        if not slot.completion.done and slot.constrained and chain.finished:
            slot.completion.grammar_over("grammar")

    def _left(self, slot: Slot) -> tuple[int | None, StopReason]:
        """Tokens that may still be drawn, and what ends the text after them; None: as many as one likes."""
        request = slot.completion.request
        room = None if request.context_shift else self._n_ctx - len(slot.tokens) + 1
        if request.max_tokens is not None:
            more = request.max_tokens - len(slot.completion.tokens)
            if room is None or more <= room:
                return more, "length"
        return room, "context"

    def _release_ended(self) -> None:
        """Give up the sequences of ended completions; if the cache keeps texts, theirs stay."""
        cache = self._context.cache
        for slot in self.slots:
            if slot.completion.done and not slot.released:
                slot.released = True
                if slot.completion.namespace:  # for a session; the beginning is of more use
                    cache.keep(slot.seq, slot.tokens, slot.completion.namespace)
                cache.keep(slot.seq, slot.tokens[: slot.exact])
                cache.seq_rm(slot.seq, -1, -1)

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


def cells_needed(requests: Sequence[Request], n_ctx: int) -> int:
    """Cells with which a :class:`Run` of ``requests`` cannot run out of them."""
    prompts: set[tuple[int, ...]] = set()
    cells = 0
    for request in requests:
        prompt = len(request.remaining)
        whole = n_ctx
        if request.max_tokens is not None:
            whole = min(n_ctx, prompt + request.max_tokens)
        shared = request.remaining in prompts and not request.context_shift
        cells += whole - prompt if shared else whole
        prompts.add(request.remaining)
    return cells


def _exact(request: Request) -> int | None:
    """How many of a request's tokens have rows computed from all before them; None: all."""
    return min(at for at, _ in request.forgotten) if request.namespace else None


def _check_fits(request: Request, n_ctx: int) -> None:
    # A generation whose context is full shifts before it decodes the token drawn last: so does who goes on.
    more = int(request.context_shift and request.drawn > 0)
    if len(request.remaining) > n_ctx + more:
        raise ContextFull(
            f"the prompt has {len(request.remaining)} tokens and the context {n_ctx} positions: shorten the "
            "prompt, or load the model with a larger n_ctx (command line: -c)"
        )
    if request.context_shift and not 0 <= request.n_keep <= n_ctx - 2:
        raise ParameterError(
            "n_keep",
            f"n_keep={request.n_keep}: a context shift in {n_ctx} positions can keep 0 to {n_ctx - 2}",
        )
