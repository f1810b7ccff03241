"""Prefill and decode: completions that advance together, one batch per step, over one context."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from aleator.core.errors import LogitsError, ParameterError
from aleator.generate.advance import Advance, check_rewinds
from aleator.generate.batch import Batch
from aleator.generate.completion import Detokenizer, Stats
from aleator.generate.context import Context
from aleator.generate.drawing import make_drawing
from aleator.generate.generation import Generation, Until
from aleator.generate.prefixes import Prefixes
from aleator.generate.request import Request
from aleator.generate.slot import Slot

if TYPE_CHECKING:
    from aleator.generate.multi_step import DecodeLoop

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
        self.stats = Stats()
        self._lock = threading.RLock()  # several threads may read the generations
        for seq, slot in enumerate(slots):
            check_rewinds(slot, context)
            slot.take_place(seq, n_ctx, self.stats)
        self.slots = list(slots)
        self._context, self._n_ctx, self._progress = context, n_ctx, progress
        self._prefixes: Prefixes = context.cache if prefixes is None else prefixes
        self._prefilled = False
        self._n_tokens = len(detokenizer)
        options, n_tokens = slots[0].request.options, self._n_tokens
        multi_step = options.multi_step
        where, device = options.sampling_device, context.device
        self._drawing = make_drawing(slots, where, device, n_tokens, n_ctx)
        self._advance = Advance(context, self._drawing, n_tokens, self._prefixes)
        self._loop: DecodeLoop | None = None
        if multi_step != 1:
            chain = self._drawing.chain
            if chain is None:
                raise ParameterError(
                    "multi_step",
                    f"multi_step={multi_step}: several steps are drawn on the device: give "
                    "sampling_device='device'",
                )
            from aleator.generate.multi_step import DecodeLoop  # PyTorch is optional

            self._loop = DecodeLoop(
                context,
                chain,
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

    def make(self, until: Until, timeout: float | None = None) -> None:
        """See :class:`aleator.generate.generation.Stepper`."""
        end = math.inf if timeout is None else perf_counter() + timeout
        while not until() and perf_counter() < end:
            self._step_unless(until)

    async def make_async(self, until: Until) -> None:
        """See :class:`aleator.generate.generation.Stepper`: each step is made in a thread."""
        import asyncio  # an event loop is running, so it has been imported

        while not until():
            await asyncio.to_thread(self._step_unless, until)

    def _step_unless(self, until: Until) -> None:
        """Make a step, unless another thread has just made what is waited for."""
        with self._lock:
            if not until():
                self.step()

    def wake(self) -> None:
        """Nothing: who reads makes the next step, which looks."""

    def check(self) -> None:
        """Nothing: :meth:`step` has raised it already."""

    def step(self) -> None:
        """Prefill all prompts and draw the first tokens, or draw one more token for each completion.

        One thread at a time makes a step.  Whatever it raises has ended all completions, with stop reason
        "interrupted".
        """
        with self._lock:
            self._step()

    def _step(self) -> None:
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
        except BaseException as error:
            for slot in self.slots:
                slot.completion.fail(error)
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
            reused, last = self._advance.enter(slot), len(prompt) - 1
            work += [
                (prompt[pos], pos, slot, pos == last) for pos in range(reused, slot.to_prefill)
            ]
        step = self._context.n_ubatch
        for start in range(0, len(work), step):
            self._report(start, len(work))
            self._end_cancelled()
            if self.done:
                return
            chunk, batch = work[start : start + step], Batch()
            for token, pos, slot, wanted in chunk:
                batch.add(token, pos, [slot.seq], logits=wanted)
            logits = self._advance.logits(batch)
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
            self._advance.draw(turns, logits)
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
        going = [s for s in self.slots if not s.completion.done and self._advance.make_room(s)]
        if self._loop is not None and all(map(self._runs_on_device, self.slots)):
            self._decode_steps(self._loop, going)
            return
        if going:
            self._advance.step([(s, self._advance.ahead(s, len(self.slots))) for s in going])

    def _runs_on_device(self, slot: Slot) -> bool:
        """Whether its tokens need no look of the host: no constraint, and all samplers on the device."""
        chain = self._drawing.chain
        return (
            slot.ending is None
            and not slot.chain.constraints
            and chain is not None
            and not chain.runs_on_host(slot.seq)
        )

    def _decode_steps(self, loop: DecodeLoop, slots: Sequence[Slot]) -> None:
        """Several tokens of each slot, drawn before any of them is looked at."""
        from aleator.generate.multi_step import Feed  # PyTorch is optional

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
                self._advance.feed(slot, token, drawn.logprobs_of(i))
        for slot, drawn in zip(slots, found, strict=True):
            if drawn.failed and not slot.completion.done:
                raise LogitsError(
                    f"sequence {slot.seq}: no token that may be drawn has a finite logit"
                )

    def _release_ended(self) -> None:
        """Give up the sequences of ended completions; the prompt cache keeps what they held."""
        for slot in self.slots:
            if slot.completion.done and not slot.released:
                self._advance.release(slot)

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
