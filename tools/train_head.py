"""Train the bundled model's draft head: one layer in EAGLE-3's layout, which guesses what the model draws.

The head learns the model's distributions on texts that the model writes itself, after beginnings of many kinds.
Of greedy texts the most probable token counts as much as the distribution.  They are short, since later
tokens of such texts repeat earlier ones.  Each position is unrolled for several guesses, as they are made one
from the other (EAGLE-3, Li et al. 2025, arXiv:2503.01840).

    python tools/train_head.py --out head

The run is seeded: a processor of the same kind gives the same weights with the same number of threads.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from train_tiny import CORPUS, HELD_OUT, RMSNorm, Shape, TinyLlama

import aleator
from aleator.models.hub.bundled import bundled_model

TAPS = (2, 4, 6)
"""The layers whose inputs the head sees; 6: what the last one gives."""
HEADS, KV_HEADS, HEAD_DIM, N_FF, VOCAB = 4, 2, 32, 256, 1024
UNROLLED, FADING = 5, 0.8
"""Guesses of each position, and by how much each counts less than the one before."""
LENGTH, GROUP = 112, 192
"""Tokens of a text, and texts that are written together."""
TEMPERATURES, DRAWN = (0.0, 0.8, 0.0, 0.0), (0, 0, 4, 8, 16)
"""Temperatures of the groups, and how many tokens are drawn at temperature 1 before, for other beginnings."""
_OPENINGS = """
The people of the town were | I have a question about | In the middle of the night |
A man walked into the | My mother told me that | The best way to learn is | On the first day of school |
Please tell me how to | There is nothing so sweet as | Dear brother, I write to you because |
The sun was rising over the hills and | We must find a way to | Ten years ago, in a far country, |
What is the name of the | It is said that the king of | To make a good soup you |
Yesterday the council met and | The old captain looked at the sea. | Love is a strange thing, and |
If I were you, I would | The doctor said to the lady: | Here lies the body of |
Once there lived a poor woodcutter with | The war had lasted for seven years when |
Do not forget to bring | One, two, three, | When the rain had stopped, they | O gentle night, thou |
Alas, poor ghost! thou | Why do you weep, my child? |
Chapter the first. In which | She wrote in her book that | Rules of the house: no one may |
Sold to Mr. Brown: six apples, | Good evening, sir. I hope | To make bread, put the |
A dog and a cat were | Why is the sky so | Wanted: a strong young man who |
Dear friends, we are here to | Blow, wind, and let the | My love is like the |
Our ship came at last to the | First, second, and third,
"""
OPENINGS = [each.strip() for each in _OPENINGS.split("|")]
"""Beginnings that are not the corpus's."""


