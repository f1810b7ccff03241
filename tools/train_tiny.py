"""Train the bundled model: a small Llama on Shakespeare's plays, written as one GGUF.

Everything needed is in this repository: the text (``tools/data/tinyshakespeare.txt.xz``, public
domain) and this file.  The run is seeded; docs/bundled-model.md reports the losses it gave.

    python tools/train_tiny.py --out src/aleator/data/shakespeare.gguf

The corpus is one million characters, so a model large enough to write verse also memorises it.
Three things hold that back: dropout, weight decay, and BPE dropout (Provilkov et al. 2020,
arXiv:1910.13267), which re-tokenises the text differently in every epoch but the last few.  The weights
with the lowest held-out loss are the ones written.

Ctrl-C stops training and still writes the best weights so far; the GGUF is written beside its
destination and renamed, so a reader never sees half a file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

CORPUS = Path(__file__).parent / "data" / "tinyshakespeare.txt.xz"
END_OF_TEXT = "<|endoftext|>"
SPEECHES_PER_SCENE = 40
HELD_OUT = 0.1
# Each message becomes a speech.  A blank line ends a speech in the corpus, so it ends a turn here.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'ROMEO:\\n' + message['content'] | trim + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ 'JULIET:\\n' + message['content'] | trim + '\\n\\n' }}"
    "{% else %}{{ message['content'] | trim + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'JULIET:\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Dimensions of the model; the parameter count they give is printed at the start."""

    n_vocab: int = 2048
    n_layers: int = 6
    n_embd: int = 256
    n_heads: int = 4
    n_kv_heads: int = 2
    n_ff: int = 704
    context: int = 1024
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_heads


class RMSNorm(nn.Module):
    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    """One layer: grouped-query attention with interleaved rotary pairs, then SwiGLU."""

    def __init__(self, s: Shape, dropout: float) -> None:
        super().__init__()
        kv = s.n_kv_heads * s.head_dim
        self.attn_norm = RMSNorm(s.n_embd, s.rms_eps)
        self.attn_q = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.attn_k = nn.Linear(s.n_embd, kv, bias=False)
        self.attn_v = nn.Linear(s.n_embd, kv, bias=False)
        self.attn_output = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.ffn_norm = RMSNorm(s.n_embd, s.rms_eps)
        self.ffn_gate = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_up = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_down = nn.Linear(s.n_ff, s.n_embd, bias=False)
        self.s, self.dropout = s, dropout

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        s = self.s
        b, t, _ = x.shape
        h = self.attn_norm(x)
        q = rotate(self.attn_q(h).view(b, t, s.n_heads, s.head_dim), cos, sin).transpose(1, 2)
        k = rotate(self.attn_k(h).view(b, t, s.n_kv_heads, s.head_dim), cos, sin).transpose(1, 2)
        v = self.attn_v(h).view(b, t, s.n_kv_heads, s.head_dim).transpose(1, 2)
        groups = s.n_heads // s.n_kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = self.attn_output(a.transpose(1, 2).reshape(b, t, s.n_embd))
        x = x + F.dropout(a, self.dropout, self.training)
        h = self.ffn_norm(x)
        h = self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))
        return x + F.dropout(h, self.dropout, self.training)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate channel pairs (2i, 2i+1): the layout that GGUF's ``llama`` architecture stores."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class TinyLlama(nn.Module):
    def __init__(self, s: Shape, dropout: float) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(s.n_vocab, s.n_embd)
        self.blk = nn.ModuleList(Block(s, dropout) for _ in range(s.n_layers))
        self.output_norm = RMSNorm(s.n_embd, s.rms_eps)
        self.dropout = dropout
        angle = torch.arange(s.context)[:, None] * s.rope_theta ** (
            -torch.arange(0, s.head_dim, 2) / s.head_dim
        )
        self.cos, self.sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * s.n_layers) if deep else 1.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        t = tokens.shape[1]
        x = F.dropout(self.token_embd(tokens), self.dropout, self.training)
        for block in self.blk:
            x = block(x, self.cos[:t], self.sin[:t])
        return F.linear(self.output_norm(x), self.token_embd.weight)


def scenes(text: str) -> list[str]:
    """Cut the text into runs of whole speeches, each of which starts with a speaker's name."""
    speeches = text.strip().split("\n\n")
    return [
        "\n\n".join(speeches[i : i + SPEECHES_PER_SCENE]) + "\n\n"
        for i in range(0, len(speeches), SPEECHES_PER_SCENE)
    ]


def train_tokenizer(text: str, n_vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, parts: list[str], bpe_dropout: float | None) -> torch.Tensor:
    tokenizer.model.dropout = bpe_dropout
    end = int(tokenizer.token_to_id(END_OF_TEXT) or 0)
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(parts):
        ids.append(end)
        ids.extend(encoding.ids)
    ids.append(end)
    tokenizer.model.dropout = None
    return torch.tensor(ids)


@torch.no_grad()
def held_out_loss(model: TinyLlama, ids: torch.Tensor, context: int) -> float:
    """Mean nats per token over the whole held-out text in windows of ``context``."""
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, context):
        window = ids[start : start + context + 1]
        logits = model(window[None, :-1])
        total += F.cross_entropy(logits[0], window[1:], reduction="sum").item()
        count += len(window) - 1
    model.train()
    return total / count


