"""A Llama of transformers with random weights, and what Aleator draws on its logits alone."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from aleator import SamplerChain

V = 307


def small_llama(seed: int = 0, layers: int = 2, spread: float = 0.4) -> Any:
    """A model in evaluation mode; ``spread``: deviation of its weights."""
    config = LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=spread, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def alone(model: Any, prompt: list[int], chain: SamplerChain, n: int) -> list[int]:
    """Tokens that a chain draws with the model, without a cache or a batch: computed anew for each token."""
    chain.accept_many(prompt)
    tokens = list(prompt)
    for _ in range(n):
        with torch.no_grad():
            row = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(chain.sample(row.float()))
    return tokens[len(prompt) :]


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts padded on the left with token 0, and their attention mask."""
    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask
