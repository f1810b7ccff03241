"""mlx-lm on the CPU: its logits drawn from by Aleator's chains, alone, with a draft model, and in a batch.

Run by tools/integrations.py in an environment with mlx[cpu], mlx-lm and Aleator.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs

from aleator.integrations.mlx import AleatorLogitsProcessor, AleatorSampler
from aleator.integrations.settings import sampling_params

V, N = 300, 30
GIVEN = {"preset": "llama.cpp", "repetition_penalty": 1.3, "temperature": 1.2}
PROMPTS = [[5, 6, 7, 5, 6], [9, 9], [20, 21, 22, 23, 24, 25, 26]]


def small_llama(layers: int = 2) -> Model:
    mx.random.seed(0)
    model = Model(
        ModelArgs(
            model_type="llama", hidden_size=32, num_hidden_layers=layers, intermediate_size=48,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, vocab_size=V,
        )
    )  # fmt: skip
    weights = {k: mx.random.normal(v.shape) * 0.3 for k, v in flat(model.parameters())}
    model.load_weights(list(weights.items()), strict=True)
    mx.eval(model.parameters())
    return model


def flat(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(tree, mx.array):
        return [(name, tree)]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [pair for k, v in items for pair in flat(v, f"{name}.{k}" if name else str(k))]


class Seen:
    """A processor before ours, which keeps the logits."""

    def __init__(self) -> None:
        self.rows: list[tuple[list[int], Any]] = []

    def __call__(self, tokens: Any, logits: Any) -> Any:
        self.rows.append((np.array(tokens).tolist(), np.array(logits.astype(mx.float32))[0]))
        return logits


def replay(seen: Seen, prompt: list[int], tokens: list[int], seed: int) -> None:
    """Aleator alone draws the same from what was seen of this text."""
    text = [*prompt, *tokens]
    rows = {len(t): row for t, row in seen.rows if t == text[: len(t)]}
    chain = sampling_params(GIVEN | {"seed": seed}, "mlx-lm").chain()
    chain.accept_many(prompt)
    for i, token in enumerate(tokens):
        assert chain.sample(rows[len(prompt) + i]) == token, i


def main() -> None:
    model = small_llama()
    alone = []
    for seed, prompt in enumerate(PROMPTS):
        seen, own = Seen(), AleatorLogitsProcessor(GIVEN | {"seed": seed})
        steps = generate_step(mx.array(prompt), model, max_tokens=N, logits_processors=[seen, own])
        alone.append([int(token) for token, _ in steps])
        replay(seen, prompt, alone[-1], seed)
    print(f"  logits processor: {len(PROMPTS)} texts of {N} tokens, drawn again alone: 0 differ")
    own = AleatorLogitsProcessor(GIVEN | {"seed": 0}, PROMPTS[0])
    steps = speculative_generate_step(
        mx.array(PROMPTS[0]), model, small_llama(1), max_tokens=N, num_draft_tokens=3,
        logits_processors=[own],
    )  # fmt: skip
    assert [int(step[0]) for step in steps] == alone[0]
    print("  with a draft model: the text is that without")
    seens = [Seen() for _ in PROMPTS]
    batch = BatchGenerator(model, max_tokens=N)
    names = batch.insert(
        PROMPTS, [N] * 3,
        logits_processors=[
            [seens[i], AleatorLogitsProcessor(GIVEN | {"seed": i})] for i in range(3)
        ],
    )  # fmt: skip
    texts: dict[int, list[int]] = {name: [] for name in names}
    while any(len(text) < N for text in texts.values()):
        answers = batch.next()
        if isinstance(answers, tuple):
            answers = [answer for part in answers for answer in part]
        for answer in answers:
            if hasattr(answer, "token"):
                texts[answer.uid].append(int(answer.token))
    for i, name in enumerate(names):
        replay(seens[i], PROMPTS[i], texts[name], i)
    equal = sum(texts[name] == alone[i] for i, name in enumerate(names))
    print(f"  a batch of 3, drawn again alone from its logits: 0 differ ({equal} texts as alone)")
    given = GIVEN | {"seed": 1, "repetition_penalty": 1.0, "frequency_penalty": 0.5}
    seen, own = Seen(), AleatorSampler(given, PROMPTS[1])
    steps = generate_step(
        mx.array(PROMPTS[1]), model, max_tokens=N, sampler=own, logits_processors=[seen]
    )
    tokens = [int(token) for token, _ in steps]
    chain = sampling_params(given, "mlx-lm").chain()
    chain.accept_many(PROMPTS[1])
    differ = sum(
        chain.sample(row) != token for (_, row), token in zip(seen.rows, tokens, strict=False)
    )
    print(
        f"  sampler, from log-probabilities: {differ} of {N} tokens differ from those on the logits"
    )


if __name__ == "__main__":
    print(f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}")
    main()
