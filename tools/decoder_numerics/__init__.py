"""The NumPy code that defines the decoder's bits (docs/numerics.md, part 2), for tests and tools.

Native code must give these bits on every instruction set, for any number of tokens and threads.

What each kind of layer computes with these functions:

- *Encoders* of bert's kind add the vectors of segment and position, in this order, to a token's embedding, and
  normalise each sum of the residual stream.
- *Embeddings for each layer* (gemma4): y = (rms_norm(p * fl32(1 / fl32(sqrt(width)))) + e * fl32(sqrt(n))) *
  fl32(1 / sqrt 2), p the product of the model's projection with the embedding, n numbers for each layer, e the
  table's row. A layer adds rms_norm(W2 (gate(W1 x) * y)). Last, its output is multiplied by its own factor, if
  it has one.
- *Queries and keys* are clamped, then normalised, then rotated (or rotated, then normalised). Queries are then
  multiplied by a factor of their position, fl32(1 + rate * ln(1 + floor(p / context))), with the logarithm
  correctly rounded to float64.
- *Attention* of one query goes over the cells that it sees, in the order of their positions (``attention``).
  Keys and values are what the cache's bytes stand for, each element rounded once. After a shift by d, the query
  is rotated back by d for that key. With ``k_storage="raw"`` keys are rotated as they are read.
- *Compressed keys and values*: ``latent_attention``. If the cache holds the compressed ones, a head's query is
  the product of its other channels with its ``attn_k_b``, followed by its rotated channels; values are the
  first channels of the keys; a head's output is the product of what attention gives it with its ``attn_v_b``.
- *A mixture of experts*: the router's logits are products as above; ``route`` chooses (of equal scores the
  lower number) and weighs, ``mixture`` adds outputs in the order of the choice, the shared expert last.
- *Experts beside a dense part* (gemma4): router, experts and dense part take RMS norms of the same row; the
  router's norm has the weights fl32(w * fl32(1 / sqrt(width))). The outputs of experts and dense part are
  normalised, each by itself, and added, dense part first.
- *Recurrent layers*: ``convolve``, then ``scan``, with fma(d, u, y) * silu(gate) at the end. A *short
  convolution* is conv(B * x) without silu, its product with C, each one rounding.
- *Heads with one decay each* (mamba2 and its kind): ``scan_heads``. The time step is softplus(projected +
  bias), and at least the model's smallest. The output is multiplied by the gate and then, if there is a norm,
  normalised group by group. In a layer with attention too, attention's output is added to the residual stream
  first.
- *Gated delta nets*: queries, keys and values are convolved without a bias. A key is multiplied by 1 /
  sqrt(dot16(k, k) + eps), a query by fl32(1 / sqrt(dim)) / sqrt(dot16(q, q) + eps); then ``beta_of``,
  ``decay_of``, ``delta_rule``, ``gated_norm``, and ``sigmoid_gate`` of gated attention. With a decay for each
  channel (kimi-linear) gates and decays are products of products, and heads are RMS-normalised and go through
  ``sigmoid_gate``.
"""