class Attention(nn.Module):
    """Queries, keys and values of an embedding and a hidden state side by side."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.dim = HEAD_DIM
        self.q_proj = nn.Linear(2 * s.n_embd, HEADS * self.dim, bias=False)
        self.k_proj = nn.Linear(2 * s.n_embd, KV_HEADS * self.dim, bias=False)
        self.v_proj = nn.Linear(2 * s.n_embd, KV_HEADS * self.dim, bias=False)
        self.o_proj = nn.Linear(HEADS * self.dim, s.n_embd, bias=False)

    def forward(
        self, x: torch.Tensor, ahead: int, cache: list[tuple[torch.Tensor, ...]], s: Shape
    ) -> torch.Tensor:
        """Guess number ``ahead`` of every position sees the positions before, and its own guesses before."""
        b, t, _ = x.shape
        angle = (torch.arange(t) + ahead)[:, None] * s.rope_theta ** (
            -torch.arange(0, self.dim, 2) / self.dim
        )

        def heads(y: torch.Tensor, n: int, rotated: bool) -> torch.Tensor:
            y = y.view(b, t, n, self.dim).transpose(1, 2)
            if rotated:
                first, second = y.chunk(2, -1)
                cos, sin = angle.cos(), angle.sin()
                y = torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
            return y.repeat_interleave(HEADS // n, 1)

        q = heads(self.q_proj(x), HEADS, True)
        cache.append(
            (heads(self.k_proj(x), KV_HEADS, True), heads(self.v_proj(x), KV_HEADS, False))
        )
        (k, v), own = cache[0], cache[1:]
        mask = torch.full((t, t), -math.inf).triu(1)
        scores = [q @ k.transpose(-1, -2) / math.sqrt(self.dim) + mask]
        scores += [(q * keys).sum(-1, keepdim=True) / math.sqrt(self.dim) for keys, _ in own]
        weights = torch.cat(scores, -1).softmax(-1)
        made = weights[..., :t] @ v
        for i, (_, values) in enumerate(own):
            made = made + weights[..., t + i : t + i + 1] * values
        out: torch.Tensor = self.o_proj(made.transpose(1, 2).reshape(b, t, -1))
        return out


class MLP(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.n_embd, N_FF, bias=False)
        self.up_proj = nn.Linear(s.n_embd, N_FF, bias=False)
        self.down_proj = nn.Linear(N_FF, s.n_embd, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.hidden_norm, self.input_layernorm = (
            RMSNorm(s.n_embd, s.rms_eps),
            RMSNorm(s.n_embd, s.rms_eps),
        )
        self.post_attention_layernorm = RMSNorm(s.n_embd, s.rms_eps)
        self.self_attn, self.mlp = Attention(s), MLP(s)


class Head(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.fc = nn.Linear(len(TAPS) * s.n_embd, s.n_embd, bias=False)
        self.midlayer = Layer(s)
        self.norm = RMSNorm(s.n_embd, s.rms_eps)
        self.lm_head = nn.Linear(s.n_embd, VOCAB, bias=False)

    def forward(
        self, features: torch.Tensor, embeddings: torch.Tensor, n: int
    ) -> list[torch.Tensor]:
        """The logits of ``n`` guesses [B, T, VOCAB]; ``embeddings`` [B, T + n - 1, n_embd] of next tokens."""
        layer, hidden, made = self.midlayer, self.fc(features), []
        cache: list[tuple[torch.Tensor, ...]] = []
        for ahead in range(n):
            now = embeddings[:, ahead : ahead + features.shape[1]]
            x = torch.cat((layer.input_layernorm(now), layer.hidden_norm(hidden)), -1)
            hidden = hidden + layer.self_attn(x, ahead, cache, self.s)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            made.append(self.lm_head(self.norm(hidden)))
        return made


@torch.no_grad()
def features_of(model: TinyLlama, texts: torch.Tensor) -> torch.Tensor:
    """The inputs of the layers TAPS, side by side, float16 [n, T, 3 n_embd]."""
    found = []
    for tokens in torch.split(texts, 16):
        x = model.token_embd(tokens)
        seen = [x]
        for block in model.blk:
            x = block(x, model.cos[: tokens.shape[1]], model.sin[: tokens.shape[1]])
            seen.append(x)
        found.append(torch.cat([seen[i] for i in TAPS], -1).half())
    return torch.cat(found)


def opening(corpus: str) -> str:
    """The beginning of a text: words of OPENINGS, or of the corpus from anywhere, a speech's, or its name."""
    at = random.randrange(len(corpus) - 400)
    speech = corpus[corpus.index("\n\n", at) + 2 :][: random.randrange(12, 120)]
    kind = random.randrange(4)
    if kind == 1:
        return speech
    if kind == 2:
        return speech.split("\n")[0] + "\n"
    words = random.choice(OPENINGS).split() if kind == 0 else corpus[at : at + 160].split()[1:]
    return " ".join(words[: random.randrange(2, 12)])


def written(
    model: aleator.LanguageModel, corpus: str, n_texts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of LENGTH tokens that the model writes, and which of them are greedy."""
    made: list[list[int]] = []
    greedy: list[bool] = []
    for i, first in enumerate(range(0, n_texts, GROUP)):
        temperature, drawn = TEMPERATURES[i % len(TEMPERATURES)], DRAWN[i % len(DRAWN)]
        texts = [[*model.prompt_tokens(opening(corpus))] for _ in range(GROUP)]
        for how, n in ((1.0, drawn), (temperature, LENGTH)):
            if n:
                more = model.generate_batch(
                    texts, max_tokens=n, temperature=how, seed=first, ignore_eos=True
                )
                texts = [[*text, *each.tokens] for text, each in zip(texts, more, strict=True)]
        made += [each[:LENGTH] for each in texts]
        greedy += [temperature == 0] * GROUP
        print(f"{len(made)} texts", flush=True)
    order = torch.randperm(len(made))
    return torch.tensor(made)[order], torch.tensor(greedy)[order]


def right(logits: list[torch.Tensor], wanted: torch.Tensor, ids: torch.Tensor) -> list[float]:
    """The share of guesses that are the model's best token, those after a wrong one counted as wrong."""
    alive, shares = torch.ones(wanted.shape[:2], dtype=torch.bool)[:, : logits[0].shape[1]], []
    for ahead, each in enumerate(logits):
        best = wanted[:, ahead : ahead + each.shape[1]]
        alive = alive & (ids[each.argmax(-1)] == best)
        shares.append(alive.float().mean().item())
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("src/aleator/data/shakespeare-eagle3"))
    parser.add_argument("--texts", type=int, default=1152, help=f"in groups of {GROUP}")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    began = time.monotonic()
    corpus = lzma.decompress(CORPUS.read_bytes()).decode()
    corpus = corpus[: corpus.rindex("\n\n", 0, int(len(corpus) * (1 - HELD_OUT)))]
    texts, greedy = written(aleator.load(n_threads=args.threads), corpus, args.texts)
    train(args, texts, greedy, began)


