"""Readers of requests in event loops, and how the engine's thread wakes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aleator.generate.generation import Until

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


@dataclass(frozen=True, slots=True)
class Waiter:
    """A reader in an event loop.

    Attributes:
        until: What it waits for.
        loop: Where it waits.
        woken: Wakes it.
    """

    until: Until
    loop: AbstractEventLoop
    woken: Future[None]


def wake(waiters: Sequence[Waiter]) -> None:
    """Let readers go on: each event loop is interrupted once, however many wait there."""
    loops: dict[AbstractEventLoop, list[Future[None]]] = {}
    for each in waiters:
        loops.setdefault(each.loop, []).append(each.woken)
    for loop, woken in loops.items():
        with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
            loop.call_soon_threadsafe(_answer, woken)


def _answer(waiting: Sequence[Future[None]]) -> None:
    for each in waiting:
        if not each.done():  # it was cancelled
            each.set_result(None)
