"""What every sampler has: a name, declared parameters, a NumPy reference, and a kernel.

Samplers import from here what they all need.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from aleator.core import host as host
from aleator.core.errors import ParameterError, StateError
from aleator.core.numerics import Row as Row
from aleator.core.numerics import Step as Step
from aleator.core.parameter import SEED, single
from aleator.core.parameter import Parameter as Parameter
from aleator.core.parameter import declare as declare
from aleator.core.records import dataclass as dataclass

if TYPE_CHECKING:
    from aleator.samplers.candidates import Candidates


class OwnChain(Protocol):
    """Members of :class:`aleator.SamplerChain`, which is made of samplers and so is not imported here."""

    numerics: str
    history: list[int]

    @property
    def generated(self) -> list[bool]: ...
    @property
    def position(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def sample(self, logits: Any, row: int = -1) -> int: ...
    def apply(self, candidates: Candidates) -> None: ...
    def accept(self, token: int, generated: bool = False) -> None: ...
    def rollback(self, n: int) -> None: ...
    def reset(self) -> None: ...
    def clone(self) -> Self: ...


class StandaloneSampler:
    """llama.cpp's interface of a sampler: ``name``, ``apply``, ``accept``, ``reset``, ``clone``.

    A sampler holds only parameters, which never change.  These methods change the chain that :meth:`own_chain`
    returns; each sampler object has one.  Chains that contain the sampler have states of their own, and so
    has an equal sampler.  ``copy.copy`` and ``copy.deepcopy`` copy the state, as :meth:`clone` does; a pickle
    holds the parameters only.
    """

    _chain_of: ClassVar[type[Any]]  # SamplerChain; set by chain.py, which imports this module
    # By numerics; each instance gets its own when needed
    _own_chains: ClassVar[Mapping[str, OwnChain]] = {}

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if callable(vars(cls).get("neutral")):
            raise TypeError(
                f"{cls.__qualname__}.neutral is a method, which is true whatever it returns, so chains would "
                "skip the sampler: make it a property"
            )

    def own_chain(self, numerics: str = "portable") -> OwnChain:
        """The :class:`aleator.SamplerChain` of this sampler alone: its state, seed and position.

        It is made when first needed, and has accepted the tokens that the sampler has accepted.

        Args:
            numerics: "portable" or "llama.cpp"; each has a chain of its own.

        Raises:
            ParameterError: such a chain is not possible.
        """
        found = self._own_chains.get(numerics)
        if found is None:
            found = self._chain_of([self], numerics)
            for other in self._own_chains.values():
                for token, generated in zip(other.history, other.generated, strict=True):
                    found.accept(token, generated)
            vars(self)["_own_chains"] = {**self._own_chains, numerics: found}
        return found

    def apply(self, candidates: Candidates) -> None:
        """Apply the sampler as :meth:`aleator.SamplerChain.apply` does, with the numerics of the candidates.

        The numerics are portable if the candidates have none yet.
        """
        self.own_chain(getattr(candidates, "numerics", None) or "portable").apply(candidates)

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history, as :meth:`aleator.SamplerChain.accept` does.

        A draw depends on how many tokens were generated: ``accept(token, generated=True)`` moves it on.
        """
        for chain in self._chains():
            chain.accept(token, generated)

    def rollback(self, n: int) -> None:
        """Take back the last ``n`` accepted tokens, as :meth:`aleator.SamplerChain.rollback` does."""
        for chain in self._chains():
            chain.rollback(n)

    def reset(self) -> None:
        """Forget all accepted tokens; the seed stays."""
        for chain in self._own_chains.values():
            chain.reset()

    def clone(self) -> Self:
        """An equal sampler with a copy of the state and of the seed in use."""
        made = object.__new__(type(self))
        chains = {numerics: chain.clone() for numerics, chain in self._own_chains.items()}
        vars(made).update(vars(self), _own_chains=chains)
        return made

    def __copy__(self) -> Self:
        return self.clone() if self._own_chains else self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_own_chains"}

    def _chains(self) -> list[OwnChain]:
        return list(self._own_chains.values()) or [self.own_chain()]


@dataclass(frozen=True)
class Place:
    """The place of a sampler in a chain, which keys its random stream.

    ``seed`` is the chain's; ``ordinal`` counts the samplers of the same kind before this one;
    ``completion`` is the index among completions of one prompt.
    """

    seed: int
    ordinal: int
    completion: int = 0


