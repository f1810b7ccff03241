"""Layers of directories that predict further tokens: their tensors, fingerprints, when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import FileFormatError
from aleator.models import open_weights
from aleator.models.directory import Directory
from aleator.models.draft_head import MTP, head_bytes
from aleator.models.weights import layer_of
from tests.models.check_converted import converted
from tests.models.check_transformers import renamed
from tests.models.heads import write_mtp_directory
from tests.models.test_draft_head import TOKENS, check_further, head_of, logits, seen, target

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("arch", "own"),
    [
        ("qwen35", False), ("qwen3next", False), ("deepseek2", False), ("deepseek2", True), ("glm4moe", False),
        ("glm4moe", True),
    ],
)  # fmt: skip
def test_a_further_layer_of_a_directory_gives_the_logits_of_plain_floats(
    arch: str, own: bool, tmp_path: Path
) -> None:
    tensors = write_mtp_directory(tmp_path, arch, own)
    decoder = target(tmp_path)
    n, weights = decoder.config.n_layers, decoder.weights
    qwen = arch.startswith("qwen")
    at = "mtp." if qwen else f"model.layers.{n}."
    for name, given in (
        ("nextn.eh_proj", "fc" if qwen else "eh_proj"),
        ("nextn.enorm", "pre_fc_norm_embedding" if qwen else "enorm"),
        ("nextn.hnorm", "pre_fc_norm_hidden" if qwen else "hnorm"),
        ("attn_q_norm", "layers.0.self_attn.q_norm" if qwen else ""),
    ):
        if given:
            wanted = tensors[f"{at}{given}.weight"].numpy()
            wanted = wanted + np.float32(1) if qwen and wanted.ndim == 1 else wanted
            assert np.array_equal(weights.floats(f"blk.{n}.{name}.weight"), wanted)
    check_further(decoder, own)


@pytest.mark.parametrize("arch", ["glm4moe", "qwen35"])
def test_a_quantised_further_layer_is_read_when_asked_for(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import save_file

    tensors, at = write_mtp_directory(tmp_path, arch), ("mtp.", "model.layers.4.")
    file, scale, packed = tmp_path / "model.safetensors", torch.tensor(0.25), {}
    for name in [each for each in tensors if each.startswith(at) and each.endswith("_proj.weight")]:
        packed[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        packed[f"{name}_scale_inv"] = scale.clone()
        tensors[name] = packed[name].float() * scale
    save_file(tensors, file)
    decoder = target(tmp_path)
    wanted = logits(head_of(MTP, decoder), seen(decoder), TOKENS)
    renamed(tmp_path, lambda fields: fields.update(quantization_config={"quant_method": "fp8"}))
    save_file(tensors | packed, file)
    read: list[str] = []
    made = Directory.made

    def recorded(self: Directory, name: str, tensor: Any) -> Any:
        read.append(name)
        return made(self, name, tensor)

    monkeypatch.setattr(Directory, "made", recorded)
    decoder = target(tmp_path)
    weights, n, before = decoder.weights, decoder.config.n_layers, len(read)
    assert before == len(weights.names())
    assert not any(layer_of(name) >= n for name in read)
    assert weights.size_bytes == sum(weights.stored(name).data.size for name in weights.names())
    assert "blk.4.nextn.eh_proj.weight" in weights
    assert logits(head_of(MTP, decoder), seen(decoder), TOKENS).tobytes() == wanted.tobytes()
    further = {name: weights.stored(name) for name in read[before:]}
    assert sorted(further) == sorted(weights.further)
    assert "F8_E4M3" in {each.type for each in further.values()}


def test_of_several_further_layers_the_first_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    tensors = write_mtp_directory(tmp_path, "glm4moe")
    wanted = head_bytes(MTP, Path, open_weights(tmp_path), 3)
    at, after = "model.layers.4.", "model.layers.5."
    more = {n.replace(at, after): 2 * each for n, each in tensors.items() if n.startswith(at)}
    save_file(tensors | more, tmp_path / "model.safetensors")
    renamed(tmp_path, lambda fields: fields.update(num_nextn_predict_layers=2))
    decoder = target(tmp_path)

    def refused(_: Directory, name: str, tensor: Any) -> Any:
        assert layer_of(name) == 4
        return tensor

    monkeypatch.setattr(Directory, "made", refused)
    assert len(decoder.weights.further) == 2 * len(more)
    assert head_bytes(MTP, Path, decoder.weights, 3) == wanted
    head_of(MTP, decoder)


def test_a_converted_directory_is_without_further_layers(tmp_path: Path) -> None:
    write_mtp_directory(tmp_path, "glm4moe")
    assert "blk.4.nextn.eh_proj.weight" in open_weights(tmp_path)
    made = converted(tmp_path, tmp_path / "m.gguf")
    names = made.tensors
    assert "layers that predict further tokens" in made.left_out[0]
    assert "blk.3.attn_q.weight" in names
    assert not any(name.startswith("blk.4.") for name in names)


@pytest.mark.parametrize("arch", ["glm4moe", "qwen35"])
def test_a_further_layer_leaves_a_directory_its_fingerprint(arch: str, tmp_path: Path) -> None:
    """Texts do not depend on it, and caches and sessions of before it was read are still of use."""
    from safetensors.torch import save_file

    tensors, at = write_mtp_directory(tmp_path, arch), ("mtp.", "model.layers.4.")
    whole = open_weights(tmp_path)
    made = whole.identity().fingerprint
    save_file(
        {name: each for name, each in tensors.items() if not name.startswith(at)},
        tmp_path / "model.safetensors",
    )
    without = open_weights(tmp_path)
    assert whole.further
    assert not without.further
    assert without.identity().fingerprint == made


@pytest.mark.parametrize("n", [-1, 65, 4096, 1 << 70, "1", [1], True])
def test_a_wrong_number_of_further_layers_is_refused(n: object, tmp_path: Path) -> None:
    write_mtp_directory(tmp_path, "glm4moe")
    renamed(tmp_path, lambda fields: fields.update(num_nextn_predict_layers=n))
    with pytest.raises(FileFormatError, match="num_nextn_predict_layers"):
        open_weights(tmp_path)
