"""Chains of samplers: logits in, a token out."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aleator.core import host
from aleator.core.contract import MAX_COMPLETION, MAX_ORDINAL
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.numerics import Row, Step
from aleator.core.parameter import check_seed
from aleator.samplers.base import (
    MAX_LLAMA_SEED,
    Place,
    Sampler,
    check_llama_seed,
    check_selects,
)
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.full_mass import check_full_mass
from aleator.samplers.plan import Plan, make_plan
from aleator.samplers.user import UserSampler

if TYPE_CHECKING:
    from aleator.samplers.explain import Explanation

NUMERICS = ("portable", "llama.cpp")


class Candidates:
    """The candidates of one step: token ids and logits.

    A portable chain leaves masked tokens out and keeps ids ascending; one with ``numerics="llama.cpp"`` leaves
    llama.cpp's array in llama.cpp's order, masked tokens with a logit of -inf in it.  The first chain
    that is applied decides.

    Parameters
    ----------
    logits
        One row, shape ``[V]``, float32, float16 or bfloat16, on the CPU; it is copied.

    """

    def __init__(self, logits: Any) -> None:
        self._native: host.Candidates | host.LlamaCandidates
        self._numerics: str | None = None
        try:
            self._native = host.Candidates(logits)
        except TypeError:
            raise _wrong_logits(logits) from None

    @classmethod
    def of(cls, native: host.Candidates | host.LlamaCandidates) -> Candidates:
        """The candidates of a step under way, for a user's sampler."""
        candidates = object.__new__(cls)
        candidates._native = native
        candidates._numerics = NUMERICS[isinstance(native, host.LlamaCandidates)]
        return candidates

    def _native_for(self, numerics: str) -> Any:
        if self._numerics is None:
            self._numerics = numerics
            if isinstance(self._native, host.Candidates) and numerics == "llama.cpp":
                self._native = host.LlamaCandidates(self._native)
        elif self._numerics != numerics:
            raise ParameterError(
                "candidates",
                f"a chain with numerics={self._numerics!r} was applied to these candidates, so one with "
                f"numerics={numerics!r} cannot be: make new Candidates",
            )
        return self._native

    def __len__(self) -> int:
        return len(self._native)

    @property
    def n_vocab(self) -> int:
        """Length of the row of logits."""
        return self._native.n_vocab

    @property
    def ids(self) -> NDArray[np.int32]:
        """Token ids of the candidates."""
        return self._native.ids

    @property
    def logits(self) -> NDArray[np.float32]:
        """Their logits; a pending temperature is applied first.

        Can be assigned, float32 of the same length; NaN and -inf mask.
        """
        return self._native.logits

    @logits.setter
    def logits(self, logits: NDArray[np.float32]) -> None:
        self._native.logits = np.ascontiguousarray(logits, np.float32)

    def keep(self, ids: Iterable[int]) -> None:
        """Keep these tokens; the others are no candidates any more."""
        self._native.keep([int(i) for i in ids])

    @property
    def probs(self) -> NDArray[np.float32]:
        """Their probabilities: weight over total weight, rounded to float32."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.probs
        weights = self._native.weights
        return (weights / np.float64(weights.sum(dtype=np.uint64))).astype(np.float32)

    @property
    def selected(self) -> int | None:
        """The token that was chosen, or ``None``; can be assigned one of the candidates."""
        return self._native.selected

    @selected.setter
    def selected(self, token: int | None) -> None:
        self._native.selected = token

    @property
    def sorted(self) -> bool:
        """Whether the candidates are known to stand by descending logit."""
        if isinstance(self._native, host.LlamaCandidates):
            return self._native.sorted
        return len(self) <= 1  # their order is by id


class SamplerChain(Sequence[Any]):
    """Samplers in the order in which they are applied; the last one chooses the token.

    The list is the order: nothing is moved.  For equal logits a portable chain gives the same token on any
    machine (docs/numerics.md); with ``numerics="llama.cpp"`` it gives llama.cpp's (docs/llama-cpp.md).  One
    chain serves one sequence, and one thread at a time.

    Parameters
    ----------
    samplers
        Built-in samplers, chains (their samplers stand there as if they were listed), and objects with
        ``apply(candidates)`` (see :mod:`aleator.samplers.user`).  To be sampled from, the chain must end with
        one that selects, such as ``Dist`` or ``Greedy``.
    numerics
        ``"portable"`` or ``"llama.cpp"``.
    seed
        For samplers that have none of their own, 64 bits, or 32 with llama.cpp's numbers; ``None`` or -1 draws
        one from the system.
    completion
        Index among completions of one prompt, 0 to 1,048,575: equal chains with different indices draw
        independently.  llama.cpp adds it to the seed.
    grammar
        A sampler with a constraint, such as ``Grammar`` or ``JSONSchema``: it masks before all others.  With
        llama.cpp's numbers the token drawn is tested first, and only where it is refused the row is masked and
        the whole chain applied again, as llama.cpp's common layer does.
    """

    name = "chain"

    def __init__(
        self,
        samplers: Iterable[Any],
        numerics: str = "portable",
        seed: int | None = None,
        completion: int = 0,
        grammar: ConstraintSampler | None = None,
    ) -> None:
        if numerics not in NUMERICS:
            raise ParameterError(
                "numerics", f"numerics={numerics!r} is not known: choose 'portable' or 'llama.cpp'"
            )
        if not 0 <= completion <= MAX_COMPLETION:
            raise ParameterError(
                "completion", f"completion={completion} is out of range: give 0 to {MAX_COMPLETION}"
            )
        if grammar is not None and not isinstance(grammar, ConstraintSampler):
            raise ParameterError(
                "grammar",
                f"grammar={grammar!r:.60} is not a sampler with a constraint: give Grammar(text, "
                "vocabulary=model.tokenizer), JSONSchema, Regex, Lark or MatcherGrammar",
            )
        self._grammar = grammar
        self._text_start = 0  # of the history: where the constraints began
        self._samplers = _flatten(samplers)
        _check_order(self._samplers, numerics)
        self.numerics = numerics
        self.completion = completion
        self._chain_seed = _effective_seed(seed, numerics)
        self._native = self._compile()

    def _compile(self) -> host.Chain | host.LlamaChain:
        placed = list(zip(self._samplers, self._places(), strict=True))
        grammar, place = self._grammar, Place(self._chain_seed, 0, self.completion)
        if self.numerics == "portable":
            first = [] if grammar is None else [grammar.native(place)]
            return host.Chain([*first, *(s.native(p) for s, p in placed)], self.completion)
        return host.LlamaChain(
            [s.native_llama(p) for s, p in placed if not s.neutral],
            None if grammar is None else grammar.native_llama(place),
        )

    def _places(self) -> list[Place]:
        seen: Counter[str] = Counter()
        places = []
        for sampler in self._samplers:
            if seen[sampler.name] > MAX_ORDINAL:
                raise ParameterError(
                    "samplers", f"a chain holds at most {MAX_ORDINAL + 1} samplers of one kind"
                )
            places.append(Place(self._chain_seed, seen[sampler.name], self.completion))
            seen[sampler.name] += 1
        return places

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

        The others keep their state; the new one sees what was accepted so far.  With llama.cpp's numbers a
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
            placed = list(zip(samplers, self._places(), strict=True))
            if isinstance(native, host.LlamaChain):
                self._native = self._compile()
                return
            for sampler, place in placed[index : index + added]:
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
        native.set_ordinals([0] * first + [p.ordinal for _, p in placed])

    def __repr__(self) -> str:
        return f"SamplerChain({list(self._samplers)!r}, seed={self.seed})"

    @property
    def seed(self) -> int:
        """The seed in use: the last sampler's own, else the chain's."""
        own = [s.seed for s in self._samplers if isinstance(getattr(s, "seed", None), int)]  # type: ignore[attr-defined]
        return own[-1] if own else self._chain_seed

    @property
    def grammar(self) -> ConstraintSampler | None:
        """What the chain was given as ``grammar``; not a member of the list."""
        return self._grammar

    @property
    def constraints(self) -> list[host.Constrained]:
        """The constraints in their present state: that of ``grammar``, and those of the list."""
        native = self._native
        kernels: list[Any] = list(native.samplers)
        if isinstance(native, host.LlamaChain) and native.grammar is not None:
            kernels.insert(0, native.grammar)
        wanted = host.ConstraintSampler | host.LlamaConstraintSampler
        return [kernel.constrained for kernel in kernels if isinstance(kernel, wanted)]

    def jump_forward(self) -> bytes:
        """The text that the constraints force next; none where they leave a choice, or there are none."""
        forced = [c.constraint.jump_forward() for c in self.constraints if not c.constraint.waiting]
        return max(forced, key=len, default=b"")

    @property
    def finished(self) -> bool:
        """Whether a constraint says that the text is complete, and that nothing but its end may follow."""
        return any(c.finished for c in self.constraints)

    @property
    def position(self) -> int:
        """Tokens generated and accepted since the last reset: what draws are keyed by.  Can be set."""
        return self._native.position

    @position.setter
    def position(self, position: int) -> None:
        if isinstance(self._native, host.LlamaChain):
            raise ParameterError(
                "position",
                "with numerics='llama.cpp' a draw depends on how many came before it, so the position cannot "
                "be set: use reset, rollback, or numerics='portable'",
            )
        self._native.position = position

    @property
    def history(self) -> list[int]:
        """Tokens accepted since the last reset, prompt tokens among them."""
        return self._native.history

    @property
    def seconds(self) -> float:
        """Time spent in :meth:`sample`."""
        return self._native.seconds

    @property
    def n_sampled(self) -> int:
        """Calls of :meth:`sample`."""
        return self._native.n_sampled

    def describe(self) -> str:
        """The chain on one line; ``?`` marks samplers whose parameters make them do nothing."""
        first = [] if self._grammar is None else [self._grammar]
        names = [("?" if s.neutral else "") + s.name for s in [*first, *self._samplers]]
        return " -> ".join(["logits", *names])

    def plan(self, device: Any) -> Plan:
        """Which samplers a :class:`~aleator.DeviceChain` would run on ``device``, and what crosses; print it.

        Neutral samplers are left out.

        Parameters
        ----------
        device
            Such as ``"cuda"`` or a ``torch.device``.

        """
        return make_plan(
            [sampler for sampler in self._samplers if not sampler.neutral],
            str(device),
            portable=self.numerics == "portable",
            grammar=self._grammar is not None,
        )

    def sample(self, logits: Any, row: int = -1) -> int:
        """Apply the chain to a row of logits, choose a token and accept it.

        Parameters
        ----------
        row
            With a context instead of logits: which row of its last decode.
        logits
            Shape ``[V]``, float32, float16 or bfloat16, contiguous, on the CPU (NumPy, torch, or anything
            with DLPack).  Not copied, not changed.

        Raises
        ------
        LogitsError
            For another shape or type, for an empty row, and if nothing is finite; the chain is as before.

        """
        logits = _row_of(logits, row)
        try:
            return self._native.sample(logits)
        except TypeError:
            if _is_row(logits):
                raise  # from a user's sampler
            raise _wrong_logits(logits) from None

    def apply(self, candidates: Candidates) -> None:
        """Apply the samplers to candidates; accepts nothing.

        A portable chain gives the same again when this is repeated; with llama.cpp's numbers every
        application draws anew and moves mirostat's mu, and ``grammar`` takes no part: it tests what
        :meth:`sample` draws.
        """
        self._native.apply(candidates._native_for(self.numerics))

    def explain(self, logits: Any, vocab: Any = None, top: int = 10, row: int = -1) -> Explanation:
        """What every sampler would remove, move and keep, and the token that :meth:`sample` would choose.

        The chain stays as it is: a copy of it is applied.  ``print`` the result, or see its methods.

        Parameters
        ----------
        logits, row
            As for :meth:`sample`.
        vocab
            A tokenizer or a vocabulary, for the tokens' texts.
        top
            Tokens to show, 0 or more.

        Raises
        ------
        LogitsError
            As for :meth:`sample`.
        ParameterError
            ``top`` is negative.

        """
        from aleator.samplers.explain import explain

        if top < 0:
            raise ParameterError("top", f"top={top} is out of range: give 0 or more")
        return explain(self, _row_of(logits, row), vocab, top)

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history.

        ``generated`` says whether it advances the position, and is part of the text that a constraint looks at:
        prompt tokens are not.

        Raises
        ------
        ConstraintError
            A constraint does not allow the token; the chain is as before.

        """
        self._native.accept(token, generated)

    def rollback(self, n: int, replay: bool = True) -> None:
        """Take back the last ``n`` accepted tokens, exactly.

        With ``replay`` what is drawn next is what was drawn then.  Without it the randomness goes on: the
        position stays, and llama.cpp's generators stay where they are.

        Refused, with nothing changed, if a user's sampler in the chain has no ``rollback``, or, with
        ``replay``, if it would go back behind a :meth:`restart`; without it constraints begin anew there.
        """
        text = len(self.history) - self._text_start
        if replay and n > text and self._text_start and self.constraints:
            raise ParameterError(
                "n",
                f"cannot roll back {n} tokens: the constrained text began anew "
                f"{text} tokens ago (restart); reset the chain instead",
            )
        for sampler in self._samplers:
            if isinstance(sampler, UserSampler) and not sampler.can_roll_back and n:
                raise ParameterError(
                    "n", f"{sampler.name} has no rollback(n), so the chain cannot roll back"
                )
        position = self._native.position
        if isinstance(self._native, host.LlamaChain):
            self._native.rollback(n, replay)
        else:
            self._native.rollback(n)
            if not replay:
                self._native.position = position
        self._text_start = min(self._text_start, len(self.history))

    def reset(self) -> None:
        """Forget all accepted tokens; the seed stays."""
        self._native.reset()
        self._text_start = 0

    def restart(self) -> None:
        """Begin a new constrained text, as for the next answer of a conversation; all else goes on."""
        self._native.restart()
        self._text_start = len(self.history)

    def clone(self) -> SamplerChain:
        """Copy the chain with its state and seed."""
        copy = object.__new__(SamplerChain)
        copy.__dict__.update(self.__dict__)
        copy._samplers = list(self._samplers)
        copy._native = self._native.clone()
        return copy


