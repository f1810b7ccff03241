"""Device chains by PyTorch operations, on any device, over static shapes [B, V]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from aleator.core import host
from aleator.core.arrays import Doubles
from aleator.core.errors import ParameterError
from aleator.device.arguments import ChainOptions
from aleator.device.backends.backend import Backend, Launches
from aleator.device.backends.torch.program import PlacedSampler, Program, split
from aleator.device.candidates import NOTHING, DeviceCandidates
from aleator.device.device_sampler import DeviceSampler
from aleator.device.host_steps import accept_all, finish, mask_of
from aleator.device.peak import PeakBytes
from aleator.device.report import Report
from aleator.device.rows import Histories, Mark, Row
from aleator.device.token_bits import allow
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.plan import Plan, bound, of_phases
from aleator.samplers.user import UserSampler

_numbers = count()
"""Of programs: no two have the same, whatever their places are."""


class TorchBackend(Backend):
    """All rows by PyTorch; other backends on a device are made from it.

    Samplers of ``template`` and ``chains`` have their places from the start; every step fills ``report``.
    """

    def __init__(
        self,
        options: ChainOptions,
        template: SamplerChain,
        chains: Sequence[SamplerChain],
        report: Report,
    ) -> None:
        self.options, self.report = options, report
        self.histories = Histories(options.max_batch, options.max_tokens, options.device)
        self.program = Program(options)
        for chain in (template, *chains):
            for each in chain.by_phase().values() or [chain]:
                self.program, _ = self.program.fit(split(each)[0], self.program.places)
        self._template_places = list(self.program.places)
        self.rows = [Row(template) for _ in range(options.max_batch)]
        self._launched: dict[int, Launches] = {}  # by the size of a batch
        self.grown()

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.histories.tensors) + self.program.nbytes

    def plan(self, chain: SamplerChain) -> Plan:
        return of_phases(chain, self.planned)

    def planned(self, chain: SamplerChain) -> Plan:
        """Of a chain without phases."""
        return chain.plan(self.options.device)

    def set_row(self, row: int, chain: SamplerChain) -> None:
        """Places are added if the chain's order needs them."""
        phases = chain.by_phase()
        for each in phases.values():
            self._fitted(row, each)  # raises now, and not when the phase begins
        self._give(row, chain, chain.clone() if phases else None)

    def _give(self, row: int, chain: SamplerChain, phases: SamplerChain | None) -> None:
        """Set a row's chain; with ``phases``, which the row keeps, their present one."""
        if phases is not None:
            chain = phases.present
        history = chain.history
        if len(history) > self.options.max_tokens:
            raise ParameterError(
                "max_tokens",
                f"the chain has accepted {len(history)} tokens: max_tokens is too small",
            )
        flags = chain.generated
        if chain.position != sum(flags):
            raise ParameterError(
                "position",
                f"the chain's position was set to {chain.position}, and {sum(flags)} of its tokens were "
                "generated: a row counts them",
            )
        here, there = split(chain)
        remembered = _remembered(chain, here)
        program, fitted = self._fitted(row, chain)
        made = self._made(chain, here, there)
        if phases is not None:
            made.phases, made.phase = phases, phases.phase
        made.samplers = {place: sampler for place, (sampler, _) in fitted.items()}
        if program is not self.program:
            before, self.program = self.program, program
            try:
                self.grown()
            except BaseException:  # for lack of memory
                self.program = before
                raise
        for place in program.places:
            if place in fitted:
                sampler, where = fitted[place]
                place.set(row, sampler, where)
                place.resume(row, remembered.get((sampler.name, where.ordinal), {}))
                place.rewound(row, sum(flags[: chain.text_start]), begins=True)
            else:
                place.clear(row)
        self.rows[row] = made
        self.changed(row)
        self.histories.set(row, history, flags)
        made.used = len(history)

    def _fitted(
        self, row: int, chain: SamplerChain
    ) -> tuple[Program, dict[DeviceSampler, PlacedSampler]]:
        """A program with places for a row's chain, and its samplers by places; changes nothing."""
        here = [each for each in split(chain)[0] if not each[0].neutral]
        program, fitted = self.program.fit(here, self._needed(row))
        for place, given in fitted.items():
            place.values(*given)  # may raise
        return program, fitted

    def _needed(self, row: int) -> list[DeviceSampler]:
        """Places of the template and of all rows but one."""
        others = [r for i, r in enumerate(self.rows) if i != row]
        used = {place for r in others for place in r.samplers}
        return [p for p in self.program.places if p in self._template_places or p in used]

    def _made(
        self, chain: SamplerChain, here: Sequence[PlacedSampler], there: Sequence[PlacedSampler]
    ) -> Row:
        """The row, and what of it the host follows."""
        made = Row(chain.clone())
        kernels = chain.kernels
        if chain.grammar is not None:
            made.head = kernels.part(0, 1)
        if there:
            made.tail = kernels.part(len(kernels.samplers) - len(there), len(there))
            made.top_k = bound([sampler for sampler, _ in here])
        return made

    def _follow(self, row: int) -> None:
        """Where a mark has ended a row's phase, give the row the chain of the next one."""
        phases = self.rows[row].phases
        if phases is not None and phases.phase != self.rows[row].phase:
            self._give(row, phases, phases)

    def grown(self) -> None:
        """The program is new, or has other places; steps that were captured are of no use."""
        self._number = next(_numbers)

    def changed(self, row: int) -> None:
        """A row has another chain."""

    def extend(self, row: int, tokens: Sequence[int], generated: bool) -> None:
        """The host's parts of the row accept them first: they may refuse."""
        n = len(tokens)
        if not n:
            return
        state, most = self.rows[row], self.options.max_tokens
        start = int(self.histories.length[row])
        if start + n > most:
            raise ParameterError(
                "max_tokens",
                f"row {row} holds {start} tokens already, {n} more make more than max_tokens={most}: make the "
                "chain with a larger one",
            )
        accept_all(state.on_host, tokens, generated)
        self.histories.extend(row, start, tokens, generated)
        state.used = start + n
        if generated:
            last = int(self.histories.position[row])
            for place in self.program.places:
                for position in range(last - n + 1, last + 1):
                    place.carried(row, position)
        self._follow(row)

    def rollback(self, row: int, n: int) -> None:
        state, length = self.rows[row], int(self.histories.length[row])
        if not 0 <= n <= length:
            raise ParameterError(f"n={n} is out of range: row {row} holds {length} tokens")
        if state.tail is not None and n:
            for sampler, _ in state.chain.samplers_with_places[-len(state.tail.samplers) :]:
                if isinstance(sampler, UserSampler) and not sampler.can_roll_back:
                    raise ParameterError(
                        "n", f"{sampler.name} of row {row} has no rollback(n): it cannot roll back"
                    )
        for each in state.on_host:
            each.rollback(n)
        state.used = length - n
        self.histories.cut(row, length, n)
        self._rewound(row)

    def _rewound(self, row: int) -> None:
        """Tell a row's places its position, which is earlier now, and follow its phases."""
        position = int(self.histories.position[row])
        for place in self.rows[row].samplers:
            place.rewound(row, position)
        self._follow(row)

    def reset(self, row: int) -> None:
        for each in self.rows[row].on_host:
            each.reset()
        self.rows[row].used = 0
        self.histories.clear(row)
        self._rewound(row)

    def permute(self, rows: Sequence[int]) -> None:
        index = torch.tensor(list(rows), device=self.options.device)
        own = [tensor for place in self.program.places for tensor in place.rows.values()]
        for tensor in (*self.histories.tensors, *own):
            tensor.copy_(tensor[index])
        self.rows = [self.rows[row] for row in rows]

    def sample(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        """Grammars' masks first, then the device, then samplers on the host; then phases that begin."""
        batch = len(logits)
        self.require_room([1] * batch, live)
        heads = {i: row.head for i, row in enumerate(self.rows[:batch]) if row.head is not None}
        masked = mask_of(heads, allowed, logits) if heads else allowed
        tokens = self.step(logits, masked, live)
        followed = [i for i, row in enumerate(self.rows[:batch]) if row.followers]
        for i, token in zip(followed, tokens[followed].tolist() if followed else [], strict=True):
            for each in self.rows[i].followers if token != NOTHING else []:
                each.accept(token, True)
        self.count([1] * batch)
        for row in followed:
            self._follow(row)
        return tokens

    def step(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        batch = len(logits)
        self._launched[batch], places = self.launches(batch), self.active(batch)
        data = self.apply(logits, allowed, places)
        tokens = data.selected
        if live is not None:
            tokens = torch.where(live, tokens, NOTHING)
        self.report.after(data, tokens)
        self.finish(data, live, tokens)
        self.report.before(logits, tokens)
        self._accept(tokens, places)
        return tokens

    def samplers_of(self, row: Row) -> list[Sampler]:
        """A row's samplers on the device, in order."""
        return [row.samplers[place] for place in self.program.places if place in row.samplers]

    def active(self, batch: int) -> list[DeviceSampler]:
        """Places that any of the first rows uses."""
        used = {place for row in self.rows[:batch] for place in row.samplers}
        return [place for place in self.program.places if place in used]

    def apply(
        self, logits: Tensor, allowed: Tensor | None, places: Sequence[DeviceSampler]
    ) -> DeviceCandidates:
        """What runs on the device: static shapes, no synchronisation."""
        ids = torch.arange(self.options.n_vocab, device=logits.device)
        data = DeviceCandidates(allow(logits, allowed, ids))
        step = self.histories.step(len(logits))
        for place in places:
            place.apply(data, step)
        return data

    def finish(self, data: DeviceCandidates, live: Tensor | None, tokens: Tensor) -> None:
        """Let the host's samplers choose in rows that have some."""
        tails: Mapping[int, tuple[host.Chain, int]] = {
            i: (row.tail, row.top_k or self.options.n_vocab)
            for i, row in enumerate(self.rows[: len(tokens)])
            if row.tail is not None
        }
        if not tails:
            return
        if live is not None:
            living = live.tolist()
            tails = {row: tail for row, tail in tails.items() if living[row]}
        finish(data, tails, self.options.n_vocab, tokens, self.report)

    def _accept(self, tokens: Tensor, places: Sequence[DeviceSampler]) -> None:
        """Append what rows drew."""
        drawn = tokens >= 0
        self.histories.accept(tokens, drawn)
        step = self.histories.step(len(tokens))
        for place in places:
            place.accepted(drawn, step)

    def workspace(self, dtype: torch.dtype) -> int:
        """Bytes that the tensors of a step of all rows and places take at most, besides those that stay."""
        with PeakBytes() as peak:
            shape = self.options.max_batch, self.options.n_vocab
            logits = torch.empty(shape, dtype=dtype, device=self.options.device)
            given = peak.now
            data = self.apply(logits, None, self.program.places)
            tokens = data.selected
            self.report.after(data, tokens)
            self.report.before(logits, tokens)
            self._accept(tokens, self.program.places)
        return int(peak.most - given)

    def runs_on_host(self, row: int) -> bool:
        return bool(self.rows[row].on_host) or self.waits(row)

    def waits(self, row: int) -> bool:
        """Whether one of its places does."""
        return any(place.waits for place in self.rows[row].samplers)

    def mark(self) -> Mark:
        """Where the histories are: states are known at every position."""
        return self.histories.mark()

    def back(self, mark: Mark) -> None:
        self.histories.back(mark)

    def launches(self, batch: int) -> Launches:
        used = set(self.active(batch))
        places = enumerate(self.program.places)
        return self._number, *((i, p.launch) for i, p in places if p in used)

    def check_replay(self, batch: int, captured: Launches) -> None:
        then = self._launched.get(batch) if captured is None else captured
        if then is None or then != self.launches(batch):
            raise stale(batch)

    def require_room(self, counts: Sequence[int], live: Tensor | None = None) -> None:
        """Ask the device only where there seems to be none."""
        if self.options.device.type == "cuda":
            with torch.cuda.device(self.options.device):
                if torch.cuda.is_current_stream_capturing():
                    return  # nothing is accepted now, and every replay is asked about
        most = self.options.max_tokens
        for row, n in enumerate(counts):
            state = self.rows[row]
            if not n or state.used + n <= most:
                continue
            state.used = int(self.histories.length[row])
            if state.used + n > most and (live is None or bool(live[row])):
                raise ParameterError(
                    "max_tokens",
                    f"row {row} holds {state.used} tokens, and max_tokens={most}: no room for {n} more",
                )

    def count(self, counts: Sequence[int]) -> None:
        for row, n in enumerate(counts):
            self.rows[row].used += n


def _remembered(
    chain: SamplerChain, here: Sequence[PlacedSampler]
) -> dict[tuple[str, int], dict[str, Doubles]]:
    """What adaptive samplers on the device take over, by name and ordinal; refused where one cannot."""
    found = {}
    for index, (sampler, place) in enumerate(here):
        if chain.position and sampler.adapts and not sampler.neutral:
            states = chain.state_history(index)
            if not states:
                raise ParameterError(
                    "chain",
                    f"the chain has generated {chain.position} tokens, and what {sampler.name} remembers of "
                    "them cannot be given to a device: give the chain before it draws any",
                )
            found[sampler.name, place.ordinal] = states
    return found


def stale(batch: int) -> ParameterError:
    """What is said of a graph that does not fit the rows any more."""
    return ParameterError(
        "chain",
        f"rows 0 to {batch - 1} need other kernels than were captured, since chains were set: capture the "
        "step again",
    )
