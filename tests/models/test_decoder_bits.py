"""A token's logits have the same bits in any company, split and number of threads, on every instruction set."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_numerics.blocks import Floats
from delta_models import DELTAS
from hybrid_models import HYBRID
from make_models import SPECS, Spec
from wide_models import AnySpec, write_model

from aleator import _native
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder

WIDE: dict[str, Any] = {
    "n_embd": 256, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "n_ff": 256, "n_layers": 2,
}  # fmt: skip
SMALL = ("mamba2", "granitehybrid-experts", "nemotron_h", "falcon-h1-norm", "lfm2")
MODELS: dict[str, AnySpec] = {
    "llama": Spec(**WIDE, seed=1),
    "qwen3": Spec(arch="qwen3", **WIDE, seed=2),
    "gemma3": Spec(arch="gemma3", **WIDE, tied=True, window=8, pattern=2, softcap=5.0, seed=3),
    "qwen2moe": replace(SPECS["qwen2moe"], **WIDE, n_ff_expert=256, n_ff_shared=256),
    "mamba": Spec(arch="mamba", n_embd=256, dt_rank=16, seed=4),
    "jamba": replace(SPECS["jamba"], **WIDE | {"n_layers": 3}, dt_rank=16),
    "qwen3next": replace(DELTAS["qwen3next"], **WIDE, delta_dim=32, n_ff_expert=256, n_ff_shared=256),
    **{name: HYBRID[name] for name in SMALL},
}  # fmt: skip
CASES = [
    (model, kind, cache)
    for model in MODELS
    for kind, cache in (("F32", "f16"), ("F16", "q8_0"), ("Q4_K", "f16"))
    if kind == ("Q4_K" if model == "qwen3next" else "F32" if model in SMALL else kind)
] + [("llama", "BF16", "f16"), ("qwen2moe", "BF16", "bf16")]
PROMPT, STEPS = 21, 4


def text(decoder: Decoder, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(0, decoder.config.n_vocab, PROMPT + STEPS)]


def rows(ctx: Any, tokens: list[int], parts: list[int], others: list[list[int]]) -> Floats:
    """Logits of sequence 0's tokens, in parts of these lengths, each beside as many of the others'."""
    found, at = [], 0
    for n in parts:
        batch = Batch()
        for i in range(at, at + n):
            for seq, company in enumerate(others, 1):
                if seq % 2:
                    batch.add(company[i], i, [seq], logits=i % 3 == 0)
            batch.add(tokens[i], i, [0], logits=True)
            for seq, company in enumerate(others, 1):
                if seq % 2 == 0:
                    batch.add(company[i], i, [seq], logits=i % 2 == 0)
        logits = np.asarray(ctx.decode(batch))
        order = _wanted(others, list(range(at, at + n)))
        found.append(logits[[k for k, seq in enumerate(order) if seq == 0]])
        at += n
    return np.concatenate(found)


def _wanted(others: list[list[int]], places: list[int]) -> list[int]:
    """The sequence of each row of logits."""
    sequences = []
    for i in places:
        sequences += [s for s in range(1, len(others) + 1) if s % 2 and i % 3 == 0]
        sequences.append(0)
        sequences += [s for s in range(1, len(others) + 1) if s % 2 == 0 and i % 2 == 0]
    return sequences


def context(decoder: Decoder, cache: str, **options: Any) -> Any:
    attends = not all(map(decoder.keeps_state, range(decoder.config.n_layers)))
    types: dict[str, Any] = {"type_k": cache, "type_v": cache} if attends else {}
    return Context(decoder, n_ctx=256, **types, **options)


def bits(folder: Path, model: str, kind: str, cache: str) -> str:
    """A digest of a text's logits, the same in every composition."""
    spec, path = replace(MODELS[model], type=kind), folder / f"{model}-{kind}.gguf"
    decoder = build_decoder(open_weights(write_model(path, spec)), form="native")
    tokens, ones = text(decoder, 0), [1] * STEPS
    expected = rows(context(decoder, cache, n_threads=1), tokens, [PROMPT, *ones], [])
    assert np.isfinite(expected).all()
    for threads, ubatch, parts, company in (
        (1, 512, [1] * (PROMPT + STEPS), 0),
        (2, 7, [PROMPT, *ones], 0),
        (3, 512, [9, PROMPT - 9, *ones], 1),
        (4, 16, [PROMPT, *ones], 3),
        (2, 512, [PROMPT + STEPS], 8),
    ):
        others = [text(decoder, seed) for seed in range(1, company + 1)]
        options = {"n_threads": threads, "n_ubatch": ubatch, "n_seq_max": company + 1}
        got = rows(context(decoder, cache, **options), tokens, parts, others)
        assert got.tobytes() == expected.tobytes(), (threads, ubatch, parts, company)
    return hashlib.sha256(expected.tobytes()).hexdigest()


@pytest.mark.parametrize(("model", "kind", "cache"), CASES)
def test_logits_do_not_depend_on_composition_or_threads(
    tmp_path: Path, model: str, kind: str, cache: str
) -> None:
    bits(tmp_path, model, kind, cache)


@pytest.mark.slow
def test_logits_are_equal_on_every_instruction_set() -> None:
    sets = ["base", "v3", "v4"]
    sets = sets[: sets.index(_native.isa()) + 1] if _native.isa() in sets else [_native.isa()]
    if len(sets) < 2:
        pytest.skip("no lower instruction set here")
    found = []
    for isa in (*sets, ""):  # v4 that is asked for is without AVX512-BF16
        root = Path(__file__).parents[2]
        paths = os.pathsep.join([str(root), str(root / "tools")])
        environment = {**os.environ, "ALEATOR_ISA": isa, "PYTHONPATH": paths}
        command = [sys.executable, "-m", "tests.models.test_decoder_bits"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout)
    assert found[0].count("\n") == len(CASES)
    assert all(lines == found[0] for lines in found), found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for case in CASES:
            print(*case, bits(Path(directory), *case), flush=True)
