"""Train the bundled model's draft head: one layer in EAGLE-3's layout, which guesses what the model draws.

The head learns the model's distributions, on the corpus of ``train_tiny.py`` and on texts that the model writes
itself.  Each position is unrolled for several guesses, as they are made one from the other (EAGLE-3, Li et al.
2025, arXiv:2503.01840).  The run is seeded.  A second one goes on from its weights, on whole texts after short
openings, most of them greedy, of which the most probable token counts as much as the distribution.

    python tools/train_head.py --out head
    python tools/train_head.py --after head --texts 320 --steps 400 --batch 6 --lr 1.5e-3
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
from safetensors.torch import load_file, save_file
from torch import nn
from train_tiny import CORPUS, HELD_OUT, RMSNorm, Shape, TinyLlama, scenes

import aleator
from aleator.models.hub.bundled import bundled_model

TAPS = (2, 4, 6)
"""The layers whose inputs the head sees; 6: what the last one gives."""
HEADS, KV_HEADS, HEAD_DIM, N_FF, VOCAB = 4, 2, 32, 256, 1024
UNROLLED = 4
WINDOW = 128
TEMPERATURES = (0.0, 0.8, 0.0, 0.5)
WHOLE, OF_WHOLE = 224, (0.0, 0.0, 0.0, 0.8, 0.8)
"""Tokens of a whole text, and the temperatures of these."""
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
Alas, poor ghost! thou | Why do you weep, my child?
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

    def forward(self, features: torch.Tensor, embeddings: torch.Tensor) -> list[torch.Tensor]:
        """The logits of each guess [B, T, VOCAB]; ``embeddings`` [B, T + UNROLLED - 1, n_embd] of next ones."""
        layer, hidden, made = self.midlayer, self.fc(features), []
        cache: list[tuple[torch.Tensor, ...]] = []
        for ahead in range(UNROLLED):
            now = embeddings[:, ahead : ahead + features.shape[1]]
            x = torch.cat((layer.input_layernorm(now), layer.hidden_norm(hidden)), -1)
            hidden = hidden + layer.self_attn(x, ahead, cache, self.s)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            made.append(self.lm_head(self.norm(hidden)))
        return made


@torch.no_grad()
def features_of(model: TinyLlama, windows: torch.Tensor) -> torch.Tensor:
    """The inputs of the layers TAPS, side by side, float16 [n, T, 3 n_embd]."""
    found = []
    for tokens in torch.split(windows, 16):
        x = model.token_embd(tokens)
        seen = [x]
        for block in model.blk:
            x = block(x, model.cos[: tokens.shape[1]], model.sin[: tokens.shape[1]])
            seen.append(x)
        found.append(torch.cat([seen[i] for i in TAPS], -1).half())
    return torch.cat(found)


def written(model: aleator.LanguageModel, parts: list[str], n_texts: int) -> list[list[int]]:
    """Texts that the model writes itself after beginnings of speeches."""
    speeches = [each for part in parts for each in part.strip().split("\n\n") if ":\n" in each]
    made: list[list[int]] = []
    for first in range(0, n_texts, 32):
        prompts = []
        for _ in range(min(32, n_texts - first)):
            words = random.choice(speeches)[:200]
            prompts.append(
                words[: random.randrange(words.index(":") + 1, len(words))]
                if ":" in words
                else words
            )
        texts = model.generate_batch(
            prompts, max_tokens=2 * WINDOW, temperature=TEMPERATURES[first // 32 % len(TEMPERATURES)],
            seed=first, ignore_eos=True,
        )  # fmt: skip
        made += [[*each.request.tokens, *each.tokens] for each in texts]
    return made


def opening(speeches: list[str], kind: int) -> str:
    """The beginning of a text: words of OPENINGS, a speech's first line and more, a line's words, or a name."""
    speech = random.choice(speeches)
    if kind == 0:
        words = random.choice(OPENINGS).split()
        return " ".join(words[: random.choice((len(words), random.randrange(2, 6)))])
    if kind == 1:
        start = speech[:120]
        return start[: random.randrange(start.index(":") + 1, len(start) + 1)]
    if kind == 2:
        words = random.choice(speech.split("\n")).split()
        return " ".join(words[: random.randrange(2, 8)]) or "The"
    return speech.split("\n")[0] + "\n"


def whole_texts(
    model: aleator.LanguageModel, parts: list[str], n_texts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of WHOLE tokens after openings, and which of them are greedy."""
    speeches = [each for part in parts for each in part.strip().split("\n\n") if ":\n" in each]
    made: list[list[int]] = []
    greedy: list[bool] = []
    for i, first in enumerate(range(0, n_texts, 32)):
        temperature = OF_WHOLE[i % len(OF_WHOLE)]
        prompts = [opening(speeches, kind % 4) for kind in range(32)]
        texts = model.generate_batch(
            prompts, max_tokens=WHOLE, temperature=temperature, seed=first, ignore_eos=True
        )
        made += [[*each.request.tokens, *each.tokens][:WHOLE] for each in texts]
        greedy += [temperature == 0] * len(texts)
    order = torch.randperm(len(made))
    return torch.tensor(made)[order], torch.tensor(greedy)[order]