def train(
    args: argparse.Namespace, texts: torch.Tensor, greedy: torch.Tensor, began: float
) -> None:
    """Train a head on all texts but one in twelve, and write it."""
    s = Shape()
    model = TinyLlama(s, 0.0).eval()
    tensors = {t.name: t.data for t in gguf.GGUFReader(str(bundled_model())).tensors}
    model.load_state_dict({k: torch.tensor(v.astype(np.float32)) for k, v in tensors.items()})
    head = Head(s)
    counts = torch.bincount(texts.flatten(), minlength=s.n_vocab)  # the head has the most frequent
    ids = counts.argsort(descending=True, stable=True)[:VOCAB].sort().values
    with torch.no_grad():
        head.lm_head.weight.copy_(model.token_embd.weight[ids])
        head.norm.weight.copy_(model.output_norm.weight)
        head.fc.weight[:, -s.n_embd :] += torch.eye(s.n_embd)
    own = torch.full((s.n_vocab,), -1).index_put((ids,), torch.arange(VOCAB))  # the head's tokens
    n_held, size = len(texts) // 12, texts.shape[1] - UNROLLED - 1
    features = features_of(model, texts)
    n_parameters = sum(each.numel() for each in head.parameters())
    print(f"{n_parameters:,} parameters; {(time.monotonic() - began) / 60:.1f} min", flush=True)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01
    )

    def guesses(some: torch.Tensor, n: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        tokens, seen = texts[some], features[some].float()
        with torch.no_grad():
            embeddings = model.token_embd(tokens[:, 1 : size + n])
            states = model.output_norm(seen[:, 1 : size + n, -s.n_embd :])
            wanted = F.linear(states, model.token_embd.weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = head(seen[:, :size], embeddings, n)
        return [each.float() for each in made], wanted

    order: list[int] = []
    for step in range(args.steps):
        if len(order) < args.batch:
            order = (n_held + torch.randperm(len(texts) - n_held)).tolist()
        batch, order = torch.tensor(order[: args.batch]), order[args.batch :]
        rate = min(1.0, (step + 1) / 30, (args.steps - step) / (0.5 * args.steps))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        n = 1
        while n < UNROLLED and random.random() < FADING:
            n += 1
        made, wanted = guesses(batch, n)
        probable, best = wanted.softmax(-1)[..., ids], own[wanted.argmax(-1)]
        loss = torch.zeros(())
        for ahead, logits in enumerate(made):
            of, guessed = slice(ahead, ahead + size), logits.log_softmax(-1)
            lost = -(probable[:, of] * guessed).sum(-1)
            one = F.nll_loss(
                guessed.transpose(1, 2), best[:, of], ignore_index=-1, reduction="none"
            )
            loss = loss + torch.where(greedy[batch][:, None], (lost + one) / 2, lost).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == args.steps:
            with torch.no_grad():
                made, wanted = guesses(torch.arange(n_held), UNROLLED)
            for some, name in ((greedy[:n_held], "greedy"), (~greedy[:n_held], "drawn")):
                shares = right([each[some] for each in made], wanted[some].argmax(-1), ids)
                print(
                    f"step {step + 1} {name} {' '.join(f'{each:.3f}' for each in shares)}", end="  "
                )
            print(f"loss {loss.item():.3f}  {(time.monotonic() - began) / 60:.1f} min", flush=True)
    write(args.out, head, ids, s)


def write(folder: Path, head: Head, ids: torch.Tensor, s: Shape) -> None:
    """Write the head as EAGLE-3's are published: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().half().contiguous() for name, p in head.state_dict().items()}
    tensors["d2t"] = ids - torch.arange(VOCAB)
    tensors["t2d"] = torch.zeros(s.n_vocab, dtype=torch.bool).index_fill(0, ids, True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": s.n_embd, "intermediate_size": N_FF, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": s.n_vocab, "draft_vocab_size": VOCAB, "rms_norm_eps": s.rms_eps,
        "rope_theta": s.rope_theta, "max_position_embeddings": s.context, "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": TAPS,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
