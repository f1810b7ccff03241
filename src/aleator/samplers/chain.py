"""Chains of samplers: logits in, a token out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aleator.core import host
from aleator.core.errors import ConstraintError, LogitsError, ParameterError, StateError
from aleator.core.records import dataclass
from aleator.core.threads import pool
from aleator.samplers.base import Alone
from aleator.samplers.candidates import Candidates, is_row, wrong_logits
from aleator.samplers.chain_members import ChainMembers
from aleator.samplers.chain_state import Configuration, pack, unpack
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.token_arguments import number_of, row_of, token_id, token_ids
from aleator.samplers.user import UserSampler, adapters_of, restore_users

if TYPE_CHECKING:
    from aleator.samplers.explain import Explanation


@dataclass(frozen=True)
class Perf:
    """What a chain has done and how long it took, as llama.cpp's ``perf``."""

    n_sampled: int  # calls of ``SamplerChain.sample`` that gave a token
    seconds: float  # time spent in them

    @property
    def us_per_token(self) -> float:
        """Microseconds per token; 0 where nothing was sampled."""
        return 1e6 * self.seconds / self.n_sampled if self.n_sampled else 0.0


class SamplerChain(ChainMembers):
    """Samplers in the order in which they are applied; the last one chooses the token.

    The list is the order: nothing is moved.  For equal logits a portable chain gives the same token on any
    machine (docs/numerics.md); with ``numerics="llama.cpp"`` it gives llama.cpp's (docs/llama-cpp.md).  One
    chain serves one sequence, and one thread at a time.

    ``copy.copy``, ``copy.deepcopy`` and :meth:`clone` all give a copy with a state of its own.  A chain can be
    pickled, with its state, if its samplers can; :meth:`state_write` gives the state alone.

    Args:
        samplers: built-in samplers, chains (their samplers stand there as if they were listed), and objects
            with ``apply(candidates)`` (see :mod:`aleator.samplers.user`).  To be sampled from, the chain must
            end with one that selects, such as ``Dist`` or ``Greedy``.
        numerics: "portable" or "llama.cpp".
        seed: for samplers that have none of their own, 64 bits, or 32 with llama.cpp's numbers; None or -1
            draws one from the system.
        completion: index among completions of one prompt, 0 to 1,048,575: equal chains with different indices
            draw independently.  llama.cpp adds it to the seed.
        grammar: a sampler with a constraint, such as ``Grammar`` or ``JSONSchema``: it masks before all others.
            With llama.cpp's numbers the token drawn is tested first, and only where it is refused the row is
            masked and the whole chain applied again, as llama.cpp's common layer does.

    Raises:
        ParameterError: an argument is out of range, or the order cannot be sampled from.
    """

    _text_start = 0  # of the history: where the constraints began

    def __repr__(self) -> str:
        acting = [each for each in self._samplers if not each.neutral]
        idle = len(self._samplers) - len(acting)
        rest = f" ({idle} more {'does' if idle == 1 else 'do'} nothing)" if idle else ""
        return f"SamplerChain({acting!r}{rest}, seed={self.seed})"

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
    def phases(self) -> list[str]:
        """For each token of :attr:`history` the phase that drew it; nothing for a chain without phases."""
        phases = self._phases
        return [] if phases is None else phases.phases_of(self.kernels.samplers[-1])

    @property
    def phase(self) -> str:
        """The phase that draws the next token; "" for a chain without phases."""
        phases = self._phases
        return "" if phases is None else phases.acting(self.kernels.samplers[-1])[0]

    @property
    def present(self) -> SamplerChain:
        """The chain of the phase that draws the next token, by itself, in the same place of the same text.

        Without phases it is this chain.
        """
        phases = self._phases
        if phases is None:
            return self
        made, native = self.clone(), self.kernels
        _, samplers = phases.acting(native.samplers[-1])
        made._samplers[-1:] = samplers
        made._native = native.present()
        return made

    @property
    def text_start(self) -> int:
        """Of :attr:`history`: where the text began, which :meth:`restart` moves."""
        return self._text_start

    @property
    def can_be_batched(self) -> bool:
        """Whether threads can draw with it beside others: its numerics are portable, and all of it native."""
        users = any(isinstance(sampler, UserSampler) for sampler in self._samplers)
        return isinstance(self._native, host.Chain) and not (users or self.constraints)

    @property
    def seconds(self) -> float:
        """Time spent in :meth:`sample` since the last :meth:`reset_perf`."""
        return self._native.seconds

    @property
    def n_sampled(self) -> int:
        """Calls of :meth:`sample` since the last :meth:`reset_perf`."""
        return self._native.n_sampled

    @property
    def perf(self) -> Perf:
        """How many tokens were sampled since the last :meth:`reset_perf`, and in what time."""
        return Perf(self._native.n_sampled, self._native.seconds)

    def free_scratch(self) -> None:
        """Free the memory in which :meth:`sample` orders a row, 20 bytes a token; it comes back when needed.

        Nothing is done while another thread samples.
        """
        self._native.free_scratch()

    def reset_perf(self) -> None:
        """Set the counters of :attr:`perf` to 0; :meth:`reset` and :meth:`state_read` leave them."""
        self._native.reset_perf()

    def sample(self, logits: Any, row: int = -1) -> int:
        """Apply the chain to a row of logits, choose a token and accept it.

        Args:
            logits: shape ``[V]``, float32, float16 or bfloat16, contiguous, on the CPU (NumPy, torch, or
                anything with DLPack).  Not copied, not changed.
            row: with a context instead of logits: which token of its last batch, by its index there; negative
                counts back from the last token that wanted logits (``Context.logits``).

        Returns:
            The token.

        Raises:
            LogitsError: for another shape or type, for an empty row, and if nothing is finite; the chain is as
                before.
            NoLogits: the context has no logits of that token; says of which it has.
        """
        logits = row_of(logits, row)
        try:
            return self._native.sample(logits)
        except TypeError:
            if is_row(logits):
                raise  # from a user's sampler
            raise wrong_logits(logits) from None

    def apply(self, candidates: Candidates) -> None:
        """Apply the samplers to candidates; accepts nothing.

        A portable chain gives the same again when this is repeated; with llama.cpp's numbers every
        application draws anew and moves mirostat's mu, and ``grammar`` takes no part: it tests what
        :meth:`sample` draws.

        Raises:
            ParameterError: they are no candidates, or a chain with other numerics was applied to them.
            LogitsError: nothing finite is left.
        """
        if not isinstance(candidates, Candidates):
            raise ParameterError(f"candidates={candidates!r:.60} are none: give Candidates(logits)")
        self._native.apply(candidates._native_for(self.numerics))

    def explain(self, logits: Any, vocab: Any = None, top: int = 10, row: int = -1) -> Explanation:
        """What every sampler would remove, move and keep, and the token that :meth:`sample` would choose.

        The chain stays as it is: a copy of it is applied.  ``print`` the result, or see its methods.

        Args:
            logits: as for :meth:`sample`.
            vocab: a tokenizer or a vocabulary, for the tokens' texts.
            top: tokens to show, 0 or more.
            row: as for :meth:`sample`.

        Raises:
            LogitsError, NoLogits: as for :meth:`sample`.
            ParameterError: ``top`` is negative.
        """
        from aleator.samplers.explain import explain

        if top < 0:
            raise ParameterError(f"top={top} is out of range: give 0 or more")
        logits = row_of(logits, row)
        return explain(self.present, logits, vocab, top, len(self.history), self.phase)

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history.

        Args:
            token: its id, 0 to 16,777,215.
            generated: whether it advances the position, and is part of the text that a constraint looks at:
                prompt tokens are not.

        Raises:
            ParameterError: ``token`` is no id.
            ConstraintError: a constraint does not allow the token; the chain is as before.
        """
        self._native.accept(token_id(token), generated)

    def accept_many(self, tokens: Iterable[int], generated: bool = False) -> None:
        """Append tokens to the history, as :meth:`accept` does one by one, in one call.

        Args:
            tokens: their ids, one-dimensional; a prompt.
            generated: as for :meth:`accept`, of all of them.

        Raises:
            ParameterError: one of them is no id; the chain is as before.
            ConstraintError: a constraint does not allow one of them; the chain is as before.
        """
        self._native.accept_many(token_ids(tokens), generated)

    def rollback(self, n: int, replay: bool = True) -> None:
        """Take back the last ``n`` accepted tokens, exactly.

        Args:
            n: how many, 0 or more.
            replay: what is drawn next is what was drawn then.  Without it the randomness goes on: the position
                stays, and llama.cpp's generators stay where they are.

        Raises:
            ParameterError: ``n`` is more than there are; a user's sampler in the chain has no ``rollback``; or,
                with ``replay``, it would go back behind a :meth:`restart` (without it constraints begin anew
                there).  Nothing has changed.
        """
        n = max(-1, min(number_of("n", n, "tokens to take back"), 2**62))
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
        """Copy the chain with its state and seed; users' samplers are copied too."""
        copy = object.__new__(SamplerChain)
        copy.__dict__.update(self.__dict__)
        copy._native = self._native.clone()
        adapters = iter(adapters_of(copy._native))
        copy._samplers = [
            UserSampler(next(adapters).user, Candidates.of) if isinstance(s, UserSampler) else s
            for s in self._samplers
        ]
        return copy

    def __copy__(self) -> SamplerChain:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> SamplerChain:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        made = list(self), self.numerics, self._chain_seed, self.completion, self._grammar
        return _from_pickle, (*made, self._write(users=False))

    def state_write(self) -> bytes:
        """What the chain remembers, to go on later with :meth:`state_read` in an equal chain.

        Tokens accepted, windows, mu of mirostat, the average of adaptive-p, generators, positions, the place in
        a grammar, and what is needed to roll back; of users' samplers, what their ``state_write`` gives.

        Raises:
            ParameterError: a sampler written in Python has no state methods; names it.
        """
        return self._write(users=True)

    def state_read(self, state: bytes) -> None:
        """Take over a state: what follows is what would have followed where it was written.

        Args:
            state: what :meth:`state_write` gave; it may come from anywhere, and is checked.

        Raises:
            ParameterError: it is not bytes, or a sampler written in Python has no state methods.
            StateError: it is damaged, of a later version, or of a chain with other samplers, parameters or
                seeds; says which.  The chain is as before.
        """
        configuration, text_start, native = unpack(state)
        self._configuration().require(configuration)
        fresh = self._compile()
        try:
            fresh.read_state(native)
        except (ConstraintError, ParameterError) as error:  # a token that the grammar cannot take
            raise StateError(f"not a sound state of a chain: {error}") from None
        if not 0 <= text_start <= len(fresh.history):
            raise StateError("not a sound state of a chain: the constraints begin behind its end")
        restore_users(adapters_of(fresh))
        self._native.adopt(fresh)  # type: ignore[arg-type]  # both are of this chain's numerics
        self._text_start = text_start

    @property
    def generated(self) -> list[bool]:
        """For each token of :attr:`history` whether it was generated."""
        return [bool(flag) for flag in self._native.generated]

    def course(self, index: int) -> dict[str, NDArray[np.float64]]:
        """What the sampler at ``index`` remembers besides the history, as a device chain takes it over.

        By name, the value after each number of generated tokens, ``[position + 1]``; nothing for a sampler
        that does not adapt.
        """
        if isinstance(self._native, host.LlamaChain):
            raise ParameterError("numerics", "course() is for chains with numerics='portable'")
        first = int(self._grammar is not None)
        values = self._samplers[index].course(self._native.samplers[first + index])
        ends = [0, *(i for i, by_chain in enumerate(self.generated, start=1) if by_chain)]
        return {name: np.asarray(course, np.float64)[ends] for name, course in values.items()}

    def _write(self, users: bool) -> bytes:
        return pack(self._configuration(), self._text_start, self._native.write_state(users))

    def _configuration(self) -> Configuration:
        return Configuration.of(self.numerics, self.completion, self.all_placed)


