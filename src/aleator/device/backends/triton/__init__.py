"""Device chains and the operator in Triton (docs/device.md, docs/operator.md).

Logits are read once, to keep the largest of each tile of 128 tokens; the k largest lie in the k tiles with the
largest of these. ``choose``, a program per row, puts up to 1,024 candidates in order and runs all samplers on
them. Where these are not enough (flat rows, p = .999, a draw from all), ``whole`` bisects over the tiles: 17
passes, 27 where biases, penalties or masks touch the row. ``look_back`` makes a mask or biases of what looks at
a row's tokens (minimum length, bad words, n-grams, DRY). A row takes one of these paths:

- ``list``: biases, penalties, masks, bans, DRY and fixed temperatures, then greedy, a temperature of 0, or
  top-k up to 1,024, then anything: ``choose`` alone; ``group_masses`` too with a softmax before the top-k;
- ``window``: the same, then top-p or min-p without a top-k, then only those, top-k, fixed temperatures,
  softmax, greedy and the inverse draw: a list of the first 192, with the whole mass for top-p; if the prefix
  ends later, ``whole``;
- ``whole``: the same, then a draw from all, or a top-k above 1,024: a draw reads one group of 1,024 again;
- ``torch``, for the batch, of which this row takes its token: without a top-k before them typical-p, XTC,
  top-n-sigma, p-less, top-H, min-k, the epsilon and eta cut-offs, smoothing, mirostat 1 and 2, adaptive-p,
  dynamic temperature, the Gumbel race, ``draw="synthid"``; biases, penalties, bans or DRY after a temperature;
  users' samplers; samplers on the host. Reports on a path other than ``list``, and for greedy alone, take it
  too.
"""
