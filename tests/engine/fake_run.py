"""A context without a model, whose texts are easy to foretell, and runs of it."""

from __future__ import annotations

import codecs
from typing import Any

import numpy as np

from aleator.cache.devices import CPU
from aleator.engine.run import Run
from aleator.generate.completion import Request
from aleator.generate.context import Batch
from aleator.generate.options import GenerateOptions
from aleator.generate.request_state import RequestState
from aleator.generate.sequence_adapters import SequenceAdapters
from aleator.models.adapters import Adapters
from aleator.samplers import SamplingParams

N_VOCAB = 30
EOG = 26
BYTES = [bytes([0x61 + i]) for i in range(26)] + [b"<end>", b"\xc3", b"\xa9", b"\n"]


class Detokenizer:
    eog = frozenset([EOG])
    has_text = True

    def require_text(self, what: str) -> None:
        pass

    def __len__(self) -> int:
        return N_VOCAB

    def token_bytes(self, token: int) -> bytes:
        return BYTES[token]


class Stream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return "" if token == EOG else self._decoder.decode(BYTES[token])

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class Cache:
    """Sequences as plain lists; a cell is a list of one position, shared after seq_cp."""

    pool = None

    def __init__(self) -> None:
        self.seqs: dict[int, list[list[int]]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.copies = 0
        self.kept: dict[tuple[int, ...], list[list[int]]] = {}
        self.shifted: dict[str, list[int]] = {}

    def keep(self, seq: int, tokens: list[int], namespace: str = "") -> bool:
        assert self.tokens[seq][: len(tokens)] == tokens
        if namespace:
            self.shifted[namespace] = list(tokens)
            return True
        self.kept[tuple(tokens)] = self.seqs[seq][: len(tokens)]
        return True

    def reuse(self, seq: int, tokens: tuple[int, ...], namespace: str = "") -> int:
        assert not self.tokens.get(seq)
        assert namespace == ""
        shared = max((shared_length(tokens[:-1], text) for text in self.kept), default=0)
        self.tokens[seq] = list(tokens[:shared])
        self.seqs[seq] = [[pos] for pos in range(shared)]
        return shared

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        assert (max(p0, 0), p1) == (0, -1)
        self.copies += 1
        self.seqs[dst], self.tokens[dst] = list(self.seqs[src]), list(self.tokens[src])

    def unshare(self, seq: int) -> None:
        pass

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        held = self.seqs.get(seq, [])
        p0, p1 = max(p0, 0), len(held) if p1 < 0 else p1
        del held[p0:p1]
        del self.tokens.get(seq, [])[p0:p1]

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        for cell in self.seqs[seq]:
            if p0 <= cell[0] < p1:
                cell[0] += delta

    def used(self) -> int:
        return len({id(cell) for cells in self.seqs.values() for cell in cells})


def shared_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


class FakeContext:
    """Logits that depend on all tokens of the sequence and nothing else."""

    def __init__(self, n_ubatch: int = 4) -> None:
        self.n_ubatch, self.cache = n_ubatch, Cache()
        self.device = CPU
        self.idle_chains: dict[Any, Any] = {}
        self.adapters = SequenceAdapters(Adapters())
        self.most_used = self.decoded = 0
        self.fail_at: int | None = None
        self.n_seq_max = 9
        self.script: list[int] = []

    def decode(self, batch: Batch) -> Any:
        rows = []
        for token, pos, (seq,), wanted in zip(
            batch.tokens, batch.positions, batch.sequences, batch.logits, strict=True
        ):
            if self.decoded == self.fail_at:
                raise RuntimeError("the device is gone")
            cells = self.cache.seqs.setdefault(seq, [])
            assert pos == (cells[-1][0] + 1 if cells else 0) == len(cells)
            cells.append([pos])
            tokens = self.cache.tokens.setdefault(seq, [])
            tokens.append(token)
            self.decoded += 1
            if wanted:
                rows.append(self.logits(tokens))
        self.most_used = max(self.most_used, self.cache.used())
        # Two more rows than there are tokens, and likelier than all: padding of the output matrix.
        padded = np.full((len(rows), N_VOCAB + 2), 99.0, np.float32)
        padded[:, :N_VOCAB] = np.reshape(rows, (len(rows), N_VOCAB))
        return padded

    def logits(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        if self.script:
            row = np.zeros(N_VOCAB)
            row[self.script.pop(0)] = 50.0
            return row
        row = 3.0 * np.random.default_rng(tokens).standard_normal(N_VOCAB)
        row[EOG] = -50.0
        return row


def state(prompt: str = "romeo", completion: int = 0, **options: Any) -> RequestState:
    own = {name: options.pop(name) for name in ("n_keep", "echo") if name in options}
    tokens = tuple(letter - 0x61 for letter in prompt.encode())
    params = SamplingParams(temperature=0.9, seed=5)
    chain = params.chain(completion=completion)
    for token in tokens:
        chain.accept(token)
    asked = Request(tokens, params, GenerateOptions(**options), completion, **own)
    return RequestState(asked, chain, Stream(), Detokenizer())


def run(context: FakeContext, *states: RequestState, n_ctx: int = 64, progress: Any = None) -> Run:
    fake: Any = context
    return Run(fake, states, Detokenizer(), n_ctx, progress)


def single(prompt: str = "romeo", completion: int = 0, n_ctx: int = 64, **options: Any) -> Any:
    return run(FakeContext(), state(prompt, completion, **options), n_ctx=n_ctx).generations[0]


def scripted(script: list[int], n_ctx: int = 64, **options: Any) -> Any:
    context = FakeContext()
    context.script = list(script)
    return run(context, state(**options), n_ctx=n_ctx).generations[0]
