"""Compares quantised mixtures with llama.cpp: do rows differ because other experts were chosen, and why?

    python tools/compare_experts.py [--models NAME ...] [--types Q4_K Q8_0] [--seeds N] [--out FILE.md]

Three computations with the same quantised weights are compared: llama.cpp's; aleator's; and the exact one,
which is llama.cpp's with the dequantised weights in float32.  Both engines round activations to int8, each in
its own way, so both deviate a little from the exact one.  If two experts' scores are closer than that, another
expert is chosen, and the row differs by an expert's output.  Per model and type the table shows: in how many
rows and layers experts differ; the deviation of logits in rows before which all experts are the same, and in
the others; and how far apart the scores were when experts first differed, beside their general deviation.

Needs llama-cpp-python (the extra ``bench``), and PyTorch: the form in PyTorch shows its routers.
"""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import numpy.typing as npt
import torch
from llama_peer import Context as LlamaContext
from llama_peer import prompt
from run_report import Report, command, parser
from wide_models import MODELS, write_wide

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.config import ExpertsConfig
from aleator.models.layers.ops import TorchOps

Floats = npt.NDArray[np.float32]
MIXTURES = [
    "mixtral", "qwen2moe", "qwen3moe", "ernie4_5-moe", "hunyuan-moe", "granitemoe", "gpt-oss", "deepseek2",
    "llama4", "jamba-experts", "qwen3next", "qwen35moe", "granitehybrid-experts", "lfm2moe",
]  # fmt: skip
N_TOKENS = 48
BY_LOGITS = ("gpt-oss", "llama4")
"""Architectures whose experts are chosen by the router's logits, not by scores computed from them."""
_NAMES = ("ffn_moe_topk", "ffn_moe_logits", "ffn_moe_probs", "ffn_moe_probs_biased")


class _Tensor(ctypes.Structure):
    """ggml's tensor, as far as its name."""

    _fields_ = (
        ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
    )  # fmt: skip


@dataclass
class Run:
    """The results of one computation.

    Attributes:
        logits: float32 [tokens, vocabulary].
        scores: for each layer with experts, the scores that choose them, float32 [tokens, experts].
        chosen: for each layer, whether a token goes through an expert, [tokens, experts].
    """

    logits: Floats
    scores: list[Floats] = field(default_factory=list)
    chosen: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def add(self, scores: Floats, chosen: npt.NDArray[Any]) -> None:
        """Add one layer's scores and choices."""
        taken = np.zeros(scores.shape, bool)
        np.put_along_axis(taken, chosen.astype(np.int64), True, 1)
        self.scores.append(scores)
        self.chosen.append(taken)


class Watched(LlamaContext):
    """llama.cpp with a callback that reads its routers' tensors."""

    def __init__(self, path: Path) -> None:
        self.found: dict[str, npt.NDArray[Any]] = {}
        self._callback = ctypes.CFUNCTYPE(
            ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p
        )(self._look)
        super().__init__(path)

    def parameters(self) -> Any:
        """The context's parameters, with the callback."""
        params = super().parameters()
        params.cb_eval = ctypes.cast(self._callback, type(params.cb_eval))
        return params

    def _look(self, at: int, ask: bool, _: int | None) -> bool:
        tensor = _Tensor.from_address(at)
        name = tensor.name.decode()
        if name.rpartition("-")[0] not in _NAMES:
            return not ask
        if not ask:
            width, tokens = tensor.ne[0], tensor.ne[1]
            kind = np.int32 if "topk" in name else np.float32
            rows = [
                np.ctypeslib.as_array((ctypes.c_int32 * width).from_address(tensor.data + t * tensor.nb[1]))
                for t in range(tokens)
            ]  # fmt: skip
            self.found[name] = np.stack(rows).view(kind).copy()
        return True


def theirs(path: Path, tokens: Sequence[int], arch: str) -> Run:
    """llama.cpp's results."""
    llama = Watched(path)
    made = Run(llama.prefill(tokens))
    llama.close()
    layers = sorted(int(name.split("-")[1]) for name in llama.found if "topk" in name)
    for layer in layers:
        by = "ffn_moe_logits" if arch == "llama4" else "ffn_moe_probs"
        scores = llama.found.get(f"ffn_moe_probs_biased-{layer}", llama.found[f"{by}-{layer}"])
        made.add(scores, llama.found[f"ffn_moe_topk-{layer}"])
    return made


