"""Models of every architecture in the npm package: logits to the bit, caches and their edits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from equality_decoder import TYPES
from make_models import SPECS, write_model
from wide_models import MODELS, write_wide

import aleator
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.conversion.quantise import Quantisation
from aleator.models.hub.bundled import bundled_model
from aleator.models.index import ARCHITECTURES
from tests.javascript.conftest import Run, Values, logits_of
from tests.models import builders

RELAXED = (
    "--experimental-wasm-relaxed-simd",
    "--no-liftoff",
)  # Node 20's first compiler errs in its dot products
CACHES = [("f16", "f16"), ("f32", "f32"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q8_0", "q4_0")]


def _model(folder: Path, name: str, kind: str = "Q8_0") -> Path:
    """A file of a wide model with matrices of this type."""
    return write_wide(folder / f"{name}-{kind}.gguf", MODELS[name], kind)


def _compared(
    run: Run, works: list[tuple[Path, list[int], tuple[str, str]]], flags: tuple[str, ...] = ()
) -> list[str]:
    """The names of the files of which logits differ, read together or one by one."""
    cases = [
        {"path": str(path), "tokens": tokens, "typeK": k.upper(), "typeV": v.upper()}
        for path, tokens, (k, v) in works
    ]
    found = run("logits", cases, flags)
    expected = [logits_of(path, tokens, *types) for path, tokens, types in works]
    return [
        f"{work[0].stem}: {rows.get('message') if isinstance(rows, dict) else 'other logits'}"
        for work, rows, own in zip(works, found, expected, strict=True)
        if rows != [own] * 2
    ]


def test_every_architecture_gives_the_same_logits(run: Run, tmp_path: Path) -> None:
    r = random.Random(3)
    works: list[tuple[Path, list[int], tuple[str, str]]] = []
    for i, name in enumerate(MODELS):
        # Longer than the windows of these models, and than what phi3-longrope was trained for.
        works.append((_model(tmp_path, name), [r.randrange(96) for _ in range(40)], CACHES[i % 3]))
    assert {open_weights(path).architecture.name for path, _, _ in works} == set(ARCHITECTURES)
    assert _compared(run, works) == []


def test_every_type_of_tensors_gives_the_same_logits(run: Run, tmp_path: Path) -> None:
    works = [(_model(tmp_path, "llama", kind), [3, 1, 4, 1, 5], CACHES[0]) for kind in TYPES]
    assert _compared(run, works) == []


def test_a_single_expert_has_matrices_without_its_dimension(run: Run, tmp_path: Path) -> None:
    spec = replace(SPECS["qwen3moe"], n_experts=1, n_used=1)
    whole, single = (tmp_path / f"{name}.gguf" for name in ("whole", "single"))
    Quantisation(write_model(whole, spec), "F32").write(single, 1)
    assert _compared(run, [(path, [3, 1, 4], CACHES[0]) for path in (whole, single)]) == []


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3", "deepseek2", "jamba"])
def test_caches_store_blocks_as_here(run: Run, tmp_path: Path, name: str) -> None:
    path = _model(tmp_path, name)
    tokens = [random.Random(5).randrange(96) for _ in range(20)]
    works = [(path, tokens, types) for types in (*CACHES, ("q5_1", "iq4_nl"), ("q4_1", "q5_0"))]
    assert _compared(run, works) == []


def test_a_type_that_no_cache_has_is_refused(run: Run, tmp_path: Path) -> None:
    path = _model(tmp_path, "gpt2")
    case = {"path": str(path), "edits": [["decode", [1]]]}
    [told, odd] = run(
        "edits", [{**case, "types": each} for each in ({"typeK": "Q4_K"}, {"type": 3})]
    )
    assert (told["error"], odd["error"]) == ("ParameterError", "ParameterError")
    assert "typeK=Q4_K" in told["message"]


class _Here:
    """The same edits in this package."""

    def __init__(self, path: Path, n_seqs: int) -> None:
        self.context = Context(
            build_decoder(open_weights(path)), n_ctx=256, n_seq_max=n_seqs, n_threads=1, device="cpu"
        )  # fmt: skip
        self.n_seqs = n_seqs

    def length(self, seq: int) -> int:
        return self.context.cache.seq_pos_max(seq) + 1

    def decoded(self, texts: list[dict[str, Any]]) -> str:
        batch = Batch()
        for seq, tokens in ((text["seq"], text["tokens"]) for text in texts):
            for i, token in enumerate(tokens):
                last = i == len(tokens) - 1
                batch.add(token, self.length(seq) + i, (seq,), logits=last)
        return str(self.context.decode(batch).tobytes().hex())

    def told(self, edits: list[list[Any]]) -> list[Any]:
        told: list[str] = []
        for name, *given in edits:
            try:
                if name == "decode":
                    seq = (given[1] if len(given) > 1 else {"seq": 0})["seq"]
                    told.append(self.decoded([{"seq": seq, "tokens": given[0]}]))
                elif name == "decodeBatch":
                    told.append(self.decoded(given[0]))
                elif name == "slide":
                    self.context.cache.sequence(given[0]).slide(*given[1:])
                else:
                    verb = f"seq_{name[3:].lower()}" if name.startswith("seq") else name
                    getattr(self.context.cache, verb)(*given)
            except aleator.AleatorError as error:
                name = type(error).__name__
                told.append("ContextFull" if name == "CacheFull" else name)  # one error there
        return [told, [self.length(seq) for seq in range(self.n_seqs)]]


TEXT = [random.Random(6).randrange(96) for _ in range(60)]
EDITS: dict[str, list[list[Any]]] = {
    "shift": [
        ["decode", TEXT[:40]], ["seqRm", 0, 4, 20], ["seqAdd", 0, 20, -1, -16], ["decode", TEXT[:3]],
        ["seqAdd", 0, 2, 9, 100], ["decode", TEXT[3:4]], ["seqAdd", 0, 0, -1, -3], ["decode", TEXT[4:5]],
    ],
    "far": [
        ["decode", TEXT * 2], ["decode", TEXT[:30], {"seq": 1}], ["seqDiv", 0, 0, -1, 2],
        ["seqRm", 0, 2, 4], ["decode", TEXT[:1]], ["seqAdd", 0, 0, -1, 7], ["decode", TEXT[1:3]],
        ["decode", TEXT[3:4], {"seq": 1}],
    ],
    "divide": [
        ["decode", TEXT[:30]], ["seqDiv", 0, 0, 20, 2], ["decode", TEXT[:1]], ["seqAdd", 0, 20, -1, -10],
        ["decode", TEXT[1:3]],
    ],
    "shared": [
        ["decode", TEXT[:20]], ["seqCp", 0, 1, -1, -1], ["decode", TEXT[20:22], {"seq": 1}],
        ["seqRm", 1, 21, -1], ["decode", TEXT[30:31], {"seq": 1}], ["decode", TEXT[20:22]],
        ["seqKeep", 1], ["decode", TEXT[31:33], {"seq": 1}],
    ],
    "full": [["decode", TEXT * 3], ["decode", TEXT * 2], ["decode", TEXT]],
    "moved": [
        ["decodeBatch", [{"seq": 1, "tokens": TEXT[:9]}, {"seq": 0, "tokens": TEXT[9:29]}]],
        ["seqCp", 0, 1, 12, -1], ["unshare", 1, 14, -1], ["seqRm", 0, 3, 11], ["defrag"],
        ["decodeBatch", [{"seq": 0, "tokens": TEXT[:3]}, {"seq": 1, "tokens": TEXT[5:6]}]],
        ["seqCp", 0, 1, -1, -1], ["slide", 1, 2, 5], ["slide", 0], ["slide", 0, -1],
        ["decodeBatch", [{"seq": 1, "tokens": TEXT[3:4]}, {"seq": 0, "tokens": TEXT[3:5]}]],
    ],
}  # fmt: skip


def test_what_is_no_batch_is_refused(run: Run) -> None:
    one = {"seq": 0, "tokens": [1]}
    wrong: list[Any] = [
        5,
        None,
        [None],
        [{"tokens": [1]}],
        [one, one],
        [one, {"seq": 1, "tokens": []}],
    ]
    edits = [["decodeBatch", each] for each in wrong]
    [told] = run("edits", [{"path": str(bundled_model()), "edits": edits}])
    assert told == [["ParameterError"] * len(wrong), [0, 0]]


@pytest.mark.parametrize("edits", list(EDITS))
def test_edits_of_cells_are_the_same(run: Run, tmp_path: Path, edits: str) -> None:
    for name in ("llama", "smollm3" if edits == "far" else "gemma3", "deepseek2"):
        path = _model(tmp_path, name)
        [told] = run("edits", [{"path": str(path), "edits": EDITS[edits]}])
        assert told == _Here(path, 2).told(EDITS[edits]), name


@pytest.mark.parametrize("name", ["mamba", "jamba", "lfm2", "qwen3next"])
def test_states_are_copied_and_forgotten_whole(run: Run, tmp_path: Path, name: str) -> None:
    path = _model(tmp_path, name)
    edits: list[list[Any]] = [
        ["decode", TEXT[:10]], ["seqCp", 0, 1, -1, -1], ["decode", TEXT[10:12]],
        ["decode", TEXT[12:14], {"seq": 1}], ["seqRm", 0, 5, -1], ["decode", TEXT[14:15]],
        ["seqRm", 0, 0, -1], ["decode", TEXT[:4]], ["seqCp", 1, 0, 0, 3],
        ["seqKeep", 1], ["decode", TEXT[:2], {"seq": 1}],
        ["decodeBatch", [{"seq": 1, "tokens": TEXT[:2]}, {"seq": 0, "tokens": TEXT[3:7]}]],
        ["decodeBatch", [{"seq": 0, "tokens": TEXT[:1]}, {"seq": 1, "tokens": TEXT[9:10]}]],
    ]  # fmt: skip
    [told] = run("edits", [{"path": str(path), "edits": edits}])
    assert told == _Here(path, 2).told(edits)


def test_shifts_that_are_not_possible_are_refused(run: Run, tmp_path: Path) -> None:
    paths = [_model(tmp_path, name) for name in ("qwen35", "gemma3")]
    long = [TEXT[i % 60] for i in range(200)]
    edits = [
        ["decode", long],
        ["seqDiv", 0, 0, -1, 2],
        ["decode", [1]],
        ["seqAdd", 0, 0, -1, 2**40],
    ]
    told = run("edits", [{"path": str(path), "edits": edits} for path in paths])
    assert [rows[0][1] for rows in told] == ["CannotShift", "CannotShift"]
    assert [rows[0][3] for rows in told] == ["ParameterError", "ParameterError"]
    # What was refused has changed nothing.
    assert told[1][0][2] == logits_of(paths[1], [*long, 1])[-len(told[1][0][2]) :]
    assert told[1][1] == [201, 0]


def test_relaxed_simd_gives_the_same_logits(run: Run, values: Values, tmp_path: Path) -> None:
    code = "(await inside('runtime.js')).relaxed"
    if values(code, flags=RELAXED) != [True]:
        pytest.skip("this Node has no relaxed SIMD that fuses, or make wasm was not run")
    assert values(code) in ([True], [False])
    kinds = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL")
    works = [("llama", kind) for kind in kinds]
    works += [(name, "F16") for name in ("gemma2", "gpt-oss", "qwen3next", "mamba2", "mpt")]
    written = [
        (_model(tmp_path, name, kind), TEXT[:20], CACHES[i % 4])
        for i, (name, kind) in enumerate(works)
    ]
    assert _compared(run, written, RELAXED) == []


def test_an_architecture_that_is_not_computed_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    path = builders.write_gguf(tmp_path / "rwkv.gguf", {}, architecture="rwkv7")
    [result] = run("text", [{"path": str(path), "prompt": "a", "options": {}}])
    assert result["error"] == "UnsupportedModel"
    assert "'rwkv7'" in result["message"]
    assert "llama" in result["message"]