class Sampler(StandaloneSampler, ABC):
    """One step of a chain, or used alone: a frozen dataclass of parameters.

    A subclass states its contract in its module's docstring: what it keeps, equality, ties, masked
    tokens, ``min_keep``, precision, and how other implementations differ.
    """

    name: ClassVar[str]
    letter: ClassVar[str | None] = None
    aliases: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[str] = "logits"  # or "mass", if a pending temperature matters to it
    writes: ClassVar[bool] = False  # whether it changes logits or the temperature
    selects: ClassVar[bool] = False  # whether it chooses the token
    adapts: ClassVar[bool] = False  # whether draws change what it does next, beyond the history
    since: int = 1  # the version of the portable numerics that last changed what it keeps or draws
    switch: ClassVar[Parameter | None] = None  # at its neutral value the sampler does nothing
    asked_by: ClassVar[str] = ""  # the parameter that asks for it, if not one of its own
    kernel: ClassVar[Callable[..., host.Sampler] | None] = None  # from native/samplers/NAME.cpp
    llama_kernel: ClassVar[Callable[..., host.LlamaSampler] | None] = None  # native/llama/NAME.cpp

    @classmethod
    @cache
    def parameters(cls) -> tuple[Parameter, ...]:
        """The declarations of this sampler's parameters."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return tuple(f.metadata["parameter"] for f in fields if "parameter" in f.metadata)

    @property
    def neutral(self) -> bool:
        """Whether the parameters make this sampler do nothing; its switch decides, if it has one."""
        if self.switch is None:
            return False
        value, off = getattr(self, self.switch.name), self.switch.neutral
        return bool(single(value) == off if self.switch.type is float else value == off)

    @property
    def flattened(self) -> tuple[Sampler, ...]:
        """The sampler itself, or those that it contains."""
        return (self,)

    def describe(self) -> str:
        """The name with the parameters that are not neutral, such as ``top_k=40``."""
        values = [
            f"{p.name}={value}" if not isinstance(value, tuple) else f"{p.name}({len(value)})"
            for p in self.parameters()
            if p.type is not object and (value := getattr(self, p.name)) != p.neutral
        ]
        if len(values) == 1 and values[0].startswith(self.name):
            return values[0]
        return f"{self.name}({', '.join(values)})" if values else self.name

    def state(self, kernel: Any, history: Sequence[int]) -> dict[str, float]:
        """The sampler's state by name, from its kernel or from the tokens accepted so far."""
        return {}

    def state_history(self, kernel: Any) -> dict[str, list[float]]:
        """The portable kernel's state besides the history, by name, after each number of tokens."""
        return {}

    def native(self, place: Place) -> host.Sampler:
        """Make the host kernel; a sampler without a kernel runs its reference."""
        if self.kernel is None:
            return host.UserSampler(_Interpreted(self, place))
        return self.kernel(*self.arguments(place))

    def native_llama(self, place: Place) -> host.LlamaSampler:
        """Make the host kernel that gives llama.cpp's own numbers (docs/llama-cpp.md)."""
        if self.llama_kernel is None:
            asks = self.asked_by or (self.switch.name if self.switch else "samplers")
            named = self.name if asks == self.name else f"{asks}: {self.name}"
            raise ParameterError(
                asks,
                f"{named} is not one of llama.cpp's samplers: leave it out, or choose "
                "numerics='portable'",
            )
        return self.llama_kernel(*self.llama_arguments(place))

    def arguments(self, place: Place) -> tuple[Any, ...]:
        """The arguments of the kernel: the parameters, in order."""
        return tuple(getattr(self, p.name) for p in self.parameters())

    def llama_arguments(self, place: Place) -> tuple[Any, ...]:
        """The arguments of the kernel with llama.cpp's numbers."""
        return self.arguments(place)

    @abstractmethod
    def reference(self, row: Row, step: Step, place: Place) -> None:
        """Apply the sampler, unless it is neutral, to a reference row, in NumPy (docs/numerics.md)."""

    def __post_init__(self) -> None:
        """Check every declared parameter and store it as its declared type."""
        for p in self.parameters():
            object.__setattr__(self, p.name, p.check(getattr(self, p.name)))

    def configured(self, place: Place, numerics: str) -> tuple[Any, ...]:
        """What chains are compared by: the class, the parameters and the seed in use.

        Fields that take no part in comparisons, such as tokenizers and vocabularies, are left out.
        """
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {f.name: getattr(self, f.name) for f in fields if f.compare}
        random = (None,) if numerics == "portable" else (None, MAX_LLAMA_SEED + 1)
        if "seed" in values and values["seed"] in random:
            values["seed"] = place.seed
        acts = numerics == "portable" and not self.neutral
        changed = (self.since,) if acts and self.since > 1 else ()
        return (type(self).__module__, type(self).__qualname__, values, *changed)

    @classmethod
    def asked_for(cls, values: Mapping[str, Any]) -> bool:
        """Whether ``values``, all parameters by name, make this sampler do something."""
        made = object.__new__(cls)  # without the checks, which may need a tokenizer
        for p in cls.parameters():
            object.__setattr__(made, p.name, values.get(p.name, p.neutral))
        return bool(cls.parameters()) and not made.neutral

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Sampler:
        """Make the sampler from a mapping that holds its fields among others."""
        names = (f.name for f in dataclasses.fields(cls) if f.init)  # type: ignore[arg-type]
        return cls(**{name: values[name] for name in names})


