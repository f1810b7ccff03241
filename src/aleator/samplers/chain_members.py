"""The members of a chain: its samplers in order, and their kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from aleator.core import host
from aleator.core.contract import MAX_COMPLETION, MAX_ORDINAL
from aleator.core.errors import ParameterError
from aleator.core.forwarded import forwarded
from aleator.core.parameter import check_numerics, check_seed
from aleator.core.seeds import fresh_seed
from aleator.samplers.base import MAX_LLAMA_SEED, Place, Sampler, check_llama_seed
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.full_mass import check_full_mass
from aleator.samplers.plan import Plan, make_plan, of_phases
from aleator.samplers.user import UserSampler


class ChainMembers(Sequence[Any]):
    """A chain as a list of samplers; see :class:`aleator.SamplerChain` for the arguments."""

    name = "chain"
    grammar: ConstraintSampler | None = forwarded(
        "_grammar", "The chain's ``grammar``, which is not a member of the list."
    )
    history: list[int] = forwarded(
        "_native.history", "The tokens accepted since the last reset, including prompt tokens."
    )
    in_native: host.Chain | host.LlamaChain = forwarded(
        "_native", "The native chain, of which native code may take a copy."
    )

    def __init__(
        self,
        samplers: Iterable[Any],
        numerics: str = "portable",
        seed: int | None = None,
        completion: int = 0,
        grammar: ConstraintSampler | None = None,
    ) -> None:
        check_numerics(numerics)
        if not 0 <= completion <= MAX_COMPLETION:
            raise ParameterError(
                f"completion={completion} is out of range: give 0 to {MAX_COMPLETION}"
            )
        if grammar is not None and not isinstance(grammar, ConstraintSampler):
            raise ParameterError(
                f"grammar={grammar!r:.60} is not a sampler with a constraint: give Grammar(text, "
                "vocabulary=model.tokenizer), JSONSchema, Regex, Lark or MatcherGrammar"
            )
        self._grammar = grammar
        self._samplers = _flatten(samplers)
        _check_order(self._samplers, numerics)
        self.numerics = numerics
        self.completion = completion
        self._chain_seed = effective_seed(seed, numerics)
        self._native = self._compile()

    def _compile(self) -> host.Chain | host.LlamaChain:
        if self.numerics == "portable":
            return host.Chain([s.native(p) for s, p in self.all_with_places], self.completion)
        kernels = [s.native_llama(p) for s, p in self.samplers_with_places if not s.neutral]
        grammar = [s.native_llama(p) for s, p in self._grammar_with_place]
        return host.LlamaChain(kernels, grammar[0] if grammar else None)

    @property
    def samplers_with_places(self) -> tuple[tuple[Sampler, Place], ...]:
        """The samplers in order, users' ones wrapped, each with the place that keys its random numbers."""
        seen: Counter[str] = Counter()
        pairs = []
        for sampler in self._samplers:
            ordinal = seen[sampler.name]
            if ordinal > MAX_ORDINAL:
                raise ParameterError(
                    "samplers", f"a chain holds at most {MAX_ORDINAL + 1} samplers of one kind"
                )
            pairs.append((sampler, Place(self._chain_seed, ordinal, self.completion)))
            seen[sampler.name] += 1
        return tuple(pairs)

    @property
    def all_with_places(self) -> tuple[tuple[Sampler, Place], ...]:
        """As ``samplers_with_places``, with the grammar first, if there is one."""
        return (*self._grammar_with_place, *self.samplers_with_places)

    @property
    def _grammar_with_place(self) -> tuple[tuple[ConstraintSampler, Place], ...]:
        place = Place(self._chain_seed, 0, self.completion)
        return () if self._grammar is None else ((self._grammar, place),)

    @property
    def kernels(self) -> host.Chain:
        """The native kernels of a portable chain, with their state; the grammar's comes first.

        Raises:
            ParameterError: the chain has llama.cpp's numerics.
        """
        if not isinstance(self._native, host.Chain):
            raise ParameterError(
                "numerics",
                "with numerics='llama.cpp' a chain has no portable kernels: make it with 'portable'",
            )
        return self._native

    def __len__(self) -> int:
        return len(self._samplers)

    def __getitem__(self, index: Any) -> Any:
        chosen = self._samplers[index]
        return [_shown(s) for s in chosen] if isinstance(index, slice) else _shown(chosen)

    def __iter__(self) -> Iterator[Any]:
        return map(_shown, self._samplers)

    def add(self, sampler: Any) -> None:
        """Append a sampler, or a chain's samplers; see :meth:`insert`."""
        self.insert(len(self), sampler)

    def insert(self, index: int, sampler: Any) -> None:
        """Put a sampler, or a chain's samplers, before the one at ``index``.

        The others keep their state; the new one sees the tokens accepted so far.  With llama.cpp's numbers a
        chain can only be changed before its first token.
        """
        index = range(len(self) + 1)[index]
        made = _flatten([sampler])
        self._edit([*self._samplers[:index], *made, *self._samplers[index:]], index, len(made), 0)

    def remove(self, index: int) -> Any:
        """Take out and return the sampler at ``index``; the others keep their state."""
        index = range(len(self))[index]
        gone = self._samplers[index]
        self._edit([*self._samplers[:index], *self._samplers[index + 1 :]], index, 0, 1)
        return _shown(gone)

    def _edit(self, samplers: list[Sampler], index: int, added: int, removed: int) -> None:
        _check_order(samplers, self.numerics)
        if isinstance(self._native, host.LlamaChain) and self.history:
            raise ParameterError(
                "samplers",
                "with numerics='llama.cpp' a chain can be changed before its first token only: reset it first",
            )
        previous, self._samplers = self._samplers, samplers
        native, inserted = self._native, 0
        first = int(self._grammar is not None)  # the grammar's kernel stands before the others
        try:
            pairs = self.samplers_with_places
            if isinstance(native, host.LlamaChain):
                self._native = self._compile()
                return
            for sampler, place in pairs[index : index + added]:
                native.insert(first + index + inserted, sampler.native(place))
                inserted += 1
        except BaseException:
            self._samplers = previous
            while inserted and isinstance(native, host.Chain):
                inserted -= 1
                native.remove(first + index + inserted)
            raise
        for _ in range(removed):
            native.remove(first + index)
        native.set_ordinals([0] * first + [p.ordinal for _, p in pairs])

    @property
    def seed(self) -> int:
        """The seed in use: the last sampler's own, else the chain's."""
        own = (getattr(each, "seed", None) for each in reversed(self._samplers))
        return next((seed for seed in own if isinstance(seed, int)), self._chain_seed)

    @property
    def members(self) -> tuple[Sampler, ...]:
        """All samplers, including those of every phase."""
        return tuple(member for sampler in self._samplers for member in sampler.flattened)

    @property
    def adapts(self) -> str:
        """The sampler that adapts to draws, whose state does not follow from the history; "" if none."""
        return next((s.name for s in self.members if s.adapts), "")

    @property
    def _phases(self) -> Any:
        """The last member, if it consists of phases."""
        last = self._samplers[-1] if self._samplers else None
        return last if hasattr(last, "phases_of") else None

    def by_phase(self) -> dict[str, Self]:
        """The chain of each phase by its name, with no token accepted.

        Empty for a chain without phases, and if a phase's state does not follow from the shared history:
        phases have histories of their own, or a sampler before or in them adapts to draws.
        """
        phases, before = self._phases, self._samplers[:-1]
        if phases is None or phases.own or any(sampler.adapts for sampler in self._samplers):
            return {}
        rest = self.numerics, self._chain_seed, self.completion, self._grammar
        return {name: type(self)([*before, *own], *rest) for name, own in phases.chains.items()}

    def describe(self) -> str:
        """The chain on one line; ``?`` marks neutral samplers, whose parameters make them do nothing."""
        names = [("?" if s.neutral else "") + s.name for s, _ in self.all_with_places]
        return " -> ".join(["logits", *names])

    def plan(self, device: Any) -> Plan:
        """Plan which samplers a :class:`~aleator.DeviceChain` runs on ``device``, and what it transfers.

        ``print`` shows the plan.  Neutral samplers are left out.

        Args:
            device: such as ``"cuda"`` or a ``torch.device``.
        """
        return of_phases(
            self,
            lambda chain: make_plan(
                [sampler for sampler in chain._samplers if not sampler.neutral],
                str(device),
                portable=chain.numerics == "portable",
                grammar=chain._grammar is not None,
            ),
        )


