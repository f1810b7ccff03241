"""Probabilities after sampling (``post_sampling_probs``): what each token was drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aleator.core.errors import ParameterError
from aleator.generate.generation import Generation, writing_of
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain
from aleator.server.dialects.llama_results import shown
from aleator.text.vocabulary import Vocabulary

Told = tuple[dict[int, float], list[int]]
"""Probabilities of tokens, and which of them are the most probable, best first."""


class PostSampling:
    """Looks at what is left of the distribution before each draw; of several completions at once.

    A copy of the chain is applied, so the tokens are those of a request without this.

    Args:
        top: How many of the most probable tokens to tell.
        vocab: Their bytes.
    """

    def __init__(self, top: int, vocab: Vocabulary) -> None:
        self._top, self._vocab = top, vocab
        self._drawn: dict[int, list[Told]] = {}

    @classmethod
    def asked_for(
        cls, own: Mapping[str, Any], options: Mapping[str, Any], vocab: Vocabulary
    ) -> PostSampling | None:
        """What a request asks for; None: nothing of this kind.

        Args:
            own: The request's own fields.
            options: Of the generation.
            vocab: The tokens.

        Raises:
            ParameterError: It asks for it with options under which a token is not drawn from one distribution.
        """
        if not own["post_sampling_probs"] or not own["n_probs"]:
            return None
        constrained = any(
            options.get(name) is not None for name in ("grammar", "json_schema", "regex")
        )
        why = ""
        if options.get("banned_strings"):
            why = "banned_strings takes tokens back, and draws them anew"
        elif constrained and options.get("numerics") == "llama.cpp":
            why = "llama.cpp's numbers draw again where the grammar refuses a token"
        if why:
            raise ParameterError(
                "post_sampling_probs", f"post_sampling_probs=true: {why}: leave one of them out"
            )
        return cls(own["n_probs"], vocab)

    def __call__(self, chain: SamplerChain, logits: Any) -> None:
        """Called by the engine before a draw."""
        candidates = Candidates(logits)
        copy = chain.clone()
        copy.apply(candidates)
        ids, probs = candidates.ids, candidates.probs
        n = min(self._top, len(ids))
        some = np.argpartition(-probs, n - 1)[:n] if 0 < n < len(ids) else np.arange(n)
        some = some[np.lexsort((ids[some], -probs[some]))]
        best = [int(ids[i]) for i in some if probs[i] > 0]
        known = {int(ids[i]): float(probs[i]) for i in some}
        if candidates.selected is not None:
            known[candidates.selected] = float(probs[ids == candidates.selected][0])
        self._drawn.setdefault(id(chain), []).append((known, best))

    def told(self, generation: Generation, first: int, end: int) -> list[dict[str, Any]]:
        """``completion_probabilities`` of some of a completion's tokens.

        A token that nothing drew, as where a grammar is brought to its end, has probability 0.
        """
        drawn = self._drawn.get(id(generation.chain), [])[first:end]
        tokens = writing_of(generation).completion.tokens[first:end]
        return [
            self._entry(token, known.get(token, 0.0))
            | {"top_probs": [self._entry(each, known[each]) for each in best]}
            for token, (known, best) in zip(tokens, drawn, strict=False)
        ]

    def _entry(self, token: int, prob: float) -> dict[str, Any]:
        raw = self._vocab.token_bytes(token)
        return {"id": token, "token": shown(raw), "bytes": list(raw), "prob": prob}
