"""The parts under ``generate``: a context, batches, a sampler chain, and the loop by hand."""

import aleator
from aleator import samplers as S
from aleator.generate import Batch, Context

model = aleator.load()
context = Context(
    model, n_ctx=256, n_batch=64, n_ubatch=16, n_seq_max=1, type_k="f16", type_v="f16"
)
chain = aleator.SamplerChain(
    [S.TopK(top_k=40), S.TopP(top_p=0.95), S.Temperature(temperature=0.8), S.Dist(seed=1)]
)
print(chain.describe())

tokens = model.tokenizer.encode("ROMEO:")
for token in tokens:
    chain.accept(token)  # penalties see the prompt
rows = context.decode(Batch.one(tokens))  # logits of the last token: [1, V]

stream = model.tokenizer.stream()  # never half a character
for position in range(len(tokens), len(tokens) + 50):
    token = chain.sample(rows[0])
    if token in model.vocab.eog:
        break
    print(stream.push(token), end="", flush=True)
    batch = Batch()
    batch.add(token, position, [0], logits=True)
    rows = context.decode(batch)
print(
    f"\n[{context.cache!r}; {1e6 * chain.seconds / chain.n_sampled:.1f} us per token in the chain]"
)