@dataclass(frozen=True, kw_only=True)
class SeededSampler(Sampler):
    """A sampler with a stream of random numbers; without a seed of its own it takes the chain's."""

    seed: int | None = declare(SEED)

    def seed_in(self, place: Place) -> int:
        """The seed in use."""
        return place.seed if self.seed is None else self.seed

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return (*self._unseeded(), self.seed_in(place), place.ordinal)

    def llama_arguments(self, place: Place) -> tuple[Any, ...]:
        return (*self._unseeded(), llama_seed(self.seed, place))

    def _unseeded(self) -> list[Any]:
        return [getattr(self, p.name) for p in self.parameters() if p is not SEED]


class Compiled(Sampler):
    """A sampler that compiles something from its fields; a pickle holds only the fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return partial(type(self), **{f.name: getattr(self, f.name) for f in fields if f.init}), ()


class _Interpreted:
    """Runs a sampler's reference in a native chain, as native/samplers/user.cpp calls it."""

    def __init__(self, sampler: Sampler, place: Place) -> None:
        self.sampler, self.place = sampler, place
        self.step = Step(completion=place.completion)
        self.states: list[dict[tuple[str, int], Any]] = []  # before each accepted token

    def apply(self, native: Any, position: int) -> None:
        if self.sampler.neutral:
            return
        ids, logits, temperature, full_mass = native.state()
        row = Row(ids, logits, temperature, full_mass=full_mass)
        self.step.n_vocab, self.step.position = native.n_vocab, position
        self.sampler.reference(row, self.step, self.place)
        if len(row) < len(ids):
            native.keep(row.ids.tolist())
        untouched = logits[np.isin(ids, row.ids)]
        if row.temperature != temperature or row.logits.tobytes() != untouched.tobytes():
            if row.temperature != 1:
                raise ParameterError(
                    "samplers",
                    f"{self.sampler.name} changes the temperature, which takes a kernel of its own",
                )
            native.logits = row.logits
        if row.selected is not None:
            native.selected = row.selected

    def accept(self, token: int, generated: bool) -> None:
        self.states.append(dict(self.step.state))
        self.step.accept(token, generated)

    def rollback(self) -> None:
        self.step.history.pop()
        self.step.position -= self.step.generated.pop()
        self.step.state = self.states.pop()
        self.step.pending.clear()

    def set_ordinal(self, ordinal: int) -> None:
        own = (self.sampler.name, self.place.ordinal)
        moved = (self.sampler.name, ordinal)
        for kept in (self.step.state, self.step.pending, *self.states):
            if own in kept:
                kept[moved] = kept.pop(own)
        self.place = dataclasses.replace(self.place, ordinal=ordinal)

    def reset(self) -> None:
        self.step, self.states = Step(completion=self.place.completion), []

    def write_state(self, users: bool) -> bytes:
        """The reference's state, as Python literals."""
        kept = (self.step.state, self.step.pending, self.states if any(self.states) else None)
        text = repr(kept)
        try:
            same = ast.literal_eval(text) == kept
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise ParameterError(
                "samplers",
                f"{self.sampler.name} remembers what Python's literals cannot hold, so a state cannot "
                "be written: let it keep numbers, texts and tuples of these",
            )
        return text.encode()

    def read_state(self, state: bytes, tokens: list[int], generated: list[int]) -> None:
        """Restore what :meth:`write_state` returned."""
        try:
            present, pending, states = ast.literal_eval(state.decode())
            kept = [{} for _ in tokens] if states is None else list(states)
            sound = len(kept) == len(tokens) and all(
                isinstance(s, dict) for s in (present, pending, *kept)
            )
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            sound = False
        if not sound:
            raise StateError(
                f"not a sound state of a chain: {self.sampler.name} cannot read its own"
            )
        for token, by_chain in zip(tokens, generated, strict=True):
            self.step.accept(token, bool(by_chain))
        self.step.state, self.step.pending, self.states = present, pending, kept

    def clone(self) -> _Interpreted:
        made = _Interpreted(self.sampler, self.place)
        made.step, made.states = copy.deepcopy((self.step, self.states))
        return made


MAX_LLAMA_SEED = 2**32 - 2  # llama.cpp takes 2^32 - 1 for "random"


def llama_seed(own: int | None, place: Place) -> int:
    """The 32-bit seed of a sampler with llama.cpp's numbers: its own or the chain's, plus the completion."""
    seed = place.seed if own in (None, MAX_LLAMA_SEED + 1) else check_llama_seed(own)
    return (seed + place.completion) % 2**32


def check_llama_seed(seed: int) -> int:
    """Refuse a seed of more than 32 bits."""
    if seed > MAX_LLAMA_SEED:
        raise ParameterError(
            f"seed={seed} is out of range with numerics='llama.cpp': give 0 to {MAX_LLAMA_SEED}, or -1 "
            "for random"
        )
    return seed


def only_portable(parameter: str, value: str | int, allowed: str | int) -> ParameterError:
    """The error for a value that llama.cpp does not have."""
    return ParameterError(
        f"{parameter}={value!r} has no counterpart in llama.cpp: give {allowed!r}, or choose "
        "numerics='portable'"
    )