def first_texts(
    model: aleator.LanguageModel, parts: list[str], n_texts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Windows of the model's texts and the corpus, those held out, and the head's tokens: the most frequent."""
    texts = written(model, parts, n_texts)
    corpus = [token for part in parts for token in model.tokenizer.encode(part)]
    size = WINDOW + UNROLLED + 1
    own = [token for each in texts for token in each]
    streams = [own[: len(own) * 19 // 20], corpus, own[len(own) * 19 // 20 :]]
    cut = [torch.tensor(each[: len(each) // size * size]).view(-1, size) for each in streams]
    chosen = torch.randperm(len(cut[1]))[: len(cut[0])]
    counts = torch.bincount(torch.tensor(own), minlength=len(model.vocab))
    ids = counts.argsort(descending=True, stable=True)[:VOCAB].sort().values
    return torch.cat((cut[0], cut[1][chosen])), cut[2], ids


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
    parser.add_argument("--texts", type=int, default=384, help="texts that the model writes itself")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--after", type=Path, help="a head whose weights the second run goes on from"
    )
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    s, began = Shape(), time.monotonic()
    model = TinyLlama(s, 0.0).eval()
    tensors = {t.name: t.data for t in gguf.GGUFReader(str(bundled_model())).tensors}
    model.load_state_dict({k: torch.tensor(v.astype(np.float32)) for k, v in tensors.items()})
    text = lzma.decompress(CORPUS.read_bytes()).decode()
    parts = scenes(text[: text.rindex("\n\n", 0, int(len(text) * (1 - HELD_OUT)))])
    whole = aleator.load(n_threads=torch.get_num_threads())
    head = Head(s)
    if args.after is None:
        windows, held, ids = first_texts(whole, parts, args.texts)
        greedy = torch.zeros(len(windows), dtype=torch.bool)
        with torch.no_grad():
            head.lm_head.weight.copy_(model.token_embd.weight[ids])
            head.norm.weight.copy_(model.output_norm.weight)
            head.fc.weight[:, -s.n_embd :] += torch.eye(s.n_embd)
    else:
        windows, greedy = whole_texts(whole, parts, args.texts)
        n = len(windows) // 8
        (held, windows), greedy = (windows[:n], windows[n:]), greedy[n:]
        weights = load_file(args.after / "model.safetensors")
        ids = weights.pop("d2t") + torch.arange(VOCAB)
        del weights["t2d"]
        head.load_state_dict({name: each.float() for name, each in weights.items()})
    own = torch.full((s.n_vocab,), -1).index_put((ids,), torch.arange(VOCAB))  # the head's tokens
    size = windows.shape[1] - UNROLLED - 1
    features, of_held = features_of(model, windows), features_of(model, held)
    print(
        f"{sum(p.numel() for p in head.parameters()):,} parameters; {windows.numel():,} tokens; "
        f"{(time.monotonic() - began) / 60:.1f} min",
        flush=True,
    )
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01
    )

    def guesses(
        tokens: torch.Tensor, seen: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        with torch.no_grad():
            embeddings = model.token_embd(tokens[:, 1 : size + UNROLLED])
            states = seen[:, 1 : size + UNROLLED, -s.n_embd :].float()
            wanted = F.linear(model.output_norm(states), model.token_embd.weight)
        return head(seen[:, :size].float(), embeddings), wanted

    order: list[int] = []
    for step in range(args.steps):
        if len(order) < args.batch:
            order = torch.randperm(len(windows)).tolist()
        batch, order = order[: args.batch], order[args.batch :]
        rate = min(1.0, (step + 1) / 50) * (
            0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        )
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        made, wanted = guesses(windows[batch], features[batch])
        loss = torch.zeros(())
        for ahead, logits in enumerate(made):
            now, guessed = wanted[:, ahead : ahead + size], logits.log_softmax(-1)
            lost = -(now.softmax(-1)[..., ids] * guessed).sum(-1)
            best = own[now.argmax(-1)]
            of_best = -guessed.gather(-1, best.clamp_min(0)[..., None])[..., 0] * (best >= 0)
            lost = torch.where(greedy[batch][:, None], (lost + of_best) / 2, lost)
            loss = loss + 0.8**ahead * lost.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            with torch.no_grad():
                made, wanted = guesses(held, of_held)
            shares = " ".join(f"{each:.3f}" for each in right(made, wanted.argmax(-1), ids))
            minutes = (time.monotonic() - began) / 60
            print(
                f"step {step + 1}  loss {loss.item():.4f}  right {shares}  {minutes:.1f} min",
                flush=True,
            )
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
