"""Who draws the tokens of a run: every slot's chain on the host, or one device chain for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.candidates import NOTHING
from aleator.device.chain import DeviceChain
from aleator.generate.logprobs import Logprobs, LogprobsOf, reported_logprobs, top_logprobs
from aleator.generate.request import Request
from aleator.generate.slot import Slot

Logits = torch.Tensor
"""Rows of logits [n, V] as a context gives them."""


@dataclass(frozen=True)
class Turn:
    """A token to draw.

    Attributes:
        slot: whose chain draws.
        row: of the logits that it is drawn from.
        left: tokens that may still come, this one included; None: as many as one likes.

    """

    slot: Slot
    row: int
    left: int | None


@dataclass(frozen=True)
class Drawn:
    """What came of a turn: the token, accepted by the slot's chain; None: the text is complete without."""

    token: int | None
    logprobs: LogprobsOf
    row: npt.NDArray[np.float32] | None = None
    """The logits [V] that it was drawn from, where the host has them."""


class Drawing(Protocol):
    """Draws tokens for slots, from logits [n, V]."""

    def draw(self, turns: Sequence[Turn], logits: Logits) -> list[Drawn]:
        """One token each; a slot has one turn at most."""
        ...


class HostDrawing:
    """Every slot's own chain, on the CPU."""

    def draw(self, turns: Sequence[Turn], logits: Logits) -> list[Drawn]:
        """See :class:`Drawing`."""
        rows, drawn = logits.cpu().numpy(), []
        for turn in turns:
            slot, row = turn.slot, rows[turn.row]
            if slot.guidance is not None:
                row = slot.guidance.guided(row, slot.tokens[len(slot.request.remaining) :])
            if slot.on_logits is not None:
                slot.on_logits(slot.chain, row)
            token: int | None = None if slot.budget is None else slot.budget.next()
            if token is not None:
                slot.chain.accept(token, generated=True)
            elif slot.ending is None or turn.left is None:
                token = slot.chain.sample(row)
            else:
                token = slot.ending.draw(row, turn.left)
            drawn.append(Drawn(token, partial(top_logprobs, row), row))
        return drawn


class DeviceDrawing:
    """A device chain with a row per slot; only tokens, masks and log-probabilities are transferred to the host.

    The slots' chains accept the tokens too, so that they can be looked at as after sampling on the host.

    Args:
        slots: see :func:`why_not_on_device`; slot i draws in row i, and is in sequence i.
        device: where logits come from.
        n_vocab: tokens of a row of logits.
        n_ctx: positions of a sequence.

    Raises:
        ParameterError: chains that do not fit one another.

    """

    def __init__(
        self, slots: Sequence[Slot], device: torch.device, n_vocab: int, n_ctx: int
    ) -> None:
        asked = [n for slot in slots if (n := slot.request.options.logprobs) is not None]
        template = slots[0].chain.clone()
        template.reset()
        self.chain = DeviceChain(
            template,
            len(slots),
            n_vocab,
            device=device,
            max_tokens=max(_longest(slot.request, n_ctx) for slot in slots),
            kernels="torch" if device.type == "cpu" else "auto",
            logprobs=max(asked) if asked else None,
        )
        for row, slot in enumerate(slots):
            self.chain.set_row(row, slot.chain)

    def draw(self, turns: Sequence[Turn], logits: Logits) -> list[Drawn]:
        """See :class:`Drawing`."""
        closing = {t.slot.seq for t in turns if self._closes(t)}
        drawing = [turn for turn in turns if turn.slot.seq not in closing]
        tokens = self._sample(drawing, logits) if drawing else []
        report = self.chain.report
        values = [each.tolist() for each in (report.logprobs, report.top_ids, report.top_logprobs)]
        made: list[Drawn] = []
        for turn in turns:
            slot, row = turn.slot, turn.slot.seq
            token: int | None
            ending = slot.ending
            if ending is not None and row in closing:
                token = ending.close()
                if token is not None:
                    self.chain.accept(row, token, generated=True)
                made.append(Drawn(token, partial(_of_row, logits, turn.row)))
                continue
            drawn = token = tokens[row]
            if drawn == NOTHING:
                raise LogitsError(f"sequence {row}: no token that may be drawn has a finite logit")
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

    def _sample(self, turns: Sequence[Turn], logits: Logits) -> list[int]:
        """Tokens by slot; -1 where it has no turn."""
        batch = self.chain.max_batch
        order = [0] * batch
        for turn in turns:
            order[turn.slot.seq] = turn.row
        live = None
        if len(turns) < batch:
            has_turn = {turn.slot.seq for turn in turns}
            live = torch.tensor([row in has_turn for row in range(batch)]).to(logits.device)
        if order != list(range(len(logits))):
            logits = logits.index_select(0, torch.tensor(order).to(logits.device))
        tokens: list[int] = self.chain.sample(logits, live=live).tolist()
        return tokens


def _of_row(
    logits: Logits, row: int, token: int, top: int, token_bytes: Callable[[int], bytes]
) -> Logprobs:
    return top_logprobs(logits[row].cpu().numpy(), token, top, token_bytes)


def _longest(request: Request, n_ctx: int) -> int:
    """Tokens that a request's chain may come to hold."""
    prompt = len(request.tokens)
    whole = max(prompt, n_ctx) + 1
    options = request.options
    if options.max_tokens is None:
        return whole
    wanted = prompt + max(1, options.max_tokens)
    return wanted if options.context_shift else min(wanted, whole)


def why_not_on_device(slot: Slot) -> str:
    """Why a slot's tokens must be drawn on the host; "" if they need not."""
    chain, request = slot.chain, slot.request
    if chain.numerics != "portable":
        return "numerics='llama.cpp' are made on the host only"
    if slot.on_logits is not None:
        return "on_logits looks at the host's chain"
    if slot.budget is not None or slot.banned is not None or slot.guidance is not None:
        return "reasoning_budget, banned_strings and guidance_scale are the host's"
    if request.options.context_shift and request.options.max_tokens is None:
        return (
            "without max_tokens and with context_shift there is no end to what a device must hold"
        )
    if chain.history != list(request.tokens):
        return "its chain has accepted another text than the prompt"
    return ""


def make_drawing(
    slots: Sequence[Slot], where: str, device: torch.device, n_vocab: int, n_ctx: int
) -> HostDrawing | DeviceDrawing:
    """What draws for some slots.

    Args:
        slots: what to draw for.
        where: "host"; "device": with PyTorch's operations, on the CPU too; "auto": on the device if that is
            not the CPU and all slots can, else on the host.
        device: where logits come from.
        n_vocab: tokens of a row of logits.
        n_ctx: positions of a sequence.

    Raises:
        ParameterError: "device" where that cannot be.

    """
    if where == "host" or (where == "auto" and device.type == "cpu"):
        return HostDrawing()
    why = next((why for slot in slots if (why := why_not_on_device(slot))), "")
    if not why:
        try:
            return DeviceDrawing(slots, device, n_vocab, n_ctx)
        except ParameterError as error:
            why = str(error)
    if where == "device":
        raise ParameterError(
            "sampling_device",
            f"sampling_device='device' cannot be here: {why}; give 'auto' or 'host'",
        )
    return HostDrawing()