Alone._chain_of = SamplerChain


def _from_pickle(
    samplers: list[Any],
    numerics: str,
    seed: int,
    completion: int,
    grammar: ConstraintSampler | None,
    state: bytes,
) -> SamplerChain:
    chain = SamplerChain(samplers, numerics, seed, completion, grammar)
    chain.state_read(state)
    return chain


def sample_batch(
    chains: Sequence[SamplerChain], logits: Any, n_threads: int | None = None
) -> list[int]:
    """Sample one token per row, each with its own chain, on several threads.

    The tokens are those that ``chains[i].sample(logits[i])`` gives one by one.

    Args:
        chains: One per row, all different, with portable numerics.
        logits: Shape ``[B, V]``, float32, float16 or bfloat16, on the CPU, each row contiguous; not copied.
        n_threads: 1 to 256; ``None`` is the number of processors.

    Raises:
        LogitsError: Names the row; then no chain has changed.
    """
    threads = pool(n_threads)
    natives = []
    for chain in chains:
        if not isinstance(chain._native, host.Chain):
            raise ParameterError("chains", "sample_batch needs chains with numerics='portable'")
        natives.append(chain._native)
    if len({id(native) for native in natives}) < len(natives):
        raise ParameterError("chains", "a chain is given for two rows: clone() it")
    try:
        return host.sample_batch(natives, logits, threads)
    except TypeError:
        raise LogitsError(
            "logits must be [B, V] of float32, float16 or bfloat16 on the CPU, rows contiguous"
        ) from None
