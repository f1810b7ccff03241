"""A sampler used by itself: it behaves as a chain of itself, and that chain holds the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from aleator.samplers.candidates import Candidates
    from aleator.samplers.chain import SamplerChain


class Alone:
    """llama.cpp's interface of a sampler: ``name``, ``apply``, ``accept``, ``reset``, ``clone``.

    A sampler itself is parameters, which never change.  What these methods change is in the chain that
    :meth:`alone` gives, the same for all who hold this very object.  Chains that the sampler is put into have
    states of their own, and so has an equal sampler.  ``copy.copy`` and ``copy.deepcopy`` copy the state, as
    :meth:`clone` does; a pickle holds the parameters only.
    """

    _chain_of: ClassVar[type[SamplerChain]]  # chain.py sets it, for a chain is made of samplers
    _alone: ClassVar[Mapping[str, SamplerChain]] = {}  # by numerics; an instance's own, once needed

    def alone(self, numerics: str = "portable") -> SamplerChain:
        """The chain of this sampler alone: its state, seed and position.

        Made when it is first needed; it has accepted what the sampler has.

        Args:
            numerics: "portable" or "llama.cpp"; there is a chain for each.

        Raises:
            ParameterError: there can be no such chain.
        """
        found = self._alone.get(numerics)
        if found is None:
            found = self._chain_of([self], numerics)
            for other in self._alone.values():
                for token, generated in zip(other.history, other.generated, strict=True):
                    found.accept(token, generated)
            vars(self)["_alone"] = {**self._alone, numerics: found}
        return found

    def apply(self, candidates: Candidates) -> None:
        """Apply the sampler to candidates, with their numerics: portable where none are decided.

        As :meth:`aleator.SamplerChain.apply`.
        """
        self.alone(getattr(candidates, "numerics", None) or "portable").apply(candidates)

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
        for chain in self._alone.values():
            chain.reset()

    def clone(self) -> Self:
        """An equal sampler with a copy of the state and of the seed in use."""
        made = object.__new__(type(self))
        chains = {numerics: chain.clone() for numerics, chain in self._alone.items()}
        vars(made).update(vars(self), _alone=chains)
        return made

    def __copy__(self) -> Self:
        return self.clone() if self._alone else self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_alone"}

    def _chains(self) -> list[SamplerChain]:
        return list(self._alone.values()) or [self.alone()]
