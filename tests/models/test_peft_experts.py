"""PEFT's adapters on the parameters that all experts of a layer share (``target_parameters``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.core.errors import AleatorError, FileFormatError, UnsupportedModel
from aleator.models import build_decoder, open_weights
from tests.models.adapters import ALPHA, RANK
from tests.models.builders import write_gguf
from tests.models.test_adapted import SCALE, Floats, write_outer_peft
from tests.models.test_adapters import adapted, logits

SPEC = SPECS["qwen3moe"]
N, E, FF = SPEC.n_experts, SPEC.n_embd, SPEC.n_ff_expert
AT = "model.layers.1.mlp.experts."
GATE_UP, DOWN = f"{AT}base_layer.", AT


def tensors(seed: int = 1) -> dict[str, Floats]:
    """Of gate_up_proj [N, 2 FF, E] and down_proj [N, E, FF], the second around the first."""
    rng = np.random.default_rng(seed)
    made = {}
    for at, out, n_in in ((GATE_UP, 2 * FF, E), (DOWN, E, FF)):
        made[f"{at}lora_A.weight"] = 0.3 * rng.standard_normal((N * RANK, n_in))
        made[f"{at}lora_B.weight"] = 0.3 * rng.standard_normal((out, N * RANK))
    return {name: values.astype(np.float32) for name, values in made.items()}


def delta(given: dict[str, Floats], at: str) -> Floats:
    """As PEFT computes what is added to a parameter, [N, out, in]."""
    a, b = given[f"{at}lora_A.weight"], given[f"{at}lora_B.weight"]
    a, b = a.reshape(N, RANK, -1), b.reshape(len(b), RANK, N)
    added: Floats = np.float32(SCALE) * np.einsum("ore,eri->eoi", b, a)
    return added


def write(folder: Path, given: dict[str, Floats], **config: Any) -> Path:
    path = write_outer_peft(folder, given)
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "peft_version": "0.19.0"}
    about["target_parameters"] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    (path / "adapter_config.json").write_text(json.dumps(about | config))
    return path


def test_all_experts_of_a_layer(tmp_path: Path) -> None:
    base, given = dict(SPEC.each_tensor()), tensors()
    path = write_model(tmp_path / "base.gguf", SPEC, base)
    decoder = adapted(path, write(tmp_path / "p", given))
    both = delta(given, GATE_UP)
    for name, added in (
        ("gate", both[:, :FF]), ("up", both[:, FF:]), ("down", delta(given, DOWN)),
    ):  # fmt: skip
        base[f"blk.1.ffn_{name}_exps.weight"] += added
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", SPEC, base))))
    assert np.abs(logits(decoder, "a") - wanted).max() < 2e-5 * np.ptp(wanted)
    assert len(decoder.adapters.loaded[0].matrices) == 3 * N


def test_they_are_adapters_of_each_expert(tmp_path: Path) -> None:
    """Bit for bit, and one parameter may be left out."""
    path = write_model(tmp_path / "base.gguf", SPEC)
    given = {name: values for name, values in tensors().items() if name.startswith(GATE_UP)}
    one = write(tmp_path / "one", given)
    a, b = given[f"{GATE_UP}lora_A.weight"], given[f"{GATE_UP}lora_B.weight"]
    each = {}
    for expert in range(N):
        for name, rows in (("gate", slice(FF)), ("up", slice(FF, None))):
            stem = f"{AT}{expert}.{name}_proj."
            each[f"{stem}lora_A.weight"] = a.reshape(N, RANK, -1)[expert]
            each[f"{stem}lora_B.weight"] = b.reshape(len(b), RANK, N)[rows, :, expert]
    other = write(tmp_path / "other", each, target_parameters=None)
    decoder = adapted(path, one, other)
    assert (logits(decoder, "a") == logits(decoder, "b")).all()
    assert (logits(decoder, "a") != logits(decoder)).any()


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({f"{DOWN}lora_A.weight": np.ones((N * RANK, FF + 1))}, FileFormatError, r"8 experts of \[32, 64\]"),
    ({f"{DOWN}lora_A.weight": np.ones((N * RANK - 1, FF)),
      f"{DOWN}lora_B.weight": np.ones((E, N * RANK - 1))}, FileFormatError, "do not fit 8 experts"),
    ({f"{DOWN}lora_B.weight": np.ones((E, N * RANK + N))}, FileFormatError, "do not fit 8 experts"),
    ({f"{DOWN}lora_A.weight": np.ones(N)}, FileFormatError, "do not fit 8 experts"),
    ({f"{DOWN}lora_A.weight": None}, FileFormatError, "one of lora_A and lora_B is missing"),
    ({f"{DOWN}lora_A.weight": np.ones((N * RANK, E)), f"{DOWN}lora_B.weight": np.ones((2 * FF, N * RANK))},
     FileFormatError, "these experts twice"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_tensors_that_fit_no_experts(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    path = write_model(tmp_path / "base.gguf", SPEC)
    given = {
        name: np.asarray(values, np.float32)
        for name, values in (tensors() | change).items()
        if values is not None
    }
    with pytest.raises(error, match=words):
        adapted(path, write(tmp_path / "p", given))


def test_ranks_and_patterns(tmp_path: Path) -> None:
    """What PEFT 0.21 writes for gate_proj, up_proj and down_proj, and for the router beside them."""
    path = write_model(tmp_path / "base.gguf", SPEC)
    with pytest.raises(FileFormatError, match=f"has rank {RANK}, and the configuration says 5"):
        adapted(path, write(tmp_path / "r", tensors(), r=5))
    given, rng = tensors(), np.random.default_rng(3)
    for name, size in (("A", (RANK, E)), ("B", (N, RANK))):
        given[f"model.layers.1.mlp.gate.lora_{name}.weight"] = rng.standard_normal(
            size, dtype=np.float32
        )
    config = {
        "rank_pattern": {r".*\.gate_up_proj": RANK, r"gate\.weight": RANK},
        "alpha_pattern": {"gate": 3.0, r".*\.gate_up_proj": 1.5, "gate.weight": 0.5},
        "target_parameters": ["gate.weight", "down_proj", "gate_up_proj"],
    }
    matrices = adapted(path, write(tmp_path / "a", given, **config)).adapters.loaded[0].matrices
    factors = {name: RANK * each.factor for name, each in matrices.items()}
    assert factors["blk.1.ffn_gate.2.weight"] == factors["blk.1.ffn_up.2.weight"] == 1.5
    assert factors["blk.1.ffn_down.2.weight"] == ALPHA
    assert factors["blk.1.ffn_gate_inp.weight"] == 0.5


@pytest.mark.parametrize("stack", ["model.", ""])
def test_routers_by_their_later_name(stack: str, tmp_path: Path) -> None:
    """Directories of Mixtral have block_sparse_moe, transformers 5 has mlp; "": of a model without its head."""
    spec, rng = SPECS["mixtral"], np.random.default_rng(3)
    given = {
        f"{stack}layers.1.mlp.gate.lora_{name}.weight": rng.standard_normal(size, dtype=np.float32)
        for name, size in (("A", (RANK, spec.n_embd)), ("B", (spec.n_experts, RANK)))
    }
    decoder = adapted(write_model(tmp_path / "m", spec), write(tmp_path / "p", given))
    assert [*decoder.adapters.loaded[0].matrices] == ["blk.1.ffn_gate_inp.weight"]


@pytest.mark.parametrize("version", ["0.17.1", "0.21.2"])
def test_experts_whose_gate_and_up_take_turns(version: str, tmp_path: Path) -> None:
    """gpt-oss: rows of gate and up alternate, and every version of PEFT has the sides in one order."""
    spec = SPECS["gpt-oss"]
    n, ff, n_embd = spec.n_experts, spec.n_ff_expert, spec.n_embd
    rng, base = np.random.default_rng(5), dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, base)
    given: dict[str, Floats] = {}
    deltas = {}
    for at, out, n_in in ((GATE_UP, 2 * ff, n_embd), (DOWN, n_embd, ff)):
        a, b = rng.standard_normal((n * RANK, n_in)), rng.standard_normal((out, n * RANK))
        given[f"{at}lora_A.weight"], given[f"{at}lora_B.weight"] = (
            (0.2 * each).astype(np.float32) for each in (a, b)
        )
        parts = 0.04 * SCALE * a.reshape(n, RANK, -1), b.reshape(out, RANK, n)
        deltas[at] = np.einsum("eri,ore->eoi", *parts).astype(np.float32)
    decoder = adapted(path, write(tmp_path / "p", given, peft_version=version))
    base["blk.1.ffn_gate_exps.weight"] += deltas[GATE_UP][:, ::2]
    base["blk.1.ffn_up_exps.weight"] += deltas[GATE_UP][:, 1::2]
    base["blk.1.ffn_down_exps.weight"] += deltas[DOWN]
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", spec, base))))
    assert np.abs(logits(decoder, "a") - wanted).max() < 2e-5 * np.ptp(wanted)


@pytest.mark.parametrize(
    "version", [None, "0.18.1", "0.18.2.dev0", "0.9.0", "0.190.0", "0.20.1.dev0@1a", "1.0.0"]
)
def test_square_matrices_of_an_older_peft(tmp_path: Path, version: str | None) -> None:
    """It took rows for what goes in, which shapes do not tell here."""
    assert E == 2 * FF
    path, given = write_model(tmp_path / "base.gguf", SPEC), tensors()
    new = version is not None and not version.startswith(("0.18.", "0.9."))
    folder = write(tmp_path / "p", given, peft_version=version)
    if new:
        assert adapted(path, folder).adapters.names == ["a"]
    else:
        with pytest.raises(UnsupportedModel, match="square matrices of PEFT"):
            adapted(path, folder)
    down = {name: values for name, values in given.items() if not name.startswith(GATE_UP)}
    assert adapted(path, write(tmp_path / "d", down, peft_version=version)).adapters.names == ["a"]


def test_a_model_without_experts(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "base.gguf")
    with pytest.raises(AleatorError, match="is no part of LoRA for 'llama'"):
        adapted(path, write(tmp_path / "p", tensors()))
