"""A toy policy gradient: the bundled model learns to like a letter, by a bias of its logits.

Texts are drawn with top-k and a temperature.  A gradient that forgets these learns from a distribution that
nobody drew from: `kept=True` gives, for each token, which tokens were left and the log-probability among them.
Each batch is used twice, so the second step corrects with importance ratios, clipped as in PPO.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import aleator

LETTER, TEMPERATURE, TOP_K = "o", 0.9, 30
BATCHES, TEXTS, TOKENS, RATE, CLIP = 8, 12, 24, 20.0, 0.5

model = aleator.load(n_threads=1)
reward_of = np.array(
    [model.vocab.token_bytes(i).count(LETTER.encode()) for i in range(len(model.vocab))]
)


def keep(rows: list[np.ndarray], chain: aleator.SamplerChain, row: Any) -> None:
    """Keep the logits that a token is drawn from."""
    rows.append(row.copy())


bias = np.zeros(len(model.vocab))  # what is learnt
rewards = []
with model.engine(n_seq_max=TEXTS) as engine:
    for batch in range(BATCHES):
        rows: list[list[np.ndarray]] = [[] for _ in range(TEXTS)]
        learnt = {token: float(value) for token, value in enumerate(bias)}
        params = aleator.SamplingParams(
            temperature=TEMPERATURE, top_k=TOP_K, logit_bias=learnt, samplers="top_k;temperature"
        )
        made = [
            engine.submit(
                "ROMEO:\n", max_tokens=TOKENS, ignore_eos=True, params=params, seed=1000 * batch + i,
                logprobs=0, kept=True, on_logits=partial(keep, rows[i]),
            )
            for i in range(TEXTS)
        ]  # fmt: skip
        drawn = np.array([text.tokens for text in made])
        rewards.append(reward_of[drawn].sum(1).mean())
        advantage = reward_of[drawn] - reward_of[drawn].mean()  # of each token by itself
        for _ in range(2):
            gradient, ratios = np.zeros_like(bias), []
            for text, logits, gains in zip(made, rows, advantage, strict=True):
                kepts = [each.kept for each in text.logprobs or [] if each.kept is not None]
                for token, row, kept, gain in zip(text.tokens, logits, kepts, gains, strict=True):
                    ids = kept.ids  # the distribution drawn from has these tokens and no others
                    z = (row[ids].astype(float) + bias[ids]) / TEMPERATURE
                    logprobs = z - z.max() - np.log(np.exp(z - z.max()).sum())
                    ratio = np.exp(logprobs[ids == token][0] - kept.logprob)
                    ratios.append(ratio)
                    if abs(ratio - 1) < CLIP or (ratio - 1) * gain < 0:
                        gradient[ids] -= gain * ratio * np.exp(logprobs) / TEMPERATURE
                        gradient[token] += gain * ratio / TEMPERATURE
            bias += RATE * gradient / (TEXTS * TOKENS)
print(f"letters {LETTER!r} in a text, batch by batch:", " ".join(f"{each:.1f}" for each in rewards))
print(
    f"importance ratios of the last batch: mean {np.mean(ratios):.3f}, {min(ratios):.2f} to {max(ratios):.2f}"
)
