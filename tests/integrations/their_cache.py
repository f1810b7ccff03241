"""A plug-in of pytest: transformers' own tests, with AleatorCache where they make a DynamicCache.

``pytest -p tests.integrations.their_cache FILE``.  The environment variable ``THEIR_CACHE`` is "aleator", or
"dynamic" for their own.  Each test's outcome is a line of JSON in the file that ``THEIR_CACHE_REPORT`` names,
with the texts that it generated and how many caches it made.  ``THEIR_MODELS``, ``NAME=FILE.gguf``, has a model
of the hub loaded from a file, where the hub cannot be reached.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, Cache, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.generation import GenerationMixin

from aleator.cache import KVCache, LayerShape
from aleator.integrations.transformers_cache import AleatorCache
from aleator.integrations.transformers_layers import windows_of

CELLS, ROWS, LAYERS = 2048, 24, 16
MADE: list[int] = []
TEXTS: list[Any] = []


class LateCache(AleatorCache):
    """An AleatorCache with the arguments of a DynamicCache, whose memory is allocated at the first update.

    Args:
        ddp_cache_data: keys and values of each layer to begin with.
        config: of the model; None: layers without windows.
        offloading: refused.
        offload_only_non_sliding: not used.
    """

    def __init__(
        self,
        ddp_cache_data: Iterable[tuple[torch.Tensor, ...]] | None = None,
        config: Any = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = False,
    ) -> None:
        if offloading:
            pytest.skip("AleatorCache does not offload")
        MADE.append(1)
        windows: list[int | None] = (
            [None] * LAYERS if config is None else windows_of(SimpleNamespace(config=config))
        )
        self._late = True
        self.rows, self._stored, self._windows, self._cells = [], [0] * len(windows), windows, []
        if config is None:
            Cache.__init__(self, layer_class_to_replicate=DynamicLayer)
        else:
            Cache.__init__(self, layers=DynamicCache(config=config).layers)
        for layer, (keys, values) in enumerate(ddp_cache_data or ()):
            self.update(keys, values, layer)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *a: Any,
        **k: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate at the first call."""
        if self._late:
            self._late = False
            shape = LayerShape(key_states.shape[1], key_states.shape[3], value_states.shape[3])
            kv = KVCache(
                [shape] * len(self._windows), CELLS, n_seq_max=2 * ROWS, type_k="f32", type_v="f32"
            )
            self._begin(kv, ROWS, self._windows)
        return super().update(key_states, value_states, layer_idx)


def replace_caches(module: Any) -> None:
    """Let a module make LateCaches."""
    if vars(module).get("DynamicCache") is DynamicCache:
        module.DynamicCache = LateCache


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replace their cache in transformers' modules and in the tests'."""
    if os.environ["THEIR_CACHE"] == "aleator":
        for module in [m for name, m in sys.modules.items() if name.startswith("transformers.")]:
            replace_caches(module)
        replace_caches(transformers)
        for item in items:
            if isinstance(item, pytest.Function):
                replace_caches(item.module)


def load_from_file() -> None:
    """Let transformers load the model that THEIR_MODELS names from its file."""
    name, _, file = os.environ.get("THEIR_MODELS", "").partition("=")
    for kind in (AutoModelForCausalLM, AutoTokenizer) if name else ():
        plain = kind.from_pretrained

        def load(given: str, *args: Any, plain: Any = plain, **options: Any) -> Any:
            if given != name:
                return plain(given, *args, **options)
            return plain(Path(file).parent, *args, gguf_file=Path(file).name, **options)

        kind.from_pretrained = load


def pytest_configure() -> None:
    """Before their files are read."""
    load_from_file()


@pytest.fixture(autouse=True)
def texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the token ids that a test generates."""
    generate = GenerationMixin.generate

    def keeping(self: Any, *given: Any, **options: Any) -> Any:
        out = generate(self, *given, **options)
        TEXTS.append(getattr(out, "sequences", out).tolist())
        return out

    monkeypatch.setattr(GenerationMixin, "generate", keeping)
    yield
    MADE.clear()
    TEXTS.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Write a line for a test that was run, or could not be set up."""
    report = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        why = str(call.excinfo.value).strip().splitlines()[:1] if call.excinfo else []
        line = {
            "name": item.nodeid.rpartition("::")[2],
            "outcome": report.outcome,
            "why": "".join(why)[:160],
            "texts": list(TEXTS),
            "caches": len(MADE),
        }
        with Path(os.environ["THEIR_CACHE_REPORT"]).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report
