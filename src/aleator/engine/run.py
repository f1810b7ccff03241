"""Makes completions without a thread: whoever reads them makes the next step."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import Any

from aleator.cache.devices import Device
from aleator.core.errors import AleatorError, ParameterError, without_frames
from aleator.core.packages import required_torch
from aleator.engine.engine_core import EngineCore
from aleator.engine.scheduled_request import (
    ScheduledRequest,
    as_scheduled,
    cells_needed,
    check_rollback,
    most_positions,
    positions,
    sequences_needed,
)
from aleator.engine.scheduler import Scheduler
from aleator.generate.completion import Detokenizer, Stats
from aleator.generate.context import Context, Prefixes
from aleator.generate.generation import Generation, Until
from aleator.generate.model_runner import ModelRunner
from aleator.generate.request_state import RequestState
from aleator.generate.token_sampler import HostTokenSampler, TokenSampler

log = logging.getLogger("aleator.generate.sampling_device")  # by its parent users choose it


Progress = Callable[[int, int], None]
"""Called with (prompt tokens done, prompt tokens to do in all) while prompts are computed."""


class Run:
    """Makes completions together, with an engine's steps but no thread: whoever reads makes the next step.

    Raises:
        ContextFull: a prompt longer than ``n_ctx``.
        ParameterError: an ``n_keep`` which leaves nothing to forget; ``sampling_device`` or ``multi_step`` that
            the requests or the model do not allow.
    """

    def __init__(
        self,
        # Has an empty sequence for each request, and as many cells as ``cells_needed`` says
        context: Context,
        # The requests.  The options of the first one hold for all: ``sampling_device`` (see
        # ``make_token_sampler``), and ``multi_step``, how many tokens the device samples before the host
        # looks at them; tokens after a stop string are taken back.
        states: Sequence[RequestState],
        detokenizer: Detokenizer,
        n_ctx: int,
        progress: Progress | None = None,
        *,
        # Cached prompts.  A prompt is computed from where it diverges from all of them; they keep what was
        # computed when its completion ends.  None: those of the context's cache.
        prefixes: Prefixes | None = None,
    ) -> None:
        self.stats, self.states = Stats(), list(states)
        self._lock = threading.RLock()  # several threads may read the generations
        self._stepping = False
        for state in states:
            check_rollback(state, context)
            state.take_place(-1, most_positions(state, n_ctx), self.stats)
        self._progress, self._total = progress, -1
        where, n_tokens = states[0].request.options.sampling_device, len(detokenizer)
        self._sampler = make_token_sampler(
            states, where, context.device, n_tokens, n_ctx, context.idle_chains
        )
        n_seqs, n_cells = sequences_needed(states), cells_needed(states, n_ctx)
        budget = max(context.n_ubatch, n_seqs + 1)
        # Prompts go first: who reads one of these completions waits for all.
        scheduler = Scheduler(n_seqs, n_cells, budget, pace=None, reuses=False)
        prompts = prefixes or context.cache
        if states[0].request.options.multi_step == 1:
            runner = ModelRunner(context, self._sampler, n_tokens, prompts)
        else:
            from aleator.generate.multi_step import MultiStepRunner  # PyTorch is optional

            runner = MultiStepRunner(context, self._sampler, detokenizer, prompts, self.states)
        self._core = EngineCore(runner, scheduler, reuse=True)
        self._scheduled: dict[ScheduledRequest, RequestState] = {}
        for number, state in enumerate(states):
            if not state.completion.done:
                scheduled = as_scheduled(state, positions(state.request, state.n_ctx))
                scheduled.number = number
                self._scheduled[scheduled] = state
                self._core.add(scheduled, state)

    @property
    def generations(self) -> list[Generation]:
        """The generations of the requests, in their order.

        They hold the run and the run does not hold them, so the last one frees the run and its context.
        """
        made = [Generation(self, state.completion) for state in self.states]
        for generation, state in zip(made, self.states, strict=True):
            weakref.finalize(generation, state.completion.abandon).atexit = False
        return made

    @property
    def done(self) -> bool:
        """Whether every completion has ended."""
        return all(state.completion.done for state in self.states)

    def make(self, until: Until, timeout: float | None = None) -> None:
        """See :class:`aleator.generate.generation.Stepper`."""
        end = math.inf if timeout is None else perf_counter() + timeout
        while not until() and perf_counter() < end:
            self._step_unless(until)

    async def make_async(self, until: Until) -> None:
        """See :class:`aleator.generate.generation.Stepper`: each step is made in a thread."""
        import asyncio  # who awaits has imported it; the others need not wait for that

        while not until():
            await asyncio.to_thread(self._step_unless, until)

    def wake(self) -> None:
        """Do nothing: the next step, which a reader makes, notices it."""

    def _step_unless(self, until: Until) -> None:
        """Make a step, unless another thread has just made what the reader waits for."""
        with self._lock:
            if not until():
                self.step()

    def step(self) -> None:
        """Make one step of all completions under way.

        One thread at a time makes a step.  An error of one completion, such as an error of its callback, ends
        that completion and is raised to its reader.  Any other error ends all completions with stop reason
        "interrupted", and is raised here.

        Raises:
            AleatorError: a step is under way, and what it calls, such as a user's sampler, asks for another.
        """
        with self._lock:
            if self._stepping:
                raise AleatorError(
                    "a text is read for which a step is needed, and one is under way: a sampler, on_logits or "
                    "progress cannot wait for the texts that are made together with its own; read them "
                    "afterwards, or generate them apart"
                )
            self._stepping = True
            try:
                self._end_ended()
                if self._scheduled:
                    self._step()
                self._end_ended()
                if not self._scheduled:
                    self._sampler.release()
            except BaseException as error:
                self._break_off(error)
                raise
            finally:
                self._stepping = False

    def _step(self) -> None:
        started, core = perf_counter(), self._core
        core.admit()
        if self._progress is not None and not self._report(self._progress):
            return
        prefilling = bool(core.scheduler.prefilling)
        core.step()
        if prefilling:
            self.stats.prompt_seconds += perf_counter() - started
            if self._progress is not None and not core.scheduler.prefilling and self._total > 0:
                self._progress(self._total, self._total)
        else:
            self.stats.decode_seconds += perf_counter() - started

    def _report(self, progress: Progress) -> bool:
        """Report how far the prompts are; returns whether a completion is still being made."""
        left = sum(scheduled.left for scheduled in self._core.scheduler.prefilling)
        self._total = max(self._total, left)
        if left:
            progress(self._total - left, self._total)
            self._end_ended()
        return bool(self._scheduled)

    def _end_ended(self) -> None:
        """Free the sequences of completions that have ended or were cancelled."""
        for scheduled, state in list(self._scheduled.items()):
            if state.completion.cancelled:
                state.completion.break_off("interrupted")
            if state.completion.done:
                del self._scheduled[scheduled]
                self._core.remove(scheduled)

    def _break_off(self, error: BaseException) -> None:
        """End all completions after an error that belongs to none of them."""
        for state in self.states:
            state.completion.fail(without_frames(error))
            state.completion.error_raised = True  # the reader of this step gets it
        self._scheduled = {}
        for state in self.states:
            if state.seq >= 0 and not state.released:
                self._core.runner.release(state)


def why_not_on_device(state: RequestState) -> str:
    """Why a request's tokens must be sampled on the host; "" if they need not."""
    chain, request = state.chain, state.request
    if chain.numerics != "portable":
        return "numerics='llama.cpp' are made on the host only"
    if state.on_logits is not None:
        return "on_logits looks at the host's chain"
    if request.options.kept:
        return (
            "kept is reported by the host's chains (a DeviceChain of your own has it in its report)"
        )
    steering = (state.budget, state.banned, state.guidance, state.healing)
    if any(each is not None for each in steering):
        return (
            "reasoning_budget, banned_strings, banned_regex, guidance_scale and heal are the host's"
        )
    if request.options.raises_temperature:
        return "stop_loops changes the temperature of the host's chain"
    if request.options.context_shift and request.options.max_tokens is None:
        return (
            "without max_tokens and with context_shift there is no end to what a device must hold"
        )
    if dict(request.params.phases).get("histories") == "own":
        return "phases with histories of their own are the host's"
    if chain.phase and chain.adapts:
        return "phases with a sampler that adapts to its draws are the host's"
    if chain.history != list(request.tokens):
        return "its chain has accepted another text than the prompt"
    return ""


