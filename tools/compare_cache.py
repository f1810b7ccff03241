"""Random scripts on aleator's cache and llama.cpp's, live: codes, positions, logits, and states exchanged.

    python tools/compare_cache.py                    100 scripts
    python tools/compare_cache.py --seeds 40 80 -v   these seeds, one line each

Needs llama-cpp-python (the extra ``bench``); nothing is kept.  Each script has a random small model (llama,
qwen2 or qwen3) and cache (types, layout, one pool or streams).  It draws decodes of one, several and shared
sequences, of wrong positions and of too many tokens, removals, copies, shifts, divisions, and states, whole or
of a sequence, which both sides then read.  After each operation codes, positions and everything in a state
except the numbers of K and V must be equal, and a state that was read must be written back byte for byte.
Logits are compared with a third cache, llama.cpp's in float32: averaged over a script, ours may be at most 1.15
times as far from it as llama.cpp's own of the same types, and in no decode far.

Every fifth script is of a qwen2vl, with pictures among the texts; no such model is computed here, so only the
caches are compared, not logits.

Faults of llama.cpp 0.5 are left out: states while a shift or a copy is pending (``seq_cp`` with streams
copies late: a save in between is stale, and what is restored is overwritten; a save between ``seq_add`` and the
next decode is wrong), others that ``seq_keep`` with streams leaves, the direction in which ``seq_div`` rotates
(made of shifts here; d = 0 ends the process), keys in blocks that it cannot rotate.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from golden_cache import Twins, operation, update_twins
from golden_state import SECTIONS, Case, decode_embeddings, opened
from llama_peer import Context as LlamaContext
from make_models import Spec, write_model

from aleator.cache import KVCache, LayerShape
from aleator.core.errors import CacheError, CacheFull
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights

N_SEQ, SHARE = 4, 256
ROUNDING = {"f32": 2e-5, "f16": 2e-3, "bf16": 1e-2, "q8_0": 5e-3, "q4_0": 5e-2}
"""Approximate effect of a type on logits, relative to their range."""
Floats = npt.NDArray[np.float32]


@dataclass
class Setting:
    """A model and a cache."""

    spec: Spec
    case: Case
    streams: bool
    n_ubatch: int

    @property
    def shifts(self) -> bool:
        """Whether llama.cpp rotates such keys, and without another magnitude."""
        return self.case.shifts and self.spec.scaling != "yarn" and not self.spec.sections

    def __str__(self) -> str:
        s = self.spec
        place = "streams" if self.streams else "unified"
        heads = f"{s.n_kv_heads} of {s.n_heads} heads"
        return f"{self.case.name} {place} {s.n_layers} layers, {heads} {s.scaling}, {self.n_ubatch} at once"


def draw_setting(rng: random.Random, seed: int) -> Setting:
    n_ubatch = rng.choice([64, 64, 5, 256])
    if seed % 5 == 4:
        k, v = (rng.choice(["f32", "f16"]) for _ in range(2))
        spec = replace(SECTIONS, n_layers=rng.choice([1, 2]))
        case = Case("qwen2vl", 16, k, v, rng.random() < 0.5)
        return Setting(spec, case, rng.random() < 0.35, n_ubatch)
    arch = rng.choice(["llama", "qwen2", "qwen3"])
    type_k, type_v = (rng.choice(list(ROUNDING)) for _ in range(2))
    flash = True if type_v.startswith("q") else rng.random() < 0.5
    dim = rng.choice([32, 64, 128])
    groups = rng.choice([1, 2])
    spec = Spec(
        arch=arch, n_layers=rng.choice([1, 2, 3]), n_embd=64, n_kv_heads=rng.choice([1, 2]),
        head_dim=dim, n_ff=64, bias=arch == "qwen2", tied=rng.random() < 0.3,
        scaling=rng.choice(["none", "none", "linear", "yarn"]), factor=4.0, seed=1000 + seed,
    )  # fmt: skip
    spec.__dict__["n_heads"] = spec.n_kv_heads * groups
    if arch == "qwen2":  # its heads make up the width
        spec.__dict__["n_embd"] = spec.n_heads * dim
    streams = rng.random() < 0.35
    return Setting(spec, Case(arch, dim, type_k, type_v, flash), streams, n_ubatch)


def meta(blob: bytes, whole: bool, streams: int, extra: int) -> bytes:
    """A state without the numbers of K and V: head, cells (with ``extra`` bytes each), types and sizes."""
    at = 4 + struct.unpack_from("<I", blob)[0] if whole else 8
    out = [blob[:at]]

    def take(n: int) -> bytes:
        nonlocal at
        out.append(blob[at : at + n])
        at += n
        return out[-1]

    def number() -> int:
        return int(struct.unpack("<I", take(4))[0])

    assert number() == streams  # noqa: S101
    for _ in range(streams):
        n = number()
        if n == 0:
            continue
        for _ in range(n):
            take(4)
            take(4 * number() + extra)
        by_channel, layers = number(), number()
        for side in "kv":
            for _ in range(layers):
                take(4)
                if side == "v" and by_channel:
                    rows = number() * number() * n
                else:
                    rows = struct.unpack("<Q", take(8))[0] * n
                at += rows
    assert at == len(blob)  # noqa: S101
    return b"".join(out)


class Comparison:
    """Three caches with the same history: aleator's, llama.cpp's, and llama.cpp's in float32."""

    extra = 0  # bytes of a cell's coordinates in a state

    def __init__(self, setting: Setting, path: Path, rng: random.Random) -> None:
        self.setting, self.rng = setting, rng
        self.pending = False  # llama.cpp has a shift or a copy to do
        self.twins: Twins = set()
        self.apart = [(0.0, 0.0)]
        self.counts: dict[str, int] = {}
        self.make(path)

    def make(self, path: Path) -> None:
        setting = self.setting
        case, n_ctx = setting.case, SHARE * (N_SEQ if setting.streams else 1)
        options: dict[str, Any] = {"n_ctx": n_ctx, "unified": not setting.streams}
        options["n_ubatch"] = setting.n_ubatch
        self.theirs = opened(path, case, **options)
        self.exact = LlamaContext(path, **options)
        self.ours = Context(
            build_decoder(open_weights(path)), n_ctx=n_ctx, n_batch=256, n_ubatch=setting.n_ubatch,
            n_seq_max=N_SEQ, type_k=case.type_k, type_v=case.type_v, flash_attn=case.flash,
            policy="streams" if setting.streams else "unified",
        )  # fmt: skip
        self.llamas = [self.theirs, self.exact]
        self.cache = self.ours.cache

    def close(self) -> None:
        for llama in self.llamas:
            llama.close()

    def draw(self) -> list[Any]:
        streams = self.setting.streams
        kinds = {"one": 8, "many": 5, "wrong": 2, "rm": 7, "cp": 4, "clear": 0.2, "whole": 2}
        kinds |= {"sequence": 4} | ({} if streams else {"coupled": 4, "keep": 0.4})
        if self.setting.shifts:
            kinds |= {"add": 4, "div": 1}
        return operation(self.rng, kinds, self.theirs.tops(), self.twins, parts=not streams)

    def apply(self, op: list[Any]) -> str:
        """Run an operation on all three; return what is wrong, or nothing."""
        before = self.theirs.tops()
        name = op[0]
        if name in ("whole", "sequence") and self.pending:
            return ""
        self.counts[name] = self.counts.get(name, 0) + 1
        if name == "decode":
            wrong = self.decode(op[1])
        elif name == "whole":
            wrong = self.exchange(-1, -1, op[1])
        elif name == "sequence":
            wrong = self.exchange(op[1], op[2], op[3])
            self.twins -= {pair for pair in self.twins if op[2] in pair}
        else:
            wrong = ""
            for call in self.verbs(op):
                self.verb(call)
            self.pending |= name in ("add", "div") or (name == "cp" and self.setting.streams)
        update_twins(op, before, self.twins)
        return wrong or self.compare()

    def verbs(self, op: list[Any]) -> list[list[Any]]:
        """Divisions as shifts of one position each, since llama.cpp's division rotates keys the wrong way."""
        if op[0] != "div":
            return [op]
        _, seq, p0, p1, divisor = op
        top = self.theirs.tops()[seq]
        end = top + 1 if p1 < 0 else min(p1, top + 1)
        return [["add", seq, p, p + 1, p // divisor - p] for p in range(max(p0, 0), end) if p]

    def verb(self, op: list[Any]) -> None:
        name, arguments = op[0], op[1:]
        for llama in self.llamas:
            llama.verb(name, *arguments)
        getattr(self.cache, "clear" if name == "clear" else f"seq_{name}")(*arguments)

    def decode(self, rows: list[Any]) -> str:
        tokens = [self.rng.randrange(64) for _ in rows]
        triples = [(t, pos, seqs) for t, (pos, seqs) in zip(tokens, rows, strict=True)]
        (code, theirs), (_, exact) = (x.try_decode(triples) for x in (self.theirs, self.exact))
        batch, own = Batch(), 0
        for triple in triples:
            batch.add(*triple, logits=True)
        try:
            ours = self.ours.decode(batch)
        except CacheError as error:
            own = -99 if error.code is None else error.code
        self.counts[f"code {code}"] = self.counts.get(f"code {code}", 0) + 1
        if code != own:
            return f"codes {code} and {own}"
        if code:
            return ""
        self.pending = False
        # Relative to the spread of each row; llama.cpp's own rounding is the measure.
        spread = np.ptp(exact, axis=1)
        far = [float((np.sqrt(((x - exact) ** 2).mean(1)) / spread).max()) for x in (ours, theirs)]
        self.apart.append((far[0], far[1]))
        rounding = max(ROUNDING[self.setting.case.type_k], ROUNDING[self.setting.case.type_v])
        if far[0] <= 3 * far[1] + rounding:
            return ""
        return f"logits {far[0]:.2e}, its own {far[1]:.2e}"

    def on_average(self) -> str:
        """What is wrong with the logits of all decodes together."""
        ours, theirs = np.mean(self.apart, axis=0)
        if ours <= 1.15 * theirs + 1e-5:
            return ""
        return f"logits {ours:.2e}, its own {theirs:.2e}, on average"

    def exchange(self, seq: int, target: int, from_ours: bool) -> str:
        """Give the state of one side to both; the third keeps its own."""
        for llama in self.llamas[1:]:
            llama.restore(llama.whole() if seq < 0 else llama.sequence(seq), target)
        blobs = [
            self.theirs.whole() if seq < 0 else self.theirs.sequence(seq),
            self.cache.state_write(seq),
        ]
        if self.meta(blobs[0], seq < 0) != self.meta(blobs[1], seq < 0):
            return "states differ before the rows"
        blob = blobs[from_ours]
        taken = self.theirs.restore(blob, target)
        try:
            self.cache.state_read(blob, target)
        except CacheFull as error:
            if taken:
                return f"aleator refuses a state that llama.cpp takes: {error}"
            self.cache.seq_rm(target)  # as llama.cpp has done by then
            self.counts["no room for a state"] = self.counts.get("no room for a state", 0) + 1
            return ""
        if not taken:
            return "llama.cpp refuses a state that aleator takes"
        if seq == target:
            again = [self.theirs.whole(), self.cache.state_write()]
            if seq >= 0:
                again = [self.theirs.sequence(seq), self.cache.state_write(seq)]
            if again[0] != again[1]:
                return "what both have read they write differently"
        return ""

    def compare(self) -> str:
        theirs, cache = self.theirs.ranges(), self.cache
        ours = [[cache.seq_pos_min(s), cache.seq_pos_max(s)] for s in range(N_SEQ)]
        if theirs != ours:
            return f"ranges {theirs} and {ours}"
        cache.check()
        if not self.pending:
            a, b = (self.meta(x, True) for x in (self.theirs.whole(), cache.state_write()))
            if a != b:
                return "cells differ"
        return ""

    def meta(self, blob: bytes, whole: bool) -> bytes:
        return meta(blob, whole, N_SEQ if self.setting.streams else 1, self.extra)


class Pictures(Comparison):
    """Two caches of tokens with four positions, without a model here and so without logits."""

    extra = 12

    def make(self, path: Path) -> None:
        case, streams = self.setting.case, self.setting.streams
        n_ctx = SHARE * (N_SEQ if streams else 1)
        options: dict[str, Any] = {"n_ctx": n_ctx, "unified": not streams}
        self.theirs = opened(path, case, n_ubatch=self.setting.n_ubatch, **options)
        self.llamas = [self.theirs]
        self.cache = KVCache(
            [LayerShape(2, 16, 16)] * self.setting.spec.n_layers, n_ctx, n_seq_max=N_SEQ,
            type_k=case.type_k, type_v=case.type_v, v_layout="token" if case.flash else "channel",
            policy="streams" if streams else "unified", architecture="qwen2vl", n_pos_per_embd=4,
        )  # fmt: skip

    def draw(self) -> list[Any]:
        rng, top = self.rng, self.theirs.tops()
        if rng.random() < 0.3:
            seq = rng.randrange(N_SEQ)
            t = max(0, top[seq] + rng.choice([-1, 0, 0, 1, 1, 6]))
            frames, height, width = rng.choice([1, 1, 2]), rng.randint(1, 6), rng.randint(1, 6)
            places = [
                [t + f, t + y, t + x, rng.choice([0, 0, 5])]
                for f in range(frames)
                for y in range(height)
                for x in range(width)
            ]
            if rng.random() < 0.3:  # in any order but of t
                rng.shuffle(places)
                places.sort(key=lambda p: p[0])
            return ["picture", seq, places]
        op = super().draw()
        # (llama.cpp takes -1 here, which makes a cell that is full and counts as empty.)
        if op[0] == "decode" and op[1][0][0] >= 0 and rng.random() < 0.4:
            gap, first = rng.randint(1, 9), rng.randrange(len(op[1]))
            return ["decode", [[p + gap * (i >= first), s] for i, (p, s) in enumerate(op[1])]]
        return op

    def apply(self, op: list[Any]) -> str:
        if op[0] != "picture":
            return super().apply(op)
        _, seq, places = op
        self.counts["picture"] = self.counts.get("picture", 0) + 1
        vectors = np.ones((len(places), self.setting.spec.n_embd), np.float32)
        code, _ = decode_embeddings(self.theirs, places, seq, vectors)
        batch = Batch()
        for place in places:
            batch.add_embedding(vectors[0], place, [seq])
        self.twins -= {pair for pair in self.twins if seq in pair}
        return self.place(batch, code) or self.compare()

    def decode(self, rows: list[Any]) -> str:
        tokens = [self.rng.randrange(64) for _ in rows]
        triples = [(t, pos, seqs) for t, (pos, seqs) in zip(tokens, rows, strict=True)]
        code, _ = self.theirs.try_decode(triples)
        batch = Batch()
        for triple in triples:
            batch.add(*triple)
        return self.place(batch, code)

    def place(self, batch: Batch, code: int) -> str:
        own = 0
        rule = "equal" if self.setting.streams else "simple"
        try:
            with self.cache.step(
                self.cache.plan(batch, n_ubatch=self.setting.n_ubatch, n_batch=256, rule=rule)
            ) as step:
                list(step)
        except CacheError as error:
            own = -99 if error.code is None else error.code
        self.counts[f"code {code}"] = self.counts.get(f"code {code}", 0) + 1
        if code == 0:
            self.pending = False
        return "" if code == own else f"codes {code} and {own}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 100), help="from and to")
    parser.add_argument("--operations", type=int, default=50, help="of each script")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each script")
    args = parser.parse_args()
    wrong, counts, worst = 0, dict[str, int](), (0.0, 0.0)
    for seed in range(*args.seeds):
        rng = random.Random(seed)
        setting = draw_setting(rng, seed)
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(Path(folder) / "m.gguf", setting.spec)
            comparison = (Pictures if setting.spec.sections else Comparison)(setting, path, rng)
            found = ""
            ops: list[list[Any]] = []
            while not found and len(ops) < args.operations:
                ops.append(comparison.draw())
                found = comparison.apply(ops[-1])
            found = found or comparison.on_average()
            comparison.close()
        for name, n in comparison.counts.items():
            counts[name] = counts.get(name, 0) + n
        most = max(comparison.apart)
        worst = max(worst, most)
        if found:
            wrong += 1
            print(f"seed {seed}: {setting}\n  operation {len(ops)}: {found}: {ops[-3:]}")
        elif args.verbose:
            print(f"seed {seed}: {setting}: logits {most[0]:.1e}, its own {most[1]:.1e}")
    print(f"{args.seeds[1] - args.seeds[0]} scripts, {wrong} of them with a difference; {counts}")
    print(
        f"logits at most {worst[0]:.1e} of their range from float32's, its own there {worst[1]:.1e}"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