@contextmanager
def _seen(made: Run, arch: str) -> Iterator[None]:
    """Add the routers' tensors to ``made`` while the block runs."""
    route = TorchOps.route

    def watched(
        self: TorchOps,
        logits: torch.Tensor,
        config: ExpertsConfig,
        choice_bias: torch.Tensor | None,
        scales: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, weights = route(self, logits, config, choice_bias, scales)
        scores = logits
        if arch not in BY_LOGITS:
            scores = logits.sigmoid() if config.scores == "sigmoid" else logits.softmax(-1)
        if choice_bias is not None:
            scores = scores + choice_bias
        made.add(scores.numpy().copy(), chosen.numpy())
        return chosen, weights

    with mock.patch.object(TorchOps, "route", watched):
        yield


def ours(path: Path, tokens: Sequence[int], arch: str) -> Run:
    """Aleator's: experts of the form in PyTorch, logits of the native one."""
    made = Run(np.empty((0, 0), np.float32))
    for form in ("torch", "native"):
        decoder = build_decoder(open_weights(path), form=form)
        options: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
        context = Context(decoder, n_ctx=256, n_ubatch=64, n_threads=1, **options)
        with _seen(made, arch):
            made.logits = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    return made


def dequantised(path: Path, to: Path) -> Path:
    """A copy of the model with every matrix dequantised to float32."""
    reader = gguf.GGUFReader(path)
    name = reader.fields["general.architecture"].contents()
    w = gguf.GGUFWriter(str(to), name)
    for key, f in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            inner = f.types[1] if len(f.types) > 1 else None
            w.add_key_value(key, f.contents(), f.types[0], inner)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        w.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return to


@dataclass
class Compared:
    """Two computations of the same rows, over all seeds.

    Attributes:
        rows: number of rows.
        with_others: number of rows in which another expert was chosen in some layer.
        same: largest difference of logits over their range, in rows up to which all experts are the same.
        other: the same in the other rows.
        noise: largest difference of the choosing scores while all experts are the same.
        gaps: differences of two experts' scores where another one was first chosen.
    """

    rows: int = 0
    with_others: int = 0
    same: float = 0.0
    other: float = 0.0
    noise: float = 0.0
    gaps: list[float] = field(default_factory=list)

    def add(self, a: Run, b: Run) -> None:
        """Compare one text."""
        far = np.abs(a.logits - b.logits).max(1) / (b.logits.max() - b.logits.min())
        differ = np.stack([(x != y).any(1) for x, y in zip(a.chosen, b.chosen, strict=True)])
        # A row sees those before it, from the layer after the one where they differ.
        reached = np.logical_or.accumulate(np.logical_or.accumulate(differ, 0), 1)
        clean = ~reached[-1]
        self.rows += len(far)
        self.with_others += int(differ.any(0).sum())
        self.same = max(self.same, float(far[clean].max(initial=0)))
        self.other = max(self.other, float(far[~clean].max(initial=0)))
        for layer, (x, y) in enumerate(zip(a.scores, b.scores, strict=True)):
            usable = ~reached[layer - 1] if layer else np.ones(len(far), bool)
            self.noise = max(self.noise, float(np.abs(x - y)[usable].max(initial=0)))
            for row in np.flatnonzero(usable & differ[layer]):
                mine = a.chosen[layer][row] & ~b.chosen[layer][row]
                other = b.chosen[layer][row] & ~a.chosen[layer][row]
                self.gaps.append(float(x[row][mine].min() - x[row][other].max()))

    def cells(self) -> str:
        """The cells of a table's row."""
        gap = f"{max(np.abs(self.gaps)):.4f}" if self.gaps else "-"
        numbers = f"{self.same:.4f} | {self.other:.4f} | {self.noise:.4f}"
        return f"{self.with_others} of {self.rows} | {numbers} | {gap}"


def main() -> None:
    asked = parser(__doc__, out="Markdown with the table")
    asked.add_argument("--models", nargs="+", choices=MIXTURES, default=MIXTURES)
    asked.add_argument("--types", nargs="+", default=["Q4_K", "Q8_0"])
    asked.add_argument("--seeds", type=int, default=3)
    args = asked.parse_args()
    torch.set_num_threads(1)
    report = Report("Other experts", f"    {command(__file__)}")
    report.table(
        "model", "type", "compared", "rows with other experts:", "logits off, same experts:",
        "logits off, others:", "scores off, same experts:",
        "scores farthest apart where another was chosen:",
    )  # fmt: skip
    for name, kind in itertools.product(args.models, args.types):
        pairs = {
            "aleator, llama.cpp": Compared(), "llama.cpp, exact": Compared(), "aleator, exact": Compared()
        }  # fmt: skip
        for seed in range(args.seeds):
            spec = replace(MODELS[name], seed=100 + seed)
            tokens = prompt(spec.n_vocab, N_TOKENS, seed)
            with tempfile.TemporaryDirectory() as folder:
                path = write_wide(Path(folder) / "m.gguf", spec, kind)
                a, b = ours(path, tokens, spec.arch), theirs(path, tokens, spec.arch)
                whole = dequantised(path, Path(folder) / "exact.gguf")
                exact = theirs(whole, tokens, spec.arch)
            for pair, runs in zip(pairs.values(), ((a, b), (b, exact), (a, exact)), strict=True):
                pair.add(*runs)
        for what, pair in pairs.items():
            report.row(name, kind, what, pair.cells())
    report.write(args.out)


if __name__ == "__main__":
    main()