def _has_kernels(device: Device) -> bool:
    """Whether a GPU's device chains take kernels, and not PyTorch's operations, which are much slower."""
    from aleator.cache.storage.tensors import torch_device  # PyTorch is optional
    from aleator.device.selection import kernels_for

    return device.type != "cuda" or kernels_for(torch_device(device)) == "triton"


def engine_token_sampler(context: Context, n_vocab: int) -> TokenSampler:
    """Make the sampler of an engine: on the model's device where its kernels have passed their checks."""
    host, device = HostTokenSampler(context.n_threads), context.device
    if device.type == "cpu" or not _has_kernels(device):
        return host
    from aleator.generate.engine_token_sampler import EngineTokenSampler  # PyTorch is optional

    n_ctx = min(context.n_ctx, context.decoder.config.context_length)
    given = host, device, context.n_seq_max, n_vocab, n_ctx, why_not_on_device
    try:
        return EngineTokenSampler(*given)
    except (ParameterError, required_torch("an engine's draws").OutOfMemoryError) as error:
        log.info("samplers: all run on the host, because %s", error)
        return host


def make_token_sampler(
    states: Sequence[RequestState],
    where: str,
    device: Device,
    n_vocab: int,
    n_ctx: int,
    idle: dict[Hashable, Any] | None = None,
) -> TokenSampler:
    """Make the sampler of some requests; the log says which samplers run where, and why.

    ``where`` is "host"; "device": by PyTorch's operations, also on the CPU; or "auto": on the device if that is
    not the CPU, its kernels have passed their checks and all requests allow it, else on the host.  ``idle``:
    device chains that may be taken.

    Raises:
        ParameterError: "device" where the requests do not allow it.
        ImportError: it needs PyTorch, which is not installed.
    """
    if where == "host":
        why = "sampling_device='host'"
    elif where == "auto" and device.type == "cpu":
        why = "the model is on the CPU"
    else:
        why = next((why for state in states if (why := why_not_on_device(state))), "")
        if not why and where == "auto" and not _has_kernels(device):
            why = "the GPU's kernels were not checked here (aleator doctor --gpu --enable)"
    if not why:
        required_torch(f"sampling_device={where!r}")
        from aleator.generate.device_token_sampler import DeviceTokenSampler  # PyTorch is optional

        try:
            return DeviceTokenSampler(states, device, n_vocab, n_ctx, idle)
        except ParameterError as error:
            why = str(error)
    if where == "device":
        raise ParameterError(
            f"sampling_device='device' cannot be here: {why}; give 'auto' or 'host'"
        )
    log.info("samplers: all run on the host, because %s", why)
    return HostTokenSampler()
