"""Edit the KV cache: branch a text in two, and forget a part of it without computing it anew."""

import numpy as np
import numpy.typing as npt

import aleator
from aleator.generate import Batch

model = aleator.load(type_k="f32", type_v="f32")
context = model.context(n_ctx=256, n_seq_max=2)
cache = context.cache


def greedy(seq: int, row: npt.NDArray[np.float32], n: int) -> str:
    """The next ``n`` tokens of a sequence, each the most probable."""
    tokens = []
    for _ in range(n):
        tokens.append(int(row.argmax()))
        row = context.decode(Batch.one(tokens[-1:], seq=seq))[0]
    return model.tokenizer.decode(tokens)


# One prompt, prefilled once; sequence 1 shares its cells and goes its own way.
prompt = model.tokenizer.encode("JULIET:\nO Romeo, Romeo! wherefore art thou")
first = context.decode(Batch.one(prompt))[0]
cache.seq_cp(0, 1, 0, -1)
print("two sequences:", cache)
nurse = model.tokenizer.encode(" gone?\n\nNurse:\n", add_special=False)
second = context.decode(Batch.one(nurse, seq=1))[0]
print("0:", repr(greedy(0, first, 12)))
print("1:", repr(greedy(1, second, 12)))

# Forget all but the first token and the newer half of sequence 1; the rest moves up.
cache.seq_keep(1)
end = cache.seq_pos_max(1) + 1
forget = (end - 1) // 2
cache.seq_rm(1, 1, 1 + forget)
cache.seq_add(1, 1 + forget, end, -forget)
print(f"{end} positions became {cache.seq_pos_max(1) + 1}")
last = model.tokenizer.encode("\n", add_special=False)
print("1 goes on:", repr(greedy(1, context.decode(Batch.one(last, seq=1))[0], 12)))
