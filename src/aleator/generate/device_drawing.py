"""Draws the tokens of a run with one device chain, in PyTorch's operations or kernels on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from aleator.cache.devices import Device
from aleator.cache.storage.tensors import torch_device
from aleator.core.errors import LogitsError
from aleator.device.candidates import NOTHING
from aleator.device.chain import DeviceChain
from aleator.generate.drawing import Drawn, Logits, Turn, host_rows
from aleator.generate.logprobs import Logprobs, LogprobsOf, reported_logprobs, top_logprobs
from aleator.generate.request import Request
from aleator.generate.slot import Slot

log = logging.getLogger(__name__)


class DeviceDrawing:
    """A device chain with a row per slot; only tokens, masks and log-probabilities are transferred to the host.

    The slots' chains accept the tokens too, so that they can be looked at as after sampling on the host.

    Args:
        slots: see :func:`why_not_on_device`; slot i draws in row i.
        device: where logits come from.
        n_vocab: tokens of a row of logits.
        n_ctx: positions of a sequence.

    Raises:
        ParameterError: chains that do not fit one another.

    """

    together = True

    def __init__(self, slots: Sequence[Slot], device: Device, n_vocab: int, n_ctx: int) -> None:
        asked = [n for slot in slots if (n := slot.request.options.logprobs) is not None]
        template = slots[0].chain.clone()
        template.reset()
        self.chain = DeviceChain(
            template,
            len(slots),
            n_vocab,
            device=torch_device(device),
            max_tokens=max(_longest(slot.request, n_ctx) for slot in slots),
            kernels="torch" if device.type == "cpu" else "auto",
            logprobs=max(asked) if asked else None,
        )
        self._rows = {slot: row for row, slot in enumerate(slots)}
        for slot, row in self._rows.items():
            self.chain.set_row(row, slot.chain)
        for plan in dict.fromkeys(str(self.chain.plan(slot.chain)) for slot in slots):
            log.info("samplers: %s", plan.replace("\n", "; "))

    def row_of(self, slot: Slot) -> int:
        """The row of the chain in which a slot draws."""
        return self._rows[slot]

    def rows(self, logits: Logits) -> Logits:
        """See :class:`~aleator.generate.drawing.Drawing`."""
        return logits

    def sampled(self, turns: Sequence[Turn], logits: Logits) -> Sequence[Turn]:
        """See :class:`~aleator.generate.drawing.Drawing`: :meth:`draw` draws all together."""
        return turns

    def draw(self, turns: Sequence[Turn], logits: Logits) -> list[Drawn]:
        """See :class:`~aleator.generate.drawing.Drawing`."""
        closing = {t.slot for t in turns if self._closes(t)}
        drawing = [turn for turn in turns if turn.slot not in closing]
        tokens = self._sample(drawing, logits) if drawing else []
        report = self.chain.report
        values = [each.tolist() for each in (report.logprobs, report.top_ids, report.top_logprobs)]
        made: list[Drawn] = []
        for turn in turns:
            slot, row = turn.slot, self._rows[turn.slot]
            token: int | None
            ending = slot.ending
            if ending is not None and slot in closing:
                token = ending.close()
                if token is not None:
                    self.chain.accept(row, token, generated=True)
                made.append(Drawn(token, partial(_of_row, logits, turn.row)))
                continue
            drawn = token = tokens[row]
            if drawn == NOTHING:
                raise LogitsError(
                    f"sequence {slot.seq}: no token that may be drawn has a finite logit"
                )
            slot.chain.accept(drawn, generated=True)
            logprobs: LogprobsOf = partial(_of_row, logits, turn.row)
            if slot.request.options.logprobs is not None:
                logprobs = partial(reported_logprobs, *(each[row] for each in values))
            if ending is not None and turn.left is not None:
                token = ending.after(drawn, turn.left)
                if token != drawn:
                    self.chain.rollback(row, 1)
                    logprobs = partial(_of_row, logits, turn.row)
                    if token is not None:
                        self.chain.accept(row, token, generated=True)
            made.append(Drawn(token, logprobs))
        return made

    def _closes(self, turn: Turn) -> bool:
        ending = turn.slot.ending
        return ending is not None and turn.left is not None and ending.closing

    def _sample(self, turns: Sequence[Turn], rows: Logits) -> list[int]:
        """Tokens by slot; -1 where it has no turn."""
        logits = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
        batch = self.chain.max_batch
        order = [0] * batch
        for turn in turns:
            order[self._rows[turn.slot]] = turn.row
        live = None
        if len(turns) < batch:
            has_turn = {self._rows[turn.slot] for turn in turns}
            live = torch.tensor([row in has_turn for row in range(batch)]).to(logits.device)
        if order != list(range(len(logits))):
            logits = logits.index_select(0, torch.tensor(order).to(logits.device))
        tokens: list[int] = self.chain.sample(logits, live=live).tolist()
        return tokens


def _of_row(
    logits: Logits, row: int, token: int, top: int, token_bytes: Callable[[int], bytes]
) -> Logprobs:
    return top_logprobs(host_rows(logits[row]), token, top, token_bytes)


def _longest(request: Request, n_ctx: int) -> int:
    """Tokens that a request's chain may come to hold."""
    prompt = len(request.tokens)
    whole = max(prompt, n_ctx) + 1
    options = request.options
    if options.max_tokens is None:
        return whole
    wanted = prompt + max(1, options.max_tokens)
    return wanted if options.context_shift else min(wanted, whole)
