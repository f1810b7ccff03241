"""A sampler of your own, anywhere in a chain: here one that keeps what lies within two nats of the best."""

import numpy as np

import aleator
from aleator import samplers as S


class Close:
    """Keep tokens whose logit is at most ``distance`` below the largest."""

    name = "close"

    def __init__(self, distance: float) -> None:
        self.distance = distance

    def apply(self, candidates: aleator.Candidates) -> None:
        """Keep what is close."""
        best = candidates.logits.max()
        candidates.keep(candidates.ids[candidates.logits >= best - self.distance])


chain = aleator.SamplerChain([Close(2.0), S.Temperature(temperature=0.8), S.Dist()], seed=1)
logits = np.log(np.array([0.5, 0.3, 0.15, 0.04, 0.01], np.float32))
candidates = aleator.Candidates(logits)
chain.apply(candidates)
print("kept:", *sorted(candidates.ids.tolist()))
print("drawn:", *(chain.sample(logits) for _ in range(8)))
