"""How many kernels a layer launches in a step of a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor
from wide_models import write_wide

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.block import Block
from aleator.models.layers.recurrent import DeltaNetLayer, HeadSpaceLayer, MambaLayer
from aleator.models.torch_decoder import TorchDecoder
from tests.models.kernels.test_decoder import SPECS

pytestmark = [
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
VIEWS = (
    "view", "empty", "slice", "select.int", "expand", "t.default", "transpose", "alias", "detach", "split",
    "unsqueeze", "unbind", "as_strided", "permute", "chunk", "reshape", "lift_fresh", "to.d", "resolve",
    "flatten",
)  # fmt: skip
"""What of PyTorch launches nothing; a reshape or conversion that copies shows as a copy too."""


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is launched while a layer is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of_layers: list[list[str]] = []
        self.found: list[str] | None = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(function).removeprefix("aten.")
        if self.found is not None and not name.startswith(VIEWS):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "kind", "cache", "most", "guesses"),
    [
        ("llama", "Q4_K", "f16", 5, 6),
        ("qwen3", "Q8_0", "q8_0", 5, 6),
        ("gpt2", "F32", "bf16", 5, 6),
        ("llama", "BF16", "f16", 5, 6),
        ("llama4", "Q8_0", "f16", 6, 7),
        ("mpt", "Q5_0", "f16", 5, 6),
        ("minicpm3", "Q8_0", "f16", 6, 7),
        ("plm", "BF16", "q8_0", 6, 7),
        ("deepseek2-heads", "Q8_0", "bf16", 7, 8),
        ("mistral4", "Q8_0", "f16", 7, 7),
        ("mistral4-growing", "Q8_0", "f16", 7, 7),
        ("deepseek2", "BF16", "q8_0", 7, 7),
        ("gemma2", "Q8_0", "f16", 5, 6),
        ("olmo2", "F16", "f16", 5, 6),
        ("gemma4", "Q4_0", "f16", 5, 6),
        ("gemma4-layer-embeddings", "Q4_0", "f16", 7, 8),
        ("gemma4-experts", "Q8_0", "f16", 6, 7),
        ("falcon-h1", "Q8_0", "f16", 6, 6),
        ("olmoe", "Q8_0", "f16", 6, 7),
        ("qwen35", "Q8_0", "f16", 6, 6),
        ("qwen35moe", "Q4_0", "f16", 7, 7),
        ("kimi-linear", "BF16", "f16", 8, 8),
        ("jamba", "Q8_0", "f16", 6, 6),
        ("jamba-experts", "Q8_0", "f16", 7, 7),
    ],
)
def test_layers_are_few_launches(
    name: str, kind: str, cache: str, most: int, guesses: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """``most``: of one token, and of 16 sequences' tokens; ``guesses``: of 16 tokens of one."""
    launches = Launches()

    def launched(self: Any, *_: Any, **__: Any) -> None:
        """A kernel, which is only counted."""
        if launches.found is not None:
            launches.found.append(self.fn.__name__)

    def watched(layer: Any) -> Any:
        def computed(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            launches.found = []
            with launches:
                made = layer(self, *args, **kwargs)
            launches.of_layers.append(launches.found)
            launches.found = None
            return made

        return computed

    monkeypatch.setattr(GridExecutor, "__call__", launched)
    layers: tuple[Any, ...] = Block, DeltaNetLayer, HeadSpaceLayer, MambaLayer
    for each in layers:
        monkeypatch.setattr(each, "__call__", watched(each.__call__))
    path = write_wide(tmp_path / "model.gguf", SPECS[name], kind)
    decoder = build_decoder(open_weights(path), form="triton")
    how: Any = {"type_k": cache, "type_v": cache, "n_threads": 1, "n_seq_max": 17}
    context = Context(decoder, n_ctx=64, n_ubatch=16, **how)
    ids = np.random.default_rng(1).integers(0, decoder.config.n_vocab, 17)
    whole = [(i, 0) for i in range(17)]
    for step in (whole[:1], [(0, i) for i in range(1, 17)], whole[1:]):
        batch = Batch()
        for i, sequence in step:
            batch.add(int(ids[i]), i, [sequence], logits=True)
        context.decode(batch)
    assert isinstance(decoder, TorchDecoder)
    n = len(decoder.layers)
    assert len(launches.of_layers) == 3 * n
    for i, found in enumerate(launches.of_layers):
        assert len(found) <= (most if i < 2 * n else guesses), found