class ReferenceChain:
    """The same chain computed by the samplers' NumPy references: slow, and independent of the kernels."""

    def __init__(self, chain: SamplerChain) -> None:
        if chain.numerics != "portable":
            raise ParameterError("numerics", "references exist for numerics='portable' only")
        self._pairs = list(zip(chain._samplers, chain._places(), strict=True))
        if chain.grammar is not None:
            self._pairs.insert(0, (chain.grammar, Place(chain.seed, 0, chain.completion)))
        self.step = Step(completion=chain.completion)

    def apply(self, logits: NDArray[np.floating]) -> Row:
        """The row after all samplers."""
        row = Row.load(logits)
        self.step.n_vocab = len(logits)
        for sampler, place in self._pairs:
            sampler.reference(row, self.step, place)
        return row

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history."""
        self.step.accept(token, generated)


def _check_order(samplers: list[Sampler], numerics: str) -> None:
    """Refuse an order that cannot be sampled from."""
    check_selects(samplers)
    if numerics == "portable":
        check_full_mass(samplers)


def _flatten(samplers: Iterable[Any]) -> list[Sampler]:
    """The samplers one by one: chains opened, users' objects wrapped."""
    flat: list[Sampler] = []
    for sampler in samplers:
        if isinstance(sampler, SamplerChain):
            flat.extend(sampler._samplers)
        elif isinstance(sampler, Sampler):
            flat.append(sampler)
        else:
            flat.append(UserSampler(sampler, Candidates.of))
    return flat


def _shown(sampler: Sampler) -> Any:
    return sampler.user if isinstance(sampler, UserSampler) else sampler


def _row_of(logits: Any, row: int) -> Any:
    rows = getattr(logits, "rows", None)
    return logits if rows is None else rows[row]


def _is_row(logits: Any) -> bool:
    try:
        host.Candidates(logits)
    except (TypeError, LogitsError):
        return False
    return True


def _effective_seed(seed: int | None, numerics: str) -> int:
    checked = check_seed(seed)
    if numerics == "portable":
        return secrets.randbits(64) if checked is None else checked
    if checked is None or checked == MAX_LLAMA_SEED + 1:
        return secrets.randbelow(MAX_LLAMA_SEED + 1)
    return check_llama_seed(checked)


def _wrong_logits(logits: Any) -> LogitsError:
    shape = getattr(logits, "shape", None)
    dtype = getattr(logits, "dtype", type(logits).__name__)
    described = f"shape {tuple(shape)}, {dtype}" if shape is not None else str(dtype)
    return LogitsError(
        f"logits ({described}) must be one contiguous row [V] of float32, float16 or bfloat16 on the CPU"
    )
