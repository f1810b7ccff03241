"""Tensor parallelism: an output layer that is split over two processes of torch.distributed.

Each process computes the logits of its own half of the vocabulary.  ShardedChain draws the tokens that one
process would draw from all of them, and says how many bytes a token costs.  This runs on the CPU with gloo.
With backend="nccl" and tensors on CUDA devices the code is the same; that was not run.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import aleator
from aleator.generate import Batch, Context

RANKS, TOKENS = 2, 16
PROMPTS = ["ROMEO:\n", "JULIET:\n", "NURSE:\n"]
PARAMS = aleator.SamplingParams(temperature=0.8, top_k=40, top_p=0.95, repetition_penalty=1.1)


def output_layer(model: aleator.LanguageModel) -> torch.Tensor:
    """The matrix [V, n_embd] that makes logits of hidden states."""
    tied = "output.weight" not in model.weights
    return torch.from_numpy(
        model.weights.floats("token_embd.weight" if tied else "output.weight").copy()
    )


def hidden_states(context: Context, texts: list[list[int]], first: list[int]) -> torch.Tensor:
    """Those of each text's last token [rows, n_embd]; tokens before ``first`` are in the cache."""
    batch = Batch()
    for row, text in enumerate(texts):
        for at in range(first[row], len(text)):
            batch.add(text[at], at, [row], logits=at == len(text) - 1)
    return torch.from_numpy(np.asarray(context.decode(batch)))


def work(rank: int, meeting: str) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model = aleator.load(n_threads=1)
    whole = output_layer(model)
    n_vocab = len(whole)
    bounds = [n_vocab * i // RANKS for i in range(RANKS + 1)]
    own = whole[bounds[rank] : bounds[rank + 1]]  # a large model would read no more than this
    context = Context(model, n_ctx=512, n_seq_max=len(PROMPTS), embeddings=True)
    texts = [list(model.prompt_tokens(prompt)) for prompt in PROMPTS]
    chains = [PARAMS.replace(seed=row).chain(model.tokenizer) for row in range(len(PROMPTS))]
    for chain, text in zip(chains, texts, strict=True):
        chain.accept_many(text)
    sharded = aleator.ShardedChain(
        PARAMS.replace(seed=0).chain(model.tokenizer), len(PROMPTS), n_vocab, first=bounds[rank]
    )
    for row, chain in enumerate(chains):
        sharded.set_row(row, chain)
    first, exchanged, equal = [0] * len(PROMPTS), 0, True
    for _ in range(TOKENS):
        hidden = hidden_states(context, texts, first)
        drawn: list[Any] = sharded.sample(hidden @ own.T).tolist()
        exchanged += sharded.exchanged
        # Only for the comparison: this process has the whole layer, and draws from all logits.
        parts = [hidden @ whole[a:b].T for a, b in pairwise(bounds)]
        rows = torch.cat(parts, 1)
        equal &= drawn == [chain.sample(row) for chain, row in zip(chains, rows, strict=True)]
        first = [len(text) for text in texts]
        for text, token in zip(texts, drawn, strict=True):
            text.append(token)
    if rank == 0:
        for text in texts:
            print(repr(model.tokenizer.decode(text)))
        print(
            f"a rank sends {exchanged / TOKENS:.0f} bytes for each token; its logits are {4 * len(own)}"
        )
        print("the tokens of one process:", equal)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, args=(str(Path(folder) / "meeting"),), nprocs=RANKS)  # type: ignore[no-untyped-call]
