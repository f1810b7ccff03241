"""Steps of which the device makes several before the host hears of them."""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.errors import LogitsError, ParameterError
from aleator.generate.advance import Advance
from aleator.generate.chunks import Chunk
from aleator.generate.completion import Detokenizer
from aleator.generate.context import Context
from aleator.generate.device_drawing import DeviceDrawing
from aleator.generate.drawing import Drawing
from aleator.generate.multi_step import DecodeLoop, Feed
from aleator.generate.prefixes import Prefixes
from aleator.generate.slot import Slot


class MultiStepAdvance(Advance):
    """Draws several tokens of each slot at once, where the host need not look at any of them.

    Args:
        context: As for :class:`~aleator.generate.advance.Advance`.
        drawing: As there; on the device.
        detokenizer: The vocabulary.
        prefixes: As for :class:`~aleator.generate.advance.Advance`.
        slots: All that will ever take part; the first one's options say how many tokens (``multi_step``).

    Raises:
        ParameterError: tokens are drawn on the host; or see :class:`DecodeLoop`.
    """

    def __init__(
        self,
        context: Context,
        drawing: Drawing,
        detokenizer: Detokenizer,
        prefixes: Prefixes,
        slots: Sequence[Slot],
    ) -> None:
        n_tokens, multi_step = len(detokenizer), slots[0].request.options.multi_step
        super().__init__(context, drawing, n_tokens, prefixes)
        if not isinstance(drawing, DeviceDrawing):
            raise ParameterError(
                "multi_step",
                f"multi_step={multi_step}: several steps are drawn on the device: give "
                "sampling_device='device'",
            )
        self._slots, self._on_device = slots, drawing
        self._loop = DecodeLoop(
            context,
            drawing.chain,
            multi_step,
            n_vocab=n_tokens,
            ends=(token for token in detokenizer.eog if token < n_tokens),
        )

    def step(self, rows: Sequence[tuple[Slot, list[int]]], chunks: Sequence[Chunk] = ()) -> None:
        """Several tokens of each slot, drawn before any of them is looked at.

        With prompts to compute, and where a slot's tokens need a look of the host, one token of each as
        :meth:`Advance.step` makes it.
        """
        if chunks or not all(map(self._runs_on_device, self._slots)):
            super().step(rows, chunks)
            return
        slots = [slot for slot, _ in rows]
        feeds = []
        for slot in slots:
            limit, wanted = slot.n_ctx - len(slot.tokens), slot.request.options.max_tokens
            if wanted is not None:
                limit = min(limit, wanted - len(slot.completion.tokens))
            heeds = not slot.request.params.ignore_eos
            row = self._on_device.row_of(slot)
            feeds.append(Feed(row, slot.seq, slot.drawn, len(slot.tokens), limit, heeds))
        found = self._loop.run(feeds)
        for slot, feed, drawn in zip(slots, feeds, found, strict=True):
            for i, token in enumerate(drawn.tokens):
                if slot.completion.done:  # by a stop string
                    self._loop.chain.rollback(feed.row, len(drawn.tokens) - i)
                    self.context.cache.seq_rm(slot.seq, len(slot.tokens), -1)
                    break
                slot.tokens.append(slot.drawn)
                slot.stats.decode_tokens += 1
                slot.chain.accept(token, generated=True)
                self.feed(slot, token, drawn.logprobs_of(i))
        for slot, drawn in zip(slots, found, strict=True):
            if drawn.failed and not slot.completion.done:
                raise LogitsError(
                    f"sequence {slot.seq}: no token that may be drawn has a finite logit"
                )

    def _runs_on_device(self, slot: Slot) -> bool:
        """Whether its tokens need no look of the host: no constraint, and all samplers on the device."""
        on_host = self._on_device.chain.runs_on_host(self._on_device.row_of(slot))
        return slot.ending is None and not slot.chain.constraints and not on_host