def write_gguf(
    path: Path, s: Shape, state: dict[str, torch.Tensor], tokenizer: Tokenizer, about: str
) -> None:
    partial = path.with_suffix(".partial")
    w = gguf.GGUFWriter(str(partial), "llama")
    w.add_name("Aleator Shakespeare")
    w.add_description(about)
    w.add_license("MIT")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_context_length(s.context)
    w.add_embedding_length(s.n_embd)
    w.add_block_count(s.n_layers)
    w.add_feed_forward_length(s.n_ff)
    w.add_head_count(s.n_heads)
    w.add_head_count_kv(s.n_kv_heads)
    w.add_layer_norm_rms_eps(s.rms_eps)
    w.add_rope_dimension_count(s.head_dim)
    w.add_rope_freq_base(s.rope_theta)
    w.add_vocab_size(s.n_vocab)
    spec = json.loads(tokenizer.to_str())
    vocabulary = sorted(spec["model"]["vocab"].items(), key=lambda item: item[1])
    end = tokenizer.token_to_id(END_OF_TEXT)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([token for token, _ in vocabulary])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    w.add_token_types([control if i == end else normal for _, i in vocabulary])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]])
    w.add_bos_token_id(end)
    w.add_eos_token_id(end)
    w.add_add_bos_token(True)
    w.add_chat_template(CHAT_TEMPLATE)
    # Not a llama.cpp key: the strings that end a turn, for templates without an end-of-turn token.
    w.add_array("aleator.chat.stop", ["\n\n"])
    for name, tensor in state.items():
        array = tensor.detach().numpy()
        w.add_tensor(name, array.astype(np.float16) if array.ndim == 2 else array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("src/aleator/data/shakespeare.gguf"))
    parser.add_argument("--log", type=Path, help="write the loss curve here as CSV")
    parser.add_argument(
        "--init", type=Path, help="start from the weights of this GGUF of the same shape"
    )
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch", type=int, default=4, help="windows per step (default 4)")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--bpe-dropout", type=float, default=0.05)
    parser.add_argument(
        "--settle", type=int, default=4, help="last epochs, on the text as it is tokenised for use"
    )
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=int, default=5, help="epochs without improvement")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    s = Shape()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = lzma.decompress(CORPUS.read_bytes()).decode()
    cut = text.rindex("\n\n", 0, int(len(text) * (1 - HELD_OUT)))
    train_parts, held_parts = scenes(text[:cut]), scenes(text[cut:])
    tokenizer = train_tokenizer(text[:cut], s.n_vocab)
    held = encode(tokenizer, held_parts, None)
    held_characters = sum(map(len, held_parts))
    model = TinyLlama(s, args.dropout)
    if args.init:
        tensors = {t.name: t.data for t in gguf.GGUFReader(str(args.init)).tensors}
        model.load_state_dict({k: torch.tensor(v.astype(np.float32)) for k, v in tensors.items()})
    n_parameters = sum(p.numel() for p in model.parameters())
    epoch_tokens = len(encode(tokenizer, train_parts, None))
    steps_per_epoch = max(1, epoch_tokens // (args.batch * s.context))
    n_steps = args.epochs * steps_per_epoch
    print(
        f"{n_parameters:,} parameters; {epoch_tokens:,} training tokens, {len(held):,} held out "
        f"({held_characters / len(held):.2f} characters per token); {steps_per_epoch} steps/epoch",
        flush=True,
    )
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": args.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=args.lr,
        betas=(0.9, 0.98),
        fused=True,
    )
    best, best_epoch, step, curve = math.inf, 0, 0, []
    best_state = {k: v.clone() for k, v in model.state_dict().items()}
    began = time.monotonic()
    try:
        for epoch in range(1, args.epochs + 1):
            settling = epoch > args.epochs - args.settle
            ids = encode(tokenizer, train_parts, None if settling else args.bpe_dropout)
            offset = random.randrange(s.context)
            starts = list(range(offset, len(ids) - s.context - 1, s.context))
            random.shuffle(starts)
            running, batches = 0.0, 0
            for i in range(0, len(starts) - args.batch + 1, args.batch):
                x = torch.stack([ids[p : p + s.context + 1] for p in starts[i : i + args.batch]])
                warm = min(1.0, (step + 1) / 60)
                cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / n_steps)))
                for group in optimizer.param_groups:
                    group["lr"] = args.lr * warm * (0.02 + 0.98 * cosine)
                logits = model(x[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                running, batches, step = running + loss.item(), batches + 1, step + 1
            loss_held = held_out_loss(model, held, s.context)
            per_character = loss_held * len(held) / held_characters
            minutes = (time.monotonic() - began) / 60
            curve.append((epoch, step, running / batches, loss_held, per_character, minutes))
            print(
                f"epoch {epoch:2d}  step {step:5d}  train {running / batches:.4f}  "
                f"held-out {loss_held:.4f} nats/token  {per_character:.4f} nats/character  "
                f"{minutes:.1f} min",
                flush=True,
            )
            if loss_held < best:
                best, best_epoch = loss_held, epoch
                best_state = {k: v.clone() for k, v in model.state_dict().items()}
            elif epoch - best_epoch >= args.patience:
                print("held-out loss stopped falling", flush=True)
                break
    except KeyboardInterrupt:
        print("interrupted: writing the best weights so far", flush=True)
    about = (
        f"Llama architecture, {n_parameters:,} parameters, trained on Shakespeare's plays "
        f"(public domain); held-out loss {best:.3f} nats/token"
    )
    write_gguf(args.out, s, best_state, tokenizer, about)
    if args.log:
        header = "epoch,step,train_nats,held_out_nats,held_out_nats_per_character,minutes"
        rows = [f"{a},{b},{c:.4f},{d:.4f},{e:.4f},{f:.2f}" for a, b, c, d, e, f in curve]
        args.log.write_text("\n".join([header, *rows]) + "\n")
    size = args.out.stat().st_size / 2**20
    print(f"{args.out}: {size:.2f} MiB, epoch {best_epoch}, held-out {best:.4f} nats/token")


if __name__ == "__main__":
    main()