def effective_seed(seed: int | None, numerics: str) -> int:
    """The seed to draw with: 64 bits, or 32 with llama.cpp's numbers; None and -1 take one from the system."""
    checked = check_seed(seed)
    if numerics == "portable":
        return fresh_seed(2**64) if checked is None else checked
    if checked is None or checked == MAX_LLAMA_SEED + 1:
        return fresh_seed(MAX_LLAMA_SEED + 1)
    return check_llama_seed(checked)


def _check_order(samplers: list[Sampler], numerics: str) -> None:
    """Refuse an order that cannot be sampled from."""
    for index, sampler in enumerate(samplers[:-1]):
        if sampler.selects:
            raise ParameterError(
                "samplers",
                f"{sampler.name} chooses the token, so nothing can follow it: move it from place "
                f"{index} to the end of the chain",
            )
    if numerics == "portable":
        check_full_mass(samplers)


def _flatten(samplers: Iterable[Any]) -> list[Sampler]:
    """The samplers one by one, with chains expanded and users' objects wrapped."""
    if not isinstance(samplers, Iterable):
        raise ParameterError(f"samplers={samplers!r:.60} is no list: give a list of samplers")
    flat: list[Sampler] = []
    for sampler in samplers:
        if isinstance(sampler, ChainMembers):
            flat.extend(sampler._samplers)
        elif isinstance(sampler, Sampler):
            flat.append(sampler)
        else:
            flat.append(UserSampler(sampler))
    return flat


def _shown(sampler: Sampler) -> Any:
    return sampler.user if isinstance(sampler, UserSampler) else sampler
