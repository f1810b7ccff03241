"""Chains of samplers: logits in, a token out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aleator.core import host
from aleator.core.arrays import Doubles
from aleator.core.errors import ConstraintError, LogitsError, ParameterError, StateError
from aleator.core.forwarded import forwarded
from aleator.core.integers import UNBOUNDED, integer, integer_in
from aleator.core.records import dataclass
from aleator.core.threads import pool
from aleator.samplers.base import StandaloneSampler
from aleator.samplers.candidates import Candidates
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
        """Microseconds per token; 0 if nothing was sampled."""
        return 1e6 * self.seconds / self.n_sampled if self.n_sampled else 0.0


class SamplerChain(ChainMembers):
    """Samplers in the order in which they are applied; the last one chooses the token.

    The samplers stay in the order of the list.  For equal logits a portable chain gives the same token on any
    machine (docs/numerics.md); with ``numerics="llama.cpp"`` it gives llama.cpp's (docs/llama-cpp.md).  One
    chain serves one sequence, and one thread at a time: another that reads or copies it waits.

    ``copy.copy``, ``copy.deepcopy`` and :meth:`clone` all give a copy with a state of its own.  A chain can be
    pickled, with its state, if its samplers can; :meth:`state_write` gives the state alone.

    Args:
        samplers: built-in samplers, chains (a chain stands for its samplers), and objects with
            ``apply(candidates)`` (see :mod:`aleator.samplers.user`).  :meth:`sample` needs a chain that ends
            with a sampler that selects, such as ``Dist`` or ``Greedy``.
        numerics: "portable" or "llama.cpp".
        seed: for samplers without a seed of their own: 64 bits, or 32 with llama.cpp's numbers; None or -1
            takes one from the system.
        completion: index among completions of one prompt, 0 to 1,048,575: equal chains with different indices
            draw independently.  llama.cpp adds it to the seed.
        grammar: a sampler with a constraint, such as ``Grammar`` or ``JSONSchema``: it masks before all others.
            With llama.cpp's numbers the chain draws first; only if the constraint refuses the token is the row
            masked and the whole chain applied again, as in llama.cpp's common layer.

    Raises:
        ParameterError: an argument is out of range, or the order cannot be sampled from.
    """

    _text_start = 0  # index in the history where the constraints began

    def __repr__(self) -> str:
        acting = [each for each in self._samplers if not each.neutral]
        idle = len(self._samplers) - len(acting)
        rest = f" ({idle} more {'does' if idle == 1 else 'do'} nothing)" if idle else ""
        return f"SamplerChain({acting!r}{rest}, seed={self.seed})"

    @property
    def constraints(self) -> list[host.Constrained]:
        """The constraints in their current state: that of ``grammar``, and those of the list."""
        native = self._native
        kernels: list[Any] = list(native.samplers)
        if isinstance(native, host.LlamaChain) and native.grammar is not None:
            kernels.insert(0, native.grammar)
        wanted = host.ConstraintSampler | host.LlamaConstraintSampler
        return [kernel.constrained for kernel in kernels if isinstance(kernel, wanted)]

    def jump_forward(self) -> bytes:
        """The text that the constraints force next; empty if they leave a choice or there are none."""
        forced: Any = self._native.read(self._forced)
        return bytes(max(forced, key=len, default=b""))

    def _forced(self) -> list[bytes]:
        return [c.constraint.jump_forward() for c in self.constraints if not c.constraint.waiting]

    @property
    def finished(self) -> bool:
        """Whether a constraint says that the text is complete, so that only its end may follow."""
        return bool(self._native.read(lambda: any(c.finished for c in self.constraints)))

    @property
    def position(self) -> int:
        """The number of tokens generated since the last reset, which keys the draws.  Can be set."""
        return self._native.position

    @position.setter
    def position(self, position: int) -> None:
        if isinstance(self._native, host.LlamaChain):
            raise ParameterError(
                "position",
                "with numerics='llama.cpp' a draw depends on how many came before it, so the position cannot "
                "be set: use reset, rollback, or numerics='portable'",
            )
        self._native.position = integer_in("position", position, 0, UNBOUNDED)

    @property
    def phases(self) -> list[str]:
        """The phase that drew each token of :attr:`history`; empty for a chain without phases."""
        phases = self._phases
        if phases is None:
            return []
        made: Any = self._native.read(lambda: phases.phases_of(self.kernels.samplers[-1]))
        return list(made)

    @property
    def phase(self) -> str:
        """The phase that draws the next token; "" for a chain without phases."""
        phases = self._phases
        if phases is None:
            return ""
        return str(self._native.read(lambda: phases.acting(self.kernels.samplers[-1])[0]))

    @property
    def present(self) -> SamplerChain:
        """The chain of the phase that draws the next token, in the same state; without phases, this chain."""
        phases = self._phases
        if phases is None:
            return self
        made = self.clone()
        native = made.kernels
        _, samplers = phases.acting(native.samplers[-1])
        made._samplers[-1:] = samplers
        made._native = native.present()
        return made

    text_start: int = forwarded(
        "_text_start",
        "The index in :attr:`history` where the text began; :meth:`restart` moves it.",
    )
    seconds: float = forwarded(
        "_native.seconds", "Time spent in :meth:`sample` since the last :meth:`reset_perf`."
    )
    n_sampled: int = forwarded(
        "_native.n_sampled", "Calls of :meth:`sample` since the last :meth:`reset_perf`."
    )

    @property
    def can_be_batched(self) -> bool:
        """Whether :func:`sample_batch` can run it: its numerics are portable and all its samplers native."""
        users = any(isinstance(sampler, UserSampler) for sampler in self._samplers)
        return isinstance(self._native, host.Chain) and not (users or self.constraints)

    @property
    def perf(self) -> Perf:
        """The number of tokens sampled since the last :meth:`reset_perf`, and the time they took."""
        return Perf(self._native.n_sampled, self._native.seconds)

    def free_scratch(self) -> None:
        """Free the memory in which :meth:`sample` sorts a row, 20 bytes per token of the vocabulary.

        The memory is allocated again when needed.  Does nothing while another thread samples.
        """
        self._native.free_scratch()

    def reset_perf(self) -> None:
        """Set the counters of :attr:`perf` to 0; :meth:`reset` and :meth:`state_read` do not."""
        self._native.reset_perf()

    def sample(self, logits: Any, row: int = -1) -> int:
        """Apply the chain to a row of logits, choose a token and accept it.

        Args:
            logits: shape ``[V]``, float32, float16 or bfloat16, contiguous, on the CPU (NumPy, torch, or
                anything with DLPack).  Not copied, not changed.
            row: if ``logits`` is a context: the index of a token in its last batch; a negative value counts
                back from the last token that asked for logits (``Context.logits``).

        Returns:
            The token.

        Raises:
            LogitsError: the shape or type is another, the row is empty, or no logit is finite; the chain is
                unchanged.
            NoLogits: the context has no logits of that token; names the tokens that have them.
        """
        logits = row_of(logits, row)
        try:
            return self._native.sample(logits)
        except TypeError:
            Candidates(logits)  # raises for another shape or type
            raise  # from a user's sampler

    def apply(self, candidates: Candidates) -> None:
        """Apply the samplers to candidates; accept nothing.

        A portable chain gives the same result each time.  With llama.cpp's numbers every call draws anew and
        moves mirostat's mu, and ``grammar`` has no effect: it tests what :meth:`sample` draws.

        Raises:
            ParameterError: the argument is not ``Candidates``, or has other numerics.
            LogitsError: no finite logit is left.
        """
        if not isinstance(candidates, Candidates):
            raise ParameterError(f"candidates={candidates!r:.60} are none: give Candidates(logits)")
        self._native.apply(candidates._native_for(self.numerics))

    def explain(self, logits: Any, vocab: Any = None, top: int = 10, row: int = -1) -> Explanation:
        """Explain what each sampler would remove, move and keep, and which token :meth:`sample` would choose.

        A copy of the chain is applied; the chain does not change.  ``print`` the result, or see its methods.

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

        if integer("top", top) < 0:
            raise ParameterError(f"top={top} is out of range: give 0 or more")
        logits = row_of(logits, row)
        return explain(self.present, logits, vocab, top, len(self.history), self.phase)

    def accept(self, token: int, generated: bool = False) -> None:
        """Append a token to the history.

        Args:
            token: its id, 0 to 16,777,215.
            generated: whether the token advances the position and belongs to the text that constraints check;
                false for prompt tokens.

        Raises:
            ParameterError: ``token`` is not an id.
            ConstraintError: a constraint does not allow the token; the chain is unchanged.
        """
        self._native.accept(token_id(token), generated)

    def accept_many(self, tokens: Iterable[int], generated: bool = False) -> None:
        """Append tokens to the history, as :meth:`accept` does one by one, in one call.

        Args:
            tokens: their ids, one-dimensional; a prompt.
            generated: as for :meth:`accept`, for all of them.

        Raises:
            ParameterError: one of them is not an id; the chain is unchanged.
            ConstraintError: a constraint does not allow one of them; the chain is unchanged.
        """
        self._native.accept_many(token_ids(tokens), generated)

    def rollback(self, n: int, replay: bool = True) -> None:
        """Take back the last ``n`` accepted tokens, exactly.

        Args:
            n: how many, 0 or more.
            replay: whether the next draws repeat those taken back.  If not, the position and llama.cpp's
                generators stay where they are, so that new tokens are drawn.

        Raises:
            ParameterError: ``n`` exceeds the history; a user's sampler in the chain has no ``rollback``; or,
                with ``replay``, it would go back past a :meth:`restart` (without ``replay``, constraints
                restart there).  The chain is unchanged.
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
        """Begin a new constrained text, as for the next answer of a conversation; all other state stays."""
        self._native.restart()
        self._text_start = len(self.history)

    def clone(self) -> SamplerChain:
        """Copy the chain with its state and seed; users' samplers are copied too."""
        copy = object.__new__(SamplerChain)
        copy.__dict__.update(self.__dict__)
        copy._native = self._native.clone()
        copy._samplers = list(self._samplers)
        own = [i for i, each in enumerate(self._samplers) if isinstance(each, UserSampler)]
        for i, adapter in zip(own, adapters_of(copy._native) if own else (), strict=False):
            copy._samplers[i] = UserSampler(adapter.user)
        return copy

    __copy__ = clone

    def __deepcopy__(self, memo: dict[int, Any]) -> SamplerChain:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        made = list(self), self.numerics, self._chain_seed, self.completion, self._grammar
        return _from_pickle, (*made, self._write(users=False))

    def state_write(self) -> bytes:
        """Return the chain's state, from which :meth:`state_read` of an equal chain can continue.

        It holds the accepted tokens, windows, mirostat's mu, the average of adaptive-p, generators, positions,
        the place in a grammar, what rollback needs, and what users' samplers return from ``state_write``.

        Raises:
            ParameterError: a sampler written in Python has no state methods; names it.
        """
        return self._write(users=True)

    def state_read(self, state: bytes) -> None:
        """Continue from a state, as the chain that wrote it would have continued.

        Args:
            state: what :meth:`state_write` returned; it is checked, as it may come from an untrusted source.

        Raises:
            ParameterError: it is not bytes, or a sampler written in Python has no state methods.
            StateError: it is damaged, from a later version, or from a chain with other samplers, parameters or
                seeds; says which.  The chain is unchanged.
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
        self._native.replace_with(fresh)  # type: ignore[arg-type]  # both are of this chain's numerics
        self._text_start = text_start

    @property
    def generated(self) -> list[bool]:
        """Whether each token of :attr:`history` was generated."""
        return [bool(flag) for flag in self._native.generated]

    def state_history(self, index: int) -> dict[str, Doubles]:
        """The state of the sampler at ``index`` besides the history, in the form that a device chain needs.

        For each name the value after each number of generated tokens, ``[position + 1]``; empty if the sampler
        does not adapt.
        """

        def read() -> tuple[dict[str, Any], list[bool]]:
            kernel = self.kernels.samplers[int(self._grammar is not None) + index]
            return self._samplers[index].state_history(kernel), self.generated

        found: Any = self._native.read(read)
        values, generated = found
        ends = [0, *(i for i, by_chain in enumerate(generated, start=1) if by_chain)]
        return {name: np.asarray(states, np.float64)[ends] for name, states in values.items()}

    def _write(self, users: bool) -> bytes:
        return pack(self._configuration(), self._text_start, self._native.write_state(users))

    def _configuration(self) -> Configuration:
        return Configuration.of(self.numerics, self.completion, self.all_with_places)


StandaloneSampler._chain_of = SamplerChain


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

    The tokens are those that ``chains[i].sample(logits[i])`` would return.

    Args:
        chains: One per row, all different, with portable numerics.
        logits: Shape ``[B, V]``, float32, float16 or bfloat16, on the CPU, each row contiguous; not copied.
        n_threads: 1 to 256; ``None`` is the number of processors.

    Raises:
        LogitsError: Names the row; then no chain has changed.
    """
    threads = pool(n_threads)
    natives = []
    if not isinstance(chains, Iterable):
        raise ParameterError(f"chains={chains!r:.60} is no list: give one chain for each row")
    for chain in chains:
        if not isinstance(chain, SamplerChain):
            raise ParameterError(f"chains: {chain!r:.60} is no SamplerChain")
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
