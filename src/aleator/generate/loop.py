"""Prefill and decode: completions that advance together, one batch per step, over one context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from time import perf_counter

import torch

from aleator.core.errors import LogitsError, ParameterError
from aleator.generate.batch import Batch
from aleator.generate.completion import Detokenizer, Stats
from aleator.generate.context import Context
from aleator.generate.drawing import DeviceDrawing, Turn, make_drawing
from aleator.generate.generation import Generation
from aleator.generate.logprobs import LogprobsOf
from aleator.generate.multi_step import DecodeLoop, Feed
from aleator.generate.prefixes import Prefixes
from aleator.generate.request import Request
from aleator.generate.slot import Slot

MOST_GUESSED = 64
"""Forced tokens that are decoded together at most."""

_shifts = count(1)

Progress = Callable[[int, int], None]
"""Called with (prompt tokens done, prompt tokens to do in all) during prefill."""


class Run:
    """Makes completions together: prefill at the first :meth:`step`, then one token each per step.

    Slots with the same prompt are prefilled once and share its cells, except where a context shift
    would move cells that another completion sees.

    Args:
        context: has a sequence for every slot, which are empty, and cells as :func:`cells_needed` says.
        slots: what to make; slot i becomes sequence i.  The first one's options say where all tokens are
            drawn (``sampling_device``: see :func:`make_drawing`) and how many before the host hears of them
            (``multi_step``: see :class:`DecodeLoop`; what was drawn after a stop string is taken back).
        detokenizer: the vocabulary: how many tokens there are, and which of them end a generation.
        n_ctx: positions that one sequence may use.
        progress: told of the prefill.
        prefixes: prompts are computed only from where they diverge from one of these, and what was
            computed is kept among them when its completion ends.  None: those of the context's cache.

    Raises:
        ContextFull: a prompt longer than ``n_ctx``.
        ParameterError: an ``n_keep`` which leaves nothing to forget; ``sampling_device`` or ``multi_step`` that
            the requests or the model do not allow.
    """

    def __init__(
        self,
        context: Context,
        slots: Sequence[Slot],
        detokenizer: Detokenizer,
        n_ctx: int,
        progress: Progress | None = None,
        *,
        prefixes: Prefixes | None = None,
    ) -> None:
        for seq, slot in enumerate(slots):
            slot.check_fits(n_ctx)
            slot.seq = seq
        self.stats = Stats()
        self.slots = list(slots)
        self._context, self._n_ctx, self._progress = context, n_ctx, progress
        self._prefixes: Prefixes = context.cache if prefixes is None else prefixes
        self._prefilled = False
        self._n_tokens = len(detokenizer)
        options, n_tokens = slots[0].request.options, self._n_tokens
        multi_step = options.multi_step
        where, device = options.sampling_device, context.device
        self._drawing = make_drawing(slots, where, device, n_tokens, n_ctx)
        self._loop: DecodeLoop | None = None
        if multi_step != 1:
            if not isinstance(self._drawing, DeviceDrawing):
                raise ParameterError(
                    "multi_step",
                    f"multi_step={multi_step}: several steps are drawn on the device: give "
                    "sampling_device='device'",
                )
            self._loop = DecodeLoop(
                context,
                self._drawing.chain,
                multi_step,
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
            prompt = slot.request.remaining
            reused = self._prefixes.reuse(slot.seq, prompt, slot.request.where)
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
                self._prefixes.keep(slot.seq, slot.tokens, slot.request.where)
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
            key: object = slot.seq
            if not slot.request.options.context_shift:
                key = (slot.request.remaining, slot.request.where)
            leader = leaders.setdefault(key, slot)
            if leader is slot:
                followers[slot] = []
            else:
                followers[leader].append(slot)
        return followers

    def _decode(self) -> None:
        going = [s for s in self.slots if not s.completion.done and self._make_room(s)]
        if self._loop is not None and all(map(self._runs_on_device, self.slots)):
            self._decode_steps(self._loop, going)
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

    def _runs_on_device(self, slot: Slot) -> bool:
        """Whether its tokens need no look of the host: no constraint, and all samplers on the device."""
        drawing = self._drawing
        return (
            slot.ending is None
            and not slot.chain.constraints
            and isinstance(drawing, DeviceDrawing)
            and not drawing.chain.runs_on_host(slot.seq)
        )

    def _decode_steps(self, loop: DecodeLoop, slots: Sequence[Slot]) -> None:
        """Several tokens of each slot, drawn before any of them is looked at."""
        feeds = []
        for slot in slots:
            limit, wanted = self._n_ctx - len(slot.tokens), slot.request.options.max_tokens
            if wanted is not None:
                limit = min(limit, wanted - len(slot.completion.tokens))
            heeds = not slot.request.params.ignore_eos
            feeds.append(Feed(slot.seq, slot.seq, slot.drawn, len(slot.tokens), limit, heeds))
        found = loop.run(feeds)
        for slot, drawn in zip(slots, found, strict=True):
            for i, token in enumerate(drawn.tokens):
                if slot.completion.done:  # by a stop string
                    loop.chain.rollback(slot.seq, len(drawn.tokens) - i)
                    self._context.cache.seq_rm(slot.seq, len(slot.tokens), -1)
                    break
                slot.tokens.append(slot.drawn)
                self.stats.decode_tokens += 1
                slot.chain.accept(token, generated=True)
                self._feed(slot, token, drawn.logprobs_of(i))
        for slot, drawn in zip(slots, found, strict=True):
            if drawn.failed and not slot.completion.done:
                raise LogitsError(
                    f"sequence {slot.seq}: no token that may be drawn has a finite logit"
                )

    def _forced(self, slot: Slot) -> list[int]:
        """Tokens that are likely to be drawn next, since a constraint forces their text."""
        wanted = slot.request.options.max_tokens
        if slot.spell is None:
            return []
        room = self._n_ctx - 1 - len(slot.tokens)
        if wanted is not None:
            room = min(room, wanted - len(slot.completion.tokens) - 1)
        room = min(room, self._context.rewindable(len(self.slots)))
        return slot.spell(slot.chain.jump_forward())[: max(0, min(room, slot.guess))]

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
        if not slot.request.options.context_shift:
            slot.completion.out_of_context()
            return False
        keep, used = slot.request.n_keep, len(slot.tokens)
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
        ends = [slot.limits(self._n_ctx) for slot, _ in slots]
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
        if not slot.completion.done and slot.constrained and slot.chain.finished:
            slot.completion.grammar_over("grammar")

    def _release_ended(self) -> None:
        """Give up the sequences of ended completions; the prompt cache keeps what they held."""
        for slot in self.slots:
            if slot.completion.done and not slot.released:
                slot.released = True
                if slot.completion.namespace:  # for a session; the beginning is of more use
                    self._prefixes.keep(slot.seq, slot.tokens, slot.completion.namespace)
                exact = slot.tokens[: slot.exact]
                self._prefixes.keep(slot.seq, exact, slot.request.options.namespace)
                self._context.cache.seq_rm(slot.seq, -1, -1)

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


def cells_needed(requests: Sequence[Request], n_ctx: int) -> int:
    """Cells with which a :class:`Run` of ``requests`` cannot run out of them."""
    prompts: set[tuple[int, ...]] = set()
    cells = 0
    for request in requests:
        prompt = len(request.remaining)
        whole, options = n_ctx, request.options
        if options.max_tokens is not None:
            whole = min(n_ctx, prompt + options.max_tokens)
        shared = request.remaining in prompts and not options.context_shift
        cells += whole - prompt if shared else whole
        prompts.add(request.remaining)
    return cells
