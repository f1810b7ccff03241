"""A random model of transformers' against its own logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.models.check_converted import check_converted

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
"""Of most small models of transformers': the configuration's sizes."""

DELTA_NETS: dict[str, Any] = SMALL | {
    "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = SMALL | {
    "moe_intermediate_size": 16, "num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 3,
}  # fmt: skip


def like_transformers(
    config: str, *changes: dict[str, Any], sizes: dict[str, Any] = SMALL, **options: Any
) -> Any:
    """A test of a configuration of transformers', with each of ``changes`` to its sizes.

    ``options``: those of :func:`check_transformers`.
    """

    @pytest.mark.parametrize("changes", changes or [{}])
    def test(changes: dict[str, Any], tmp_path: Path) -> None:
        transformers: Any = pytest.importorskip("transformers")
        import torch

        torch.manual_seed(1)  # for what write() leaves as it is
        made = getattr(transformers, config)(**sizes | changes)
        model = transformers.AutoModelForCausalLM.from_config(made)
        check_transformers(model, tmp_path, **options)

    return test


def check_transformers(
    model: Any, folder: Path, change: Callable[[Path], None] | None = None, **options: Any
) -> None:
    """The model with random weights.

    ``change`` makes the saved directory another model's with the same logits (:func:`renamed`); ``options``:
    those of :func:`check`.
    """
    write(model, folder)
    if change is not None:
        change(folder)
    check(model, folder, **options)


def write(model: Any, folder: Path) -> Any:
    """The model with random weights of a size that matters, in a directory."""
    import torch

    torch.manual_seed(3)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith(".D"):
                values.add_(0.2 * torch.randn_like(values))
            elif name.endswith(("A_log", "dt_bias", "dt_proj.bias")):
                continue  # how fast states decay stays as transformers draws it
            elif values.dim() >= 2:
                values.copy_(torch.randn_like(values) * 1.5 / values.shape[-1] ** 0.5)
            else:
                values.copy_(0.2 * torch.randn_like(values))
    model.eval().save_pretrained(folder)
    return model


def check(
    model: Any,
    folder: Path,
    tolerance: float = 1e-5,
    whole: bool = False,
    n: int = 40,
    n_ctx: int = 64,
) -> None:
    """Logits in both forms, and those of the converted file.

    Args:
        model: what was written.
        folder: its directory.
        tolerance: largest difference over the range of the logits.
        whole: whether GGUF can say all of the model.
        n: number of tokens.
        n_ctx: size of the context.
    """
    import torch

    ids = torch.randint(0, 96, (1, n), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].numpy()
    for form in ("native", "torch"):
        decoder = build_decoder(open_weights(folder), form=form)
        context = Context(decoder, n_ctx=n_ctx, n_ubatch=16, type_k="f32", type_v="f32")
        rows = np.asarray(context.decode(Batch.one(ids[0].tolist(), logits=True)))
        assert relative(rows, expected) < tolerance, (form, relative(rows, expected))
    check_converted(folder, ids[0].tolist(), tolerance, whole)


def renamed(
    folder: Path,
    fields: Callable[[dict[str, Any]], Any],
    tensors: Callable[[dict[str, Any]], Any] = dict,
) -> None:
    """A directory with other fields and tensors, for an architecture that transformers lacks.

    ``fields`` changes config.json; ``tensors`` returns those of model.safetensors.
    """
    from safetensors.torch import load_file, save_file

    path, file = folder / "config.json", folder / "model.safetensors"
    values = json.loads(path.read_text())
    fields(values)
    path.write_text(json.dumps(values))
    save_file({name: each.clone() for name, each in tensors(load_file(file)).items()}, file)


def relative(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    """Largest difference over the range of the logits."""
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))
