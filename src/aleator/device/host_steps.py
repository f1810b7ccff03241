"""The host's part for rows of a device chain: grammars before the device, samplers after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from aleator.core import host
from aleator.core.arrays import Floats
from aleator.core.errors import LogitsError
from aleator.device.candidates import NOTHING, DeviceCandidates
from aleator.device.report import Report
from aleator.samplers.chain import SamplerChain


def accept_all(
    chains: Iterable[host.Chain | SamplerChain], tokens: Sequence[int], generated: bool
) -> None:
    """Let chains accept tokens; if one refuses, no chain has accepted any."""
    given = np.array(tokens, np.int32)
    accepted = []
    try:
        for chain in chains:
            chain.accept_many(given, generated)
            accepted.append(chain)
    except BaseException:
        for chain in accepted:
            chain.rollback(len(given))
        raise


def mask_of(heads: Mapping[int, host.Chain], allowed: Tensor | None, like: Tensor) -> Tensor:
    """The tokens of ``allowed`` (None: of all) that rows' grammars allow next, int32 [B, words]."""
    batch, n_vocab = like.shape
    words = np.full((batch, -(-n_vocab // 32)), -1, np.int32)
    for row, head in heads.items():
        for kernel in head.samplers:
            if not isinstance(kernel, host.ConstraintSampler):
                continue
            constraint = kernel.constrained.constraint
            if not constraint.waiting:
                given = constraint.mask().view(np.int32)[: words.shape[1]]
                words[row] = 0
                words[row, : len(given)] = given
    made = torch.from_numpy(words).to(like.device)
    return made if allowed is None else made & allowed


def finish(
    data: DeviceCandidates,
    tails: Mapping[int, tuple[host.Chain, int]],
    n_vocab: int,
    tokens: Tensor,
    report: Report,
) -> None:
    """Let the host's samplers choose from the remaining candidates of some rows; write tokens, int64 [B].

    ``tails`` maps these rows to their samplers and their maximum number of candidates.
    """
    rows = list(tails)
    if not rows:
        return
    temperatures = data.temperature[rows].tolist()
    # Not data.order(): candidates masked since then keep their places there.
    most = min(max(bound for _, bound in tails.values()), data.current.shape[1])
    first = data.keys()[rows].topk(most, 1, sorted=False).indices
    ids = data.ids.expand_as(data.current)[rows].gather(1, first)
    columns, left = ids.cpu().numpy(), data.current[rows].gather(1, first).cpu().numpy()
    for i, (row, (tail, _)) in enumerate(tails.items()):
        z = np.full(n_vocab, -np.inf, np.float32)
        z[columns[i]] = left[i]
        native = applied(tail, z, temperatures[i])
        token = NOTHING
        if native is not None and native.selected is not None:
            token = native.selected
            tail.accept(token, True)
        tokens[row] = token
        report.after_on_host(row, native, token)


def applied(chain: host.Chain, z: Floats, temperature: float = 1.0) -> host.Candidates | None:
    """What a native chain leaves of a row with a pending temperature; None if nothing is left."""
    try:
        candidates = host.Candidates(z)
        if temperature != 1:
            host.Chain([host.Temperature(temperature, 0.0, 1.0)], 0).apply(candidates)
        chain.apply(candidates)
    except LogitsError:
        return None
    return candidates
